#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The example configuration is accepted, names every option in the program's order, and shows the
# defaults.
set -e
. "$top_srcdir/tests/lib/functions.sh"
scratch

# shows_defaults FILE - the lines of the file that set something, commented out or not, are what
# ckptd uses without any file, and ckptd reads them like that.
shows_defaults() {
	sed 's/^#\([a-z_]* = \)/\1/' "$1" >"$scratch/all"
	grep -E '^(\[|[a-z_]+ = )' "$scratch/all" | diff - "$scratch/defaults" &&
		effective "$1" | diff - "$scratch/defaults" &&
		effective "$scratch/all" | diff - "$scratch/defaults"
}
# The host's name, which is the default of one option, is not in the example.
effective() {
	env -i "$top_builddir/ckptd/ckptd" --config "$1" --check-config --name node17 | grep .
}

: >"$scratch/empty"
effective "$scratch/empty" >"$scratch/defaults"
shows_defaults "$top_srcdir/packaging/ckptd.conf"

for damage in 's/^#keep_last = .*/#keep_last = 7/' 's/^#keep_last = .*/keep_last = 7/' \
	's/^#keep_last/#keep_lost/' '/keep_last/d'; do
	sed "$damage" "$top_srcdir/packaging/ckptd.conf" >"$scratch/damaged"
	if shows_defaults "$scratch/damaged" >/dev/null 2>&1; then
		echo "an example damaged by $damage was found good"
		exit 1
	fi
done
