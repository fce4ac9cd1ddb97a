#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# libckpt.so exports exactly what client/libckpt.map names, and that is what include/ckpt.h
# declares.
set -e
. "${top_srcdir:-.}/tests/lib/functions.sh"
requires nm --version
scratch

map=$top_srcdir/client/libckpt.map
library=$top_builddir/.libs/libckpt.so
[ -e "$library" ] || { echo "$library: no object found"; exit 1; }
sed -n '/global:/,/local:/p' "$map" | grep -oE '\bckpt_[a-z0-9_]+;' | tr -d ';' |
	LC_ALL=C sort -u >"$scratch/map"
nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' |
	LC_ALL=C sort -u >"$scratch/exported"
perl "$top_srcdir/tests/style/code.pl" "$top_srcdir/include/ckpt.h" |
	grep CKPT_API | grep -v define | grep -oE '\bckpt_[a-z0-9_]+ *\(' | tr -d ' (' |
	LC_ALL=C sort -u >"$scratch/declared"
[ -s "$scratch/map" ] || { echo "$map: no symbols found"; exit 1; }
diff -u --label libckpt.map --label libckpt.so "$scratch/map" "$scratch/exported"
diff -u --label libckpt.map --label ckpt.h "$scratch/map" "$scratch/declared"
