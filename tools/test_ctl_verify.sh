#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ckptctl verify, list and show on damaged files: what is wrong is named, the rest is found good.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
requires /usr/bin/python3 -c 'import pty'

# Whole: twice the same, whatever the number of threads.
make_data
run 0 verify --data "$data"
golden verify.txt
silent err # no bar where there is no terminal
run 0 verify alpha 30 --data "$data"
says out "good     alpha 30."
lacks out "alpha 20."
lacks out beta
run 2 verify alpha 10 --data "$data" # expiring: its files are nobody's any more
run 2 verify alpha 99 --data "$data"
says err "has no checkpoint 99 in '$data'"
run 0 verify --data "$data" --json
json 'assert [(c["job"], c["step"], c["result"]) for c in d["checkpoints"]] == [("alpha", 20, "good"), ("alpha", 25, "good"), ("alpha", 30, "good"), ("beta", 5, "good")]
assert d["problems"] == 0 and d["unread"] == 0 and d["bytes_read"] > 0 and len(d["leftovers"]) == 2
assert [(l["job"], l["records"], l["result"]) for l in d["logs"]] == [("alpha", 12, "good"), ("beta", 4, "good")]'

# Leaves: 20000 is in leaf 4 of 4096 bytes; the chunks begin behind a header of 4096.
flip "$alpha"/30.*/rank-0.shard $((4096 + 20000))
flip "$alpha"/30.*/rank-1.shard $((4096 + 10))
run 1 verify --data "$data" --jobs 1
says out "damaged  alpha 30."
says out "leaf 4 of rank 0 (tensor 'big', image bytes 16384 to 20480) does not match its digest"
says out "leaf 0 of rank 1 (tensor 'embed.weight'"
says out "good     alpha 20."
says out "good     beta 5."
says out "problems: 2"
sed 's/ in [0-9.]* s.*//' "$dir/out" >"$dir/one"
run 1 verify --data "$data" --jobs 4
sed 's/ in [0-9.]* s.*//' "$dir/out" | cmp - "$dir/one" || fail "it depends on the number of threads"
run 0 verify alpha 20 --data "$data"
run 1 verify --data "$data" --json
json 'c = [c for c in d["checkpoints"] if c["result"] != "good"]
assert len(c) == 1 and c[0]["step"] == 30 and c[0]["bad_leaves"] == 2 and len(c[0]["problems"]) == 2 and d["problems"] == 2'
run 1 verify -q --data "$data"
lacks out good

# A whole tensor gone bad: sentences are bounded, the count is not.
make_data
/usr/bin/python3 - "$alpha"/30.*/rank-0.shard <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(4096); f.write(bytes(100000))
PY
run 1 verify --data "$data" --json
json 'c = [c for c in d["checkpoints"] if c["step"] == 30][0]; assert c["bad_leaves"] == 25, c'

# A compressed chunk.
make_data
flip "$beta"/5.*/rank-0.shard $((4096 + 100))
run 1 verify beta --data "$data"
says out "damaged  beta 5."
says out "chunk 0 of rank 0"

# Footer, header, a file that is gone.
make_data
size=$(stat -c %s "$alpha"/20.*/rank-1.shard)
flip "$alpha"/20.*/rank-1.shard $((size - 4000))
flip "$alpha"/30.*/rank-0.shard 60
rm "$beta"/5.*/rank-0.shard
run 1 verify --data "$data"
says out "rank-1.shard': its footer does not match COMMIT"
says out "rank-0.shard': its header"
says out "the file is missing"
says out "problems: 3"
run 1 show alpha 20 --data "$data"
says err "its footer does not match COMMIT"
says out "embed.weight" # of rank 0
run 1 show alpha 20 --data "$data" --json
json 'assert len(d["problems"]) == 1 and [r["rank"] for r in d["files"]["ranks"]] == [0]'

# COMMIT.
make_data
flip "$alpha"/30.*/COMMIT 200
run 1 verify --data "$data"
says out "damaged  alpha 30."
says out "COMMIT"
run 1 list --data "$data"
says out damaged
says err "job 'alpha': step 30 on disk: "
run 1 status --data "$data"
says out "PROBLEM: job 'alpha': step 30 on disk: "
run 1 show alpha 30 --data "$data"
says err COMMIT
run 1 list --data "$data" --json
json 'c = step("alpha", 30); assert c["disk"] == "damaged" and c["state"] == "unknown" and c["reason"]'

