#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ckptctl rm-job beside the real ckptd: what refuses it, what is gone afterwards, and what a kill at
# each point of a removal leaves.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
needs_daemon

cat >"$dir/train.py" <<'PY'
import ctypes, os, sys
import ckpt
c = ckpt.open(sys.argv[1], 0, 1)
if "empty" not in sys.argv:
    t = (ctypes.c_float * 50000)(*([3.0] * 100))
    c.declare("w", (ctypes.addressof(t), "float32", (50000,)))
    got = c.load()
    first = got.step + 1 if got else 1
    for step in range(first, first + 3):
        assert c.save(step, wait_credit=True, timeout=60).wait(ckpt.DURABLE, timeout=60)
print("saved", flush=True)
if "stay" in sys.argv:
    sys.stdin.read()
PY
preload=
if nm -D "$build/.libs/libckpt.so" | grep -q __asan; then
	preload=$(gcc -print-file-name=libasan.so)
	export ASAN_OPTIONS=detect_leaks=0
fi
# train JOB [empty] [stay]
train () {
	env LD_PRELOAD="$preload" PYTHONPATH="$src/python" PYTHONDONTWRITEBYTECODE=1 \
		CKPT_SOCKET="$sock" CKPT_CONNECT_TIMEOUT=30 CKPT_LIBRARY="$build/.libs/libckpt.so" \
		/usr/bin/python3 "$dir/train.py" "$@"
}
# no_job NAME: ckptd does not have it, nor does its folder.
no_job () {
	run 2 status "$1" --socket "$sock"
	says err "there is no job '$1'"
	run 2 status "$1" --data "$data"
	says err "there is no job '$1'"
}
# left N: so many folders are in jobs/, and nothing in incoming/.
left () {
	checks=$((checks + 1))
	[ "$(ls "$data/jobs" | wc -l)" = "$1" ] || fail "$(ls "$data/jobs" | wc -l) jobs, not $1"
	[ -z "$(ls "$data/incoming" 2>/dev/null)" ] || fail "left: $(ls "$data/incoming")"
}

start_daemon --supervise
train kept >"$dir/said" || fail "train kept"

# ---- A rank lives, a checkpoint is pinned

mkfifo "$dir/in"
train run7 stay <"$dir/in" >"$dir/said" 2>&1 &
trainer=$!
exec 8>"$dir/in"
for i in $(seq 600); do
	grep -q saved "$dir/said" && break
	sleep 0.1
done
run 1 rm-job run7 --yes --socket "$sock"
says err "job 'run7' has ranks that run, such as rank 0, process "
exec 8>&-
wait $trainer
trainer=
run 0 pin run7 3 --socket "$sock"
run 1 rm-job run7 --yes --socket "$sock"
says err "step 3 of job 'run7' is pinned: 'ckptctl unpin run7 3' first"
run 0 unpin run7 3 --socket "$sock"
run 2 rm-job run7 --socket "$sock"
says err "pass --yes to confirm"
run 2 rm-job nobody --yes --socket "$sock"
says err "there is no job 'nobody'"
run 0 list run7 --socket "$sock" --json
json 'assert [c["step"] for c in job("run7")["checkpoints"] if c["disk"] == "durable"] == [3, 2, 1]'

# ---- It goes: log, files, memory, index rows; the other job stays, and its name is free

run 0 rm-job run7 --yes --socket "$sock"
says out "job 'run7' is removed: "
no_job run7
left 1
run 0 events --socket "$sock"
says out "job 'run7' was removed with its log and all its checkpoints, by uid $(id -u)"
run 0 verify --data "$data"
says out "problems: 0"
train run7 >"$dir/said" || fail "train run7 again"
run 0 list run7 --socket "$sock" --json
json 'assert [c["step"] for c in job("run7")["checkpoints"]][-1] == 1'
run 0 rm run7 --all --yes --socket "$sock" --json # the other name of it
json 'assert d["source"] == "daemon" and d["verb"] == "rm" and all(c["done"] for c in d["checkpoints"])
assert {c["step"] for c in d["checkpoints"]} == {1, 2, 3}'
no_job run7

# ---- One without checkpoints, by its id, and by the data folder of the ckptd that runs

train bare empty >"$dir/said" || fail "train bare"
run 0 status bare --socket "$sock" --json
id=$(/usr/bin/python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["jobs"][0]["id"])' "$dir/out")
run 1 rm-job bare --yes --data "$data"
says err "name its socket with --socket PATH"
run 0 rm-job "$id" --yes --socket "$sock" --data "$data"
no_job bare
left 1

# ---- All memory has been given back

run 0 status kept --socket "$sock" --json
json 'used = d["memory_budget"] - d["memory_left"]; assert d["jobs"][0]["slots"]
assert used < 2 * sum(s["bytes"] for s in d["jobs"][0]["slots"]) + (4 << 20), used'
stop_daemon
"$build/tools/test_make_data" "$data" index >"$dir/out"
lacks out "run7"
says out "kept 3"

# ---- A kill at each point: the job is there with all that it had, or nothing of it is

if "$build/ckptd/ckptd" --list-faults | grep -q REMOVE_RENAMED; then
	for point in REMOVE_RENAMED REMOVE_DECIDED REMOVE_FILES_GONE; do
		rm -f "$dir/died"
		export CKPT_FAULT=$point=kill CKPT_FAULT_ONCE="$dir/died"
		start_daemon --supervise
		train dies >"$dir/said" || fail "train dies: $point"
		run 2 rm-job dies --yes --socket "$sock"
		[ -e "$dir/died" ] || fail "$point was not hit"
		for i in $(seq 600); do # its successor has adopted what the fd store kept
			ctl --json status --socket "$sock" >"$dir/out" 2>&1
			! grep -q '"ready": true' "$dir/out" || break
			sleep 0.1
		done
		run 0 status --socket "$sock" --json
		json 'jobs = {j["job"]: j for j in d["jobs"]}; assert d["problems"] == [] and "kept" in jobs
if "dies" in jobs: assert {c["step"] for c in jobs["dies"]["checkpoints"] if c["disk"] == "durable"} == {1, 2, 3}
elif "slots" in jobs["kept"]: assert d["memory_budget"] - d["memory_left"] < 16 << 20'
		if ctl status dies --socket "$sock" >/dev/null 2>&1; then
			[ $point = REMOVE_RENAMED ] || fail "$point: it is back"
			run 0 rm-job dies --yes --socket "$sock"
		fi
		no_job dies
		left 1
		run 0 verify --data "$data"
		says out "problems: 0"
		stop_daemon
	done
	unset CKPT_FAULT CKPT_FAULT_ONCE

	# An error before it is decided: the job stays and goes on. Behind it: files wait for a start.
	export CKPT_FAULT=REMOVE_RENAMED=error,REMOVE_DECIDED=error
	start_daemon
	train fails >"$dir/said" || fail "train fails"
	run 1 rm-job fails --yes --socket "$sock"
	says err "cannot sync the move of "
	train fails >"$dir/said" || fail "train fails again"
	run 0 list fails --socket "$sock" --json
	json 'assert job("fails")["checkpoints"][0]["step"] == 6'
	run 0 rm-job fails --yes --socket "$sock"
	says err "remove its files"
	no_job fails
	ls "$data/incoming" | grep -q '\.gone$' || fail "no .gone: $(ls "$data/incoming")"
	run 0 verify --data "$data"
	says out "files of a removed job: the next start of ckptd removes them"
	unset CKPT_FAULT
	stop_daemon
	start_daemon
	no_job fails
	left 1
	stop_daemon
fi
ending 40
