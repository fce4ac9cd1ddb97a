#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# `ckptctl node-check`: what it measures, how it judges, what it does when a check hangs or dies.
# The network's part is in tests/it/test_node_check.sh.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"

# What other runs here had is no standard while other tests take the machine: each begins a history.
check () {
	status=$1
	shift
	rm -f "$dir/new"
	run "$status" node-check --time 8 --memory 4M --data "$dir" "$@"
}

# The whole, with little time: a table, a sentence, a history.
check 0 --history "$dir/own"
says out "memory-copy"
says out "disk-write"
says out "node-check: fit"
[ "$(wc -l <"$dir/own")" = 1 ] || fail "one run is one line of the history"
check 0 --history "$dir/own" --json
says out '"name": "disk-sync"'
[ "$(wc -l <"$dir/own")" = 2 ] || fail "the second run is the second line"
find "$dir" -name 'node-check*' | grep -q . && fail "the test file was left behind"

# The folder of the environment is written to, as with --data.
under CKPT_DATA="$dir" run 0 node-check --time 8 --memory 4M --history "$dir/own" --json
lacks out "no folder was named"
says out '"name": "disk-sync"'
rm -f "$dir/own"
# A ckptd that the environment names and that is down is no fault of the node, whose disk is not known.
under CKPT_SOCKET="$dir/nobody" run 2 node-check -q --time 8 --memory 4M --history "$dir/own"
says out "node-check: not known: the disk was not checked: find the data folder by CKPT_SOCKET"
lacks out "fit"
under CKPT_SOCKET="$dir/nobody" run 2 node-check --time 8 --memory 4M --history "$dir/own" --json
silent err
says out '"name": "memory-copy"'
json_of_disk='d = [r for r in json.load(open(sys.argv[1]))["results"] if r["name"] == "disk-write"]
assert len(d) == 1 and d[0]["state"] == "skipped" and "find the data folder by CKPT_SOCKET" in d[0]["words"], d'
/usr/bin/python3 -c "import json, sys
$json_of_disk" "$dir/out" || fail "the disk is not skipped"
rm -f "$dir/own"

# Other nodes are ten times as fast, and say so: this one is not fit. So far below, the machine's
# noise does not matter; and far above nobody complains.
fleet () {
	for node in 1 2 3 4 5 6; do
		printf '{"node":"n%s","results":[{"name":"memory-copy","state":"passed","value":%s}]}\n' \
			"$node" "$1"
	done
}
fleet 10000 >"$dir/fast"
echo 'cut off {"node":' >>"$dir/fast"
check 1 --history "$dir/new" --fleet "$dir/fast"
says out "node-check: not fit: memory-copy"
says out "6 nodes have 10000"
fleet 0.001 >"$dir/slow"
check 0 --history "$dir/new" --fleet "$dir/slow"
head -n 4 "$dir/fast" >"$dir/few"
check 0 --history "$dir/new" --fleet "$dir/few"
check 2 --fleet "$dir/nothing" --history "$dir/new"
says err "read the history"

# A history that cannot be used is told, and no fault of the node: a folder, a pipe that nobody
# writes to or reads, a disk that is full. /dev/null is none.
brief () {
	status=$1
	shift
	run "$status" node-check --time 8 --memory 4M --data "$dir/nothing" "$@"
}
mkdir "$dir/folder"
brief 0 --history "$dir/folder"
says out "node-check: fit"
says err "add to the history '$dir/folder'"
mkfifo "$dir/pipe"
brief 0 --history "$dir/pipe"
says out "node-check: fit"
says err "add to the history '$dir/pipe'"
brief 0 --history /dev/full
says out "node-check: fit"
says err "add to the history '/dev/full'"
brief 0 --history /dev/null
silent err
# The fleet was asked for: without it nothing is said.
brief 2 --history "$dir/new" --fleet "$dir/folder"
says err "read the history '$dir/folder'"
# What a full disk has cut short takes nothing with it.
printf '{"node":"me","resu' >"$dir/short"
brief 0 --history "$dir/short"
silent err
[ "$(wc -l <"$dir/short")" = 2 ] || fail "a line was added to half a line"
tail -n 1 "$dir/short" | /usr/bin/python3 -c 'import json, sys; json.load(sys.stdin)["results"]' ||
	fail "the line behind half a line cannot be read"