# COMMIT that is gone: the log has its record. Its files may suffice, or not; a file may be gone too.
make_data
rm "$alpha"/30.*/COMMIT
run 1 verify --data "$data"
says out "damaged  alpha 30."
says out "its COMMIT is gone; its files lead to the root in the log"
says out "good     alpha 20."
says out "problems: 1"
run 1 list alpha --data "$data"
says out damaged
says err "job 'alpha': step 30 on disk: its COMMIT is gone"
run 1 status --data "$data"
says out "PROBLEM: job 'alpha': step 30 on disk: its COMMIT is gone"
run 1 status --data "$data" --json
json 'c = step("alpha", 30); assert c["disk"] == "damaged" and c["state"] == "committed" and step("alpha", 25)["latest"]'
run 1 show alpha 30 --data "$data"
says err "its COMMIT is gone"
flip "$alpha"/30.*/rank-1.shard 60
run 1 verify alpha 30 --data "$data"
says out "its COMMIT is gone, and cannot be made again: rank 1: its header"
make_data
rm "$alpha"/30.*/rank-0.shard
run 1 list alpha --data "$data"
says err "job 'alpha': step 30 on disk: rank 0: its file is gone"
run 1 verify alpha --data "$data"
says out "the file is missing"
says out "problems: 1"
# Without a log nothing says that it may go.
make_data
rm -r "$alpha"/30.*/COMMIT "$alpha/log"
run 1 verify alpha --data "$data"
says out "it has no COMMIT, and the log that knew it was lost"

# Every field of COMMIT that the log has too, under a digest that is right.
for at in 104 128 136 144 152 164 184; do
	make_data
	"$build/tools/test_make_data" "$(echo "$alpha"/30.*/COMMIT)" change $at
	run 1 verify alpha --data "$data"
	says out "damaged  alpha 30."
	says out "its COMMIT "
	run 1 list alpha --data "$data"
	says err "job 'alpha': step 30 on disk: its COMMIT "
done

# Parts that are good and do not belong together.
make_data wrong
run 1 verify --data "$data"
says out "rank 0 has another declaration than the layout says"
says out "rank 1 has another declaration than the layout says"
says out "COMMIT's copy of the job's record: it is of another job"
says out "its COMMIT has another root, layout or number of ranks than the log"
says out "its layout is of 2 ranks, its COMMIT of 1"
says out "problems: 5"
run 1 list --data "$data"
says err "job 'alpha': step 30 on disk: its COMMIT has another root"
run 0 rebuild --data "$data"
"$build/tools/test_make_data" "$data" index >"$dir/index"
[ "$(grep suspect "$dir/index")" = 'alpha 30 suspect' ] || fail "suspicions: $(cat "$dir/index")"
[ "$(grep pinned "$dir/index")" = 'alpha 20 pinned' ] || fail "pins: $(cat "$dir/index")"

# COMMIT of another checkpoint, good in itself.
make_data
cp "$alpha"/20.*/COMMIT "$alpha"/30.*/COMMIT
run 1 verify --data "$data"
says out "is of another checkpoint"

# The log: a record that is damaged, one that is missing, all of them.
make_data
flip "$alpha/log/00000000000000000008" 100
run 1 verify --data "$data"
says out "damaged  log of alpha"
says out "log record 8: its bytes do not match their digest"
says out "good     alpha 30." # its files are good
run 1 status --data "$data"
says out "PROBLEM: job 'alpha': its log: "
make_data
rm "$alpha/log/00000000000000000005"
run 1 verify alpha --data "$data"
says out "record 5 is missing"
make_data
rm -r "$beta/log"
run 1 verify beta --data "$data"
says out "the job has no log"
[ ! -e "$beta/log" ] || fail "verify made a log"

# A log that ends early does not know the COMMIT that follows.
make_data
rm "$alpha/log/0000000000000000000"[7-9] "$alpha/log/0000000000000000001"[01]
run 1 verify alpha --data "$data"
says out "the job's log does not know it"
run 1 list alpha --data "$data"
says out unlogged

