#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The data folder goes while ckptd is away: what only memory has waits until that folder is back.
# ckptctl reads no other folder than the one that ckptd works in. And what status says of a
# configuration that cannot be used.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
needs_daemon

preload=
if nm -D "$build/.libs/libckpt.so" | grep -q __asan; then
	preload=$(gcc -print-file-name=libasan.so)
	export ASAN_OPTIONS=detect_leaks=0
fi

# await FILE WORDS COUNT: until the file has the words so many times.
await () {
	for i in $(seq 600); do
		[ "$(grep -c -- "$2" "$1")" -lt "$3" ] || return 0
		kill -0 $daemon || break
		sleep 0.1
	done
	echo "not '$2' ($3 times) in $1:"
	cat "$dir/log"
	exit 1
}
kill_ckptd () { kill -KILL "$(cat "$1/LOCK")"; }
is_kept () {
	run 0 list memtwo --json --socket "$sock"
	json 'c = step("memtwo", 4); assert c["state"] == "committed" and c["memory"], c
assert c["disk"] != "durable", c'
}

printf '' >"$dir/ckptd.conf"
start_daemon --config "$dir/ckptd.conf" --set checkpoint.persist_every=1000000
id=$(cat "$data/ID")
run 0 status --json --socket "$sock"
says out "\"data_id\": \"$id\""

: >"$dir/did" # before the shell of the job makes it
env LD_PRELOAD="$preload" PYTHONPATH="$src/python" PYTHONDONTWRITEBYTECODE=1 CKPT_SOCKET="$sock" \
	CKPT_LIBRARY="$build/.libs/libckpt.so" /usr/bin/python3 - >"$dir/did" 2>&1 <<'PY' &
import ckpt, ctypes, signal
c = ckpt.open("memtwo", 0, 1, run_id="one")
t = (ctypes.c_float * 64)()
c.declare("w", (ctypes.addressof(t), "float32", (64,)))
c.prepare()
assert c.save(4, wait_credit=True, timeout=60).wait(ckpt.COMMITTED, timeout=60)
print("saved", flush=True)
signal.pause()
PY
trainer=$!
await "$dir/did" saved 1
is_kept

# ---- Another folder has its name, as an empty mount point does

mv "$data" "$dir/away"
mkdir "$data"
kill_ckptd "$dir/away"
await "$dir/log" "jobs of the data folder whose id is $id, and this folder has no id" 2
[ -z "$(ls "$data")" ] || fail "it made something in the empty folder: $(ls "$data")"

# No folder has its name: none is made.
rmdir "$data"
await "$dir/log" "data folder '$data' cannot be found" 2
[ ! -e "$data" ] || fail "it made another data folder"

mv "$dir/away" "$data"
await "$dir/log" ' ready: ' 2
is_kept
[ "$(cat "$data/ID")" = "$id" ] || fail "the folder has another id"

# ---- ckptctl finds another folder under the name that ckptd said

run 0 verify --socket "$sock"
mv "$data" "$dir/away"
mkdir "$data"
run 2 verify --socket "$sock"
says err "is not the one that ckptd works in (its id is none, ckptd's folder has $id)"
env CKPT_SOCKET="$sock" "$build/ckptctl" verify >"$dir/out" 2>"$dir/err" && fail "by CKPT_SOCKET"
says err "is not the one that ckptd works in"
rmdir "$data"
mv "$dir/away" "$data"
run 0 verify --socket "$sock"

# ---- A configuration that cannot be used

printf '[log]\nlevel = loud\n' >"$dir/ckptd.conf"
kill -HUP $daemon
await "$dir/log" "stays as it was: .*log.level = 'loud'" 1
run 1 status --socket "$sock"
says out "PROBLEM: the configuration as it is now cannot be used"
says out "ckptd.conf:2: log.level = 'loud'"
printf '' >"$dir/ckptd.conf"
kill -HUP $daemon
for i in $(seq 100); do
	! ctl status --socket "$sock" | grep -q 'cannot be used' || { sleep 0.1; continue; }
	break
done
ctl status --socket "$sock" >"$dir/out"
! grep 'cannot be used' "$dir/out" || fail "the problem stays"

kill $trainer
wait $trainer
trainer=
stop_daemon
ending 12