# A long one loses its older half, in whole lines.
for i in $(seq 70); do
	printf '{"node":"%s","long":"%060000d"}\n' "$i" 0
done >"$dir/long"
brief 0 --history "$dir/long"
silent err
[ "$(wc -c <"$dir/long")" -lt 2200000 ] || fail "a long history is not cut"
grep -q '^{"node":"70"' "$dir/long" || fail "the newer half is gone"
grep -qv '^{"' "$dir/long" && fail "half a line is left"
[ ! -e "$dir/long.new" ] || fail "the new history is left beside the old one"

# No disk to measure is no fault, and is said.
run 0 node-check --time 8 --memory 4M --data "$dir/nothing" --history "$dir/new"
says out "skipped"
grep -q "^node-check: fit; not checked: .*disk-write" "$dir/out" || fail "it is not said that the disk was not checked"

# GPUs, played by a stand-in: well, and sick in each way.
export CKPT_LIBCUDA="$build/.libs/libfakegpu.so"
[ -e "$CKPT_LIBCUDA" ] || fail "there is no stand-in for libcuda"
check 0 --history "$dir/new" --time 24
says out "gpu0-arithmetic"
says out "gpu1-copy-in"
under FAKE_GPU=unpinned check 0 --history "$dir/new" --time 24
says out "host memory cannot be pinned (1)"
says out "gpu1-memory"
under FAKE_GPU=none check 0 --history "$dir/new"
says out "knows of no GPU"
under FAKE_GPU=init-100 check 0 --history "$dir/new"
says out "knows of no GPU"
under FAKE_GPU=init-304 check 0 --history "$dir/new"
says out "cannot be used here"
under FAKE_GPU=init-999 check 1 --history "$dir/new"
says out "the CUDA driver does not start (999)"
# Where others take the cores for a moment, a GPU that hangs is not told from one that had to wait.
hung () {
	for i in $(seq 20); do
		rm -f "$dir/new" # else the runs before become the standard of this one
		FAKE_GPU=hang ctl node-check --time 8 --memory 4M --data "$dir" --history "$dir/new" "$@" \
			>"$dir/out" 2>"$dir/err" </dev/null
		got=$?
		[ $got = 0 ] || break
	done
	checks=$((checks + 1))
	[ $got = 1 ] || fail "a GPU that hangs: exit status $got instead of 1"
}
sick () {
	under FAKE_GPU="$1" check 1 --history "$dir/new" --time "${3:-24}"
	says out "$2"
}
sick copy "GPU 1: what was copied to it does not come back"
sick memory "GPU 1: its memory does not keep what is written"
sick arithmetic "GPU 1: its arithmetic is wrong"
sick refuse "GPU 1 fails: an illegal memory access"
sick crash "the check of gpu was killed by signal 6"
hung
says out "the check of gpu did not end in time"
hung -q
says out "node-check: not fit"
# At idle priority, as ckptd runs it beside trainers, slowness is no fault, and no standard either.
FAKE_GPU=hang chrt -i 0 "$build/ckptctl" node-check --time 8 --memory 4M --data "$dir" \
	--history "$dir/idle" --fleet "$dir/fast" >"$dir/out" 2>&1 || fail "idle: $(cat "$dir/out")"
says out "did not end in time, at idle priority"
[ ! -e "$dir/idle" ] || fail "a run at idle priority is kept as a standard"
unset CKPT_LIBCUDA

# On a node that others keep busy what comes too late is not found out, and no fault.
core=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')
hogs=
for i in $(seq 16); do
	taskset -c "$core" sh -c 'while :; do :; done' &
	hogs="$hogs $!"
done
taskset -c "$core" nice -n 19 "$build/ckptctl" node-check --time 4 --memory 64M --history "$dir/busy" >"$dir/out" 2>&1
status=$?
kill $hogs
[ $status != 1 ] || fail "busy: $(cat "$dir/out")"
says out "the node is too busy to tell"

# Usage.
run 2 node-check --peers 127.0.0.1:1 extra
check 0 --history "$dir/new" --peers 203.0.113.1:7000,203.0.113.2:7000
says out "none of --peers is this node"
ending 65
