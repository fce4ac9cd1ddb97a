#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The manual says what the sources say: every function has a page of its name, every error, fault
# point and planted bug stands in its page with the words of the source, every option in
# ckptd.conf(5) with its default; every reason of a skipped save in doc/json.md,
# and every problem's name there and in doc/operations.md.
set -e
. "${top_srcdir:-.}/tests/lib/functions.sh"
scratch
bad=0
complain() {
	echo "$*"
	bad=1
}

# has PAGE LINE - the page has this line, whole
has() {
	grep -qxF -e "$2" "$1" || complain "$1: there is no line '$2'"
}

# check TOP - all of it, for the sources below TOP
check() {
	[ ! -e "$top_builddir/man/libckpt.3" ] ||
		for name in $(sed -n 's/^CKPT_API .*[ *]\(ckpt_[a-z_]*\)(.*/\1/p' "$1/include/ckpt.h"); do
			[ -e "$top_builddir/man/$name.3" ] || complain "man/$name.3: there is no such page"
		done
	sed -n 's/^\tX(\(CKPT_E[A-Z]*\), \(-[0-9]*\), "\(.*\)").*/=item B<\1> (\2): \3/p' \
		"$1/include/ckpt.h" >"$scratch/lines"
	[ -s "$scratch/lines" ] || complain "include/ckpt.h: no errors found"
	while read -r line; do
		has "$1/man/ckpt_errors.7.pod" "$line"
	done <"$scratch/lines"
	{
		sed -n 's/^F(\([A-Z_]*\), "\(.*\)")$/=item B<\1>|\2/p' "$1/base/faults.def"
		sed -n 's/^B(\([A-Z_]*\), "\([^"]*\)", "\(.*\)")$/=item B<\1> (\2)|\3/p' "$1/base/bugs.def"
	} >"$scratch/lines"
	[ -s "$scratch/lines" ] || complain "base/faults.def: no points found"
	while IFS='|' read -r item text; do
		has "$1/man/ckpt-faults.7.pod" "$item"
		has "$1/man/ckpt-faults.7.pod" "$text"
	done <"$scratch/lines"
	sed -n 's/^#\([a-z_]*\) = \(.*\)/\1 \2/p' "$1/packaging/ckptd.conf" >"$scratch/lines"
	[ -s "$scratch/lines" ] || complain "packaging/ckptd.conf: no options found"
	while read -r key value; do
		[ "$key" != name ] || continue # its default is the host's
		has "$1/man/ckptd.conf.5.pod" "=item B<$key> = $value"
	done <"$scratch/lines"
	sed -n 's/^\tX(CKPT_SKIP_[A-Z_]*, [0-9]*, "\(.*\)").*/\1/p' "$1/include/ckpt.h" >"$scratch/lines"
	[ -s "$scratch/lines" ] || complain "include/ckpt.h: no reasons found"
	while read -r word; do
		grep '^| `skipped` |' "$1/doc/json.md" | grep -qF "\`$word\`" ||
			complain "$1/doc/json.md: the row \`skipped\` does not have '$word'"
	done <"$scratch/lines"
	sed -n 's/^\tX(PROBLEM_[A-Z_]*, "\([a-z-]*\)".*/\1/p' "$1/ckptd/problems.h" >"$scratch/lines"
	[ -s "$scratch/lines" ] || complain "ckptd/problems.h: no problems found"
	while read -r word; do
		tr '\n' ' ' <"$1/doc/json.md" | grep -qE "A problem has .problem. \(its name: [^;]*\`$word\`" ||
			complain "$1/doc/json.md: the names of problems do not have '$word'"
		grep -qF "| \`$word\` |" "$1/doc/operations.md" ||
			complain "$1/doc/operations.md: no row says when '$word' begins and ends"
	done <"$scratch/lines"
	has "$1/packaging/ckptd.conf" "#descriptors = $(sed -n 's/^FileDescriptorStoreMax=//p' \
		"$1/packaging/ckptd.service.in")"
}

check "$top_srcdir"
[ $bad = 0 ] || exit 1

# What would it find?
for damage in 's/^\tX(CKPT_EABORTED, -1006/\tX(CKPT_EABORTED, -1099/' \
	's/"data does not match its digest"/"no"/' 's/^F(LOG_DIR, /F(LOG_DUR, /' \
	's/^B(SKIP_SHARD_SYNC, "I7", "a/B(SKIP_SHARD_SYNC, "I7", "b/' \
	's/^\tX(CKPT_SKIP_LEFT, 14, "left"/\tX(CKPT_SKIP_LEFT, 14, "gone"/' \
	's/^\tX(PROBLEM_FOLDER, "folder-away"/\tX(PROBLEM_FOLDER, "folder"/' 's/^| `folder-away` |/| `away` |/' \
	's/^#keep_last = .*/#keep_last = 7/' 's/^FileDescriptorStoreMax=.*/FileDescriptorStoreMax=9/'; do
	rm -rf "$scratch/copy"
	for file in include/ckpt.h base/faults.def base/bugs.def packaging/ckptd.conf \
		packaging/ckptd.service.in doc/json.md doc/operations.md ckptd/problems.h \
		man/ckpt_errors.7.pod man/ckpt-faults.7.pod man/ckptd.conf.5.pod; do
		mkdir -p "$scratch/copy/${file%/*}"
		sed "$damage" "$top_srcdir/$file" >"$scratch/copy/$file"
	done
	if (check "$scratch/copy" && exit $bad) >"$scratch/said"; then
		echo "sources damaged by $damage agree with the manual"
		exit 1
	fi
done
