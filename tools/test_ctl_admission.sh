#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ckptctl, the real ckptd and the real node check: the check before the first open.
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
opens () {
	python '
import ckpt, sys
try:
    ckpt.open(sys.argv[1], 0, 1, run_id="x").close()
except ckpt.Error as e:
    print(e)' "$1" 2>&1
}
# event CODE: an event e of which CODE is true.
event () {
	run 0 events --json --socket "$sock"
	json "assert any($1 for e in d[\"events\"]), d[\"events\"]"
}
until_true () {
	for i in $(seq 600); do
		! "$@" 2>/dev/null || return 0
		sleep 0.1
	done
	fail "never: $*"
}
state_is () {
	ctl status --json --socket "$sock" >"$dir/out" && grep -q "\"state\": \"$1\"" "$dir/out"
}

# with CHECK: what a ckptd of this test is told.
with () {
	cat >"$dir/ckptd.conf" <<-CONF
	[detect]
	check = $1
	check_time = 20s
	admission = yes
	kernel = no
	CONF
}
cat >"$dir/check" <<'SH'
#!/bin/sh
cd "$(dirname "$0")"
while [ ! -e go ]; do sleep 0.1; done
echo '{"results": [{"name": "memory-copy", "state": "failed", "words": "half as fast as others"}]}'
exit 1
SH
chmod +x "$dir/check"

# ---- ckptctl's own: what this machine is worth is not asked, it comes to an end and is told

with "$(cd "$build" && pwd)/ckptctl"
start_daemon --config "$dir/ckptd.conf"
answer=$(opens lm)
event 'e["kind"] == "check-ended"'
[ "$(wc -l <"$data/checks/history")" = 1 ] || fail "history: $(cat "$data/checks/history")"
/usr/bin/python3 -c '
import json, sys
run = json.loads(open(sys.argv[1]).read())
failed = [r for r in run["results"] if r["state"] == "failed"]
assert run["passed"] == (not failed) and len(run["results"]) > 3, run
assert ("is not admitted" in sys.argv[2]) == bool(failed), (run, sys.argv[2])
' "$data/checks/history" "$answer" || fail "the check and the open disagree: $answer"
checks=$((checks + 2))
stop_daemon

# ---- Not fit

with "$dir/check"
start_daemon --config "$dir/ckptd.conf"
run 0 status --socket "$sock"
says out "being checked since"
opens waits >"$dir/answer" &
trainer=$!
sleep 0.5
[ ! -s "$dir/answer" ] || fail "an open did not wait: $(cat "$dir/answer")"
touch "$dir/go"
wait $trainer
trainer=
grep -q "is not admitted (memory-copy: half as fast as others)" "$dir/answer" || fail "$(cat "$dir/answer")"
run 0 status --socket "$sock"
says out "not admitted"
says out "(memory-copy: half as fast as others): new runs are refused; 'ckptctl undrain' overrules"
run 0 why --socket "$sock"
says out "is not admitted: memory-copy"
event 'e["kind"] == "drained" and "is not admitted" in e["words"]'
run 0 undrain --socket "$sock"
says out "takes new runs"
[ -z "$(opens waits)" ] || fail "overruled, and: $(opens waits)"
run 0 status --socket "$sock"
says out "whatever its check found"
stop_daemon
start_daemon --config "$dir/ckptd.conf"
until_true state_is refused
run 0 clear node --socket "$sock"
[ -z "$(opens lm)" ] || fail "cleared, and: $(opens lm)"
stop_daemon

# ---- Ranks that train here are not measured, nor sent away

start_daemon --config "$dir/ckptd.conf" --supervise
until_true state_is refused
run 0 undrain --socket "$sock"
python '
import ckpt, time, os, sys
c = ckpt.open("lm", 0, 1, run_id="long")
open(sys.argv[1], "w").close()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.1)' "$dir/in" "$dir/out-again" &
trainer=$!
until_true test -e "$dir/in"
kill -9 "$(pgrep -P $daemon)"
until_true state_is admitted
event 'e["kind"] == "check-ended" and "ranks train here" in e["words"]'
touch "$dir/out-again"
wait $trainer
trainer=
stop_daemon

[ $failed = 0 ] && echo "ok admission: $checks checks"
exit $failed
