#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ckptctl export to safetensors, read by an oracle that knows the format from its description.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
requires /usr/bin/python3 -c 'import numpy'
"$build/tools/test_make_tensors" "$data" || exit 99
fingerprint >"$dir/before"
o=$dir/out-of-it
mkdir "$o"

# holds CODE...: CODE, which sees the oracle and the folder o, does not assert.
holds () {
	checks=$((checks + 1))
	PYTHONPATH=$src/tools PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 - "$o" "$*" <<'PY' || fail "holds: $*"
import sys
from test_exchange import *
o = sys.argv[1] + "/"
exec(sys.argv[2])
PY
}

# ---- One file, every dtype, every way of cutting

run 2 export types 7 --data "$data" --output "$o/a.safetensors"
says err "1 tensor of dtypes that safetensors does not have, first 'every.c128' (c128)"
[ -z "$(ls "$o")" ] || fail "files of an export that was refused: $(ls "$o")"
run 0 export types 7 --data "$data" --output "$o/a.safetensors" --tensor '!*.c128'
says out "wrote 27 tensors of job 'types', step 7"
says out "1 blob left out: no tensors"
holds 't, m, start = read(o + "a.safetensors")
assert t == types() and in_order(t) and start % 4096 == 0
assert m["format"] == "pt" and m["ckpt.job"] == "types" and m["ckpt.step"] == "7"
assert len(m["ckpt.attempt"]) == 32'
run 0 export plain --data "$data" --output "$o/b.safetensors" --format safetensors
holds 't, m, start = read(o + "b.safetensors")
assert t == types() and m["ckpt.job"] == "plain"'
cmp -s "$o/a.safetensors" "$o/b.safetensors" && fail "metadata is the same"

# ---- In bits and pieces, whatever memory there is

run 0 export types --data "$data" --output "$o/small" --tensor '!big' --tensor '!*.c128'
run 0 export types --data "$data" --output "$o/c" --tensor '!big' --tensor '!*.c128' --memory 1
cmp "$o/small" "$o/c" || fail "other bytes with --memory 1" # an element at a time
for memory in 100 4K 100K 1G; do
	run 0 export types --data "$data" --output "$o/c.safetensors" --tensor '!*.c128' --memory $memory --yes
	cmp "$o/a.safetensors" "$o/c.safetensors" || fail "other bytes with --memory $memory"
done
run 0 export types 7 --data "$data" --output "$o/big" --tensor big --tensor flat -q
silent out
holds 't, m, start = read(o + "big"); assert list(t) == ["flat", "big"] and t["big"] == types()["big"]'
run 0 export types 7 --data "$data" --output "$o/none" --tensor empty --metadata a=b=c --metadata format=np --json
json 'assert d["tensors"] == 1 and d["bytes"] == 0 and d["overflows"] == 0 and d["blobs_left_out"] == 1
assert [f["tensors"] for f in d["files"]] == [1] and d["files"][0]["bytes"] == 4096 and d["job"] == "types"'
holds 't, m, start = read(o + "none"); assert t == {"empty": ("F16", [0, 5], b"")}
assert m["a"] == "b=c" and m["format"] == "np"'

# ---- Several files and an index

run 0 export plain --data "$data" --output "$o/shards" --shard-size 20K
says out "and an index of them"
holds 't, files = read_sharded(o + "shards")
assert t == types() and len(files) > 2
n = len(files)
assert sorted(files) == ["model-%05d-of-%05d.safetensors" % (i + 1, n) for i in range(n)]
for f in files.values():
    assert in_order(f) and (len(f) == 1 or sum(len(t[2]) for t in f.values()) <= 20 << 10)
assert read(o + "shards/model-00001-of-%05d.safetensors" % n)[2] % 4096 == 0'
run 0 export plain --data "$data" --output "$o/one" --shard-size 1T
[ "$(ls "$o/one")" = model.safetensors ] || fail "one shard: $(ls "$o/one")"
mkdir "$o/there"
run 0 export plain --data "$data" --output "$o/there"
cmp "$o/one/model.safetensors" "$o/there/model.safetensors" || fail "into a folder that is there"

# ---- Casts: every number as numpy rounds it

