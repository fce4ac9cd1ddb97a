#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# events, why and goodput of a data folder without a ckptd: what the one that ran there answered, as
# far as its files have it.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
needs_daemon

cat >"$dir/train.py" <<'PY'
import ctypes, time
import ckpt
c = ckpt.open("run7", 0, 1)
t = (ctypes.c_float * 1000)(*([3.0] * 1000))
c.declare("w", (ctypes.addressof(t), "float32", (1000,)))
c.load()
for step in range(1, 6):
    c.beat(step)
    assert c.save(step, wait_credit=True, timeout=60).wait(ckpt.DURABLE, timeout=60)
print("saved", flush=True)
time.sleep(600)
PY
preload=
if nm -D "$build/.libs/libckpt.so" | grep -q __asan; then
	preload=$(gcc -print-file-name=libasan.so)
	export ASAN_OPTIONS=detect_leaks=0
fi
start_daemon
env LD_PRELOAD="$preload" PYTHONPATH="$src/python" PYTHONDONTWRITEBYTECODE=1 \
	CKPT_SOCKET="$sock" CKPT_LIBRARY="$build/.libs/libckpt.so" \
	/usr/bin/python3 "$dir/train.py" >"$dir/said" 2>&1 &
trainer=$!
for i in $(seq 600); do
	grep -q saved "$dir/said" && break
	sleep 0.1
done
kill -9 $trainer
wait $trainer
trainer=
for i in $(seq 600); do # the detector has raised its alarm
	ctl why run7 --socket "$sock" >"$dir/out"
	[ $? != 1 ] || break
	sleep 0.1
done
run 0 drain rack --socket "$sock"
for subject in "" run7 run7:0 node; do
	ctl why --json $subject --socket "$sock" >"$dir/why-$subject"
done
run 0 events --json --socket "$sock"
cp "$dir/out" "$dir/events"
run 0 goodput run7 --json --socket "$sock"
cp "$dir/out" "$dir/goodput"
stop_daemon

# same FILE CODE: of the output, d, and what the daemon said, l, CODE holds.
same () {
	file=$1
	shift
	json "import json; l = json.load(open('$file')); $*"
}

run 0 events --json --data "$data"
same "$dir/events" 'assert d["source"] == "files" and len(l["events"]) > 3
assert d["events"][:len(l["events"])] == l["events"] and d["next"] >= l["next"]
assert set(d) == set(l)'
run 0 events --data "$data"
says out "alarm, dead: rank 0 of job run7"
run 0 events --data "$data" --since 2
lacks out "  1    "
run 2 events --data "$data" --follow
says err "--follow waits for what a running ckptd says"

for subject in "" run7 run7:0 node; do
	ctl why --json $subject --data "$data" >"$dir/out"
	[ $? = 1 ] || [ "$subject" = node ] || fail "why $subject: no alarm: $(cat "$dir/out")"
	# What keeps a job from being saved only a running ckptd knows.
	same "$dir/why-$subject" 'assert d["source"] == "files" and set(d) == set(l) - {"saves", "problems"}
def told(v): # times of day are of two clocks, and apart by some microseconds
    return {k: [(x["signal"], x["value"]) for x in w] if k == "evidence" else w for k, w in v.items() if not k.endswith("_ns")}
assert [told(v) for v in d["verdicts"]] == [told(v) for v in l["verdicts"]], (d["verdicts"], l["verdicts"])
assert [set(v) for v in d["verdicts"]] == [set(v) for v in l["verdicts"]]
assert (d["subject"] or {}).get("words") == (l["subject"] or {}).get("words")
assert d["drained"] == l["drained"] and d["suspect"] == l["suspect"] and d["node"] == l["node"]
assert [e for e in d["events"] if e in l["events"]] == [e for e in l["events"] if e in d["events"]]
assert l["events"][-1] in d["events"]'
done
run 1 why run7 --data "$data"
says out "rank 0 of job 'run7': dead (process-ended), alarm for "
says out "lately:"
run 2 why nobody --data "$data"
says err "nothing in '$data' is called 'nobody': name its node ("

run 0 goodput run7 --json --data "$data"
same "$dir/goodput" 'assert d["source"] == "files" and set(d) == set(l) and d["id"] == l["id"]
g, h = d["goodput"], l["goodput"]
assert g["steps"] == h["steps"] and set(g["seconds"]) == set(h["seconds"]) and len(g["advice"]) == 2
assert abs(g["seconds"]["training"] - h["seconds"]["training"]) < 1, (g, h)
assert [a["failures"] for a in g["advice"]] == [a["failures"] for a in h["advice"]]'
run 0 goodput run7 --data "$data"
says out "CAUSE"
run 2 goodput nobody --data "$data"
says err "there is no job 'nobody' in '$data'"
rm "$data"/jobs/*/goodput
run 2 goodput run7 --data "$data"
says err "no ckptd has kept what the time of job 'run7' went to"
ending 28
