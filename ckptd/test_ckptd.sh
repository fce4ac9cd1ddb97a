#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The program: its options, and a life of `ckptd --user` from start over crash and reload to stop.
set -u
ckptd=${top_builddir:-.}/ckptd/ckptd
ctl=${top_builddir:-.}/ckptctl
dir=$(mktemp -d "${TMPDIR:-/tmp}/ckpt-test.XXXXXX") || exit 99
pid=
cleanup() {
	[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null
	rm -rf "$dir"
}
trap cleanup EXIT
fail() {
	echo "FAIL: $*"
	[ ! -f "$dir/log" ] || sed 's/^/log: /' "$dir/log"
	exit 1
}
# Waits until the log has the words so many times: as long as it takes, within the test's limit.
await() {
	i=0
	while [ "$(grep -c -- "$1" "$dir/log")" -lt "$2" ]; do
		i=$((i + 1))
		[ $i -lt 3000 ] || fail "no '$1' ($2)"
		kill -0 "$pid" 2>/dev/null || fail "ended before '$1' ($2)"
		sleep 0.02
	done
}
unset NOTIFY_SOCKET LISTEN_FDS LISTEN_PID XDG_RUNTIME_DIR JOURNAL_STREAM

"$ckptd" --version | grep -q '^ckptd [0-9]' || fail "--version"
"$ckptd" --help | grep -q 'retention.keep_last' || fail "--help"
"$ckptd" --list-faults | grep -q . || fail "--list-faults"
"$ckptd" --nonsense 2>/dev/null
[ $? -eq 2 ] || fail "an unknown option is exit status 2"

# Configuration: file, conf.d, environment, command line, each over the one before.
mkdir "$dir/conf.d"
printf '[memory]\nslots = 4\n[retention]\nkeep_last = 5\n' >"$dir/ckptd.conf"
printf '[memory]\nslots = 5\n[quota]\nconnections_per_uid = 7\n' >"$dir/conf.d/a.conf"
out=$(CKPTD_MEMORY_SLOTS=6 CKPTD_RETENTION_KEEP_LAST=6 "$ckptd" --config "$dir/ckptd.conf" \
	--set memory.slots=8 --check-config) || fail "--check-config"
for want in 'slots = 8' 'keep_last = 6' 'connections_per_uid = 7'; do
	echo "$out" | grep -q "^$want\$" || fail "--check-config does not say '$want'"
done
printf '[memory]\nslots = many\n' >"$dir/conf.d/b.conf"
"$ckptd" --config "$dir/ckptd.conf" --check-config 2>"$dir/err" && fail "a wrong value passed"
grep -q "conf.d/b.conf:2: memory.slots = 'many'" "$dir/err" || fail "the sentence: $(cat "$dir/err")"
rm "$dir/conf.d/b.conf"
"$ckptd" --user --data "$dir/data" --check-config >"$dir/err" 2>&1 && fail "no socket passed"
grep -q -- 'export XDG_RUNTIME_DIR=$HOME .*--socket PATH' "$dir/err" || fail "the remedy is missing: $(cat "$dir/err")"
"$ckptd" --user --socket "$dir/sock" --data "$dir/ckptd.conf/data" 2>"$dir/err" && fail "a file for a folder"
grep -q "cannot make data folder '$dir/ckptd.conf/data': Not a directory: name another one with --data" \
	"$dir/err" || fail "the sentence: $(cat "$dir/err")"

# A life. memory.budget is small: this machine may be too.
printf '[memory]\nbudget = 64M\n' >"$dir/ckptd.conf"
: >"$dir/log" # before the shell of the job makes it
(
	ulimit -n 1024
	exec "$ckptd" --user --config "$dir/ckptd.conf" --socket "$dir/sock" \
		--data "$dir/deep/data" 2>>"$dir/log"
) &
pid=$!
await ' ready: ' 1
[ "$(stat -c %a "$dir/sock")" = 600 ] || fail "mode of the socket"
child=$(cat "$dir/deep/data/LOCK")
[ "$child" != "$pid" ] || fail "there is no supervisor"
[ "$(tr '\0' ' ' <"/proc/$child/cmdline" | grep -c supervised)" = 1 ] || fail "child $child"
"$ctl" status --json --socket "$dir/sock" >"$dir/status" || fail "status"
# Half of the open files that the supervisor may have; not what memory.descriptors says.
tr -d ' \n' <"$dir/status" | grep -q '"fd_store":{"used":0,"max":480}' ||
	fail "the fd store: $(grep -A3 fd_store "$dir/status")"

# A second daemon on the same folder says who is there, and leaves the first alone.
"$ckptd" --user --socket "$dir/sock2" --data "$dir/deep/data" 2>"$dir/err" && fail "two daemons"
grep -q "$child" "$dir/err" || fail "does not name process $child: $(cat "$dir/err")"
grep -q index "$dir/err" && fail "it tried the other one's index: $(cat "$dir/err")"
"$ckptd" --user --socket "$dir/sock" --data "$dir/other" 2>"$dir/err" && fail "two on one socket"
grep -q "process $child listens on it" "$dir/err" || fail "socket in use: $(cat "$dir/err")"


# Reload: what may change changes, the rest is named; nonsense changes nothing.
printf '[log]\nlevel = debug\n[memory]\nbudget = 128M\n' >"$dir/ckptd.conf"
kill -HUP "$pid"
await 'only a restart applies it: memory.budget' 1
printf '[log]\nlevel = loud\n' >"$dir/ckptd.conf"
kill -HUP "$pid"
await "stays as it was: .*log.level = 'loud'" 1

# A crash: another daemon, same folder, same socket.
printf '' >"$dir/ckptd.conf"
kill -KILL "$child"
await ' ready: ' 2
again=$(cat "$dir/deep/data/LOCK")
[ "$again" != "$child" ] || fail "not started again"


# Supervisor and daemon are killed, and the next is started at once: it needs no second try.
for i in 1 2 3; do
	kill -KILL "$pid" "$again"
	"$ckptd" --user --config "$dir/ckptd.conf" --socket "$dir/sock" --data "$dir/deep/data" \
		2>>"$dir/log" &
	wait "$pid" 2>/dev/null
	pid=$!
	await ' ready: ' $((i + 2))
	again=$(cat "$dir/deep/data/LOCK")
done

# An orderly stop leaves nothing but data.
kill -TERM "$pid"
wait "$pid"
status=$?
pid=
[ $status -eq 0 ] || fail "exit status $status"
grep -q ' stopped: all that is committed is on disk' "$dir/log" || fail "no 'stopped'"
[ ! -e "$dir/sock" ] || fail "the socket is still there"
kill -0 "$again" 2>/dev/null && fail "the daemon is still there"

# A stop that takes longer than the watchdog allows, because a worker frees memory: here it is held.
# Once all is on disk nobody watches any more, and the service manager hears it. No collector is to
# hang, on a busy machine: ckptd would end without waiting for its workers.
{
	cat "$dir/ckptd.conf"
	printf '[detect]\nenabled = no\n'
} >"$dir/quiet.conf"
/usr/bin/python3 - "$dir" "$ckptd" --user --config "$dir/quiet.conf" --socket "$dir/sock" \
	--data "$dir/deep/data" 2>"$dir/err" <<'PY' || fail "slow stop: $(cat "$dir/err")"
import ctypes, os, signal, socket, subprocess, sys, time
folder, argv = sys.argv[1], sys.argv[2:]
SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
def ptrace(op, tid):
    none = ctypes.c_void_p(0)
    return libc.ptrace(ctypes.c_long(op), ctypes.c_long(tid), none, none) == 0
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.bind(folder + "/manager")
manager.settimeout(60)
daemon = subprocess.Popen(argv, env=dict(os.environ, NOTIFY_SOCKET=folder + "/manager",
                                         WATCHDOG_USEC="2000000"))
said = []
def hear(line):
    while not said or line not in said[-1]:
        said.append(manager.recv(4096).decode().split("\n"))
try:
    hear("READY=1")
    child = open(folder + "/deep/data/LOCK").read().split()[0]
    for tid in os.listdir(f"/proc/{child}/task"):
        if open(f"/proc/{child}/task/{tid}/comm").read().startswith("ckpt-memory"):
            worker = int(tid)
    held = ptrace(SEIZE, worker) and ptrace(INTERRUPT, worker)
    if held:
        os.waitpid(worker, WALL)
    else:
        print("no worker can be held here")
    daemon.send_signal(signal.SIGTERM)
    hear("WATCHDOG_USEC=0")
    begun = time.monotonic()
    while held and time.monotonic() - begun < 5:
        assert daemon.poll() is None, f"exit status {daemon.returncode}"
        time.sleep(0.1)
    assert not held or ptrace(DETACH, worker), "detach"
    assert daemon.wait(60) == 0, f"exit status {daemon.returncode}"
finally:
    daemon.kill()
assert any("STOPPING=1" in lines for lines in said[:-1]), said
assert said[-1][0] == "STATUS=stopped: all that is committed is on disk", said[-1]
more = [int(x.split("=")[1]) for x in said[-1] if x.startswith("EXTEND_TIMEOUT_USEC=")]
assert len(more) == 1 and more[0] > 30000000, said[-1]
manager.setblocking(False)
try:
    sys.exit(f"after it: {manager.recv(4096)}")
except BlockingIOError:
    pass
PY

# A tool has the folder: it says which, and that it ends by itself.
/usr/bin/python3 - "$dir/deep/data/LOCK" "$ckptd" --user --socket "$dir/sock2" --data "$dir/deep/data" \
	2>"$dir/err" <<'PY' || fail "started beside a tool"
import fcntl, os, subprocess, sys
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
lock.write(f"{os.getpid()} ckptctl rebuild\n")
lock.flush()
sys.exit(subprocess.run(sys.argv[2:]).returncode == 0)
PY
grep -q 'in use by process [0-9]*, ckptctl rebuild: it gives it back when it has ended' "$dir/err" ||
	fail "does not name the tool: $(cat "$dir/err")"

# Nobody keeps its memory any more: it says so once, and ends in order.
: >"$dir/log"
"$ckptd" --user --config "$dir/ckptd.conf" --socket "$dir/sock" --data "$dir/deep/data" \
	2>>"$dir/log" &
pid=$!
await ' ready: ' 1
kill -KILL "$pid"
wait "$pid" 2>/dev/null
pid=$(cat "$dir/deep/data/LOCK")
await ' stopped: ' 1
pid=
[ "$(grep -c 'could not tell the service manager' "$dir/log")" = 1 ] || fail "not said once"
grep -q 'is gone: nobody keeps its memory' "$dir/log" || fail "it does not say what that means"

# What is wrong with a data folder is said with where that is, and what to do.
mkdir "$dir/wrong"
echo rubbish >"$dir/wrong/FORMAT"
"$ckptd" --supervised --user --config "$dir/ckptd.conf" --socket "$dir/sock2" \
	--data "$dir/wrong" 2>"$dir/err"
[ $? -eq 1 ] || fail "it starts on rubbish"
grep -q "start with data '$dir/wrong': FORMAT .* remove the file FORMAT" "$dir/err" ||
	fail "FORMAT: $(cat "$dir/err")"

# A folder that others may change is refused, with its mode and what repairs it.
refused() {
	"$ckptd" --supervised --user --config "$dir/ckptd.conf" --socket "$dir/sock2" \
		--data "$1" 2>"$dir/err"
	[ $? -eq 1 ] || fail "it starts on '$1'"
	grep -qF -- "$2" "$dir/err" || fail "'$2' is missing: $(cat "$dir/err")"
}
mkdir -p "$dir/shared/data" "$dir/above"
chmod 2775 "$dir/shared/data"
refused "$dir/shared/data" "data folder '$dir/shared/data' can be written to by group or others (mode 2775)"
refused "$dir/shared/data" "'chmod go-w $dir/shared/data'"
chmod 777 "$dir/above"
refused "$dir/above/data" "lies in '$dir/above', which group or others may write to (mode 0777)"
refused "$dir/above/data" "'chmod go-w $dir/above'"
[ -z "$(ls "$dir/above/data" "$dir/shared/data" | grep -v :)" ] || fail "it wrote there all the same"
if [ "$(id -u)" = 0 ]; then
	mkdir "$dir/theirs"
	chown 65534 "$dir/theirs"
	refused "$dir/theirs" "belongs to user 65534, and this ckptd runs as user 0: run it as user 65534"
fi
exit 0
