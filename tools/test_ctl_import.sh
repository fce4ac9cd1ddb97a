#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ckptctl import of safetensors files that an oracle in Python wrote, good ones and others; what was
# imported is exported again and read by the oracle.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
requires /usr/bin/python3 -c 'import numpy'
o=$dir/files
mkdir "$o"

python () { PYTHONPATH=$src/tools PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 - "$o/" "$@"; }
# holds CODE...: CODE, which sees the oracle and the folder o, does not assert.
holds () {
	checks=$((checks + 1))
	python "$*" <<'PY' || fail "holds: $*"
import sys
from test_exchange import *
o = sys.argv[1]
exec(sys.argv[2])
PY
}
# back JOB FILE: export of JOB to FILE.
back () { run 0 export "$1" --data "$data" --output "$o/$2" -q --yes; }

# ---- Good files: every dtype, odd shapes, any order, padded in any way

python <<'PY' || exit 99
import sys
from test_exchange import *
o = sys.argv[1]
t = types()
write(o + "all.safetensors", t, {"format": "np", "by": "hand \u00e9"})
write(o + "padded.safetensors", dict(reversed(t.items())), pad=4096)
write(o + "unpadded.safetensors", t, pad=1)
write(o + "lead.safetensors", t, lead=24)
write(o + "nothing.safetensors", {})
write(o + "empties.safetensors", {"a": ("F32", [0], b""), "b": ("U8", [3], b"xyz"), "c": ("I64", [2, 0, 3], b""), "d": ("BF16", [], b"\1\2")})
names = list(t)
os.mkdir(o + "folder")
weight_map, total = {}, 0
for i in range(3):
    part = {n: t[n] for n in names[i::3]}
    file = "model-%05d-of-00003.safetensors" % (i + 1)
    write(o + "folder/" + file, part)
    weight_map.update({n: file for n in part})
json.dump({"metadata": {"total_size": 1.5, "more": []}, "weight_map": weight_map},
          open(o + "folder/model.safetensors.index.json", "w"))
PY
for file in all padded unpadded lead; do
	run 0 import "$o/$file.safetensors" --as "$file" --data "$data" --step 3
	says out "imported 27 tensors of"
	back "$file" again
	holds 't, m, _ = read(o + "again"); assert t == types() and m["ckpt.step"] == "3"
assert (m["format"], m.get("by")) == (("np", "hand \u00e9") if "'$file'" == "all" else ("pt", None))'
done
run 0 import "$o/folder" --as folder --data "$data" --json
json 'assert d["tensors"] == 27 and d["world"] == 1 and d["step"] == 0 and d["dry_run"] is False and d["blobs"] == 0
assert d["format"] == "safetensors" and d["job"] == "folder" and d["bytes"] > 1200000'
run 0 diff folder all --data "$data" --json
json 'assert d["equal"] and d["equal_tensors"] == 27'
run 0 import "$o/folder/model.safetensors.index.json" --as index --data "$data" --memory 1M --tensor '*.f*' --tensor big
run 1 diff index all --data "$data" -q
run 0 diff index all --data "$data" --tensor big --tensor '*.f*'
run 0 import "$o/empties.safetensors" --as empties --data "$data" --memory 1
back empties again
holds 't, _, _ = read(o + "again"); assert t == read(o + "empties.safetensors")[0]'
run 0 import "$o/nothing.safetensors" --as nothing --data "$data"
back nothing again
holds 't, _, _ = read(o + "again"); assert t == {}'
run 0 show all 3 --data "$data" --json
json 'assert d["files"]["ranks"][0]["blobs"][0]["name"] == "safetensors.metadata" and len(d["tensors"]) == 27'
run 0 import "$o/all.safetensors" --as other --data "$dir/other" --json
run 0 diff "$dir/other:other" all --data "$data"

# ---- Many small ones: more than are read at a time

python <<'PY' || exit 99
import sys
from test_exchange import *
write(sys.argv[1] + "many.safetensors", {"t.%d" % i: ("U16", [i % 7, 3], np.full(i % 7 * 3, i, "<u2").tobytes())
                                         for i in range(5000)})
PY
run 0 import "$o/many.safetensors" --as many --data "$data"
back many again
holds 't, _, _ = read(o + "again"); assert len(t) == 5000 and t == read(o + "many.safetensors")[0]'
run 0 diff many "$o/many.safetensors" --data "$data"

