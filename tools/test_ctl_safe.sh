#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ckptctl safe, and what status and why say of saves that do not come through: with the real ckptd.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
in_memory () { [ "$(stat -f -c %T "$1")" = tmpfs ]; }
if in_memory "$dir"; then # nothing there counts as on disk
	rmdir "$dir"
	dir=$(mktemp -d /var/tmp/ckpt-ctl.XXXXXX) || exit 99
	export HOME="$dir"
	data=$dir/data
fi
needs_daemon

preload=
if nm -D "$build/.libs/libckpt.so" | grep -q __asan; then
	preload=$(gcc -print-file-name=libasan.so)
	export ASAN_OPTIONS=detect_leaks=0
fi

# A trainer that does what its input says, a line at a time: "save STEP WHAT", "skip STEP", "beat STEP".
cat >"$dir/trainer.py" <<'PY'
import ckpt, ctypes, sys
c = ckpt.open("lm", 0, 1, run_id="one")
t = (ctypes.c_float * 64)()
c.declare("w", (ctypes.addressof(t), "float32", (64,)))
c.prepare()
for line in sys.stdin:
    verb, step, *what = line.split()
    t[0] = int(step)
    if verb == "save":
        assert c.save(int(step), wait_credit=True, timeout=60).wait(getattr(ckpt, what[0]), timeout=60)
    elif verb == "skip":
        c.skip(int(step), "the trainer did not want it")
    elif verb == "beat":
        c.beat(int(step))
    print(line.strip(), flush=True)
c.close()
PY
mkfifo "$dir/in"
start_trainer () {
	env LD_PRELOAD="$preload" PYTHONPATH="$src/python" PYTHONDONTWRITEBYTECODE=1 \
		CKPT_SOCKET="$sock" CKPT_LIBRARY="$build/.libs/libckpt.so" \
		/usr/bin/python3 "$dir/trainer.py" <"$dir/in" >"$dir/did" 2>"$dir/trainer.log" &
	trainer=$!
	exec 9>"$dir/in"
}
# trainer LINE: it has done so.
does () {
	echo "$*" >&9
	for i in $(seq 600); do
		! grep -qFx "$*" "$dir/did" || return 0
		kill -0 $trainer 2>/dev/null || break
		sleep 0.1
	done
	cat "$dir/trainer.log"
	exit 99
}
end_trainer () {
	exec 9>&-
	wait $trainer
	trainer=
}

until_ready () {
	for i in $(seq 600); do
		! ctl --json status --socket "$sock" 2>/dev/null | grep -q '"ready": true' || return 0
		kill -0 $daemon || break
		sleep 0.1
	done
	cat "$dir/log"
	exit 99
}

run 2 safe lm --socket "$sock"
says err "cannot reach ckptd"
run 2 safe --socket "$sock"

# ---- Everything is written

start_daemon --set checkpoint.persist_every=3
run 2 safe lm --socket "$sock"
says err "lm"
start_trainer
does beat 1
run 4 safe lm --socket "$sock"
says out "job 'lm' has done step 1 and has saved nothing"
says out "nothing of it is on disk"
run 4 safe lm --json --socket "$sock"
json 'assert d["result"] == 4 and d["saved"] is None and all(s["step"] is None for s in d["survives"])'
does save 10 DURABLE
run 0 safe lm --socket "$sock"
says out "the newest that is saved is on disk: $data"
says out "job 'lm' has done step 1"
run 0 safe lm -q --socket "$sock"
silent out
run 0 why lm --socket "$sock"
says out "job 'lm': saves work: step 10 was committed "
lacks out "the next save waits"
run 0 status --json --socket "$sock"
json 'j = job("lm"); assert j["problems"] == [] and j["saves"]["running"] and j["saves"]["committed"]["step"] == 10 and j["saves"]["skipped"] == {} and j["saves"]["last_skip"] is None and j["ranks"][0]["skips"] == 0'

# ---- Newer in memory than on disk

