#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ckptctl reshard beside a real ckptd, and between two lives of one: trainers load what it made.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
needs_daemon

# train.py JOB WORLD COMMAND...: "save N" or "load N": N is the step; all ranks in one process.
cat >"$dir/train.py" <<'PY'
import ctypes, sys, os
import ckpt
job, W, what, step = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
ROWS, COLS = 600, 96
def value(i):
    return float(i * 7 % 65521)
ranks = []
for r in range(W):
    c = ckpt.open(job, r, W, run_id=f"run-{os.getpid()}")
    lo, hi = ROWS * r // W, ROWS * (r + 1) // W
    t = (ctypes.c_float * ((hi - lo) * COLS))()
    if what == "save":
        for i in range(len(t)):
            t[i] = value(lo * COLS + i)
    c.declare("model.layers.0.mlp.up_proj.weight", (ctypes.addressof(t), "float32", (hi - lo, COLS)),
              global_shape=(ROWS, COLS), offset=(lo, 0))
    c.keep, c.lo = t, lo
    ranks.append(c)
for c in ranks:
    c.prepare()
if what == "save":
    saves = [c.save(step, blobs={"rng": bytes([r] * 64)}, wait_credit=True, timeout=60)
             for r, c in enumerate(ranks)]
    assert all(s.wait(ckpt.DURABLE, timeout=60) for s in saves)
else:
    for r, c in enumerate(ranks):
        got = c.load()
        assert got is not None and got.step == step, got
        assert all(c.keep[i] == value(c.lo * COLS + i) for i in range(len(c.keep))), r
        if r < 2:
            assert got.blobs["rng"] == bytes([r] * 64), got.blobs
for c in ranks:
    c.close()
PY
preload=
if nm -D "$build/.libs/libckpt.so" | grep -q __asan; then
	preload=$(gcc -print-file-name=libasan.so)
	export ASAN_OPTIONS=detect_leaks=0
fi

train () {
	env LD_PRELOAD="$preload" PYTHONPATH="$src/python" PYTHONDONTWRITEBYTECODE=1 \
		CKPT_SOCKET="$sock" CKPT_LIBRARY="$build/.libs/libckpt.so" \
		/usr/bin/python3 "$dir/train.py" "$@" >"$dir/train.log" 2>&1 ||
		{ fail "train $*"; cat "$dir/train.log" "$dir/log"; exit 1; }
}

start_daemon
train source 2 save 10

# ---- A ckptd that runs adopts it

run 0 reshard source --to fsdp2=3 --as three --socket "$sock" --data "$data"
says out "job 'three' step 10 is durable on 3 ranks"
run 0 list three --socket "$sock" --json
json 's = step("three", 10); assert s["disk"] == "durable" and s["world"] == 3 and s["latest"]'
run 0 status three --socket "$sock" --json
json 'assert not job("three")["log_anew"] and d["problems"] == []'
train three 3 load 10
train three 2 load 10 # and in any other layout
train three 3 save 20 # it is a job as any other
run 2 reshard source --to fsdp2=3 --as three --socket "$sock" --data "$data"
says err "has a job 'three' already"
run 0 verify --data "$data"
says out "problems: 0"
! grep log.old "$dir/out" || fail "told of as damaged: a log that never was"

# ---- A layout that knows none of the names

run 0 reshard source --to megatron:tp=2 --as whole --socket "$sock" --data "$data"
says out "matched no rule and"
lacks out "left out"
run 0 reshard source --to fsdp2=2 --dry-run --socket "$sock" --data "$data"
lacks out "matched no rule"

# ---- The folder is found, and who has it, before a byte is written

