#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# scripts/check itself: it counts what ran, and nothing that went wrong passes.
set -eu
. "${top_srcdir:-.}/tests/lib/functions.sh"
scratch

failed=0
mkdir -p "$scratch/scripts" "$scratch/tests"
cp "$top_srcdir/scripts/check" "$top_srcdir/scripts/automake-results" "$scratch/scripts/"
printf '#!/bin/sh\n' >"$scratch/scripts/deps"
chmod +x "$scratch/scripts/deps"
printf '%s\n' '# comment' 'known.skip  a device that few machines have' \
	'two:other.skip  in this part alone' >"$scratch/tests/skips.txt"
cd "$scratch"

# A part of the tables below: says its arguments, one a line.
cat >say <<'END'
#!/bin/sh
for line; do echo "$line" | tr _ ' '; done
END
chmod +x say

# expect NAME STATUS LAST-LINE [OPTION...] - runs the table of standard input
expect() {
	local name=$1 status=$2 line=$3 got=0
	shift 3
	cat >table
	scripts/check --table table "$@" >out 2>&1 || got=$?
	if [ $got = "$status" ] && [ "$(tail -n 1 out)" = "$line" ]; then
		echo "ok $name"
	else
		echo "not ok $name"
		echo "exit status $got, wanted $status and '$line'; it said:"
		sed 's/^/    /' out
		failed=1
	fi
}

expect passes 0 '3 passed, 0 failed, 0 skipped' <<'END'
one pair 60 ./say ok_a some_text ok_b
two pair 60 ./say ok_c okay
END
expect one-case-fails 1 '1 passed, 1 failed, 0 skipped' <<'END'
one pair 60 ./say ok_a not_ok_b
END
expect exit-status 1 '1 passed, 1 failed, 0 skipped' <<'END'
one pair 60 sh -c ./say${IFS}ok_a;exit${IFS}3
END
expect nothing-ran 1 '0 passed, 1 failed, 0 skipped' <<'END'
one pair 60 ./say hello
END
expect missing-command 1 '1 passed, 1 failed, 0 skipped' <<'END'
one pair 60 ./nothing
two alone 60 ./say ok_a
END
expect known-skip 0 '1 passed, 0 failed, 1 skipped' <<'END'
one pair 60 ./say ok_a skip_known.skip_no_device
END
expect unknown-skip 1 '1 passed, 1 failed, 0 skipped' <<'END'
one pair 60 ./say ok_a skip_other.skip_no_device
END
expect skip-of-a-part 1 '1 passed, 1 failed, 1 skipped' <<'END'
one pair 60 ./say ok_a skip_other.skip_no_device
two pair 60 ./say skip_other.skip_no_device
END
expect hung 1 '1 passed, 1 failed, 0 skipped' <<'END'
one pair 1 sleep 1000
two pair 60 ./say ok_a
END
# What had ended when it was stopped counts, whether the rest can be stopped or not.
mkdir slow
cat >slow/Makefile <<'END'
check:
	echo ok one >a.log
	echo :global-test-result: PASS >a.trs
	echo not ok two >b.log
	echo :global-test-result: FAIL >b.trs
	sleep 1000
deaf:
	echo :global-test-result: PASS >c.trs
	trap '' TERM; sleep 1000
END
expect stopped 1 '1 passed, 2 failed, 0 skipped' <<'END'
one pair 5 make_check slow check
END
grep -q '^ *not ok one (stopped after 5 s)' out && echo 'ok stopped-says-so' ||
	{ echo 'not ok stopped-says-so'; failed=1; }
rm slow/a.log slow/b.log
expect stopped-for-good 1 '2 passed, 1 failed, 0 skipped' <<'END'
one pair 5 make_check slow deaf
two pair 60 ./say ok_a
END
expect first-fails 1 '0 passed, 1 failed, 0 skipped' <<'END'
two pair 60 ./say ok_a
one first 60 false
END
expect one-part 0 '2 passed, 0 failed, 0 skipped' --part two <<'END'
zero first 60 ./say ok_z
one pair 60 ./say not_ok_b
two alone 60 ./say ok_a
END
expect no-such-part 2 "check: there is no part 'three'" --part three <<'END'
two alone 60 ./say ok_a
END

# Each says how many were running with it; none may find more than one other, alone none.
cat >together <<'END'
#!/bin/sh
mkdir -p running
: >running/$$
sleep 0.2
n=$(ls running | wc -l)
rm running/$$
[ $n -le $1 ] && echo "ok $2" || echo "not ok $2 ($n at a time)"
END
chmod +x together
expect two-at-a-time 0 '5 passed, 0 failed, 0 skipped' <<'END'
a alone 60 ./together 1 a
b pair 60 ./together 2 b
c pair 60 ./together 2 c
d pair 60 ./together 2 d
e alone 60 ./together 1 e
END

# automake_test NAME RESULT - its log is standard input
automake_test() {
	mkdir -p "build/$(dirname "$1")"
	cat >"build/$1.log"
	printf ':test-result: %s\n:global-test-result: %s\n' "$2" "$2" >"build/$1.trs"
}
automake_test base/test_good PASS <<'END'
[==========] base: Running 2 test(s).
[ RUN      ] test_a
seed 7
[       OK ] test_a
[ RUN      ] test_b
text without end[       OK ] test_b
[  PASSED  ] 2 test(s).
END
automake_test base/test_bad FAIL <<'END'
[ RUN      ] test_a
[       OK ] test_a
[ RUN      ] test_b
[  FAILED  ] test_b
[ RUN      ] test_c
[  SKIPPED ] test_c
[  PASSED  ] 1 test(s).
[  FAILED  ] base: 1 test(s), listed below:
[  FAILED  ] test_b
END
automake_test base/test_crash FAIL <<'END'
[ RUN      ] test_a
[       OK ] test_a
[ RUN      ] test_b
END
automake_test it/script PASS <<'END'
ok one
not an outcome
END
automake_test it/plain PASS </dev/null
automake_test it/leaks FAIL <<'END'
[ RUN      ] test_a
[       OK ] test_a
ok-ish
END
automake_test it/skipped SKIP <<'END'
skipped: 'fio' does not work here
END
scripts/automake-results build | grep -E '^(ok|not ok|skip) ' >got || true
diff - got <<'END' && echo "ok automake-results" || { echo "not ok automake-results"; failed=1; }
ok base/test_bad:test_a
not ok base/test_bad:test_b
skip base/test_bad:test_c
ok base/test_crash:test_a
not ok base/test_crash:test_b
ok base/test_good:test_a
ok base/test_good:test_b
ok it/leaks:test_a
not ok it/leaks
ok it/plain
ok it/script:one
skip it/skipped 'fio' does not work here
END
exit $failed
