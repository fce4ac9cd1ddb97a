#!/bin/sh
# Every manual page: listed in man/Makefile.inc, good POD, good man source, its sections there.
set -u
src=${top_srcdir:-.} build=${top_builddir:-.}
command -v groff >/dev/null && command -v podchecker >/dev/null || exit 77
bad=0
pages=0
for pod in "$src"/man/*.pod; do
	page=$(basename "$pod" .pod)
	pages=$((pages + 1))
	out=$(podchecker -warnings -warnings "$pod" 2>&1) && case $out in *WARNING*) false ;; esac || {
		echo "$out"
		bad=1
	}
	if [ ! -f "$build/man/$page" ]; then
		echo "man/$page was not made: list its .pod in man/Makefile.inc"
		bad=1
		continue
	fi
	out=$(groff -man -Tutf8 -ww -z "$build/man/$page" 2>&1)
	[ -z "$out" ] || { echo "man/$page: $out"; bad=1; }
	for section in NAME SYNOPSIS DESCRIPTION 'SEE ALSO'; do
		grep -q "^=head1 $section" "$pod" || { echo "man/$page.pod has no $section"; bad=1; }
	done
done
echo "$pages pages"
[ "$pages" -gt 0 ] || bad=1
exit $bad