# Layout and declarations.
make_data
rm "$data"/layouts/*
run 1 verify --data "$data"
says out "its layout "
says out "problems: 4"
make_data
for f in "$data"/declarations/*; do flip "$f" 300; done
run 1 verify --data "$data"
says out "the declaration of rank 0: "

# Strangers are no problem, but named.
make_data
touch "$data/notes.txt" "$data/spare/x" "$data/jobs/y" "$alpha/tmp-1" "$data/layouts/tmp-7"
mkdir "$alpha/log.old-00" "$data/index.bad" "$data/checks" # the last one is known
touch "$data/kernel-messages.seen"
cp "$alpha"/30.*/rank-1.shard "$(echo "$alpha"/30.*)/rank-7.shard"
run 0 verify --data "$data" --json
json 'l = {x["path"].split("/")[-1]: x["reason"] for x in d["leftovers"]}
assert set(l) >= {"notes.txt", "x", "y", "tmp-1", "tmp-7", "log.old-00", "index.bad", "rank-7.shard"} and len(l) == 10, l
assert l["rank-7.shard"] == "COMMIT knows no such rank" and "crash" in l["tmp-1"]'
run 0 verify beta --data "$data" --json
json 'assert d["leftovers"] == []'

# A reader holds shared locks: a file that is being recycled is not one of a checkpoint.
/usr/bin/python3 - "$(echo "$alpha"/30.*/rank-0.shard)" "$build/ckptctl" "$data" <<'PY' || fail "recycling"
import fcntl, struct, subprocess, sys
f = open(sys.argv[1], "r+b")
fcntl.fcntl(f, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)) # F_OFD_SETLK
r = subprocess.run([sys.argv[2], "verify", "alpha", "30", "--data", sys.argv[3]], capture_output=True, text=True)
assert r.returncode == 1 and "being recycled" in r.stdout, r
PY

# A checkpoint that expires between the look at its COMMIT and that at its files: in between the
# layout is opened, which strace holds up. Too early is no problem either, and then done again.
make_data
cp -r "$beta" "$dir/beta"
/usr/bin/python3 - "$data" "$beta" "$dir/beta" "$build/ckptctl" <<'PY' || fail "expiry meanwhile"
import glob, json, os, shutil, subprocess, sys, time
data, beta, copy, ctl = sys.argv[1:]
shown = subprocess.run([ctl, "show", "beta", "5", "--data", data, "--json"], capture_output=True, check=True)
layout = "layouts/" + json.loads(shown.stdout)["checkpoint"]["layout"]
def once(patience):
    shutil.rmtree(beta)
    shutil.copytree(copy, beta)
    hold = ["strace", "-f", "-qq", "-o", os.devnull, "-P", layout, "-e", "trace=openat2", "-e",
            "inject=openat2:delay_enter=%d" % (2000000 * patience)]
    p = subprocess.Popen(hold + [ctl, "verify", "beta", "--data", data], stdout=subprocess.PIPE, text=True,
                         env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}) # not under ptrace
    time.sleep(patience)
    folder = glob.glob(beta + "/5.*")[0]
    os.unlink(folder + "/COMMIT") # as ckptd does: COMMIT first
    shutil.rmtree(folder)
    out = p.communicate()[0]
    assert p.returncode == 0 and "problems: 0" in out, out
    return "expired  beta 5." in out
assert any(once(patience) for patience in (0.3, 1, 3, 10)), "never between the two looks"
PY

# A data folder whose FORMAT cannot be read: of its checkpoints nothing is known.
ASAN_OPTIONS=detect_leaks=0 strace -f -qq -o /dev/null -P FORMAT -e trace=openat2 \
	-e inject=openat2:error=EIO "$build/ckptctl" verify --data "$data" >"$dir/out" 2>"$dir/err"
got=$?
[ $got = 2 ] || fail "FORMAT cannot be read: exit status $got"
says err "cannot read FORMAT of the data folder: Input/output error"

# Every file as it was written, and an element that none of them has.
make_data holes
run 1 verify alpha --data "$data"
says out "damaged  alpha 30."
says out "elements [4096:12288] of tensor 'big' are stored by no rank"
says out "good     alpha 20."
says out "problems: 1"

# The bar, on a terminal only.
make_data
/usr/bin/python3 - "$build/ckptctl" "$data" >"$dir/out" <<'PY' || fail "on a terminal"
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], [sys.argv[1], "verify", "beta", "--data", sys.argv[2]])
text = b""
try:
    while chunk := os.read(fd, 4096):
        text += chunk
except OSError:
    pass
os.waitpid(pid, 0)
sys.stdout.buffer.write(text)
assert b"ETA" in text and b"\r\x1b[K" in text and b"good     beta" in text
PY
ending 92