does save 20 COMMITTED
does beat 25
run 3 safe lm --socket "$sock"
says out "step 20 is the newest that is saved, step 10 the newest on disk"
run 3 safe lm --json --socket "$sock"
json 'by = {s["if"]: s for s in d["survives"]}; assert not d["data_in_memory"]
assert by["process"]["step"] == 20 and by["process"]["steps_lost"] == 5
assert by["ckptd"]["step"] == 20 and d["memory_kept"]
assert by["node"]["step"] is None and by["node"]["steps_lost"] is None
assert by["power"]["step"] == 10 and by["power"]["steps_lost"] == 15
assert d["now"] == 25 and d["saved"] == 20 and d["result"] == 3'

# ---- Skips are counted, and the end says what they were

does skip 30
run 0 status lm --json --socket "$sock"
json 's = job("lm")["saves"]; assert s["skipped"] == {"caller": 1}, s
last = s["last_skip"]; assert last["step"] == 30 and last["skip"] == "caller" and last["rank"] == 0 and last["reason"], last
assert job("lm")["ranks"][0]["skips"] == 1 and job("lm")["ranks"][0]["last_skip"]["step"] == 30'
run 0 why lm --socket "$sock"
says out "the last save that was not made: step 30 of rank 0"
says out "saves not made since ckptd started, of all ranks: caller 1"

# ---- A rank ends, and the other one trains on: its saves wait for nobody

cat >"$dir/pair.py" <<'PY'
import ckpt, ctypes, os, subprocess, sys, time
rank = int(sys.argv[1])
other = None if rank else subprocess.Popen([sys.executable, sys.argv[0], "1"])
c = ckpt.open("pair", rank, 2, run_id="one")
t = (ctypes.c_float * 64)()
c.declare("w", (ctypes.addressof(t), "float32", (64,)), (128,), (64 * rank,))
c.prepare()
assert c.save(1, wait_credit=True, timeout=60).wait(ckpt.COMMITTED, timeout=60)
if rank:
    os._exit(1)
other.wait()
for step in range(2, 600):
    if "rank 1 has ended" in c.save(step).reason:
        break
    time.sleep(0.1)
c.save(step + 1)
print("left", flush=True)
time.sleep(600)
PY
env LD_PRELOAD="$preload" PYTHONPATH="$src/python" PYTHONDONTWRITEBYTECODE=1 \
	CKPT_SOCKET="$sock" CKPT_LIBRARY="$build/.libs/libckpt.so" \
	/usr/bin/python3 "$dir/pair.py" 0 >"$dir/pair.out" 2>"$dir/pair.log" &
pair=$!
trap 'kill $pair $trainer $daemon 2>/dev/null; wait; rm -rf "$dir"' EXIT
for i in $(seq 600); do
	! grep -q left "$dir/pair.out" || break
	kill -0 $pair 2>/dev/null || { cat "$dir/pair.log"; exit 99; }
	sleep 0.1
done
run 1 why pair --socket "$sock"
says out "no step is saved any more, as rank 1 has ended (left): start the job again: its load goes on from the newest checkpoint"
lacks out "the next save waits"
kill $pair
wait $pair 2>/dev/null
pair=
for i in $(seq 100); do # its end is seen, and then nothing stands
	ctl clear pair --socket "$sock" >"$dir/out" 2>&1
	! ctl status --socket "$sock" >"$dir/out" 2>&1 || break
	sleep 0.1
done
lacks out PROBLEM

# ---- The folder goes

mv "$data" "$data.aside"
does save 40 SEALED
for i in $(seq 100); do
	ctl status lm --socket "$sock" >"$dir/out" 2>&1
	! grep -q "of the log: the data folder '$data' is gone .*(log-unwritable, since " "$dir/out" || break
	sleep 0.1
