#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The cases of ckpt-bench that need little memory and disk: that they run, and that their objects
# have the fields that man/ckpt-bench.1.pod tells. No number that was measured is judged here.
set -u
bench=$(cd "${top_builddir:-.}" && pwd)/bench/ckpt-bench
dir=$(mktemp -d "${TMPDIR:-/tmp}/ckpt-test.XXXXXX") || exit 99
trap 'rm -rf "$dir"' EXIT
fail() {
	echo "FAIL: $*"
	[ ! -f "$dir/err" ] || sed 's/^/stderr: /' "$dir/err"
	exit 1
}
cd "$dir" || exit 99
if ldd "$bench" | grep -Eq 'lib(asan|tsan)'; then
	echo "skipped: nothing is measured in a build with a sanitizer"
	exit 77
fi
unset NOTIFY_SOCKET LISTEN_FDS LISTEN_PID

"$bench" save --case no.such.case --json >out 2>err
[ $? -eq 2 ] || fail "a case that is not there is exit status 2"

"$bench" meta --shards 39999 >out 2>err
[ $? -eq 2 ] || fail "too few shards are exit status 2"

number='-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?'
check() {
	case=$1
	shift
	"$bench" "$@" --json >out 2>err || fail "$*: exit status $?"
	grep "\"case\":\"$case\"" out >line || fail "no object of $case: $(cat out)"
	grep -q '^{.*}$' line || fail "no object: $(cat line)"
	for field in value limit ratio runs min max limit_min limit_max target; do
		grep -Eq "\"$field\":$number[,}]" line || fail "no number '$field': $(cat line)"
	done
	for field in unit limit_name; do
		grep -Eq "\"$field\":\"[^\"]+\"" line || fail "no text '$field': $(cat line)"
	done
	runs=$(sed 's/.*"runs":\([0-9]*\).*/\1/' line)
	[ "$runs" -ge 7 ] || fail "$runs runs"
}
check small.sealed.p50 save --case small.sealed.p50
[ "$(wc -l <out)" -eq 1 ] || fail "not one object: $(cat out)"
if /usr/bin/python3 -c 'import numpy' 2>/dev/null; then
	check python.save.200k save --case python.save.200k --mib 16
	grep -Eq 'in libckpt [0-9.]+ s of it; once: declare [0-9.]+ s, prepare [0-9.]+ s, load in a new process [0-9.]+ s' line ||
		fail "no note: $(cat line)"
fi
# Torch's figure has a target and a verdict of its own.
if /usr/bin/python3 -c 'import torch' 2>/dev/null; then
	check python.save.200k.torch save --case python.save.200k.torch --mib 16
	grep -q '"met":' line || fail "no verdict: $(cat line)"
	[ "$(wc -l <out)" -eq 1 ] || fail "not one object: $(cat out)"
fi
for case in resume.warm resume.cold; do
	check $case load --case $case --mib 32
	grep -Eq '"plus":0.0[24][,}]' line || fail "no second term of the target: $(cat line)"
	[ "$(wc -l <out)" -eq 1 ] || fail "not one object: $(cat out)"
done
check meta.plan.1m meta --shards 40000
for case in meta.plan.memory meta.lookup.1m meta.lookup.file; do
	grep -q "\"case\":\"$case\"" out || fail "no object of $case: $(cat out)"
done
check detect.cpu detect --case detect.cpu
check detect.leader.memory detect --case detect.leader.memory
rm -f out err line
[ -z "$(ls -A)" ] || fail "it leaves $(ls -A)"
exit 0