# unwritten ARGUMENTS...: it is refused, and nothing is left of it.
unwritten () {
	run 2 "$@"
	for job in "$data"/incoming/*; do
		[ "$job" = "$data/incoming/LOCK" ] || fail "$*: left: $job"
	done
}
for dry in "" --dry-run; do
	unwritten reshard source --to fsdp2=3 --as lost --socket "$dir/nothing" --data "$data" $dry
	says err "data folder '$data' is in use, and nothing was written"
	says err "cannot reach ckptd at '$dir/nothing'"
	unwritten reshard source --to fsdp2=3 --as lost --data "$data" $dry # by the usual sockets
	says err "data folder '$data' is in use, and nothing was written"
	unwritten reshard source --to fsdp2=3 --as lost --socket "$dir/nothing" $dry
	says err "cannot reach ckptd at '$dir/nothing'"
	under CKPT_SOCKET="$dir/nothing" unwritten reshard source --to fsdp2=3 --as lost $dry
	says err "find the data folder by CKPT_SOCKET: cannot reach ckptd at '$dir/nothing'"
	unwritten reshard source --to fsdp2=3 --as lost --socket "$sock" --data "$dir" $dry
	says err "the ckptd that answers has the folder '$data', not '$dir'"
	[ ! -e "$dir/incoming" ] && [ ! -e "$dir/FORMAT" ] || fail "written into another folder"
done
for verb in "verify source" "layout fsdp2=3 source" "diff source source@10" \
	"export source --output $dir/x.safetensors --yes" "gc --incoming --dry-run"; do
	run 0 $verb --socket "$sock"
	run 0 $verb --socket "$sock" --data "$data"
	run 2 $verb --socket "$sock" --data "$dir"
	says err "the ckptd that answers has the folder '$data', not '$dir'"
	run 2 $verb --socket "$dir/nothing"
	says err "cannot reach ckptd at '$dir/nothing'"
done
run 0 layout fsdp2=3 source --socket "$sock" --json
json 'assert len(d["ranks"]) == 3' || cat "$dir/out"
run 2 status --socket "$sock" --data "$dir"
says err "the ckptd that answers has the folder '$data', not '$dir'"
run 0 reshard source --to fsdp2=3 --as found --socket "$sock" # without --data
train found 3 load 10
run 0 export source --data "$data" --output "$dir/w.safetensors"
for dry in "" --dry-run; do
	unwritten import "$dir/w.safetensors" --as gone --socket "$dir/nothing" --data "$data" $dry
	says err "data folder '$data' is in use, and nothing was written"
	unwritten import "$dir/w.safetensors" --as gone --socket "$dir/nothing" $dry
done
run 0 import "$dir/w.safetensors" --as imported --socket "$sock"
run 0 list imported --socket "$sock" --json
json 'assert step("imported", 0)["disk"] == "durable"'
# --to-data: the ckptd of --socket has the source, or the folder of the new job.
cp -r "$data" "$dir/elsewhere"
run 0 reshard source --to fsdp2=3 --as there --to-data "$dir/elsewhere" --socket "$sock"
run 0 reshard source --to fsdp2=3 --as back --to-data "$data" --socket "$sock" --data "$dir/elsewhere"
train back 3 load 10
unwritten reshard source --to fsdp2=3 --as no --to-data "$data" --data "$dir/elsewhere"
says err "data folder '$data' is in use, and nothing was written"
run 0 reshard source --to fsdp2=3 --as lost --socket "$sock" --data "$data"
train lost 3 load 10
for job in "$data"/incoming/*; do
	[ "$job" = "$data/incoming/LOCK" ] || fail "left: $job"
done

# ---- The index knows it

stop_daemon
"$build/tools/test_make_data" "$data" index >"$dir/out"
says out "three 20"
says out "lost 10"

# ---- A job that a tool made can go, whole, where no ckptd has it

start_daemon
run 1 rm lost 10 --socket "$sock" --yes
says err "the base of the current epoch"
run 0 import "$dir/w.safetensors" --as mistake --socket "$sock" --data "$data"
run 1 rm mistake 0 --socket "$sock" --yes
says err "step 0 is the only good one on disk; it stays: save a newer one first, or remove the whole job with 'ckptctl rm-job mistake'"
run 1 rm mistake --all --yes --data "$data"
says err "rm --all in '$data': the data folder is in use by process"
run 0 pin mistake 0 --socket "$sock"
stop_daemon
run 1 rm mistake --all --yes --data "$data"
says err "step 0 of job 'mistake' is pinned; the job stays"
start_daemon
run 0 unpin mistake 0 --socket "$sock"
stop_daemon
run 2 rm mistake --all --data "$data"
says err "pass --yes to confirm"
run 2 rm mistake 0 --all --yes --data "$data"
run 2 rm nobody --all --yes --data "$data"
says err "there is no job 'nobody'"
cp -r "$data/jobs" "$dir/jobs"
run 0 rm mistake --all --yes --data "$data" --json
json 'assert [(c["job"], c["step"], c["done"]) for c in d["checkpoints"]] == [("mistake", 0, True)]'
[ "$(ls "$data/jobs" | wc -l)" = $(($(ls "$dir/jobs" | wc -l) - 1)) ] || fail "it is not one job less"
for job in "$data/jobs"/*; do
	diff -r "$job" "$dir/jobs/${job##*/}" || fail "another job was changed"
done
[ "$(ls "$data/incoming")" = LOCK ] || fail "left: $(ls "$data/incoming")"
run 0 import "$dir/w.safetensors" --as mistake --data "$data" # its name is free
run 0 rm mistake --all --yes --data "$data"
says out "job 'mistake' is removed: 1 checkpoint, "
start_daemon
run 0 status --socket "$sock" --json
json 'assert "mistake" not in [j["job"] for j in d["jobs"]] and d["problems"] == []'
train three 3 load 20
run 0 verify --data "$data"
says out "problems: 0"
stop_daemon

# ---- Without one, the next start finds it

run 0 reshard source 10 --to fsdp2=5 --as five --data "$data"
run 2 reshard source 10 --to fsdp2=5 --as five --data "$data"
start_daemon
run 0 status five --socket "$sock" --json
json 'assert not job("five")["log_anew"] and d["problems"] == []'
train five 5 load 10
train three 3 load 20
train source 2 load 10
run 0 verify --data "$data"
says out "problems: 0"
! grep log.old "$dir/out" || fail "told of as damaged: a log that never was"
stop_daemon
ending 48
