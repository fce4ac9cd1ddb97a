#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ckptctl and a daemon: what is asked of it, byte by byte of meaning, and what is made of its
# answers. The daemon is a fake that says what the test wants (test_fake_ckptd.c).
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
make_data
sock=$dir/sock
fake=
mkfifo "$dir/alive"

# One that hangs for good: how that ends is looked at when all else is done.
mkfifo "$dir/hung.alive"
"$build/tools/test_fake_ckptd" "$dir/hung" "$dir/status.json" <"$dir/hung.alive" >/dev/null &
hung=$!
trap 'kill -KILL $hung; rm -rf "$dir"' EXIT
exec 8>"$dir/hung.alive"
while ! [ -S "$dir/hung" ]; do kill -0 $hung || exit 99; sleep 0.05; done
sleep 0.1 # it listens
kill -STOP $hung
timeout 60 "$build/ckptctl" status --socket "$dir/hung" >"$dir/hung.out" 2>"$dir/hung.err" &
asks=$!

# start_fake [MODE]: serves $dir/status.json on $sock until stop_fake.
start_fake () {
	"$build/tools/test_fake_ckptd" "$sock" "$dir/status.json" "$@" <"$dir/alive" >"$dir/asked" &
	fake=$!
	exec 9>"$dir/alive"
	while ! [ -S "$sock" ]; do kill -0 $fake || exit 99; sleep 0.05; done
}
stop_fake () {
	exec 9>&-
	wait $fake
	rm -f "$sock"
}
# asked LINE: this was asked of the daemon since the last time; forgets it.
asked () {
	checks=$((checks + 1))
	grep -qFx -- "$1" "$dir/asked" || { fail "'$1' was not asked"; cat "$dir/asked"; }
	: >"$dir/asked"
}

# A daemon's answer about the same jobs, with what only it knows. $1: python that changes it.
make_status () {
	ctl status --data "$data" --json >"$dir/files.json"
	/usr/bin/python3 - "$dir/files.json" "$dir/status.json" "${1:-}" <<'PY' || exit 99
import json, sys
d = json.load(open(sys.argv[1]))
for k in ("source", "problems", "data", "spare_files", "spare_bytes"):
    del d[k]
d.update(version="0.1.0", node="n17", index=True, disk_backend="uring", memory_budget=8 << 30, memory_left=3 << 30, index_errors=0)
for j in d["jobs"]:
    del j["leftovers"]
    j.update(lost=0, stale_alarms=0, replica_alarms=0, log_anew=False)
    j["ranks"] = [dict(rank=r, pid=100 + r, alive=True, connected=r == 0, prepared=True, epoch=2, credit=r == 0, beats=None) for r in range(2)]
    j["ranks"][0]["beats"] = dict(role="", step=41, phase="sync", phase_ns=3100000000, metrics={}, kept=True, lost=0)
    j["slots"] = [dict(slot=r, rank=r, state="digested", bytes=1 << 20, pid=100 + r) for r in range(2)]
    j["checkpoints"].reverse() # ckptd says them in another order
    for c in j["checkpoints"]:
        c.update(memory=c["step"] == 40, suspect=False, ranks_sealed=2, readers=0)
        c.pop("stored", None)
        c.pop("trust", None)
alpha, beta = d["jobs"]
d["jobs"].reverse()
exec(sys.argv[3])
json.dump(d, open(sys.argv[2], "w"))
PY
}
make_status
a20=$(ctl -q list alpha --data "$data" | sed -n 's/^20\.//p')
a30=$(ctl -q list alpha --data "$data" | sed -n 's/^30\.//p')
# Deeds name a job by its id: another user may have one of the same name.
id_a=a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1 id_b=b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1
other=c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3

# ---- Nobody there

run 2 status --socket "$sock"
says err "cannot reach ckptd at '$sock' (No such file or directory): start it"
run 2 status
says err "/run/ckptd/ckptd.sock"
says err "XDG_RUNTIME_DIR is not set here, and a user's own ckptd is found by it"
under XDG_RUNTIME_DIR=$dir run 2 status
says err "cannot reach ckptd at '$dir/ckptd.sock' (No such file or directory) nor at '/run/ckptd/ckptd.sock' ("
lacks err "XDG_RUNTIME_DIR"
run 2 pin alpha 30 --socket "$sock"
run 2 rebuild --socket "$sock"