done
says out "(log-unwritable, since "
says out "PROBLEM: nothing on disk counts: the data folder '$data' is gone"
lacks out "its log: " # the problem says the same
run 1 status lm --json --socket "$sock"
json 'p = job("lm")["problems"]; assert [x["problem"] for x in p] == ["log-unwritable"] and "is gone" in p[0]["why"] and p[0]["since_ns"] > 0
assert job("lm")["saves"]["uncommitted"] == 1'
run 1 why lm --socket "$sock"
says out "log-unwritable: append record"
says out "what to do: saves go on in memory and nothing is committed"
lacks out "the next save waits"
run 4 safe lm --socket "$sock"
says out "step 40 is saved and not committed yet"
says out "nothing on disk counts: the data folder '$data' is gone"
says out "no disk: the data folder is away"
run 4 safe lm --json --socket "$sock"
json 'by = {s["if"]: s["step"] for s in d["survives"]}
assert by["power"] is None and by["node"] is None and by["process"] == 20 and d["data_away"] == "folder" and d["result"] == 4, d'
run 0 events --json --socket "$sock"
json 'e = [e for e in d["events"] if e["kind"] == "problem"]; assert len(e) == 1 and e[0]["problem"] == "log-unwritable" and e[0]["severity"] == 3 and e[0]["subject"]["job"] == "lm", e'
mv "$data.aside" "$data"
for i in $(seq 100); do
	ctl status lm --socket "$sock" >"$dir/out" 2>&1 && break
	sleep 0.1
done
run 0 status lm --socket "$sock"
lacks out PROBLEM
run 0 events --json --socket "$sock"
json 'e = [e for e in d["events"] if e["kind"] == "problem-ended"]; assert len(e) == 1 and e[0]["problem"] == "log-unwritable", e'
does beat 45
end_trainer
run 0 why lm --socket "$sock"
says out "no rank of it runs"
says out "job 'lm': step 40 was committed"

# What it had done counts when it has ended, too.
run 3 safe lm --socket "$sock"
says out "job 'lm' has done step 45; no rank of it sends beats now"
run 3 safe lm --json --socket "$sock"
json 'by = {s["if"]: s for s in d["survives"]}; assert d["now"] == 45 and by["process"]["steps_lost"] == 5, d'

# ---- The folder of one job goes

for i in $(ls "$data/jobs"); do # that of lm: pair has one, too
	! ctl status lm --json --socket "$sock" | grep -q "\"id\": \"$i\"" || id=$i
done
mv "$data/jobs/$id" "$dir/job.aside"
run 4 safe lm --socket "$sock"
says out "no disk: the job's folder is away"
says out "nothing on disk counts: the job's folder '$data/jobs/$id' is gone"
run 1 status lm --socket "$sock"
says out "its folder jobs/$id is gone from the data folder"
run 4 safe lm --json --socket "$sock"
json 'assert d["data_away"] == "job" and d["survives"][3]["step"] is None, d'
mv "$dir/job.aside" "$data/jobs/$id"
run 3 safe lm --json --socket "$sock"
json 'assert d["data_away"] == "" and d["survives"][3]["step"] is not None, d'

# ---- Without an fd store: not --user, which has a supervisor

stop_daemon
"$build/ckptd/ckptd" --socket "$sock" --data "$data" --set detect.kernel=no \
	--set checkpoint.persist_every=3 >>"$dir/log" 2>&1 &
daemon=$!
until_ready
start_trainer
does save 50 COMMITTED
run 3 safe lm --json --socket "$sock"
json 'by = {s["if"]: s for s in d["survives"]}; assert not d["memory_kept"] and by["process"]["step"] == 50 and by["ckptd"]["step"] == by["power"]["step"] == 40, d'
run 3 safe lm --socket "$sock"
says out "disk: no fd store keeps the memory"
end_trainer

# ---- It does not answer: that is said, and it is waited for

kill -STOP $daemon
ctl status --socket "$sock" >"$dir/out" 2>"$dir/err" &
asks=$!
for i in $(seq 100); do
	! grep -q "has not answered" "$dir/err" || break
	sleep 0.1
done
says err "ckptd at '$sock' has not answered for 3 s and is waited for: its process $daemon is in state T (stopped)"
kill -CONT $daemon
wait $asks || fail "status of a ckptd that was stopped for a while: $(cat "$dir/out" "$dir/err")"
says out "lm"
[ "$(grep -c "has not answered" "$dir/err")" = 1 ] || fail "it is said again: $(cat "$dir/err")"
stop_daemon

# ---- ckptd dies with its memory: what is lost is said before anything opens the job

