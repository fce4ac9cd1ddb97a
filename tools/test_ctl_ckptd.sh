#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ckptctl and the real ckptd, with a job of two ranks that saves while it is looked at.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
needs_daemon

cat >"$dir/train.py" <<'PY'
import ctypes, sys
import ckpt
W, ROWS, COLS = 2, 512, 96
ranks = []
for r in range(W):
    c = ckpt.open("run7", r, W, run_id="one")
    t = (ctypes.c_float * (ROWS // W * COLS))(*([r + 1.0] * 100))
    c.declare("w", (ctypes.addressof(t), "float32", (ROWS // W, COLS)), global_shape=(ROWS, COLS), offset=(ROWS // W * r, 0))
    c.keep = t
    ranks.append(c)
for c in ranks:
    c.prepare()
for line in sys.stdin: # one step a line
    step = int(line)
    saves = [c.save(step, blobs={"rng": bytes(64)}, wait_credit=True, timeout=60) for c in ranks]
    done = all(s.wait(ckpt.DURABLE, timeout=60) for s in saves)
    print(step if done else f"step {step}: {saves}", flush=True)
PY
preload=
if nm -D "$build/.libs/libckpt.so" | grep -q __asan; then
	preload=$(gcc -print-file-name=libasan.so)
	export ASAN_OPTIONS=detect_leaks=0
fi

# save STEP: both ranks do, and it is on disk.
save () {
	echo "$1" >&8
	read -r answer <&7
	[ "$answer" = "$1" ] || { fail "save: $answer"; cat "$dir/train.log" "$dir/log"; exit 1; }
}

cat >"$dir/hook" <<'SH'
#!/bin/sh
echo "$CKPT_JOB $CKPT_STEP $CKPT_DATA" >>"${0%hook}hooked"
[ "$CKPT_STEP" = 20 ] || exit 3
[ -f "$CKPT_DATA/jobs/$CKPT_JOB_ID/$CKPT_STEP.$CKPT_ATTEMPT/COMMIT" ] || exit 4
SH
chmod +x "$dir/hook"
start_daemon --set trust.hook="$dir/hook"
mkfifo "$dir/in" "$dir/done"
env LD_PRELOAD="$preload" PYTHONPATH="$src/python" PYTHONDONTWRITEBYTECODE=1 CKPT_SOCKET="$sock" \
	CKPT_LIBRARY="$build/.libs/libckpt.so" /usr/bin/python3 "$dir/train.py" \
	<"$dir/in" >"$dir/done" 2>"$dir/train.log" &
trainer=$!
exec 8>"$dir/in" 7<"$dir/done"
for step in 10 20 30; do save $step; done

for i in $(seq 600); do # the program has said so of one, and does not know of the others
	ctl -q trust run7 20 --data "$data" | grep -q ' verified$' && break
	sleep 0.1
done
grep -q "^run7 20 $data\$" "$dir/hooked" || fail "trust.hook: $(cat "$dir/hooked" "$dir/log")"

# ---- Looking

run 0 status --socket "$sock"
says out run7
run 0 status run7 --socket "$sock" --json
json 'j = job("run7"); assert len(j["ranks"]) == 2 and all(r["alive"] and r["connected"] for r in j["ranks"])
assert j["epoch"]["number"] == 1 and j["epoch"]["world"] == 2 and d["problems"] == [] and j["slots"]
assert step("run7", 30)["disk"] == "durable" and step("run7", 30)["memory"] and step("run7", 30)["world"] == 2'
run 0 list run7 --socket "$sock" -q
[ "$(cut -d. -f1 "$dir/out" | head -n 2 | tr '\n' ' ')" = "30 20 " ] || fail "list: $(cat "$dir/out")"
run 0 show run7 30 --socket "$sock" --data "$data" --json
json 't = d["tensors"][0]; assert t["name"] == "w" and t["shape"] == [512, 96] and t["bytes"] == 512 * 96 * 4 == t["held"]
assert [p["offset"] for p in t["pieces"]] == [[0, 0], [256, 0]] and d["checkpoint"]["memory"]
assert [b["name"] for r in d["files"]["ranks"] for b in r["blobs"]] == ["rng", "rng"]'
run 0 verify --data "$data"
says out "good     run7 30."
says out "problems: 0"
lacks out "not of ckptd" # what ckptd makes beside checkpoints is known, ID too
mkdir -p "$HOME/.local/share/ckptd/jobs" # the usual folder is not that of the ckptd that runs
cp "$data/FORMAT" "$HOME/.local/share/ckptd"
under CKPT_SOCKET="$sock" run 0 verify
says out "good     run7 30."
says out "read from $data in "
under CKPT_SOCKET="$sock" run 0 show run7 30
says out "in $data/jobs/"
run 0 list --socket "$sock" --json
json 'assert [c["step"] for c in job("run7")["checkpoints"] if c["latest"]] == [30]
assert not any(c["base"] for c in job("run7")["checkpoints"])'
run 0 status --socket "$sock" --json
json 'assert d["index"] and not job("run7")["log_anew"] and d["data"]'
run 0 list --data "$data" --json
json 'assert [c["step"] for c in job("run7")["checkpoints"]][:2] == [30, 20]'

# ---- Deeds

run 0 pin run7 20 --socket "$sock"
run 0 list run7 --socket "$sock" --json
json 'assert step("run7", 20)["pinned"] and not step("run7", 30)["pinned"]'
run 1 rm run7 20 --socket "$sock" --yes
says err "step 20 is pinned"
save 40
save 50
run 0 list run7 --data "$data" --json
json 's = [c["step"] for c in job("run7")["checkpoints"] if c["disk"] == "durable"]; assert 20 in s and 50 in s'
run 0 gc --dry-run --socket "$sock" --json
json 'p = {x["step"]: x for x in job("run7")["plan"]}; assert p[20]["because"] == "pinned" and not p[20]["expire"]'
run 0 unpin run7 20 --socket "$sock"
run 0 rm run7 40 --socket "$sock" --yes
run 0 list run7 --data "$data" --json
json 'assert 40 not in [c["step"] for c in job("run7")["checkpoints"] if c["disk"] == "durable"]'
run 2 pin nobody 1 --socket "$sock"
says err "there is no job 'nobody'"
run 0 token run7 --socket "$sock"
[ "$(cat "$dir/out")" = "$(od -An -v -tx1 "$data"/jobs/*/token | tr -d ' \n')" ] ||
	fail "token: $(cat "$dir/out")"
run 0 rebuild --socket "$sock"
under CKPT_SOCKET="$sock" run 0 rebuild --data "$data" # its LOCK is held: it is asked
says out "ckptd has rebuilt its index"
run 0 pin run7 50 --socket "$sock"
for i in $(seq 600); do # it is read again by itself
	ctl -q trust run7 50 --socket "$sock" | grep -q ' complete$' && break
	sleep 0.1
done
run 0 trust run7 50 --socket "$sock" --json
json 'c, = d["checkpoints"]; assert c["trust"] == "complete" and c["healthy_steps"] >= 0 and not c["doubted"]'
run 0 trust run7 50 --set verified --socket "$sock"
says out "step 50 is verified"
run 0 trust run7 --data "$data"
grep -Eq '^ *50 .* verified +\?' "$dir/out" || fail "trust: $(cat "$dir/out")"
run 0 show run7 --min-trust verified --socket "$sock" --json
json 'assert d["checkpoint"]["step"] == 50'
run 0 export run7 --min-trust verified --data "$data" --output "$dir/trusted.safetensors"
run 2 export run7 30 --min-trust verified --data "$data" --output "$dir/trusted.safetensors" --yes
run 0 diff run7 run7@50 --min-trust verified --data "$data"
run 0 verify run7 --min-trust verified --data "$data" --json
json 'assert sorted(c["step"] for c in d["checkpoints"]) == [20, 50], d["checkpoints"]'
run 2 verify run7 30 --min-trust verified --data "$data"
says err "job 'run7' has no verified checkpoint of step 30 on disk"
run 2 show run7 --min-trust much --socket "$sock"
says err "'much' is not latest, complete or verified"
run 0 goodput run7 --socket "$sock" --json
json 'g = d["goodput"]; s = g["seconds"]; assert g["steps"] >= 50 and s["training"] > 0 and 0 < g["share"] <= 1
m, k = g["advice"]; assert m["tier"] == "memory" and k["tier"] == "disk" and m["latency_s"] > 0 and k["latency_s"] > 0
assert m["failures"] == k["failures"] == 0 and m["interval_s"] > 0 and 86000 < m["mtbf_s"] < 90000 and m["seen"] < 0.1
assert abs(s["training"] / sum(s.values()) - g["share"]) < 1e-6'
run 0 goodput run7 --socket "$sock"
grep -qE '^goodput +[0-9.]+ % of the [0-9.]+ (s|min) that it was running, [0-9]+ steps$' "$dir/out" || fail "$(cat "$dir/out")"
grep -qE 'shares below are of all [0-9.]+ (s|min) since it began' "$dir/out" || fail "$(cat "$dir/out")"
says out "save every"
run 2 trust run7 50 --set complete --socket "$sock"
says err "can be said to be 'verified' or 'bad'"
run 2 trust run7 --set bad --socket "$sock"
run 2 trust run7 50 --set bad --data "$data"
run 0 rebuild --socket "$sock"

# ---- Tensors from elsewhere: imported beside it, loaded by a trainer of two ranks, exported

/usr/bin/python3 - "$dir/given.safetensors" <<'PY' || exit 99
import json, struct, sys
header = {"w": {"dtype": "F32", "shape": [6, 5], "data_offsets": [0, 120]},
          "n": {"dtype": "I64", "shape": [], "data_offsets": [120, 128]}}
text = json.dumps(header).encode()
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + struct.pack("<30fq", *range(30), -7))
PY
under CKPT_SOCKET="$sock" run 0 import "$dir/given.safetensors" --as given --step 400
run 0 list given --socket "$sock" --json
json 's = step("given", 400); assert s["disk"] == "durable" and s["latest"] and s["state"] == "committed"'
checks=$((checks + 1))
env LD_PRELOAD="$preload" PYTHONPATH="$src/python" PYTHONDONTWRITEBYTECODE=1 CKPT_SOCKET="$sock" \
	CKPT_LIBRARY="$build/.libs/libckpt.so" /usr/bin/python3 - <<'PY' || fail "a trainer loads it"
import ctypes, ckpt
for r in range(2): # columns: another cut than any that is stored
    n, k = ctypes.c_int64(), 2 + r
    w = (ctypes.c_float * (6 * k))()
    with ckpt.open("given", r, 2, run_id="two") as c:
        c.declare("w", (ctypes.addressof(w), "float32", (6, k)), global_shape=(6, 5), offset=(0, 2 * r))
        c.declare("n", (ctypes.addressof(n), "int64", ()))
        got = c.load()
        assert got.step == 400 and n.value == -7, (got, n)
        assert list(w) == [5.0 * i + 2 * r + j for i in range(6) for j in range(k)], list(w)
PY
under CKPT_SOCKET="$sock" run 0 diff given "$dir/given.safetensors"
under CKPT_SOCKET="$sock" run 0 export given 400 --output "$dir/taken.safetensors"
run 0 diff "$dir/given.safetensors" "$dir/taken.safetensors"

# ---- Damage beside the running daemon

flip "$(echo "$data"/jobs/*/50.*/rank-1.shard)" $((4096 + 70000))
run 1 verify run7 50 --data "$data"
says out "leaf 1 of rank 1 (tensor 'w'"

# ---- After its end, from the files alone

exec 8>&-
wait $trainer
trainer=
stop_daemon
run 2 status --socket "$sock"
says err "cannot reach ckptd"
[ "$("$build/tools/test_make_data" "$data" index | grep pinned)" = 'run7 50 pinned' ] ||
	fail "pins: $("$build/tools/test_make_data" "$data" index)"
run 0 list --data "$data"
says out run7
run 0 rebuild --data "$data" --json
json 'assert d["source"] == "files" and d["checkpoints"] >= 1'
run 1 verify --data "$data"

# ---- Again, after the log was lost

rm -r "$data"/jobs/*/log
start_daemon
run 1 status --socket "$sock"
says out "PROBLEM: job 'run7': its log was damaged or lost and begun anew"

# ---- Too few open files for what keeps memory

stop_daemon
rm -rf "$data"
: >"$dir/log"
ulimit -n 128
start_daemon --supervise
[ "$(grep -c "warning the fd store has 0 places and one rank needs up to 16, so ranks are refused: raise ckptd's limit of open files" "$dir/log")" = 1 ] ||
	fail "no warning, or several: $(cat "$dir/log")"
run 1 status --socket "$sock"
says out "PROBLEM: the fd store has 0 places and one rank needs up to 16"
run 1 status --socket "$sock" --json
json 'assert d["fd_store"] == {"used": 0, "max": 0} and len(d["problems"]) == 1'
env LD_PRELOAD="$preload" PYTHONPATH="$src/python" PYTHONDONTWRITEBYTECODE=1 CKPT_LIBRARY=$build/.libs/libckpt.so /usr/bin/python3 -c '
import sys, ckpt
ckpt.open("many", 0, 1, socket=sys.argv[1])' "$sock" >"$dir/out" 2>"$dir/err" && fail "a rank was let in"
says err "open job 'many': the fd store has 0 places and one rank needs up to 16: raise ckptd's limit of open files"
stop_daemon
ending 60