# ---- status, list

start_fake
run 0 status --socket "$sock"
golden live-status.txt
asked "admin STATUS job '' step 0 attempt ''"
run 0 status alpha --socket "$sock"
golden live-status-alpha.txt
run 0 list --socket "$sock"
golden live-list.txt
under CKPT_SOCKET=$sock run 0 list alpha --json
json 'assert d["source"] == "daemon" and [c["step"] for c in job("alpha")["checkpoints"]] == [40, 30, 25, 20, 10]
assert step("alpha", 40)["memory"] is True and step("alpha", 30)["memory"] is False'
under CKPT_DATA=$data run 0 list beta --socket "$sock"
mkdir "$dir/run" && ln -s "$sock" "$dir/run/ckptd.sock"
under XDG_RUNTIME_DIR=$dir/run run 0 status -q
run 2 status gamma --socket "$sock"

# ---- show: state from the daemon, tensors from files

run 0 show alpha --socket "$sock" --json
json 'assert d["checkpoint"]["latest"]'
run 0 show alpha 30 --socket "$sock"
says out "note      cannot open data folder '/var/lib/ckptd'"
says out "memory: no, disk: durable"
run 0 show alpha 30 --socket "$sock" --data "$data"
says out "memory: no, disk: durable"
says out "embed.weight"
under CKPT_DATA=$data run 0 show alpha 30 --socket "$sock" --json
json 'assert d["source"] == "daemon" and len(d["tensors"]) == 5 and "note" not in d'
run 0 show alpha 40 --socket "$sock" --data "$data"
says out "memory: yes, disk: no"
says out "only when it is on disk"

# The folder that ckptd says it has, where none is named; never that of another one.
stop_fake
cp -r "$data" "$dir/other"
make_status "d[\"data\"] = \"$data\"; step = alpha[\"checkpoints\"][0]; step[\"disk\"] = \"gone\""
start_fake
run 0 show alpha 30 --socket "$sock"
says out "in $data/jobs/"
under CKPT_DATA=$dir/other run 0 show alpha 30 --socket "$sock"
says out "in $data/jobs/"
run 2 show alpha 30 --socket "$sock" --data "$dir/other"
says err "has the folder '$data', not '$dir/other'"
run 0 show alpha 10 --socket "$sock"
says out "its files are gone"
says out "disk: expiring"
run 0 list alpha --socket "$sock"
says out "committed  no      expiring"
lacks out "gone"
under CKPT_SOCKET=$sock run 0 list alpha --json
json 'assert step("alpha", 10)["disk"] == "gone"'
under CKPT_SOCKET=$sock run 0 verify
says out "read from $data in "
run 0 verify --data "$dir/other"
says out "read from $dir/other in "
under CKPT_SOCKET=$sock run 2 verify alpha 99
says err "no checkpoint 99 in '$data'"

# ---- pin, unpin, rm

