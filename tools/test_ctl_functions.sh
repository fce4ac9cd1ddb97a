# SPDX-License-Identifier: Apache-2.0
# Sourced by the tests of ckptctl: a folder that goes away, the data to look at, and checks.
set -u
src=${top_srcdir:-.} build=${top_builddir:-.}
. "$src/tests/lib/functions.sh"
requires /usr/bin/python3 -c 'import json'
unset CKPT_SOCKET CKPT_DATA XDG_RUNTIME_DIR XDG_DATA_HOME
export LC_ALL=C
dir=$(mktemp -d "${TMPDIR:-/tmp}/ckpt-ctl.XXXXXX") || exit 99
export HOME="$dir"
trap 'rm -rf "$dir"' EXIT
data=$dir/data
failed=0
checks=0

ctl () { "$build/ckptctl" "$@"; }

fail () {
	echo "FAILED: $*"
	failed=1
}

# run STATUS ARGUMENTS...: ckptctl ends with STATUS; its output is then in $dir/out and $dir/err.
run () {
	want=$1
	shift
	ctl "$@" >"$dir/out" 2>"$dir/err" </dev/null
	got=$?
	checks=$((checks + 1))
	[ $got = "$want" ] || {
		fail "ckptctl $*: exit status $got instead of $want"
		sed 's/^/  | /' "$dir/out" "$dir/err"
	}
}

# under NAME=VALUE run ...: with that in the environment.
under () {
	export "$1"
	name=${1%%=*}
	shift
	"$@"
	unset "$name"
}

# says out|err TEXT: a line has it. silent out|err: there is none.
says () {
	checks=$((checks + 1))
	grep -qF -- "$2" "$dir/$1" || { fail "'$2' is missing"; sed 's/^/  | /' "$dir/$1"; }
}
lacks () {
	checks=$((checks + 1))
	! grep -qF -- "$2" "$dir/$1" || { fail "'$2' should not be there"; sed 's/^/  | /' "$dir/$1"; }
}
silent () {
	checks=$((checks + 1))
	[ ! -s "$dir/$1" ] || { fail "something in $1"; sed 's/^/  | /' "$dir/$1"; }
}

# golden NAME: the output is that of tools/golden/NAME but for ids, folder, room and speed.
golden () {
	checks=$((checks + 1))
	sed -E -e "s|$dir|DIR|g" -e 's/[0-9a-f]{32}/<id>/g' -e 's/\b[0-9a-f]{12}\b/<short---id>/g' \
		-e 's/^(disk +).* free of .*/\1ROOM/' \
		-e 's/ in [0-9.]+ s \([^)]*\)/ in TIME/' "$dir/out" >"$dir/plain"
	[ -z "${GOLDEN_WRITE:-}" ] || cp "$dir/plain" "$src/tools/golden/$1"
	diff -u "$src/tools/golden/$1" "$dir/plain" || fail "golden $1"
}

# json CODE...: the output is one JSON document, and CODE, which sees it as d, does not assert.
json () {
	checks=$((checks + 1))
	/usr/bin/python3 - "$dir/out" "$src/doc/json.md" "$*" <<'PY' || fail "json: $*"
import json, re, sys
d = json.load(open(sys.argv[1]))
assert d["schema"] == 2 and d["source"] in ("daemon", "files")
known = set(re.findall(r"`([a-z_-]+)`", open(sys.argv[2]).read()))
def walk(o):
    if isinstance(o, dict):
        for k, v in o.items():
            assert k in known, f"doc/json.md does not describe '{k}'"
            walk(v)
    elif isinstance(o, list):
        for v in o:
            walk(v)
walk(d)
def job(name, jobs=None):
    return [j for j in (jobs or d["jobs"]) if j["job"] == name][0]
def step(name, n, key="checkpoints"):
    return [c for c in job(name)[key] if c["step"] == n][0]
exec(sys.argv[3])
PY
}

# flip FILE OFFSET: inverts the bits of one byte.
flip () {
	/usr/bin/python3 - "$1" "$2" <<'PY' || exit 99
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(int(sys.argv[2])); c = f.read(1)[0]
    f.seek(int(sys.argv[2])); f.write(bytes([c ^ 0xff]))
PY
}

make_data () {
	rm -rf "$data"
	"$build/tools/test_make_data" "$data" "$@" || exit 99
	alpha=$data/jobs/a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1
	beta=$data/jobs/b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1
}

# needs_daemon: for tests beside the real ckptd, and trainers in Python; it is ended in any case, and
# so is $trainer.
needs_daemon () {
	requires test -x "$build/ckptd/ckptd"
	requires test -e "$build/.libs/libckpt.so"
	requires test -e "$src/python/ckpt/_lib.py"
	sock=$dir/sock
	daemon='' trainer=''
	trap 'kill $trainer $daemon 2>/dev/null; wait; rm -rf "$dir"' EXIT
}
start_daemon () {
	mkdir -p "$data"
	"$build/ckptd/ckptd" --user --socket "$sock" --data "$data" \
		--set detect.kernel=no "$@" >>"$dir/log" 2>&1 & # other tests break file systems
	daemon=$!
	for i in $(seq 600); do
		ctl --json status --socket "$sock" >"$dir/out" 2>&1
		! grep -q '"ready": true' "$dir/out" || return 0
		kill -0 $daemon || break
		sleep 0.1
	done
	cat "$dir/log" "$dir/out"
	exit 99
}
stop_daemon () {
	kill $daemon
	wait $daemon
	daemon=
}

# Every name and byte of the data folder.
fingerprint () { (cd "$data" && find . -printf '%p %s %T@ %i\n' | sort; find . -type f | sort | xargs cksum); }

ending () {
	echo "$checks checks"
	[ "$checks" -ge "$1" ] || fail "only $checks checks ran, $1 were meant to"
	exit $failed
}
