#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ckptctl on the files of a data folder: what it prints, and that it changes nothing.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
make_data
fingerprint >"$dir/before"

# ---- status and list

run 0 status --data "$data"
golden status.txt
silent err
run 0 status --data "$data" -v
golden status-v.txt
run 0 status --data "$data" --json
json 'assert [j["job"] for j in d["jobs"]] == ["alpha", "beta"] and d["problems"] == []
a = job("alpha"); assert a["uid"] == 4242 and a["epoch"]["number"] == 2 and a["epoch"]["base_step"] == 30
assert a["aborted"] == [{"step": 15, "epoch": 1, "reason": "rank 1 ended before it had sealed step 15"}]
assert [c["step"] for c in a["checkpoints"]] == [40, 30, 25, 20, 10]
assert [c["disk"] for c in a["checkpoints"]] == ["no", "durable", "durable", "durable", "expiring"]
assert [c["step"] for c in a["checkpoints"] if c["latest"]] == [30]
assert [c["step"] for c in a["checkpoints"] if c["base"]] == [30]
assert [c["step"] for c in job("beta")["checkpoints"] if c["latest"]] == [5]
assert [c["step"] for c in a["checkpoints"] if c["pinned"]] == [20]
assert len(a["leftovers"]) == 1 and "/50." in a["leftovers"][0]["path"]
assert job("beta")["epoch"]["base_step"] is None and "memory" not in step("alpha", 30)'
run 0 status beta --data "$data" -q
[ "$(cat "$dir/out")" = beta ] || fail "status -q"
run 0 list --data "$data"
golden list.txt
run 0 list alpha --data "$data" --json
json 'assert [j["job"] for j in d["jobs"]] == ["alpha"] and "epoch" not in job("alpha")
assert step("alpha", 20)["stored"] == step("alpha", 20)["bytes"]'
run 0 list a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1 --data "$data" -q
names=$(cut -d. -f1 "$dir/out" | tr '\n' ' ')
[ "$names" = "40 30 25 20 10 " ] || fail "list -q: $names"
attempt=$(sed -n 's/^30\.//p' "$dir/out")

# ---- show

run 0 show alpha 30 --data "$data"
golden show.txt
run 0 show alpha --data "$data" # the newest that can be loaded: 40 is not on disk
golden show.txt
run 0 show alpha 20 --data "$data" -v
golden show-v.txt
run 0 show alpha "30.$(echo "$attempt" | cut -c1-3)" --data "$data" --json
json 't = {x["name"]: x for x in d["tensors"]}
assert list(t) == sorted(t) and len(t) == 5 and d["problems"] == []
assert t["embed.weight"]["shape"] == [64, 32] and t["embed.weight"]["dtype"] == "f32"
assert [p["offset"] for p in t["embed.weight"]["pieces"]] == [[0, 0], [32, 0]]
assert all(p["shape"] == [32, 32] and "start" not in p for p in t["embed.weight"]["pieces"])
assert [(p["rank"], p["start"], p["stop"], p["bytes"]) for p in t["adam.m"]["pieces"]] == [(0, 0, 350, 1400), (1, 350, 700, 1400)]
assert t["norm\x1b[31m.bias"]["bytes"] == 64 and t["norm\x1b[31m.bias"]["held"] == 128
assert t["step\\xff"]["shape"] == [] and t["step\\xff"]["bytes"] == 8
assert all(x["held"] == sum(p["bytes"] for p in x["pieces"]) for x in t.values())
r = d["files"]["ranks"]; assert [x["rank"] for x in r] == [0, 1] and sum(x["image_bytes"] for x in r) == d["checkpoint"]["bytes"]
assert r[0]["blobs"] == [{"name": "rng", "bytes": 100}, {"name": "cursor", "bytes": 8}]'
run 0 show alpha 30 --data "$data" --tensor 'e*.weight' --json
json 'assert [t["name"] for t in d["tensors"]] == ["embed.weight"]'
for name in adam.m 'adam[.]m' 'adam\.m'; do
	run 0 show alpha 30 --data "$data" --tensor "$name" --json
	json 'assert [(t["name"], len(t["pieces"])) for t in d["tensors"]] == [("adam.m", 2)]'
done
run 0 show alpha 30 --data "$data" --tensor adam
says out "no tensor is called like 'adam'"
run 0 show alpha 30 --data "$data" --tensor 'nothing*'
says out "no tensor is called like 'nothing*'"
run 0 show alpha 30 --data "$data" -q
says out 'norm?[31m.bias' # what would colour the terminal does not reach it
run 0 show alpha 40 --data "$data"
says out "only in the memory of ckptd"
run 0 show alpha 40 --data "$data" --json
json 'assert d["tensors"] is None and d["files"] is None and "only when it is on disk" in d["note"]'
run 2 show alpha 31 --data "$data"
says err "job 'alpha' has no checkpoint 31"
run 2 show alpha 30.ffff --data "$data"
run 2 show alpha 30.xyz --data "$data"
says err "is no checkpoint"
run 2 show alpha 50 --data "$data" # without COMMIT it is none
run 2 list gamma --data "$data"
says err "there is no job 'gamma'"
silent out

# ---- gc

