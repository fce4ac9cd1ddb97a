#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Loss of power on ext4 and on xfs: see crash_points.c. CKPT_CRASH_POINTS sets how many points.
program=${top_builddir:-.}/tests/fault/crash_points
[ -x "${top_builddir:-.}/tests/fault/blockrec" ] || {
	echo "skip crash_points libfuse3-dev was missing at configure"
	exit 77
}
status=0
for arg in "" --xfs; do
	"$program" $arg
	case $? in
	0) ;;
	77) [ $status = 1 ] || status=77 ;;
	*) status=1 ;;
	esac
done
exit $status
