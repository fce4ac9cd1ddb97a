#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# `scripts/check --full` knows every cap: each name that a test gives to test_cap(), or that the
# fuzz targets' main reads, has a value in its list. CKPT_SEED is no cap.
set -e
. "${top_srcdir:-.}/tests/lib/functions.sh"
cd "$top_srcdir"

files=$(c_files $all_folders)
bad=0
for name in $(cat $files | grep -oE '\b(test_cap|number_from_env)\("[A-Z_]+"' |
	grep -oE '[A-Z_]{2,}' | grep -vx CKPT_SEED | LC_ALL=C sort -u); do
	grep -q "^$name=" scripts/check && continue
	echo "$name: scripts/check --full does not lift this cap: add it to full_caps"
	bad=1
done
exit $bad
