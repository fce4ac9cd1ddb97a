#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# `scripts/check --full` knows every cap: each name that a test gives to test_cap(), or that the
# fuzz targets' main reads, has a value in full_caps. CKPT_SEED is no cap. What runs a second
# time runs less of it: each of again_caps is in full_caps, with more.
set -e
. "${top_srcdir:-.}/tests/lib/functions.sh"
cd "$top_srcdir"

# caps LIST - its lines NAME=VALUE
caps() {
	sed -n "/^$1='$/,/^'$/p" scripts/check | grep =. | grep -v "'"
}

files=$(c_files $all_folders)
bad=0
for name in $(cat $files | grep -oE '\b(test_cap|number_from_env)\("[A-Z_]+"' |
	grep -oE '[A-Z_]{2,}' | grep -vx CKPT_SEED | LC_ALL=C sort -u); do
	caps full_caps | grep -q "^$name=" && continue
	echo "$name: scripts/check --full does not lift this cap: add it to full_caps"
	bad=1
done
for cap in $(caps again_caps); do
	full=$(caps full_caps | sed -n "s/^${cap%%=*}=//p")
	[ "${full:-0}" -gt "${cap#*=}" ] && continue
	echo "$cap: scripts/check runs no more of it with --full: ${full:-nothing}"
	bad=1
done
exit $bad
