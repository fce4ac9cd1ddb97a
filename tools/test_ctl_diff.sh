#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ckptctl diff: of files with known contents against numpy, and of checkpoints.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
requires /usr/bin/python3 -c 'import numpy'
"$build/tools/test_make_tensors" "$data" || exit 99
fingerprint >"$dir/before"
o=$dir/files
mkdir "$o"

python () { PYTHONPATH=$src/tools PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 - "$@"; }

# ---- Every dtype: random bits, of which some are changed; and what is special about floats

python "$o" <<'PY' || exit 99
import sys
from test_exchange import *
o = sys.argv[1] + "/"
rng = np.random.default_rng(7)
a, b = {}, {}
for dtype in ORDER:
    size = SIZES[dtype]
    raw = rng.integers(0, 256, (30 * 41, size), dtype="u1")
    if dtype == "BOOL":
        raw &= 1
    a[dtype + ".bits"] = (dtype, [30, 41], raw.tobytes())
    other = raw.copy()
    at = rng.choice(30 * 41, 100, replace=False)
    other[at] ^= rng.integers(0, 2 if dtype == "BOOL" else 256, (100, size), dtype="u1")
    b[dtype + ".bits"] = (dtype, [30, 41], other.tobytes())
    # two tensors without a special value, near each other
    a[dtype + ".near"] = (dtype, [2, 3, 5], (raw[:30] & 0x3f).tobytes())
    b[dtype + ".near"] = (dtype, [2, 3, 5], ((raw[:30] & 0x3f) ^ (np.arange(30) % 7 == 3).astype("u1")[:, None]).tobytes())
    a[dtype + ".same"] = b[dtype + ".same"] = (dtype, [11], raw[:11].tobytes())
    a[dtype + ".last"] = (dtype, [1230], raw.tobytes())
    one = raw.copy(); one[-1] ^= 1
    b[dtype + ".last"] = (dtype, [1230], one.tobytes())
special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-300, 1e300, -1e300, 3.0]
grid = [(x, y) for x in special for y in special]
for dtype, kind in (("F64", "<f8"), ("F32", "<f4"), ("F16", "<f2")):
    with np.errstate(all="ignore"):
        x, y = (np.array([p[k] for p in grid], "<f8").astype(kind) for k in (0, 1))
    a[dtype + ".grid"] = (dtype, [11, 11], x.tobytes())
    b[dtype + ".grid"] = (dtype, [11, 11], y.tobytes())
    for i, (p, q) in enumerate(zip(x, y)):
        a["%s.one.%d" % (dtype, i)] = (dtype, [1], p.tobytes())
        b["%s.one.%d" % (dtype, i)] = (dtype, [1], q.tobytes())
a["NaN.bits"] = ("F32", [2], bytes.fromhex("0100c07f") * 2)
b["NaN.bits"] = ("F32", [2], bytes.fromhex("0100c07f0200c07f"))
ends = lambda kind, v: np.array(v, kind).tobytes()
a["I64.ends"] = ("I64", [3], ends("<i8", [-2**63, 2**63 - 1, 5]))
b["I64.ends"] = ("I64", [3], ends("<i8", [2**63 - 1, 2**63 - 2, 5]))
a["U64.ends"] = ("U64", [2], ends("<u8", [2**64 - 1, 2**53]))
b["U64.ends"] = ("U64", [2], ends("<u8", [2**64 - 2, 2**53 + 1]))
a["half"] = ("U64", [1], ends("<u8", [0]))
b["half"] = ("U64", [1], ends("<u8", [2**63 - 1]))
# other dtypes and shapes
v = rng.standard_normal(64)
a["f64 to f32"] = ("F64", [64], v.tobytes()); b["f64 to f32"] = ("F32", [64], v.astype("<f4").tobytes())
a["f32 to f64"] = ("F32", [64], v.astype("<f4").tobytes()); b["f32 to f64"] = ("F64", [64], v.astype("<f4").astype("<f8").tobytes())
a["i8 to u64"] = ("I8", [3], ends("<i1", [-1, 5, 7])); b["i8 to u64"] = ("U64", [3], ends("<u8", [2**64 - 1, 5, 8]))
a["i32 to f16"] = ("I32", [3], ends("<i4", [-1, 5, 70000])); b["i32 to f16"] = ("F16", [3], ends("<f2", [-1, 5.5, np.inf]))
a["c64 to f32"] = ("C64", [2], bytes(16)); b["c64 to f32"] = ("F32", [2], bytes(8))
a["nan to nan"] = ("F32", [1], ends("<f4", [np.nan])); b["nan to nan"] = ("F64", [1], ends("<f8", [np.nan]))
a["shape"] = ("F32", [2, 3], bytes(24)); b["shape"] = ("F32", [3, 2], bytes(24))
a["rank"] = ("F32", [], bytes(4)); b["rank"] = ("F32", [1], bytes(4))
a["empty"] = b["empty"] = ("F32", [3, 0], b"")
a["empty dtype"] = ("F32", [0], b""); b["empty dtype"] = ("F16", [0], b"")
a["scalar"] = ("F32", [], ends("<f4", 1)); b["scalar"] = ("F32", [], ends("<f4", 2))
a["gone"] = a["gone too"] = b["new"] = ("U8", [1], b"x")
write(o + "a.safetensors", a)
write(o + "b.safetensors", dict(sorted(b.items(), reverse=True)), pad=4096)
write(o + "again.safetensors", dict(sorted(a.items())), {"a": "b"})
PY
for memory in 1 1K 256M; do
	run 1 diff "$o/a.safetensors" "$o/b.safetensors" --json --memory $memory
	[ $memory = 1 ] || cmp "$dir/out" "$dir/first" || fail "another answer with --memory $memory"
	cp "$dir/out" "$dir/first"