# ---- In any layout

python <<'PY' || exit 99
import sys
from test_exchange import *
t = {"layers.%d.%s" % (i, n): ("BF16", s, np.full(elements(s), 100 * i + k, "<u2").tobytes())
     for i in range(4) for k, (n, s) in enumerate({"self_attn.q_proj.weight": [24, 40], "mlp.down_proj.weight": [40, 56],
                                                   "norm.weight": [40]}.items())}
t["embed_tokens.weight"] = ("F32", [101, 40], np.arange(4040, dtype="<f4").tobytes())
t["scalar"] = ("I64", [], bytes(8))
write(sys.argv[1] + "model.safetensors", t)
json.dump({"layout": 1, "mesh": [["pp", 2]], "places": [{"axis": "pp", "number": "layers.#.*", "sizes": [1, 1]}], "rules": []},
          open(sys.argv[1] + "short.json", "w"))
PY
for layout in fsdp2=3 fsdp1=4 hf:tp=2 ddp=2; do
	job=$(echo "$layout" | tr := --)
	run 0 import "$o/model.safetensors" --as "$job" --to $layout --data "$data" --memory 1M
	says out ", on $(echo $layout | tr -dc '0-9\n' | sed 's/^.*\(.\)$/\1/') ranks"
	run 0 diff "$job" "$o/model.safetensors" --data "$data"
	ctl verify "$job" 0 --data "$data" >"$dir/out" 2>&1
	says out "good     $job 0."
done
run 2 import "$o/model.safetensors" --as no --to fsdp2=0 --data "$data"
run 2 import "$o/model.safetensors" --as no --to nothing=3 --data "$data"
run 2 import "$o/model.safetensors" --as no --to hf:tp=2,strict --data "$data"
says err "layout 'hf:tp=2,strict': "
says err "no rule of the layout knows this name, and it is strict"
run 2 reshard fsdp2-3 --to fsdp2 --as fsdp2-1 --data "$data"
says err "'fsdp2': it needs a number, as in fsdp2=2"
run 2 reshard fsdp2-3 --to hf:tp=2,strict --dry-run --data "$data"
says err "layout 'hf:tp=2,strict'"
run 2 import "$o/model.safetensors" --as no --to "$o/short.json" --data "$data"
says err "layers."

# ---- Memory: what --memory says and what a program takes by itself, whatever the size

# within MIB VERB...: ckptctl VERB... never has more than MIB in memory.
within () {
	checks=$((checks + 1))
	/usr/bin/python3 - "$build/ckptctl" "$@" <<'PY' || fail "within $*"
import os, sys
pid = os.posix_spawn(sys.argv[1], [sys.argv[1], *sys.argv[3:]], os.environ)
_, status, use = os.wait4(pid, 0)
assert status == 0 and use.ru_maxrss <= int(sys.argv[2]) << 10, (status, use.ru_maxrss)
PY
}
python <<'PY' || exit 99
import sys
from test_exchange import *
write(sys.argv[1] + "large.safetensors", {k: ("F32", [1024, 4096], np.full(1 << 22, i, "<f4").tobytes())
                                          for i, k in enumerate("abc")})
PY
if ! grep -qa __asan_init "$build/ckptctl" && ! grep -qa __tsan_init "$build/ckptctl"; then
	within 32 import "$o/large.safetensors" --as large --data "$data" --memory 8M -q
	within 32 export large --data "$data" --output "$o/large" --memory 8M -q
	within 32 export large --data "$data" --output "$o/large.f64" --memory 8M --cast f64 -q
	within 32 diff large "$o/large.safetensors" --data "$data" --memory 8M -q
	within 32 diff "$o/large.f64" "$o/large.f64" --memory 8M -q
	rm "$o/large" "$o/large.f64"
else
	checks=$((checks + 5)) # memory of the sanitizer's own
fi
rm "$o/large.safetensors"

# ---- By digests: the same layout, one tensor changed

python <<'PY' || exit 99
import sys
from test_exchange import *
o = sys.argv[1]
t = types()
dtype, shape, raw = t["big"]
t["big"] = (dtype, shape, raw[:1000] + bytes([raw[1000] ^ 1]) + raw[1001:])
write(o + "changed.safetensors", t)
PY
run 0 import "$o/changed.safetensors" --as changed --data "$data"
run 1 diff lead changed --data "$data" --json
json 'assert [(t["name"], t["changed"], t["first"]) for t in d["changed"]] == [("big", 1, [0, 250])]
assert d["bytes_read"] >= 2400000 and 0 < d["bytes_digest"] and d["equal_tensors"] == 26'

