#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Recorded traces of a real job (scripts/record_traces.py, doc/trace-model.md): each fault is found
# in the right class, at the right subject and in time, and nothing else is said.
set -u
src=$(cd "${top_srcdir:-.}" && pwd)
replay=$(cd "${top_builddir:-.}" && pwd)/detect/replay/replay
dir=$(mktemp -d "${TMPDIR:-/tmp}/ckpt-test.XXXXXX") || exit 99
trap 'rm -rf "$dir"' EXIT
failed=0

# field NAME LINE - the number behind it
field() {
	echo "$2" | sed -n "s/.*\"$1\":\([0-9.e+-]*\).*/\1/p"
}

# NAME, the class of its fault (doc/trace-model.md), and within how many of the run's own usual steps
# and seconds more it is told at most: a hang three steps and 2 s, a NaN before the beat behind the
# one that has it, who is slow 60 s, a link after the three minutes for which it has to be slow and
# the samples around them; the others at once.
while read -r name class steps seconds; do
	[ -n "$name" ] || continue
	trace=$src/detect/replay/recorded/$name.trace.zst
	if ! "$replay" run --json "$trace" >"$dir/out" 2>"$dir/err"; then
		echo "FAIL: $name: $(cat "$dir/err")"
		failed=1
		continue
	fi
	sum=$(grep '"class":null' "$dir/out")
	fault=$(grep '"class":"' "$dir/out")
	"$replay" run -v "$trace" 2>&1 | grep -E '^(false|wrong|job only|not found)' | sed "s/^/$name: /"
	if [ "$(field false "$sum")" != 0 ] || [ "$(field wrong_subject "$sum")" != 0 ]; then
		echo "FAIL: $name: somebody else is accused: $sum"
		failed=1
	fi
	if [ "$class" = - ]; then
		echo "$name: nothing is wrong, and $(field alarms "$sum") alarms"
		[ -z "$fault" ] && [ "$(field alarms "$sum")" = 0 ] || failed=1
		continue
	fi
	delay=$(field delay_max_s "$fault")
	usual=$(field usual_step_s "$fault")
	[ "$steps" = 0 ] || [ -n "$usual" ] || { echo "FAIL: $name: no usual step"; failed=1; }
	most=$(awk "BEGIN { print $steps * ${usual:-0} + $seconds }")
	echo "$name: told after ${delay:-no} s, at most $most (usual step: ${usual:-unknown})"
	case $fault in
	*"\"class\":\"$class\",\"faults\":1,\"found\":1,\"right_subject\":1,"*) ;;
	*)
		echo "FAIL: $name: $fault"
		failed=1
		continue
		;;
	esac
	awk "BEGIN { exit !($delay <= $most) }" || { echo "FAIL: $name: too late"; failed=1; }
done <<'END'
clean		-		-	-
killed		dead		0	1
stop		hung		3	2
deadlock	hung		3	2
throttle	straggler	0	60
disk		straggler	0	60
link		link		0	240
nan		nan		2	0
flip		replicas	0	1.5
xid		xid		0	1
END
n=$(find "$src/detect/replay/recorded" -name '*.trace.zst' | wc -l)
[ "$n" -eq 10 ] || { echo "FAIL: $n traces, and 10 are judged"; failed=1; }
exit $failed