done
checks=$((checks + 1))
python "$o" "$dir/first" <<'PY' || fail "what numpy finds"
import sys
from test_exchange import *
a, b = (read(sys.argv[1] + "/" + f + ".safetensors")[0] for f in "ab")
d = json.load(open(sys.argv[2]))
assert d["missing"] == ["gone", "gone too"] and d["added"] == ["new"] and d["equal"] is False
got = {t.pop("name"): t for t in d["changed"]}
assert list(got) == sorted(got, key=lambda n: n.encode())
want = {n: difference(a[n], b[n]) for n in a if n in b}
want = {n: w for n, w in want.items() if w.get("changed") != 0 or w["dtype_a"] != w["dtype_b"]}
assert set(got) == set(want), set(got) ^ set(want)
assert d["equal_tensors"] == len(a) - 2 - len(want) and d["equal_tensors"] > 20
for n, w in want.items():
    g = got[n]
    assert set(g) == set(w), n
    for k, v in w.items():
        if isinstance(v, int) and v > 2**63 - 1:
            v = float(v)
        assert g[k] == v and type(g[k]) == type(v), (n, k, g[k], v)
assert got["I64.ends"]["max_abs"] == 2.0**64 and got["half"]["max_abs"] == 2**63 - 1
assert got["F64.bits"]["changed"] > 90 and got["F64.grid"]["infinite"] > 10 and got["F64.grid"]["nans"] == 20
PY
run 0 diff "$o/a.safetensors" "$o/again.safetensors"
says out "0 changed, 0 missing, 0 added"
run 1 diff "$o/a.safetensors" "$o/b.safetensors" --tensor '*.last' --tensor 'shape' --tensor new --tensor '!I*'
golden diff.txt
run 1 diff "$o/a.safetensors" "$o/b.safetensors" --tensor '*.same' --tensor 'n*w' -q
[ "$(cat "$dir/out")" = new ] || fail "names only"
run 2 diff "$o/a.safetensors" "$o/b.safetensors" --tensor nothing
says err "neither side has a tensor that is called so"

# ---- Checkpoints: another layout is no difference; what has equal digests is not read

run 1 diff types@7 plain --data "$data" --json
json 'assert d["missing"] == ["every.c128"] and not d["added"] and not d["changed"]
assert d["a"]["job"] == "types" and d["b"]["step"] == 7 and d["bytes_read"] > 0 and d["bytes_digest"] == 0'
run 0 diff types plain --data "$data" --tensor '!every.c128' --memory 64K
run 0 diff types "$data:types@7" --data "$data" --json
json 'assert d["equal"] and d["bytes_read"] == 0 and d["bytes_digest"] > 2000000 and d["equal_tensors"] == 28'
run 0 export plain --data "$data" --output "$o/plain.safetensors"
run 0 diff "$o/plain.safetensors" "$data:plain" --json
json 'assert d["equal"] and d["a"] == {"path": "'"$o"'/plain.safetensors"} and d["bytes_digest"] == 0'
(cd "$o" && "$top_builddir/ckptctl" diff ./plain.safetensors plain --data "$data") >/dev/null || fail "a file beside"

# ---- What cannot be compared

run 2 diff types nothing --data "$data"
says err "there is no job 'nothing'"
run 2 diff types@8 plain --data "$data"
says err "no durable checkpoint 8"
here=$PWD
cp "$o/a.safetensors" "$dir/a.st" 2>/dev/null || fail "copy"
case $build in /*) ;; *) build=$here/$build ;; esac
cd "$dir" && run 2 diff types a.st --data "$data"
cd "$here" || exit 99
says err "the file of that name is './a.st'"
run 2 diff types@ plain --data "$data"
says err "names no checkpoint"
run 2 diff "$dir/nowhere" plain --data "$data"
says err "No such file"
run 2 diff "$dir/nowhere:plain" plain --data "$data"
says err "cannot open data folder"
run 2 diff "$dir/before" plain --data "$data"
says err "is of no format that is known"
fingerprint >"$dir/after"
cmp "$dir/before" "$dir/after" || fail "the folder was changed"
ending 31
