#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What `make install` installs is where it is looked for, and works from there.
set -e
. "$top_srcdir/tests/lib/functions.sh"
requires test -x /usr/bin/python3
scratch
unset MAKEFLAGS MAKELEVEL MFLAGS

# Both places that belong to the system's Python are among those it looks at.
for prefix in /usr /usr/local; do
	dir=$("$top_srcdir/scripts/python-dir" $prefix)
	env -i /usr/bin/python3 -c 'import sys; sys.exit(sys.argv[1] not in sys.path)' "$dir" || {
		echo "python3 does not look at $dir"
		exit 1
	}
	case $dir in $prefix/*) ;; *) echo "$dir is not below $prefix"; exit 1 ;; esac
done
[ "$("$top_srcdir/scripts/python-dir" /opt/x /nonexistent)" = /opt/x/lib/python3/dist-packages ]

make -s -C "$top_builddir" install DESTDIR="$scratch" >"$scratch/said" 2>&1 || {
	cat "$scratch/said"
	exit 1
}

# Where configure has put it, python3 finds the package, and that the library.
package=$(find "$scratch" -path '*/ckpt/__init__.py')
library=$(find "$scratch" -name libckpt.so.0)
[ -n "$package" ] && [ -n "$library" ]
prefix=$(sed -n "s/^prefix = //p" "$top_builddir/Makefile")
want=$(sed -n "s/^pythondir = //p" "$top_builddir/Makefile" | sed "s|[$][({]prefix[)}]|$prefix|")
[ "$package" = "$scratch$want/ckpt/__init__.py" ] || {
	echo "the package is not in $want"
	exit 1
}
preload=
if nm -D "$library" | grep -q __asan; then
	preload=$(gcc -print-file-name=libasan.so)
	export ASAN_OPTIONS=detect_leaks=0
fi
# A page of each program and no program without: ckpt-bench is for those who have the tree.
for page in "$scratch$prefix"/share/man/man[18]/*; do
	name=${page##*/}
	name=${name%%.*}
	[ -x "$scratch$prefix/bin/$name" ] || [ -x "$scratch$prefix/sbin/$name" ] || {
		echo "there is a page of $name, which is not installed"
		exit 1
	}
done
cd /
env LD_PRELOAD="$preload" LD_LIBRARY_PATH="${library%/*}" PYTHONPATH="$scratch$want" \
	PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -c '
import ckpt
try:
    ckpt.open("j", 0, 1, socket="/nonexistent")
except ckpt.CkptError as e:
    assert "/nonexistent" in str(e), e
'
for program in bin/ckptctl sbin/ckptd; do
	"$scratch$prefix/$program" --version
done
