#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One case of ckpt-bench that needs little memory and disk: that it runs, and that its object has
# the fields that man/ckpt-bench.1.pod tells. No number that it measured is judged here.
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

case=small.sealed.p50
"$bench" save --case $case --json >out 2>err || fail "--case $case: exit status $?"
[ "$(wc -l <out)" -eq 1 ] || fail "not one object: $(cat out)"
grep -q '^{.*}$' out || fail "no object: $(cat out)"
grep -q "\"case\":\"$case\"" out || fail "another case: $(cat out)"
number='-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?'
for field in value limit ratio runs min max; do
	grep -Eq "\"$field\":$number[,}]" out || fail "no number '$field': $(cat out)"
done
for field in unit limit_name; do
	grep -Eq "\"$field\":\"[^\"]+\"" out || fail "no text '$field': $(cat out)"
done
runs=$(sed 's/.*"runs":\([0-9]*\).*/\1/' out)
[ "$runs" -ge 7 ] || fail "$runs runs"
rm -f out err
[ -z "$(ls -A)" ] || fail "it leaves $(ls -A)"
exit 0
