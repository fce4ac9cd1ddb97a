#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `ckptctl node-check` where files of the machine fail: in a mount namespace of its own.
. "${top_srcdir:-.}/tests/lib/functions.sh"
requires test "$(id -u)" = 0
[ -n "${in_namespace:-}" ] || {
	requires unshare -m mount -t tmpfs none /mnt
	in_namespace=1 exec unshare -m "$0"
}
scratch
trap 'cd /; umount -Rl "$scratch"; rm -rf "$scratch"' EXIT
mount -t tmpfs -o size=64k none "$scratch" || exit 99
failed=0

# check STATUS TEXT OPTION... - it ends so, and says that.
check() {
	local status=$1 text=$2 got=0
	shift 2
	"$top_builddir/ckptctl" node-check --memory 4M "$@" >"$scratch/out" 2>&1 </dev/null || got=$?
	[ $got = "$status" ] && grep -qF -- "$text" "$scratch/out" && return
	echo "FAILED: exit status $got, wanted $status and '$text'"
	sed 's/^/  | /' "$scratch/out"
	failed=1
}
brief() {
	check "$@" --time 8 --data "$scratch/none"
}

# A disk that is full, and one that cannot be written.
brief 0 "node-check: fit" --history "$scratch/history"
[ "$(wc -l <"$scratch/history")" = 1 ] || failed=1
rm "$scratch/history"
mkdir "$scratch/full"
mount -t tmpfs -o size=4k none "$scratch/full" && head -c 4096 /dev/zero >"$scratch/full/all"
brief 0 "add to the history '$scratch/full/history': No space left on device" --history "$scratch/full/history"
grep -q "node-check: fit" "$scratch/out" || failed=1
rm "$scratch/full/all"
mount -o remount,ro "$scratch/full" || exit 99
brief 0 "add to the history '$scratch/full/history': Read-only file system" --history "$scratch/full/history"
grep -q "node-check: fit" "$scratch/out" || failed=1

# What a check that hangs has waited for cores nobody can tell here: then it hangs.
export CKPT_LIBCUDA="$top_builddir/.libs/libfakegpu.so" FAKE_GPU=hang
[ -e "$CKPT_LIBCUDA" ] || exit 99
mount -t tmpfs none /proc || exit 99
check 1 "the check of gpu did not end in time: it hangs" --time 8 --data "$scratch/none" --history /dev/null
umount /proc
exit $failed
