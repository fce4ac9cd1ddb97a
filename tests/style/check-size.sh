#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Lines of at most 100 columns, functions of at most 70 lines but for those that
# tests/style/long-functions.txt lists ("file:function"); that list may only get shorter.
set -e
. "${top_srcdir:-.}/tests/lib/functions.sh"
requires ctags --version
cd "$top_srcdir"
scratch

files=$(c_files $all_folders)
# A tab counts up to the next multiple of 8; bytes that continue a UTF-8 letter count nothing.
LC_ALL=C expand $files >/dev/null
for file in $files; do
	expand "$file" | LC_ALL=C tr -d '\200-\277' |
		LC_ALL=C awk -v f="$file" 'length($0) > 100 { print f ":" FNR ": over 100 columns" }'
done >"$scratch/wide"

ctags -x --c-kinds=f --_xformat='%F:%N %n %{end}' $files |
	awk '$3 - $2 + 1 > 70 { print $1 }' | LC_ALL=C sort >"$scratch/long"
LC_ALL=C sort tests/style/long-functions.txt >"$scratch/known"
LC_ALL=C comm -23 "$scratch/long" "$scratch/known" |
	sed 's/$/: longer than 70 lines/' >>"$scratch/wide"
LC_ALL=C comm -13 "$scratch/long" "$scratch/known" |
	sed 's/$/: is short now: delete it from tests\/style\/long-functions.txt/' >>"$scratch/wide"
cat "$scratch/wide"
[ ! -s "$scratch/wide" ]
