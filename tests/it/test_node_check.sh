#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The network's part of `ckptctl node-check`: nodes are network namespaces on one bridge, each with a
# port of 200 Mbit/s, so that processors do not matter. A port of 60 is slow with everybody; a class
# of 60 for one address is a slow path between two.
. "${top_srcdir:-.}/tests/lib/functions.sh"
requires ip link show
requires test "$(id -u)" = 0
build=${top_builddir:-.}
scratch
tag=nc$$
failed=0

# port NODE MBIT [ADDRESS MBIT]: what it sends, and what it sends to one address.
port () {
	local tc="tc -n $tag-$1"
	$tc qdisc del dev eth0 root 2>/dev/null
	$tc qdisc add dev eth0 root handle 1: htb default 1 r2q 1000 &&
		$tc class add dev eth0 parent 1: classid 1:1 htb rate "${2}mbit" || exit 99
	[ -n "${3:-}" ] || return 0
	$tc class add dev eth0 parent 1: classid 1:2 htb rate "${4}mbit" &&
		$tc filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst "$3" flowid 1:2 || exit 99
}

namespaces () {
	ip link add "$tag" type bridge || exit 99
	ip link set "$tag" up
	for i in 1 2 3 4 5; do
		ip netns add "$tag-$i" || exit 99
		ip link add "$tag-$i" type veth peer name eth0 netns "$tag-$i"
		ip link set "$tag-$i" master "$tag" up
		ip -n "$tag-$i" addr add 10.77.0.$i/24 dev eth0
		ip -n "$tag-$i" link set eth0 up
		ip -n "$tag-$i" link set lo up
		port "$i" 200
	done
}

remove_all () {
	for i in 1 2 3 4 5; do
		ip netns del "$tag-$i" 2>/dev/null
	done
	ip link del "$tag" 2>/dev/null
	rm -rf "$scratch"
}
trap remove_all EXIT

fail () {
	echo "FAILED: $1"
	sed 's/^/  | /' "$scratch"/out.*
	failed=1
}

# exchange NODE...: all of them at once; their exit statuses are in $status_N, output in out.N.
exchange () {
	local pids=() nodes=("$@") peers=$all
	for i in "${nodes[@]}"; do
		ip netns exec "$tag-$i" "$build/ckptctl" node-check --time 40 --memory 4M \
			--data "$scratch/none" --history "$scratch/h.$i" --peers "$peers" \
			>"$scratch/out.$i" 2>&1 </dev/null &
		pids+=($!)
	done
	for k in "${!pids[@]}"; do
		wait "${pids[$k]}"
		eval "status_${nodes[$k]}=$?"
	done
}

fit () {
	for i; do
		eval "[ \$status_$i = 0 ]" || fail "node $i should be fit"
	done
}
said () {
	grep -qF -- "$2" "$scratch/out.$1" || fail "node $1 does not say '$2'"
}

namespaces
all=10.77.0.1:7100,10.77.0.2:7100,10.77.0.3:7100,10.77.0.4:7100

# All are well.
exchange 1 2 3 4
fit 1 2 3 4
said 3 "network-pair"
! grep -q "slow or fails" "$scratch"/out.* || fail "somebody was named where all are well"

# Node 3 is slow whoever it meets; the first, who leads, is well.
port 3 60
exchange 1 2 3 4
fit 1 2 4
[ "$status_3" = 1 ] || fail "node 3 should not be fit"
said 3 "10.77.0.3:7100 is slow or fails with everybody it met"
said 1 "10.77.0.3:7100 is slow or fails with everybody it met"
port 3 200

# The path between 1 and 2 is slow; both are well with others.
port 1 200 10.77.0.2 60
exchange 1 2 3 4
fit 1 2 3 4
said 4 "the path between 10.77.0.1:7100 and 10.77.0.2:7100 is slow or fails"
port 1 200

# The leader does not come: the next one leads; who is absent is named, and nobody is blamed for it.
exchange 2 3 4
fit 2 3 4
said 4 "10.77.0.1:7100 did not come"

# One that hangs up on everybody in the middle of it: it is killed as soon as the others are under way.
ip netns exec "$tag-4" timeout -s KILL 6 "$build/ckptctl" node-check --time 40 --memory 4M \
	--data "$scratch/none" --history "$scratch/h.4" --peers "$all" >/dev/null 2>&1 &
exchange 1 2 3
wait
fit 1 2 3
exit $failed