: >"$dir/asked"
run 0 pin alpha 30 --socket "$sock"
says out "job 'alpha' step 30 is pinned"
asked "admin PIN job '$id_a' step 30 attempt '$a30'"
run 0 unpin alpha "20.$(echo "$a20" | cut -c1-2)" --socket "$sock" -q
silent out
asked "admin UNPIN job '$id_a' step 20 attempt '$a20'"
run 2 rm alpha 20 --socket "$sock"
says err "pass --yes"
run 0 rm alpha 20 --socket "$sock" --yes
asked "admin REMOVE job '$id_a' step 20 attempt '$a20'"
run 1 rm alpha 30 20 --socket "$sock" --yes
says err "rm step 30 of job 'alpha': step 30 is the base of the current epoch; it stays"
says out "job 'alpha' step 20 is removed from disk"
run 0 rm alpha 25 --socket "$sock" --yes # at the second try
[ "$(grep -c 'REMOVE .* step 25' "$dir/asked")" = 2 ] || fail "it was not tried again"
run 1 rm alpha 20 30 --socket "$sock" --yes --json
json 'assert [(c["step"], c["done"]) for c in d["checkpoints"]] == [(20, True), (30, False)] and "stays" in d["checkpoints"][1]["reason"]'
: >"$dir/asked"
run 2 rm alpha 20 77 --socket "$sock" --yes
says err "no committed checkpoint 77"
! grep -q REMOVE "$dir/asked" || fail "something was removed though not all could be found"
make_status 'd["jobs"].append(dict(alpha, id="'$other'", uid=alpha["uid"] + 1))'
run 0 pin $other 30 --socket "$sock"
asked "admin PIN job '$other' step 30 attempt '$a30'"
run 0 rm $other 20 --socket "$sock" --yes
asked "admin REMOVE job '$other' step 20 attempt '$a20'"
run 0 gc $other --socket "$sock"
asked "admin GC job '$other' step 0 attempt ''"
make_status
/usr/bin/python3 - "$build/ckptctl" "$sock" <<'PY' || fail "rm on a terminal"
import os, pty, sys
def rm(answer):
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(sys.argv[1], [sys.argv[1], "rm", "alpha", "20", "--socket", sys.argv[2]])
    text = b""
    os.write(fd, answer)
    try:
        while chunk := os.read(fd, 4096):
            text += chunk
    except OSError:
        pass
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text
code, text = rm(b"n\n")
assert code == 2 and b"[y/N]" in text and b"nothing was removed" in text, (code, text)
code, text = rm(b"y\n")
assert code == 0 and b"is removed from disk" in text, (code, text)
PY

# ---- gc, rebuild

: >"$dir/asked"
run 0 gc alpha --dry-run --socket "$sock"
golden live-gc.txt
asked "admin GC job '$id_a' step 0 attempt '' dry"
run 0 gc --socket "$sock" --json
json 'assert [len(j["plan"]) for j in d["jobs"]] == [2, 2] and d["dry_run"] is False'
asked "admin GC job '$id_b' step 0 attempt ''"
run 2 gc --keep-last 3 --socket "$sock"
run 0 token alpha --socket "$sock"
[ "$(cat "$dir/out")" = 00ff ] || fail "token: $(cat "$dir/out")"
grep -q "^admin TOKEN job '[0-9a-f]\{32\}'" "$dir/asked" || fail "not asked by the job's id"
run 0 token alpha --socket "$sock" --json
json 'assert d["token"] == "00ff" and d["source"] == "daemon"'
run 2 token gamma --socket "$sock"
run 0 rebuild --socket "$sock"
says out "ckptd has rebuilt its index"
asked "admin REBUILD job '' step 0 attempt ''"
cat >"$dir/hold.py" <<'PY'
import fcntl, os, sys
lock = open(sys.argv[1], "r+")
fcntl.lockf(lock, fcntl.LOCK_EX)
lock.truncate(0); lock.write(f"{os.getpid()}\n"); lock.flush()
sys.exit(os.spawnv(os.P_WAIT, sys.argv[2], sys.argv[2:]))
PY
ctl () { /usr/bin/python3 "$dir/hold.py" "$data/LOCK" "$build/ckptctl" "$@"; }
make_status "d[\"data\"] = \"$data/.\"" # another name of the same folder
under CKPT_SOCKET=$sock run 0 rebuild --data "$data"
says out "ckptd has rebuilt its index" # the holder of LOCK was asked
asked "admin REBUILD job '' step 0 attempt ''"
stop_fake
under CKPT_SOCKET=$sock run 2 rebuild --data "$data"
says err "in use by process"
make_status 'd["jobs"] = []; d["data"] = "/"; d["ready"] = True'
start_fake
under CKPT_SOCKET=$sock run 2 rebuild --data "$data"
says err "in use by process" # that daemon has another folder
! grep -q REBUILD "$dir/asked" || fail "another daemon was asked to rebuild"
ctl () { "$build/ckptctl" "$@"; }
run 0 status --socket "$sock"
says out "no jobs"
stop_fake
make_status 'd["jobs"] = []; d["ready"] = False'
start_fake
run 1 status --socket "$sock"
says out "PROBLEM: ckptd is starting: it still reads which jobs there are"
lacks out "no jobs"
run 1 status --json --socket "$sock"
json 'assert not d["ready"] and len(d["problems"]) == 1 and "is starting" in d["problems"][0], d["problems"]'
stop_fake