for to in f16 bf16 f32 f64; do
	run 0 export types --data "$data" --output "$o/$to" --cast $to --tensor 'every.f*' --tensor 'every.b*' --tensor flat --json
	cp "$dir/out" "$o/$to.json"
	holds 'import json
to = "'$to'".upper(); t, _, _ = read(o + to.lower()); was = types(); n = 0
assert len(t) == 11 and in_order(t)
for k, (dtype, shape, raw) in t.items():
    if was[k][0] not in ("F16", "BF16", "F32", "F64"):
        assert (dtype, shape, raw) == was[k]; continue
    want, overflows = cast(was[k][0], was[k][2], to); n += overflows
    assert dtype == to and shape == was[k][1] and same_numbers(to, raw, want), k
doc = json.load(open(o + to.lower() + ".json"))
assert doc["overflows"] == n and doc["bytes"] == sum(len(x[2]) for x in t.values())
assert (n > 0) == (to != "F64")'
done
run 0 export types --data "$data" --output "$o/said" --cast f16 --tensor flat
says out "finite numbers beyond f16 became infinite"

# ---- What is there stays

cp "$o/a.safetensors" "$o/kept"
run 2 export plain --data "$data" --output "$o/a.safetensors"
says err "is there already: name another with --output, or replace it with --yes"
cmp "$o/a.safetensors" "$o/kept" || fail "it was replaced"
run 0 export plain --data "$data" --output "$o/a.safetensors" --yes
cmp -s "$o/a.safetensors" "$o/b.safetensors" || fail "it was not replaced"
run 2 export plain --data "$data" --output "$o/shards" --shard-size 20K
run 0 export plain --data "$data" --output "$o/shards" --shard-size 20K --yes
run 2 export plain --data "$data" --output "$o/nowhere/x"
says err "cannot make '$o/nowhere/x': No such file or directory: make its folder first, or name another place with --output"
run 2 export plain --data "$data" --output "$o/a.safetensors/x"
says err "Not a directory: what should be its folder is a file"
run 2 export plain --data "$data" --output "$o/a.safetensors" --format dcp
says err "what should be its folder is a file"
run 2 export plain --data "$data" --output "$o/nowhere/x" --format dcp
says err "make its folder first"
trap '' XFSZ
run_limited () { (ulimit -f 8 && ctl "$@" >"$dir/out" 2>"$dir/err"); }
run_limited export plain --data "$data" --output "$o/large" --format dcp
says err ".distcp': File too large: make room, or name another place with --output"
trap - XFSZ
left=$(find "$o" -name '*.tmp')
[ -z "$left" ] || fail "left behind: $left"

# ---- Damage is found, and nothing is published

run 2 export plain 8 --data "$data" --output "$o/x"
says err "no durable checkpoint 8"
run 2 export plain --data "$data" --output "$o/x" --tensor nothing
says err "no tensor is called like 'nothing'"
run 2 export plain --data "$data"
says err "--output PATH"
run 2 export plain --data "$data" --output "$o/x" --format npz
says err "is no format that can be exported"
run 2 export plain --data "$data" --output "$o/x" --cast f8_e4m3
says err "--cast needs bf16, f16, f32 or f64"
run 2 export plain --data "$data" --output "$o/x" --torch 1.13
says err "--torch is for --format dcp"
run 2 export plain --data "$data" --output "$o/x" --format dcp --metadata a=b
says err "--metadata is for safetensors"
run 2 export plain --data "$data" --output "$o/x" --metadata word
says err "--metadata needs KEY=VALUE"
for size in 0 5P 5GG x 99999999999999999999 9999999999T; do
	run 2 export plain --data "$data" --output "$o/x" --shard-size $size
	says err "--shard-size needs a number of bytes"
done
fingerprint >"$dir/after"
cmp "$dir/before" "$dir/after" || fail "the folder was changed"
shard=$(find "$data/jobs" -name 'rank-0.shard' -size +1000k | head -n 1)
flip "$shard" 300000
run 1 export plain --data "$data" --output "$o/x"
says err "leaf"
[ ! -e "$o/x" ] && [ -z "$(find "$o" -name '*.tmp')" ] || fail "a damaged export is there"
ending 66
