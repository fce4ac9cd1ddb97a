#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Every fault point of base/faults.def and every planted bug of base/bugs.def stands in the code
# and is used by a test.
#
# A point counts as tested when a test names it, or when a sweep under tests/ goes through all of
# them (up to FAULT_POINTS, or by "ckptd --list-faults"). A bug has to be named: what finds it is
# particular to it.
set -e
. "${top_srcdir:-.}/tests/lib/functions.sh"
cd "$top_srcdir"
scratch

files=$(c_files $all_folders)
tests=$(printf '%s\n' "$files" | grep -e '^tests/' -e '/test_[^/]*\.[ch]$' || true
	find tests python -name '*.sh' -o -name '*.py' 2>/dev/null || true)
tests=$(printf '%s\n' "$tests" | grep -v '^tests/style/' || true)
product=$(printf '%s\n' "$files" | grep -v -e '^tests/' -e '/test_[^/]*\.[ch]$' || true)
cat /dev/null $product >"$scratch/product"
cat /dev/null $tests >"$scratch/tests"
cat /dev/null $(printf '%s\n' "$tests" | grep '^tests/' || true) >"$scratch/system-tests"

# 1: list, 2: its macro, 3: prefix in the code, 4: pattern of a sweep or nothing
check() {
	bad=0
	swept=no
	[ -z "$4" ] || ! grep -qE -e "$4" "$scratch/system-tests" || swept=yes
	for name in $(sed -n "s/^$2(\([A-Z0-9_]*\),.*/\1/p" "$1"); do
		grep -qE "\b$3 ?\($name\)" "$scratch/product" || {
			echo "$1: $name: $3($name) stands nowhere in the code"
			bad=1
		}
		[ $swept = yes ] || grep -qwE "($3_)?$name" "$scratch/tests" || {
			echo "$1: $name: no test names it"
			bad=1
		}
	done
	return $bad
}
status=0
check base/faults.def F FAULT 'FAULT_POINTS|--list-faults' || status=1
check base/bugs.def B BUG '' || status=1
exit $status
