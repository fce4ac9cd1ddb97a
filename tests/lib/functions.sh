# SPDX-License-Identifier: Apache-2.0
# Sourced by the tests that are shell scripts; they run with top_srcdir and top_builddir set.
#
# Exit status of a test: 0 passed, 77 skipped (what is missing is said), anything else failed.
# Lines "ok NAME", "not ok NAME" and "skip NAME reason" are counted one by one by scripts/check.

top_srcdir=$(cd "${top_srcdir:-.}" && pwd)
top_builddir=$(cd "${top_builddir:-.}" && pwd)

# requires COMMAND... - skips the test when the command fails; what it needs must be in
# tests/skips.txt, else scripts/check counts the skip as a failure.
requires() {
	"$@" >/dev/null 2>&1 || {
		echo "skipped: '$*' does not work here"
		exit 77
	}
}

# c_files FOLDER... - the C sources and headers below the folders that exist, sorted, without what
# protoc-c makes; fails when there are none. Call it with top_srcdir as the current folder, and not
# in a pipe, where its failure would be lost.
c_files() {
	for folder; do
		[ ! -d "$folder" ] || find "$folder" -name '*.[ch]' ! -name '*.pb-c.[ch]'
	done | LC_ALL=C sort | grep .
}

# The folders of our own C code, and all of them.
product_folders='include base model codec proto storage fabric detect coord client ckptd tools python'
all_folders="$product_folders bench examples tests"

# scratch - makes a folder that goes away with the test, and prints nothing: it is $scratch.
scratch() {
	scratch=$(mktemp -d "${TMPDIR:-/tmp}/ckpt-test.XXXXXX")
	trap 'rm -rf "$scratch"' EXIT
	trap 'exit 1' HUP INT TERM
}
