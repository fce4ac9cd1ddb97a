#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The program replay: what it writes it reads, plain and compressed; figures come as table and as
# JSON; seeds are not mixed up in silence; what is no trace is refused with its line.
set -u
src=$(cd "${top_srcdir:-.}" && pwd)
replay=$(cd "${top_builddir:-.}" && pwd)/detect/replay/replay
dir=$(mktemp -d "${TMPDIR:-/tmp}/ckpt-test.XXXXXX") || exit 99
trap 'rm -rf "$dir"' EXIT
fail() {
	echo "FAIL: $*"
	[ ! -f "$dir/err" ] || sed 's/^/stderr: /' "$dir/err"
	exit 1
}
cd "$dir" || exit 99
small='--nodes 8 --days 0.4 --job-nodes 4'

"$replay" >out 2>err
[ $? -eq 2 ] || fail "no verb is exit status 2"
"$replay" score --nodes 0 >out 2>err
[ $? -eq 2 ] || fail "no nodes are exit status 2"
"$replay" --help >out || fail "--help: exit status $?"
grep -q 'replay compare' out || fail "--help does not name the verbs"

"$replay" generate $small --seed 9 -o a.trace 2>err || fail "generate"
"$replay" generate $small --seed 9 -o a.trace.zst 2>err || fail "generate compressed"
"$replay" generate $small --seed 10 -o b.trace 2>err || fail "generate with another seed"
cmp -s a.trace b.trace && fail "two seeds give the same trace"
head -n 1 a.trace | grep -qx 'ckpt-trace 1' || fail "the first line"
grep -Eq '^[0-9.]+ fault id=[0-9]+ what="' a.trace || fail "no fault in the trace"
[ "$(wc -c <a.trace.zst)" -lt "$(($(wc -c <a.trace) / 3))" ] || fail "it is not compressed"
if command -v zstd >/dev/null; then
	zstd -dc a.trace.zst | cmp -s - a.trace || fail "zstd -dc gives something else"
fi

# Every sixth job of a cluster declares nothing; here are two, and both declare.
"$replay" run --json a.trace a.trace.zst >out 2>err || fail "run: exit status $?"
grep -q '"trace":"a.trace"' out && grep -q '"trace":"a.trace.zst"' out || fail "no figures"
sed -n 's/"trace":"[^"]*"//p' out | sort | uniq -c | awk '$1 != 2 { exit 1 }' ||
	fail "compressed or not makes a difference: $(cat out)"
grep -Eq '"false_per_node_day":[0-9]' out || fail "no false alarms per node-day"
"$replay" run --detector fixed a.trace >out 2>err || fail "run: a rival"
grep -q 'false alarms per node-day' out || fail "no table"

# Times are from when a machine was started on: what it was not looked at is not counted as watched.
grep -Ev '^[0-9.]+ (fault|also) ' a.trace >early.trace
awk 'NR > 1 && $1 > 0 { $1 = sprintf("%.9f", $1 + 864000) } 1' early.trace >later.trace
for i in early later; do
	"$replay" run $i.trace 2>err | grep -o '[0-9.]* node-days' >$i || fail "run $i: $(cat err)"
done
cmp -s early later || fail "watched for $(cat early), ten days later $(cat later)"

"$replay" run - <a.trace >out 2>err || fail "run from standard input"

"$replay" score $small --seed 9 --json >out 2>err || fail "score"
grep -q 'for tuning' err || fail "no warning of a tuning seed"
grep -Eq '"class":"[a-z]+","faults":[1-9]' out || fail "no class has faults: $(cat out)"
"$replay" score $small --seed 1000 -v >out 2>err || fail "score"
grep -q 'it is spent' err || fail "no warning of looking at an evaluation seed"

# The same seed gives the same bytes, however many work at it.
"$replay" score $small --seed 13 --threads 1 >one 2>err || fail "score with one thread"
"$replay" score $small --seed 13 --threads 1 >again 2>err || fail "score again"
"$replay" score $small --seed 13 --threads 2 >two 2>err || fail "score with two threads"
cmp one again || fail "the same seed gives other figures"
cmp one two || fail "two threads give other figures"
grep -q 'too few to judge: dead [0-9]* of 60' one || fail "few faults are not told: $(cat one)"
grep -Eq '^  (dead|hung|xid|nan|straggler) .*  [0-9]+ of [0-9]+$' one || fail "nothing was judged by its delay: $(cat one)"
"$replay" run "$src/detect/replay/recorded/deadlock.trace.zst" >out 2>err || fail "run: a hang"
grep -Eq '^  hung .*  none of 1 judged$' out || fail "a delay that nobody judges is passed over: $(cat out)"

sed '100s/.*/5 beat job=x/' a.trace >bad.trace
"$replay" run bad.trace >out 2>err
[ $? -eq 1 ] || fail "a damaged trace is exit status 1"
grep -q "line 100" err || fail "the damaged line is not named"
"$replay" run /dev/null >out 2>err && fail "an empty file is a trace"
"$replay" run no.such.file >out 2>err && fail "a file that is not there is a trace"
grep -q "no.such.file" err || fail "the file is not named"
exit 0
