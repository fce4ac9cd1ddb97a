#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The simulator tests what ckptd is made of: it links the same archives, and neither program has
# protocol code of its own.
#
# Only the archives below may be missing from the simulator: they hold the real implementations of
# the tables in base/, which it replaces by its own.
set -e
. "${top_srcdir:-.}/tests/lib/functions.sh"
outside='libckptd_os.la'
scratch

makefile=$top_builddir/Makefile
# words VARIABLE - the words of a make variable as the Makefile spells it, continuations joined
words() {
	sed -e ':a' -e '/\\$/N; s/\\\n//; ta' "$makefile" |
		sed -n "s/^$1 *= *//p" | tr -s ' \t' '\n\n' | grep -v '^\$' | LC_ALL=C sort -u
}
for program in ckptd_ckptd tests_sim_sim; do
	grep -qs "^${program}_SOURCES" "$makefile" || { echo "$program: no object found"; exit 1; }
done
words ckptd_ckptd_LDADD | grep '\.la$' >"$scratch/ckptd" || true
words tests_sim_sim_LDADD | grep '\.la$' >"$scratch/sim" || true
bad=0
for archive in $(LC_ALL=C comm -23 "$scratch/ckptd" "$scratch/sim"); do
	case " $outside " in *" $archive "*) continue ;; esac
	echo "ckptd links $archive and the simulator does not"
	bad=1
done
[ -s "$scratch/ckptd" ] || { echo "ckptd links no archive of ours"; bad=1; }
for file in $(words ckptd_ckptd_SOURCES | grep '\.c$'); do
	case $file in ckptd/main.c | ckptd/service.c) continue ;; esac # what puts the parts together
	echo "ckptd has $file of its own: put it into an archive"
	bad=1
done
for file in $(words tests_sim_sim_SOURCES | grep '\.c$'); do
	case $file in tests/*) continue ;; esac
	echo "the simulator compiles $file itself: link the archive that ckptd links"
	bad=1
done
exit $bad
