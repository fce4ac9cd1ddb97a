#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Several users' jobs of one name, and the ckptd of a node: what root is told, and what each user
# sees and removes.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
needs_daemon
requires test "$(id -u)" = 0
requires command -v setpriv
preload=
if nm -D "$build/.libs/libckpt.so" | grep -q __asan; then
	preload=$(gcc -print-file-name=libasan.so)
	export ASAN_OPTIONS=detect_leaks=0
fi

# What other users need lies where they can read it.
chmod 755 "$dir"
mkdir "$dir/open"
cp -rL "$build/ckptctl" "$src/python/ckpt" "$build/.libs/libckpt.so" "$dir/open/"
sock=$dir/open/sock
cat >"$dir/open/train.py" <<'PY'
import ctypes, sys
import ckpt
with ckpt.open(sys.argv[1], 0, 1) as c:
    if len(sys.argv) > 2:
        t = (ctypes.c_float * 1000)(*([3.0] * 1000))
        c.declare("w", (ctypes.addressof(t), "float32", (1000,)))
        c.load()
        c.beat(1)
        assert c.save(int(sys.argv[2]), wait_credit=True, timeout=60).wait(ckpt.DURABLE, timeout=60)
PY
chmod -R a+rX "$dir/open"
# as UID COMMAND...
as () {
	uid=$1
	shift
	setpriv --reuid="$uid" --regid="$uid" --clear-groups env HOME=/ LD_PRELOAD="$preload" PYTHONPATH="$dir/open" \
		PYTHONDONTWRITEBYTECODE=1 CKPT_SOCKET="$sock" CKPT_LIBRARY="$dir/open/libckpt.so" "$@"
}
# run_as UID STATUS ARGUMENTS...: like run.
run_as () {
	uid=$1 want=$2
	shift 2
	as "$uid" "$dir/open/ckptctl" "$@" >"$dir/out" 2>"$dir/err" </dev/null
	got=$?
	checks=$((checks + 1))
	[ $got = "$want" ] || { fail "$uid: $*: $got instead of $want"; cat "$dir/out" "$dir/err"; }
}

mkdir -p "$data"
"$build/ckptd/ckptd" --config /dev/null --socket "$sock" --data "$data" \
	--set detect.kernel=no >>"$dir/log" 2>&1 &
daemon=$!
for i in $(seq 600); do
	ctl --json status --socket "$sock" >"$dir/out" 2>&1
	! grep -q '"ready": true' "$dir/out" || break
	sleep 0.1
done
chmod 666 "$sock"
as 65533 /usr/bin/python3 "$dir/open/train.py" same 7 || fail "train as 65533: $(cat "$dir/log")"
as 65532 /usr/bin/python3 "$dir/open/train.py" same 9 || fail "train as 65532"
as 65532 /usr/bin/python3 "$dir/open/train.py" other 1 || fail "train as 65532"
named=$(id -u daemon) # its user has a name
as "$named" /usr/bin/python3 "$dir/open/train.py" sole 3 || fail "train as daemon"
as 65533 /usr/bin/python3 "$dir/open/train.py" bare || fail "train as 65533"

# ---- A user by name

run 0 show daemon/sole --socket "$sock"
run 0 list daemon/sole --data "$data"
run 0 verify daemon/sole 3 --data "$data"
run 0 pin daemon/sole 3 --socket "$sock"
run 0 unpin "$named/sole" 3 --socket "$sock"
run 0 why daemon/sole:0 --socket "$sock"
run 2 show daemon/same --socket "$sock"
run 2 show noone-here/sole --socket "$sock"
says err "there is no job 'noone-here/sole'"
run 0 rm-job daemon/sole --yes --socket "$sock"

# ---- Root is not answered for one of them

for verb in "why same" "why same:0" "show same" "goodput same" "clear same" "token same"; do
	run 2 $verb --socket "$sock"
	says err "users have a job 'same': name one as UID/NAME ("
	says err "65533/same"
	says err "65532/same"
