#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ckptctl import and export of what torch has: DCP folders and torch.save() files, written and read by
# torch 1.13 itself; torch 2's folders by stand-ins of its classes; hostile and damaged ones of each.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
requires /usr/bin/python3 -c 'import numpy, torch, torch.distributed; assert torch.distributed.is_gloo_available()'
o=$dir/files
mkdir "$o"

torch () {
	PYTHONPATH=$src/tools PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 \
		/usr/bin/python3 -W ignore "$src/tools/test_torch.py" "$@"
}
# tells COMMAND ...: the script finds nothing wrong.
tells () {
	checks=$((checks + 1))
	torch "$@" >"$dir/torch" 2>&1 || { fail "torch: $*"; sed 's/^/  | /' "$dir/torch"; }
}
# holds CODE...: CODE, which sees the script's functions and the folder o, does not assert.
holds () {
	checks=$((checks + 1))
	PYTHONPATH=$src/tools PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -W ignore - "$o/" "$*" <<'PY' || fail "holds: $*"
import sys
from test_torch import *
o = sys.argv[1]
exec(sys.argv[2])
PY
}
# refuses PATH SENTENCE: import does, says so, and leaves nothing; diff says the same.
refuses () {
	run 2 import "$1" --as refused --data "$data"
	says err "$2"
	[ ! -e "$o/executed" ] || fail "$1 was executed"
	[ "$(ls "$data/incoming")" = LOCK ] || fail "$1 left something in incoming"
}

# ---- torch.save(): dictionaries, lists, views, parameters, shared storages, values, every dtype

tells files "$o"
run 0 import "$o/all.pt" --as all --data "$data" --step 4
says out "imported 38 tensors of '$o/all.pt'"
run 0 diff "$o/all.safetensors" all --data "$data"
run 0 diff "$o/all.pt" all --data "$data" --memory 1K
run 0 import "$o/proto4.pt" --as plain --data "$data"
run 0 diff "$o/plain.safetensors" plain --data "$data"
run 0 import "$o/tensor.pt" --as tensor --data "$data" --format torch
says out "imported 1 tensor of"
run 0 diff "$o/tensor.safetensors" tensor --data "$data"
says out ": 1 tensor equal, 0 changed"

# Its values are blobs, and come back with the tensors where they were.
run 0 show all 4 --data "$data" --json
json 'names = [b["name"] for b in d["files"]["ranks"][0]["blobs"]]
assert {"epoch", "nothing", "optimizer.param_groups.0.lr", "listed.1.deep.1", "torch.paths"} < set(names), names'
run 0 export all --data "$data" --format dcp --output "$o/tree"
tells tree "$o/tree" "$o/all.pt"
says out "to '$o/tree' and an index of them"
lacks out "left out"

# A few hundred bytes that unfold to a million names.
holds 'import pickle, zipfile
d = {"a": 1}
for i in range(20):
    d = {"a": d, "b": d}
with zipfile.ZipFile(o + "bomb.pt", "w") as z:
    z.writestr("archive/data.pkl", pickle.dumps(d, 2))
    z.writestr("archive/version", "3\n")'
refuses "$o/bomb.pt" "it refers to its own parts so often that they have more than"

refuses "$o/legacy.pt" "the format that torch.save() had before torch 1.6"
refuses "$o/script.pt" "it holds a TorchScript module"
refuses "$o/sparse.pt" "'a': it is sparse, quantized, nested"
refuses "$o/quantized.pt" "it names 'torch.QInt8Storage'"
refuses "$o/object.pt" "it names 'types.SimpleNamespace'"
refuses "$o/twice.pt" "'a.b': two items get this name when keys are joined by dots"
refuses "$o/values.pt" "there is no tensor in it"

# ---- A DCP folder of torch 1.13 on 2 ranks, and back on 3 ranks

torch save "$o/saved" 2 || fail "torch does not save"
run 0 import "$o/saved" --as dcp --data "$data"
says out "imported 19 tensors of '$o/saved'"
run 0 diff dcp "$o/plain.safetensors" --data "$data" --tensor '!*.c128'
run 0 diff dcp "$o/saved" --data "$data" --memory 100
run 0 show dcp 0 --data "$data" --json
json 'assert {b["name"] for b in d["files"]["ranks"][0]["blobs"]} == {"step", "config", "bytes"}'
run 0 export dcp --data "$data" --format dcp --torch 1.13 --output "$o/back" --json
json 'assert d["format"] == "dcp" and d["tensors"] == 19 and d["blobs_left_out"] == 0
assert [f["path"].split("/")[-1] for f in d["files"]] == ["__0_0.distcp", ".metadata"]'
[ "$(ls -A "$o/back" | tr '\n' ' ')" = ".metadata __0_0.distcp " ] || fail "files: $(ls -A "$o/back")"
tells load "$o/back" 3
run 0 diff "$o/back" "$o/saved"