daemon_dies () {
	kill -9 $daemon
	wait $daemon 2>/dev/null
	"$build/ckptd/ckptd" --socket "$sock" --data "$data" --set detect.kernel=no \
		--set checkpoint.persist_every=1000 >>"$dir/log" 2>&1 &
	daemon=$!
	until_ready
}
"$build/ckptd/ckptd" --socket "$sock" --data "$data" --set detect.kernel=no \
	--set checkpoint.persist_every=1000 >>"$dir/log" 2>&1 &
daemon=$!
until_ready
sed -i 's/"lm"/"lj"/' "$dir/trainer.py"
start_trainer
does save 60 DURABLE
does save 70 COMMITTED
does save 80 COMMITTED
run 3 safe lj --socket "$sock"
says out "job 'lj' has called save for step 80, and sends no beats"
end_trainer
daemon_dies
lost="steps 70 to 80, 2 in all, were committed and are lost: neither memory nor files have them; the newest that is left is step 60"
grep -qF "job 'lj': $lost" "$dir/log" || fail "the log does not say what is lost"
run 1 status lj --socket "$sock"
says out "PROBLEM: job 'lj': $lost (lost, since "
says out " ago): 'ckptctl why lj' says what to do"
run 1 status lj --json --socket "$sock"
json 'j = job("lj"); assert [p["problem"] for p in j["problems"]] == ["lost"] and j["problems"][0]["times"] == 2, j["problems"]
assert [(c["step"], c["disk"]) for c in j["checkpoints"]] == [(80, "lost"), (70, "lost"), (60, "durable")], j["checkpoints"]'
run 1 safe lj --socket "$sock"
says out "$lost"
says out "the newest that is left is on disk"
lacks out "memory of this node"
run 1 why lj --socket "$sock"
says out "the failure detector has no verdict against job 'lj'"
lacks out "nothing stands against"
lacks out "epoch 0 is on"
says out "lost: $lost"
run 1 list lj --socket "$sock"
says out " lost "
says err "$lost"
run 0 events --json --socket "$sock"
json 'e = [e for e in d["events"] if e["kind"] == "problem" and e["problem"] == "lost"]; assert len(e) == 1 and e[0]["subject"]["job"] == "lj", e'
run 0 rm lj 80 --yes --socket "$sock"
says out "job 'lj' step 80 is given up: its bytes were lost"
lacks out "is removed from disk"
start_trainer
does save 90 COMMITTED
end_trainer
run 0 status lj --socket "$sock"
lacks out PROBLEM

# ---- A newest one that is bad counts as nothing

start_trainer
does save 100 DURABLE
does save 110 DURABLE
end_trainer
run 0 trust lj 110 --set bad --socket "$sock"
run 0 safe lj --socket "$sock"
says out "step 110 is not counted, as no launch would get it: it is said to be bad"
lacks out "not committed yet"
run 0 status lj --socket "$sock"
grep -qE "^lj .* 100 .* 100 " "$dir/out" || fail "status counts what is bad: $(grep ^lj "$dir/out")"

# ---- A job of which all is lost

sed -i 's/"lj"/"la"/' "$dir/trainer.py"
start_trainer
does save 10 COMMITTED
end_trainer
daemon_dies
run 1 list la --socket "$sock"
lacks out "no checkpoints"
says err "no checkpoint of the job is left"
run 4 safe la --socket "$sock"
run 0 rm-job la --yes --socket "$sock"
says out "job 'la' is removed: 0 checkpoints, 0 B; others were lost before"
stop_daemon

# ---- Which rank is to blame: one that is waited for, and none that only has not come to its next save

cat >"$dir/two.py" <<'PY'
import ckpt, ctypes, sys
ranks = []
for r in range(2):
    c = ckpt.open("two", r, 2, run_id="one")
    t = (ctypes.c_float * 64)()
    c.declare("w", (ctypes.addressof(t), "float32", (64,)), (128,), (64 * r,))
    c.keep = t
    ranks.append(c)
for c in ranks:
    c.prepare()