done
run 0 why 65532/same --socket "$sock" --json
json 'w = [e["words"] for e in d["events"]]; assert w and {e["uid"] for e in d["events"] if "uid" in e} == {65532}, d'
run 0 why 65533/same:0 --socket "$sock"
run 0 show 65533/same --socket "$sock" --json
json 'assert d["uid"] == 65533 and d["checkpoint"]["step"] == 7' 
run 0 why other --socket "$sock" # one user's alone
run_as 65533 0 why same --json # its own
json 'assert {e["uid"] for e in d["events"] if "uid" in e} == {65533}'
run 0 list --socket "$sock"
says out "65533/same"
says out "65532/other"
run 0 list --socket "$sock" -q
says out "65532/same 9."
for where in "--socket $sock" "--data $data"; do
	run 0 gc --dry-run $where
	says out "65533/same"
	says out "65532/other"
	run 0 gc --dry-run --json $where
	json 'assert sorted(j["uid"] for j in d["jobs"] if j["plan"]) == [65532, 65532, 65533], d'
	run 0 gc other --dry-run $where # one user's alone
	lacks out "65532/"
done
run_as 65532 0 list
lacks out "65532/"
says out "same"

# ---- What refuses on the first day says what to do

chmod 600 "$sock"
run_as 65532 2 list
says err "its owner 'root' alone may; or name another one with --socket PATH"
chmod 660 "$sock"
chgrp 0 "$sock"
run_as 65532 2 list
says err "its group 'root' alone may: as root, 'groupadd --system ckptd', restart ckptd"
chgrp daemon "$sock"
run_as 65532 2 list
says err "its group 'daemon' alone may: root lets a user in with 'adduser USER daemon'"
as 65532 /usr/bin/python3 "$dir/open/train.py" same 9 2>"$dir/err" && fail "it was let in"
says err "root lets a user in with \`adduser USER daemon\`"
chmod 666 "$sock"
run 1 rm 65532/same 9 --yes --socket "$sock"
says err "remove the whole job with 'ckptctl rm-job 65532/same'"
run_as 65532 1 rm same 9 --yes
says err "remove the whole job with 'ckptctl rm-job same'"
run 2 rm 65532/same 77 --yes --socket "$sock"
says err "'ckptctl list 65532/same' shows what it has"
run 0 pin 65532/same 9 --socket "$sock"
run 1 rm-job 65532/same --yes --socket "$sock"
says err "'ckptctl unpin 65532/same 9' first"
run 0 unpin 65532/same 9 --socket "$sock"
mkdir "$dir/open/of-65533"
chown 65533 "$dir/open/of-65533"
cp "$build/ckptd/ckptd" "$dir/open/ckptd"
chmod 755 "$dir/open/ckptd"
chmod 700 "$dir/open/of-65533"
as 65532 "$dir/open/ckptd" --user --socket "$dir/no" --data "$dir/open/of-65533" >"$dir/err" 2>&1
says err "run it as user 65533, or name another folder with --data"
mkdir "$dir/open/of-all" && chown 65532 "$dir/open/of-all"
as 65532 "$dir/open/ckptd" --user --socket "$dir/no" --data "$dir/open/of-all/data" >"$dir/err" 2>&1
says err "cannot make socket '$dir/no': Permission denied: make its folder, or be one that may write there, or name another one with --socket"

# ---- Each removes its own, also one without checkpoints

run_as 65532 2 rm-job 65533/same --yes
says err "there is no job '65533/same' of yours here"
run_as 65533 0 rm-job bare --yes
run_as 65533 0 rm-job same --yes
run 0 list same --socket "$sock" --json
json 'assert [j["uid"] for j in d["jobs"]] == [65532]'
run 0 rm-job 65532/same --yes --socket "$sock"
run 2 why same --socket "$sock"
run 2 why othr --socket "$sock"
says err "nothing here is called 'othr' (did you mean 'other'?)"
[ "$(ls "$data/jobs" | wc -l)" = 1 ] || fail "$(ls "$data/jobs" | wc -l) jobs are left"
stop_daemon
ending 46