# ---- A checkpoint of three ranks, cut in every way, for torch 2 and 1.13

"$build/tools/test_make_tensors" "$dir/types" || exit 99
run 0 export types --data "$dir/types" --format dcp --output "$o/two"
run 0 diff "$dir/types:types@7" "$o/two"
holds 'm, found = check_2(o + "two")
assert found["big"] == 3 and found["replicated"] == 1 and found["empty"] == 1 and found["scalar"] == 1
assert found["flat"] > 3 and len(found) == len(wanted()) + 1 and len(found["rng"]) == 100
assert m.state_dict_metadata["every.f8_e8m0"].properties.dtype == "float8_e8m0fnu"'
run 2 export types --data "$dir/types" --format dcp --torch 1.13 --output "$o/one"
says err "of u16, which torch 1.13 does not have: leave it out with --tensor '!GLOB'"
[ ! -e "$o/one" ] || fail "a folder for an export that was refused"
for globs in "--tensor *.f32 --tensor *.bf16 --tensor *.bool --tensor scalar" \
	"--tensor !*.u16 --tensor !*.u32 --tensor !*.u64 --tensor !*.f8_* --tensor !*.f64 --tensor !*/"; do
	set -f
	run 0 export types --data "$dir/types" --format dcp --torch 1.13 --output "$o/one" --yes \
		--memory 5K $globs
	run 0 diff "$dir/types:types" "$o/one" $globs
	set +f
done
run 2 export types --data "$dir/types" --format dcp --output "$o/one"
says err "holds a checkpoint already: name another folder with --output, or replace it with --yes"
run 2 export types --data "$dir/types" --format dcp --output "$o/one" --shard-size 1M --yes
says err "--shard-size is for safetensors"
run 2 export types --data "$dir/types" --format dcp --torch 3 --output "$o/one"
says err "--torch needs 1.13 or 2"
run 0 export types --data "$dir/types" --format dcp --output "$o/cast" --cast bf16 --memory 64K
run 0 export types --data "$dir/types" --output "$o/cast.safetensors" --cast bf16 --tensor '!*.c128'
run 0 diff "$o/cast.safetensors" "$o/cast" --tensor '!*.c128'
run 0 import "$o/two" --as two --data "$data"
run 0 export two --data "$data" --format dcp --output "$o/two-again"
holds 'a, b = check_2(o + "two"), check_2(o + "two-again")
assert a[1]["rng"] == b[1]["rng"] and b[1]["big"] == 1'
# What several ranks have by one name, and differently, is named by rank; a blob comes back as it was.
"$build/tools/test_make_data" "$dir/made" || exit 99
run 2 export alpha --data "$dir/made" --format dcp --output "$o/alpha"
says err "is not UTF-8, as torch's names are"
run 0 export alpha --data "$dir/made" --format dcp --output "$o/alpha" --tensor '!step*'
holds 'names = check_2(o + "alpha", skip=wanted())[1]
assert {"rng.rank0", "rng.rank1"} <= set(names), names'
run 0 import "$o/alpha" --as alpha-again --data "$data"
run 0 diff "$dir/made:alpha" alpha-again --data "$data" --tensor '!step*'

# ---- torch 2's folders

mkdir "$o/folders"
tells folders "$o/folders"
for folder in good protocol2; do
	run 0 import "$o/folders/$folder" --as "$folder" --data "$data"
	run 0 diff "$o/plain.safetensors" "$folder" --data "$data"
	run 0 export "$folder" --data "$data" --format dcp --output "$o/$folder"
done
holds 'm, _ = check_2(o + "good", skip=["every.c128"])
assert m.planner_data["every.f32"] == ("every", "f32") and m.planner_data["step"] == ("step",)'
refuses "$o/folders/hole" "elements [1:2, 0:6] of tensor 'x' are stored by no rank"
refuses "$o/folders/overlap" "tensor 'x': two of its parts overlap: [1:3, 0:6] and [2:4, 0:6]"
refuses "$o/folders/outside" "'x': its chunk at [2, 0] of shape [3, 6] is not inside of it"
refuses "$o/folders/beyond" "of '__0_0.distcp', which has"
refuses "$o/folders/huge" "it is said to be at bytes 9223372036854775807"
refuses "$o/folders/elsewhere" "'x': its file '../secret' is not a plain name"
refuses "$o/folders/nowhere" "'x': its part at [2, 0] is stored nowhere"
refuses "$o/folders/transformed" "it went through a stream extension"
refuses "$o/folders/gone" "its file '__9_0.distcp', which .metadata names: No such file"
refuses "$o/folders/dtype" "it holds a tensor of f64 [4, 6] where .metadata says f32 [4, 6]"
refuses "$o/folders/shape" "it holds a tensor of f32 [6, 4] where .metadata says f32 [4, 6]"
refuses "$o/folders/value" "it holds a dict where .metadata says a tensor is"
refuses "$o/folders/perrank" "was saved with use_collectives=False"
refuses "$o/folders/system" "it names 'posix.system'"
says err "save a state dictionary of tensors and plain values"
refuses "$o/folders/other" "it is a dict, not the Metadata"