# ---- What is there stays; nothing is made of what is refused

fingerprint >"$dir/before"
run 2 import "$o/all.safetensors" --as all --data "$data"
says err "has a job 'all' already"
run 0 import "$o/all.safetensors" --as dry --data "$data" --dry-run
says out "would import 27 tensors"
run 2 import "$o/all.safetensors" --as all --data "$data" --dry-run
says err "has a job 'all' already in '$data': take another name"
run 0 import "$o/all.safetensors" --as dry --data "$dir/unmade" --dry-run
run 2 import "$o/all.safetensors" --as dry --data "$dir/unmade/too" --dry-run
says err "make data folder '$dir/unmade/too': No such file or directory"
checks=$((checks + 1))
[ ! -e "$dir/unmade" ] || fail "a dry run made a folder"
# More than the disk has, in a file that is one hole
python <<'PY' || exit 99
import sys
from test_exchange import *
s = os.statvfs(sys.argv[1])
n = s.f_bavail * s.f_frsize + (1 << 30)
header = json.dumps({"x": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}).encode()
with open(sys.argv[1] + "hole.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(header)) + header)
    f.truncate(8 + len(header) + n)
PY
run 2 import "$o/hole.safetensors" --as dry --data "$data" --dry-run
says err "job 'dry' needs "
says err ": nothing was written; free some, or name another folder"
run 2 import "$o/hole.safetensors" --as dry --data "$dir/unmade" --dry-run
says err "and the disk of '$dir/unmade' has "
rm "$o/hole.safetensors"
run 2 import "$o/all.safetensors" --data "$data"
says err "--as JOB"
run 2 import "$o/all.safetensors" --as ../x --data "$data"
run 2 import "$o/all.safetensors" --as x --step 1.a --data "$data"
says err "--step needs a number"
run 2 import "$o/all.safetensors" --as x --format dds --data "$data"
says err "is no format that can be imported"
run 2 import "$o/nowhere" --as x --data "$data"
says err "No such file or directory: name a safetensors file, a PyTorch DCP folder or a file of torch.save()"
run 2 import "$o/all.safetensors" --as x --data "$data" --tensor nothing
says err "no tensor is called like 'nothing'"
run 2 import "$o" --as x --data "$data"
says err "that could be meant: name one"
mkdir "$o/empty"
run 2 import "$o/empty" --as x --data "$data"
says err "is of no format that is known (safetensors, dcp, torch): with --format NAME the answer is what it lacks"
run 2 import "$o/empty" --as x --data "$data" --format safetensors
says err "folder '$o/empty' has no safetensors file"

# ---- Damage: (name, sentence), each refused in words by import and by diff

python <<'PY' >"$dir/bad" || exit 99
import sys
from test_exchange import *
o = sys.argv[1]
def raw(name, sentence, whole):
    with open(o + name + ".safetensors", "wb") as f:
        f.write(whole)
    print(name + ".safetensors", sentence, sep="\t")
def text(name, sentence, header, data=b"", n=None):
    raw(name, sentence, struct.pack("<Q", len(header) if n is None else n) + header + data)
def entry(name, sentence, data=b"", **t):
    text(name, sentence, json.dumps({"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1], **t}}).encode(), data)
raw("bytes-0", "it has 0 bytes, less than the length of a header", b"")
raw("bytes-7", "it has 7 bytes", b"\1" * 7)
text("long", "its header would have 100000001 bytes, more than 100000000", b"{}", n=100_000_001)
text("longest", "its header would have 18446744073709551615 bytes", b"{}", n=2**64 - 1)
text("cut-header", "its header has 3 bytes, and only 2 follow: it was cut", b"{}", n=3)
text("no-header", "does not begin with '{'", b"")
text("text", "does not begin with '{'", b"[1]")
text("zip", "its header would have", b"", n=int.from_bytes(b"PK\3\4\0\0\0\0\1"[:8], "little") | 1 << 60)
text("utf8", "not JSON that can be used", b'{"\xff":0}')
text("twice", "duplicate object key", b'{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}')
text("tail", "not JSON that can be used", b"{}\0\0\0")
entry("cut-data", "its tensors have 1 byte, and 0 follow the header")
entry("more-data", "its tensors have 1 byte, and 2 follow the header", b"ab")
entry("f4", "tensor 'x' has the dtype F4, which checkpoints here do not have", b"a", dtype="F4", shape=[2])
entry("f6", "tensor 'x' has the dtype F6_E3M2", b"abc", dtype="F6_E3M2", shape=[4], data_offsets=[0, 3])
entry("unknown", "tensor 'x' has the dtype Q4_K", b"a", dtype="Q4_K")
entry("size", "tensor 'x': shape [3] of u8 has 3 bytes, its data_offsets have 1", b"a", shape=[3])
entry("overflow", "tensor 'x': its shape has more than 2^64 bytes", b"a", shape=[2**40, 2**40])
entry("wraps", "tensor 'x': its shape has more than 2^64 bytes", b"a", dtype="F64", shape=[2**61 + 1, 8])
entry("negative", "tensor 'x': its shape has something that is no count", b"a", shape=[-1])
entry("real", "tensor 'x': its shape has something that is no count", b"a", shape=[1.0])
entry("nine", "tensor 'x': it has 9 dimensions, and at most 8 are known", b"a", shape=[1] * 9)
entry("backwards", "tensor 'x': its data_offsets end before they begin", b"a", data_offsets=[1, 0])
entry("hole", "tensor 'x': its data begins at 1, behind a hole", b"ab", data_offsets=[1, 2])
entry("extra", "tensor 'x': it is not described by dtype, shape and data_offsets", b"a", strides=[1])
text("metadata", "__metadata__ has 'a', which is no text", b'{"__metadata__":{"a":1}}')
text("overlap", "tensor 'y': its data begins at 1, inside another's, which ends at 2", json.dumps(
    {k: {"dtype": "U8", "shape": [2], "data_offsets": [i, i + 2]} for i, k in enumerate("xy")}).encode(), b"abc")
text("name", "names have 1 to 1023 bytes", json.dumps({"n" * 1024: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}).encode())
text("deep", "it is not described by dtype", b"{\"x\":" + b"[" * 100000)
def index(name, sentence, document, **files):
    os.mkdir(o + name)
    for f, tensors in files.items():
        write(o + name + "/" + f, tensors)
    with open(o + name + "/model.safetensors.index.json", "w") as f:
        f.write(document if isinstance(document, str) else json.dumps(document))
    print(name, sentence, sep="\t")
one = lambda *names: {n: ("U8", [1], b"a") for n in names}
index("i-json", "not JSON that can be used", "{")
index("i-map", "there is no object 'weight_map'", {"metadata": {}})
index("i-escape", "is in '../all.safetensors', which is not the name of a file beside the index", {"weight_map": {"x": "../all.safetensors"}})
index("i-absolute", "which is not the name of a file beside the index", {"weight_map": {"x": "/etc/passwd"}})
index("i-gone", "No such file", {"weight_map": {"x": "f"}})
index("i-missing", "the index has tensor 'y' in 'f', which does not have it", {"weight_map": {"x": "f", "y": "f"}}, f=one("x"))
index("i-unnamed", "has tensor 'y', which the index does not name", {"weight_map": {"x": "f"}}, f=one("x", "y"))
index("i-elsewhere", "has tensor 'y', which the index has in 'g'", {"weight_map": {"x": "f", "y": "g"}}, f=one("x", "y"), g=one("y"))
index("i-twice", "has tensor 'x', which the index has in 'f'", {"weight_map": {"x": "f", "y": "g"}}, f=one("x"), g=one("x", "y"))
index("i-itself", "model.safetensors.index.json", {"weight_map": {"x": "model.safetensors.index.json"}})
PY
while IFS='	' read -r name sentence; do
	run 2 import "$o/$name" --as bad --data "$data"
	says err "$sentence"
	[ "$(wc -l <"$dir/err")" = 1 ] || fail "$name: not one sentence"
	run 2 diff "$o/$name" all --data "$data"
	says err "$sentence"
done <"$dir/bad"
mkfifo "$o/pipe.safetensors"
run 2 import "$o/pipe.safetensors" --as bad --data "$data"
says err "is no file"
fingerprint >"$dir/after"
cmp "$dir/before" "$dir/after" || fail "the folder was changed by what was refused"
ending 255