saves = [c.save(1, wait_credit=True, timeout=60) for c in ranks]
assert all(s.wait(ckpt.COMMITTED, timeout=60) for s in saves)
ranks[0].save(2, wait_credit=True, timeout=60)
print("trains", flush=True)
sys.stdin.readline()
print("waits", flush=True)
ranks[0].save(3, wait_credit=True, timeout=600)
PY
start_daemon --set checkpoint.warn_after=1s
: >"$dir/did"
env LD_PRELOAD="$preload" PYTHONPATH="$src/python" PYTHONDONTWRITEBYTECODE=1 \
	CKPT_SOCKET="$sock" CKPT_LIBRARY="$build/.libs/libckpt.so" \
	/usr/bin/python3 "$dir/two.py" <"$dir/in" >"$dir/did" 2>"$dir/trainer.log" &
trainer=$!
exec 9>"$dir/in"
# until_why TEXT: `why` says so.
until_why () {
	for i in $(seq 300); do
		ctl why two --socket "$sock" >"$dir/out" 2>&1
		! grep -qF "$1" "$dir/out" || return 0
		kill -0 $trainer 2>/dev/null || break
		sleep 0.1
	done
	cat "$dir/trainer.log" "$dir/out"
	fail "why never says '$1'"
}
until_why "no-commit: nothing was committed since step 1"
lacks out "the next save waits"
echo >&9
until_why "the next save waits for rank 1 (behind)"
run 1 status two --json --socket "$sock"
json 's = job("two")["saves"]; assert s["waiting"] == 1 and s["blocked"] == "behind" and s["blocked_rank"] == 1, s'
kill $trainer
wait $trainer 2>/dev/null
trainer=
exec 9>&-
stop_daemon

# ---- A launch is refused: what to do is said by what it lacks

start_daemon --set memory.budget=17M
cat >"$dir/large.py" <<'PY'
import ckpt, ctypes
c = ckpt.open("large", 0, 1, run_id="one")
t = (ctypes.c_float * (2 << 20))()
c.declare("w", (ctypes.addressof(t), "float32", (2 << 20,)))
try:
    c.prepare()
except ckpt.Error as e:
    print(e)
PY
env LD_PRELOAD="$preload" PYTHONPATH="$src/python" PYTHONDONTWRITEBYTECODE=1 \
	CKPT_SOCKET="$sock" CKPT_LIBRARY="$build/.libs/libckpt.so" \
	/usr/bin/python3 "$dir/large.py" >"$dir/out" 2>&1
says out "set memory.budget to at least "
run 1 why large --socket "$sock"
says out "what to do: raise memory.budget"
run 1 status large --json --socket "$sock"
json 'p = job("large")["problems"]; assert [(x["problem"], x["lacks"]) for x in p] == [("prepare-refused", "budget")], p'
stop_daemon
start_daemon --set storage.disk_reserve=1000T
env LD_PRELOAD="$preload" PYTHONPATH="$src/python" PYTHONDONTWRITEBYTECODE=1 \
	CKPT_SOCKET="$sock" CKPT_LIBRARY="$build/.libs/libckpt.so" \
	/usr/bin/python3 "$dir/large.py" >"$dir/out" 2>&1
run 1 why large --socket "$sock"
says out "what to do: make room on disk"
lacks out "raise memory.budget"
stop_daemon

# ---- A data folder in memory is no disk

if in_memory /dev/shm; then
	shm=$(mktemp -d /dev/shm/ckpt-ctl.XXXXXX)
	trap 'kill $trainer $daemon 2>/dev/null; wait; rm -rf "$dir" "$shm"' EXIT
	data=$shm/data
	sed -i 's/"la"/"lt"/' "$dir/trainer.py"
	start_daemon
	grep -qF "data folder '$data' is on a file system of memory: what is called durable is lost with the node" \
		"$dir/log" || fail "ckptd does not warn of it"
	start_trainer
	does save 10 DURABLE
	run 4 safe lt --socket "$sock"
	says out "the data folder '$data' is on a file system of memory (tmpfs), which ends with the node"
	says out "no disk: the data folder is in memory"
	lacks out "is on disk"
	run 4 safe lt --json --socket "$sock"
	json 'by = {s["if"]: s["step"] for s in d["survives"]}
assert by == {"process": 10, "ckptd": 10, "node": None, "power": None} and d["data_in_memory"] and d["result"] == 4, d'
	end_trainer
	stop_daemon
fi
ending 60
