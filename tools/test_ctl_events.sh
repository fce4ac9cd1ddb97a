#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ckptctl and the real ckptd: what happened, as it is told to people.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
needs_daemon

preload=
if nm -D "$build/.libs/libckpt.so" | grep -q __asan; then
	preload=$(gcc -print-file-name=libasan.so)
	export ASAN_OPTIONS=detect_leaks=0
fi

# python CODE [ARGUMENTS]: with the binding, and $sock.
python () {
	env LD_PRELOAD="$preload" PYTHONPATH="$src/python" PYTHONDONTWRITEBYTECODE=1 \
		CKPT_SOCKET="$sock" CKPT_LIBRARY="$build/.libs/libckpt.so" /usr/bin/python3 -c "$@"
}
# event CODE: the newest answer has an event e of which CODE is true.
event () {
	json "assert any($1 for e in d[\"events\"]), d[\"events\"]"
}
# until COMMAND...: it comes true, in a minute.
until_true () {
	for i in $(seq 600); do
		! "$@" 2>/dev/null || return 0
		sleep 0.1
	done
	fail "never: $*"
}

# ---- What is kept

run 2 events --socket "$sock"
says err "cannot reach ckptd"
start_daemon
run 2 events --since yesterday --socket "$sock"
says err "give an event's number, how long ago"
python '
import ckpt
ckpt.open("lm", 0, 1, run_id="one").close()'
run 0 events --json --socket "$sock"
json 'assert [e["seq"] for e in d["events"]] == list(range(1, d["next"])) and d["dropped"] == 0'
event 'e["kind"] == "started" and e["seq"] == 1'
event 'e["kind"] == "job-began" and e["subject"] == {"kind": "job", "job": "lm", "words": "job '"'lm'"'"} and e["world"] == 1 and e["run_id"] == "one"'
event 'e["kind"] == "job-ended"'
run 0 events --socket "$sock"
says out "job 'lm': epoch 1 begins with 1 rank (new run)"
lines=$(wc -l <"$dir/out")
run 0 events --since 2 --socket "$sock"
[ "$(wc -l <"$dir/out")" = $((lines - 1)) ] || fail "--since 2: $(cat "$dir/out")"
run 0 events --since 1h --socket "$sock"
[ "$(wc -l <"$dir/out")" = "$lines" ] || fail "--since 1h: $(cat "$dir/out")"
run 0 events --since '2038-01-01 10:00' --socket "$sock"
silent out

# A rank that is killed: it is told who and how, and when its job begins again, that it is over.
python '
import ckpt, os, signal
c = ckpt.open("lm", 0, 1, run_id="killed")
os.kill(os.getpid(), signal.SIGKILL)'
dead () {
	ctl events --json --socket "$sock" >"$dir/out" && grep -q "$1" "$dir/out"
}
until_true dead process-ended
run 0 events --json --socket "$sock"
event 'e["kind"] == "verdict" and e["subject"]["kind"] == "rank" and e["subject"]["rank"] == 0 and e["subject"]["job"] == "lm" and e["class"] == "dead" and e["cause"] == "process-ended" and e["level"] == "alarm" and e["state"] == "raised" and e["evidence"] and "SIGKILL" in e["why"]'
run 0 events --socket "$sock"
says out "SIGKILL"
python '
import ckpt
ckpt.open("lm", 0, 1, run_id="again").close()'
run 0 events --json --socket "$sock"
event 'e["kind"] == "verdict" and e["state"] == "cleared" and e["subject"]["rank"] == 0'

# Over a restart numbers go on, also when the last line was torn.
until_true grep -q job-ended "$data/events"
stop_daemon
printf '{"seq":4,"time_ns":1,"ki' >>"$data/events"
start_daemon
run 0 events --json --socket "$sock"
json 'assert [e["seq"] for e in d["events"]] == list(range(1, d["next"])), d
assert [e["kind"] for e in d["events"]].count("started") == 2'
run 0 verify --data "$data"
lacks out events

# ---- What happens

ctl events --follow --json --socket "$sock" >"$dir/followed" 2>"$dir/follow.log" &
trainer=$!
sleep 0.2
python '
import ckpt
ckpt.open("lm", 0, 1, run_id="two").close()'
until_true grep -q '"kind":"job-ended","severity":6,.*"run_id":"two"' "$dir/followed"
kill $trainer
wait $trainer
trainer=
[ -s "$dir/follow.log" ] && fail "events --follow: $(cat "$dir/follow.log")"
ctl events --follow --socket "$sock" >"$dir/followed" 2>"$dir/follow.log" &
trainer=$!
until_true grep -q "epoch 4 begins" "$dir/followed"
stop_daemon
wait $trainer
[ $? = 2 ] || fail "events --follow goes on without ckptd"
trainer=
grep -q "ended the connection" "$dir/follow.log" || fail "events --follow: $(cat "$dir/follow.log")"

[ $failed = 0 ] && echo "ok events: $checks checks"
exit $failed
