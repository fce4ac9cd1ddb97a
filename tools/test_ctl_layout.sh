#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ckptctl layout: of a checkpoint, of a list of tensors, of nothing; as tables and as JSON.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
"$build/tools/test_make_tensors" "$data" || exit 99
fingerprint >"$dir/before"

# ---- The mesh alone

run 0 layout hf:tp=2,dp=3
says out "ranks     6"
says out "5  tp1 dp2"
lacks out "BYTES"
json_of () { run 0 layout "$@" --json; }
json_of hf:tp=2,dp=3
json 'assert d["world"] == 6 and d["tensors"] == []
assert d["axes"] == [{"name": "tp", "size": 2, "stride": 1}, {"name": "dp", "size": 3, "stride": 2}]
assert d["ranks"][5]["at"] == [1, 2]'

# ---- A list of tensors

cat >"$dir/list.json" <<'JSON'
[{"name": "model.layers.0.mlp.up_proj.weight", "dtype": "bf16", "shape": [7, 2]},
 {"name": "exp_avg.model.layers.0.mlp.up_proj.weight", "dtype": "f32", "shape": [7, 2]}]
JSON
json_of hf:tp=2,dp=2,zero=1 "$dir/list.json"
json 'w, m = d["tensors"]
assert [(p["rank"], p["offset"], p["shape"], p["bytes"]) for p in w["pieces"]] == [
	(0, [0, 0], [4, 2], 16), (1, [4, 0], [3, 2], 12), (2, [0, 0], [4, 2], 16), (3, [4, 0], [3, 2], 12)]
assert [(p["rank"], p["offset"], p["shape"], p["start"], p["stop"]) for p in m["pieces"]] == [
	(0, [0, 0], [4, 2], 0, 4), (1, [4, 0], [3, 2], 0, 4), (2, [0, 0], [4, 2], 4, 8), (3, [4, 0], [3, 2], 4, 6)]
assert d["bytes"] == 28 + 56 and d["held"] == 56 + 56
assert [r["bytes"] for r in d["ranks"]] == [32, 28, 32, 20] and d["least"] == 20 and d["most"] == 32
assert abs(d["balance"] - 32 / 28) < 1e-9'
run 0 layout hf:tp=2,dp=2,zero=1 "$dir/list.json" -v
says out "[4, 6) of [4:7, 0:2]"
says out "at most 1.14 of the mean"
run 0 layout hf:tp=2 "$dir/list.json" --tensor 'exp*' --json
json 'assert [t["name"] for t in d["tensors"]] == ["exp_avg.model.layers.0.mlp.up_proj.weight"]'

# ---- A layout file

cat >"$dir/mine.json" <<'JSON'
{"layout": 1, "mesh": [["a", 3]], "rules": [{"match": "*up_proj*", "cut": {"over": "a", "how": "chunk"}}]}
JSON
json_of "$dir/mine.json" "$dir/list.json"
json 'assert [p["shape"][0] for p in d["tensors"][0]["pieces"]] == [3, 3, 1]'

# ---- Names that the layout does not know are whole on every rank

echo '[{"name": "w", "dtype": "f32", "shape": [8]}, {"name": "model.layers.0.mlp.up_proj.weight",
 "dtype": "f32", "shape": [8, 2]}, {"name": "step", "dtype": "i64", "shape": []}]' >"$dir/strange.json"
run 0 layout hf:tp=2 "$dir/strange.json"
says out "1 of 3 tensors matched no rule and is whole on every rank"
json_of hf:tp=2 "$dir/strange.json"
json 'assert d["passed_over"] == 1'
for meant in hf:dp=2 ddp=2 fsdp2=2 zero3=2; do
	run 0 layout $meant "$dir/strange.json"
	lacks out "matched no rule"
done

# ---- A checkpoint; what show prints is a list too

json_of fsdp2=3 types --data "$data"
json 'assert d["world"] == 3 and len(d["tensors"]) == 28'
run 0 show types 7 --json --data "$data"
cp "$dir/out" "$dir/shown.json"
json_of fsdp2=3 "$dir/shown.json"
json 'assert len(d["tensors"]) == 28'

# ---- What is wrong is said

run 2 layout fsdp=3
says err "'fsdp': there is no such item (did you mean 'fsdp2'?)"
for kind in ddp zero1 zero2 zero3 fsdp1 fsdp2; do
	run 2 layout $kind "$dir/list.json"
	says err "layout '$kind': '$kind': it needs a number, as in $kind=2"
	run 0 layout $kind,dp=2 "$dir/list.json"
done
run 2 layout hf:tp=x
says err "layout 'hf:tp=x': 'tp': 'x' is not a number"
run 2 layout "$dir/none.json"
says err "none.json': open it"
run 2 layout ddp=2 "$dir/none.json"
says err "open the list of tensors '$dir/none.json': No such file"
for wrong in '"layout": 2|it is of version 2, and this ckptctl knows 1' \
	'"layout": 1, "rulez": []|some of: layout mesh more_meshes moments strict flat places rules' \
	'"layout": 1, "rules": [{"match": "*", "cut": {"dim": 7, "over": "a"}}]|there is no dimension 7 to cut'; do
	echo "{\"mesh\": [[\"a\", 2]], ${wrong%%|*}}" >"$dir/wrong.json"
	run 2 layout "$dir/wrong.json" "$dir/list.json"
	says err "wrong.json'"
	says err "${wrong#*|}"
done
run 2 layout hf:tp=2,strict "$dir/list.json" 7
says err "a file of tensors has no steps"
echo '[{"name": "x", "dtype": "f31", "shape": []}]' >"$dir/bad.json"
run 2 layout ddp=2 "$dir/bad.json"
says err "tensor 1 in"
says err "'f31' is no dtype"
echo '[{"name": "x", "dtype": "f32", "shape": [4]}]' >"$dir/bad.json"
run 2 layout hf:tp=2,strict "$dir/bad.json"
says err "tensor 'x': no rule of the layout knows this name, and it is strict"
run 2 layout ddp=2 "$dir/list.json" --tensor nothing
says err "no tensor is called like 'nothing'"
run 2 layout ddp=2 nobody --data "$data"
says err "nobody"
fingerprint | cmp -s "$dir/before" - || fail "the data folder was changed"
ending 33
