#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The manual is complete and well formed: each function of ckpt.h and each long option that a
# program's --help names stands in a page, each installed program and configuration file has a
# page, and groff has nothing to say about any of them.
#
# While man/ has no page at all there is nothing to hold it to.
set -e
. "${top_srcdir:-.}/tests/lib/functions.sh"
cd "$top_srcdir"
scratch

set -- man/*.pod
[ -e "$1" ] || { echo "man/ has no pages yet"; exit 0; }
requires groff --version
requires command -v pod2man
bad=0
complain() {
	echo "$*"
	bad=1
}

perl tests/style/code.pl include/ckpt.h | grep CKPT_API | grep -v define |
	grep -oE '\bckpt_[a-z0-9_]+ *\(' | tr -d ' (' | LC_ALL=C sort -u >"$scratch/functions"
[ -s "$scratch/functions" ] || complain "include/ckpt.h: no functions found"
for name in $(cat "$scratch/functions"); do
	grep -qw -e "$name" "$@" || complain "include/ckpt.h: $name: no page in man/ names it"
done

for program in ckptd/ckptd tools/ckptctl bench/ckpt-bench; do
	[ -x "$top_builddir/$program" ] || continue
	name=${program#*/}
	ls man/"$name".[18].pod >/dev/null 2>&1 || [ "$name" = ckpt-bench ] ||
		complain "man/$name: there is no page for this program"
	"$top_builddir/$program" --help >"$scratch/help" 2>&1 ||
		complain "$program --help: exit status $?"
	for option in $(grep -oE -e '--[a-z][a-z0-9-]+' "$scratch/help" | LC_ALL=C sort -u); do
		grep -qE -e "(^|[^a-z0-9-])$option([^a-z0-9-]|\$)" "$@" ||
			complain "$program: $option: no page in man/ names it"
	done
done
sed -n 's/^#\([a-z_]*\) = .*/\1/p' packaging/ckptd.conf >"$scratch/options"
[ -s "$scratch/options" ] || complain "packaging/ckptd.conf: no options found"
for option in $(cat "$scratch/options"); do
	grep -qsw -e "$option" man/ckptd.conf.5.pod ||
		complain "packaging/ckptd.conf: $option: man/ckptd.conf.5.pod does not name it"
done

for page; do
	pod2man -u --errors=die "$page" >"$scratch/page" 2>"$scratch/said" ||
		complain "$page: pod2man: $(cat "$scratch/said")"
	groff -man -Tutf8 -Kutf8 -ww -z "$scratch/page" >"$scratch/said" 2>&1 || bad=1
	[ ! -s "$scratch/said" ] || complain "$page: groff: $(cat "$scratch/said")"
	for section in NAME SYNOPSIS DESCRIPTION 'SEE ALSO'; do
		case $page in *.7.pod) [ "$section" != SYNOPSIS ] || continue ;; esac
		grep -qx "=head1 $section" "$page" || complain "$page: there is no section $section"
	done
done
exit $bad