# Large ones for which anything quadratic takes many minutes.
n=$((${CKPT_TENSORS:-1000000} * 2 / 5))
holds "n = $n"'
d = Folder2()
d.tensor("x", torch.ones(2), [0])
info = d.places[d.m.MetadataIndex("x", torch.Size([0]))]
chunk = d.m.ChunkStorageMetadata
d.items["x"].size, one = torch.Size([n]), torch.Size([1])
d.items["x"].chunks = [chunk(torch.Size([i]), one) for i in range(n - 2)] + [chunk(torch.Size([n - 2]), torch.Size([2])), chunk(torch.Size([n - 1]), one)]
d.places = {d.m.MetadataIndex("x", torch.Size([i])): info for i in range(n)}
d.write(o + "folders/overlaps")
shared = {"offsets": torch.Size([0]), "sizes": torch.Size([2]), **{str(i): None for i in range(n)}}
chunk.__getstate__ = lambda self: shared
d.write(o + "folders/fields")'
refuses "$o/folders/overlaps" "tensor 'x': two of its parts overlap: [$((n - 2)):$n] and [$((n - 1)):$n]"
refuses "$o/folders/fields" "a ChunkStorageMetadata in it has $((n + 2)) fields; at most 256 can be read"

# ---- Damage

copy () { rm -rf "$o/damaged" && cp -r "$1" "$o/damaged"; }
copy "$o/two"
flip "$o/damaged/__1_0.distcp" 200000
refuses "$o/damaged" "is damaged: its bytes do not have the CRC-32"
copy "$o/two"
truncate -s -1 "$o/damaged/__2_0.distcp"
refuses "$o/damaged" "of '__2_0.distcp', which has"
copy "$o/two"
truncate -s 3000 "$o/damaged/.metadata"
refuses "$o/damaged" "it is cut short"
copy "$o/two"
rm "$o/damaged/.metadata"
refuses "$o/damaged" "is of no format that is known"
cp "$o/all.pt" "$o/damaged.pt"
flip "$o/damaged.pt" 600000
refuses "$o/damaged.pt" "is damaged: its bytes do not have the CRC-32"
run 2 diff all "$o/damaged.pt" --data "$data" # 1 would be: they differ
says err "is damaged: its bytes do not have the CRC-32"
truncate -s -10 "$o/damaged.pt"
refuses "$o/damaged.pt" "it is damaged or cut short"

# ---- Hostile pickles and archives: none is executed, each has its sentence

mkdir "$o/hostile"
tells hostile "$o/hostile"
while read -r name sentence; do
	refuses "$o/hostile/$name.pt" "$sentence"
done <<'END'
system it names 'posix.system'
eval it names 'builtins.eval'
inst the opcode INST is not allowed
obj it names 'os.system'
ext the opcode EXT1 is not allowed
proto0 its protocol is 0
deep it is nested deeper than 100 levels, or contains itself
itself it is nested deeper than 100 levels, or contains itself
laughs it refers to its own parts more than
memo memo 2147483647 is written before memo 0
unmemo memo 7 is read, which was not written
long a text of 4294967295 bytes does not fit into it
longer a text of 9223372036854775807 bytes does not fit into it
stack a container ends that did not begin
short it is cut short
call it would call a float32
outside its elements reach beyond its storage: shape [4] from element 1
overflow has too many elements
strided its elements reach beyond its storage
negative is no count but a negative number
bomb more than the file of
missing it refers to the storage '0', which is not in it
lies its storage '0' has 12 bytes; data.pkl says 16
conj it has torch's 'conj' bit
nine it has 9 dimensions; at most 8 can be kept
big_endian its numbers are in 'big' byte order
key it refers to the storage '../../etc'
zip it has no data.pkl
deflated it has no data.pkl, or a compressed one
END
[ ! -e "$o/hostile/executed" ] && [ ! -e "$o/folders/executed" ] || fail "something was executed"
run 2 show refused --data "$data"
ending 180
