#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The manual is complete and well formed: each function of ckpt.h stands in a page, each program and
# configuration file has a page, in which each of its long options stands (those that its --help
# names), and groff has nothing to say about any of them.
set -e
. "${top_srcdir:-.}/tests/lib/functions.sh"
cd "$top_srcdir"
scratch

set -- man/*.pod
[ -e "$1" ] || { echo "man/: no pages found"; exit 1; }
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

for program in ckptd/ckptd ckptctl bench/ckpt-bench; do
	[ -x "$top_builddir/$program" ] || { complain "$program: no object found"; continue; }
	page=$(ls man/"${program##*/}".[18].pod 2>/dev/null) || {
		complain "man/${program##*/}: there is no page for this program"
		continue
	}
	"$top_builddir/$program" --help >"$scratch/help" 2>&1 ||
		complain "$program --help: exit status $?"
	grep -oE -e '--[a-z][a-z0-9-]+' "$scratch/help" | LC_ALL=C sort -u >"$scratch/options"
	[ -s "$scratch/options" ] || complain "$program --help: no options found"
	for option in $(cat "$scratch/options"); do
		grep -qE -e "(^|[^a-z0-9-])$option([^a-z0-9-]|\$)" "$page" ||
			complain "$program: $option: $page does not name it"
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