# What lists checkpoints waits for it, and where that is in vain the reason is not that there are none.
make_status ''
start_fake starting
run 0 list alpha --socket "$sock"
says out "alpha"
stop_fake
start_fake starting
run 0 list --socket "$sock"
says out "alpha"
stop_fake
start_fake stuck
run 1 list alpha --socket "$sock"
says err "ckptd is starting"
lacks err "there is no job"
stop_fake
start_fake refuse-once
run 0 list alpha --socket "$sock"
stop_fake

# ---- Problems, and a long answer

make_status 'alpha["log_error"] = "no space"; alpha["stale_alarms"] = 1; alpha["stale_step"] = 40; alpha["lost"] = 2
alpha.update(replica_alarms=1, replica_step=30, replica_text="elements [3:4] of tensor p are not the same on rank 2 as on ranks 0, 1")
d["index_errors"] = 3; d["index"] = False; beta["log_anew"] = True
beta["checkpoints"][0].update(disk="failed", reason="write: No space left on device")
alpha["slots"][1]["state"] = "quarantined"
d["collectors"] = [dict(name="disks", works=True, text=""), dict(name="network ports", works=False, text="no such folder")]
alpha["checkpoints"][1]["suspect"] = True
alpha["aborted"] = [dict(step=i, epoch=1, reason="r" * 200) for i in range(900)]
assert len(json.dumps(d)) > 100000'
start_fake
run 1 status --socket "$sock"
head -n 1 "$dir/out" | grep -q '^PROBLEM: ' || fail "problems do not come first"
lacks out "not watched" # -v has it
says out "PROBLEM: job 'alpha': its log: no space"
says out "PROBLEM: job 'alpha': step 40 holds the same trained tensors"
says out "PROBLEM: job 'alpha': step 30: elements [3:4] of tensor p are not the same on rank 2 as on ranks 0, 1"
says out "PROBLEM: the index could not be written 3 times"
says out "PROBLEM: job 'beta': step 5 could not be written to disk: write: No space left on device"
says out "PROBLEM: job 'alpha': slot 1 of rank 1 in memory"
typed=4242/alpha # of its own owner the name alone
[ "$(id -u)" != 4242 ] || typed=alpha
says out "on disk is damaged or cannot be read: 'ckptctl verify $typed "
says out "PROBLEM: ckptd works without its index"
says out "PROBLEM: job 'beta': its log was damaged or lost and begun anew"
says out "alpha: 2 committed checkpoints were lost"
says out "alpha: step 899 of epoch 1 was aborted: rrr"
run 1 status --socket "$sock" -v
says out "not watched: network ports (no such folder)"
lacks out "not watched: disks"
run 1 status --socket "$sock"
says out "alpha: 899 aborted before these"
run 1 list alpha --socket "$sock"
says out " damaged"
run 1 status --socket "$sock" --json
json 'assert len(d["problems"]) == 9 and len(job("alpha")["aborted"]) == 900'
stop_fake

# ---- Daemons that misbehave

start_fake refuse
run 2 status --socket "$sock"
says err "refused the connection"
stop_fake
for mode in cut silent; do
	start_fake $mode
	run 2 status --socket "$sock"
	stop_fake
done
says err "sent what is no reply"
echo '{"schema": 2}' >"$dir/status.json"
start_fake
run 2 status --socket "$sock"
says err "has no list of jobs"
stop_fake
echo '{"schema": ' >"$dir/status.json"
start_fake
run 2 status --socket "$sock"
says err "no JSON document"
stop_fake

# ---- One that hangs

wait $asks
got=$?
[ $got = 2 ] || fail "a ckptd that hangs: exit status $got instead of 2"
cp "$dir/hung.err" "$dir/err"
[ "$(grep -c "has not answered for 3 s and is waited for: its process $hung is in state T (stopped)" "$dir/err")" = 1 ] ||
	fail "it is not said once that it hangs: $(cat "$dir/err")"
says err "ckptd at '$dir/hung' does not answer"
ending 104