run 0 gc --dry-run --data "$data" --keep-last 1
golden gc.txt
run 0 gc alpha --dry-run --data "$data" --json
json 'p = {x["step"]: x for x in job("alpha")["plan"]}
assert list(p) == [20, 25, 30] and not any(x["expire"] for x in p.values()) and p[20]["because"] == "pinned"
assert d["dry_run"] is True
import glob, os
files = glob.glob("'"$data"'/jobs/" + job("alpha")["id"] + "/20.*/*.shard")
assert p[20]["bytes"] == sum(map(os.path.getsize, files)) > 0'
run 2 gc --incoming alpha --data "$data"
says err "gc --incoming is of the whole folder: leave out 'alpha'"
run 2 gc --data "$data"
says err "say --dry-run"

# ---- Nothing of this changes the folder, and a daemon that has it may run.

/usr/bin/python3 - "$data/LOCK" "$build/ckptctl" "$data" <<'PY' || fail "beside a daemon"
import fcntl, subprocess, sys
lock = open(sys.argv[1], "r+")
fcntl.lockf(lock, fcntl.LOCK_EX)
for verb in (["status"], ["list"], ["show", "alpha", "30"], ["verify"]):
    subprocess.run([sys.argv[2], *verb, "--data", sys.argv[3]], check=True, stdout=subprocess.DEVNULL)
PY
fingerprint >"$dir/after"
cmp "$dir/before" "$dir/after" || fail "the folder was changed by looking at it"

# ---- Folders that are none

mkdir "$dir/empty"
run 2 status --data "$dir/empty"
says err "has no FORMAT: ckptd has never used it: name its data folder with --data FOLDER"
run 2 rebuild --data "$dir/empty"
[ -z "$(ls "$dir/empty")" ] || fail "something was made in a folder that is none of ours"
run 2 verify --data "$dir/nowhere"
says err "--data FOLDER"
run 2 verify
says err "/var/lib/ckptd" # the last of the usual folders
under CKPT_DATA=$data run 0 verify
mkdir -p "$dir/.local/share"
ln -s "$data" "$dir/.local/share/ckptd"
run 0 verify beta
says out "good     beta 5."

# ---- One name, two users

make_data twin
run 2 show beta 5 --data "$data"
says err "2 users have a job 'beta': name one as UID/NAME (4242/beta, 4243/beta), or by its id"
run 0 show b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2b2 5 --data "$data"
says out "uid 4243"
run 0 show 4243/beta 5 --data "$data"
says out "uid 4243"
run 2 show 4244/beta 5 --data "$data"
run 0 list beta --data "$data"
says out "4242/beta"
says out "4243/beta"
run 0 list beta --data "$data" --json
json 'assert sorted(j["uid"] for j in d["jobs"]) == [4242, 4243]'

# ---- rebuild

run 0 rebuild --data "$data" --json
json 'assert d["done"] and d["checkpoints"] == 6 and d["source"] == "files"'
[ -e "$data/index/CURRENT" ] || fail "there is no index"
[ "$("$build/tools/test_make_data" "$data" index | grep pinned)" = 'alpha 20 pinned' ] ||
	fail "pins: $("$build/tools/test_make_data" "$data" index)"
run 0 rebuild --data "$data"
says out "checkpoints: 6"
run 0 verify --data "$data" -q
silent out
# ---- One job's folder cannot be read: the others are told of, and nothing is taken for gone

make_data
without_alpha () {
	strace -qq -o "$dir/trace" -P "$alpha" -e trace=getdents64 -e inject=getdents64:error=EIO \
		"$build/ckptctl" "$@" --data "$data" >"$dir/out" 2>"$dir/err"
}
id=${alpha##*/}
without_alpha status --json
[ $? = 1 ] || fail "status with an unreadable job: not told as a problem"
json 'u = job("a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1")
assert "Input/output error" in u["unread"] and u["uid"] is None and u["checkpoints"] == []
assert [c["step"] for c in job("beta")["checkpoints"]] == [5] and len(d["problems"]) == 1'
without_alpha status
[ $? = 1 ] || fail "status with an unreadable job: exit status"
says out "PROBLEM: job '$id': its folder cannot be read: "
without_alpha list
[ $? = 1 ] || fail "list with an unreadable job: exit status"
says out "beta"
says err "job '$id': its folder cannot be read: "
without_alpha show beta && lacks out "cannot be read"
without_alpha rm alpha --all --yes && fail "rm of a job that may be the unreadable one"
says err "job $id, which may be 'alpha': its folder cannot be read: "
without_alpha export alpha --output "$dir/never" && fail "export of a job that may be the unreadable one"
says err "which may be 'alpha'"

# ---- A user who may not read the files is told of other ways

make_data
mkdir "$dir/open"
chmod 755 "$dir" "$dir/open"
chmod 700 "$data"
cp "$build/ckptctl" "$dir/open/"
locked=
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
	locked="setpriv --reuid=65534 --regid=65534 --clear-groups"
else
	chmod 0 "$data"
fi
for verb in "verify alpha" "export alpha --output $dir/open/x" "diff alpha alpha"; do
	$locked "$dir/open/ckptctl" $verb --data "$data" >"$dir/out" 2>"$dir/err"
	[ $? = 2 ] || fail "$verb: not refused"
	says err "cannot read data folder '$data': only its owner and root can; ask whoever runs ckptd, or read your own job through it (ckpt://, ckpt_stored_open(3))"
done
chmod 700 "$data"
ending 83
