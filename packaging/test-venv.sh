#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The ways that the README names into a virtual environment: one that sees the system's packages
# imports the installed ckpt, and any other does with PYTHONPATH; CKPT_LIBRARY names the library.
set -e
. "$top_srcdir/tests/lib/functions.sh"
requires test -x /usr/bin/python3
requires /usr/bin/python3 -c 'import venv'
requires sh -c '! grep -q "^pythondir = no$" "$top_builddir/Makefile"'
requires grep -q '^SAN_FLAGS = *$' "$top_builddir/Makefile"
scratch
unset MAKEFLAGS MAKELEVEL MFLAGS PYTHONPATH CKPT_LIBRARY LD_LIBRARY_PATH

make -s -C "$top_builddir" install DESTDIR="$scratch/dest" >"$scratch/said" 2>&1 || {
	cat "$scratch/said"
	exit 1
}
packages=$(find "$scratch/dest" -path '*/ckpt/__init__.py')
packages=${packages%/ckpt/__init__.py}
library=$(find "$scratch/dest" -name libckpt.so.0)
[ -n "$packages" ] && [ -n "$library" ]
grep -qF 'python3 -m venv --system-site-packages' "$top_srcdir/README.md"
grep -qF 'PYTHONPATH=' "$top_srcdir/README.md" && grep -qF 'CKPT_LIBRARY=' "$top_srcdir/README.md"

/usr/bin/python3 -m venv --without-pip "$scratch/plain"
/usr/bin/python3 -m venv --without-pip --system-site-packages "$scratch/system"
cd /

# imports PYTHON [VARIABLE=VALUE...] - whether that Python has the installed package and library.
imports() {
	python=$1
	shift
	env PYTHONDONTWRITEBYTECODE=1 "$@" "$python" -c 'if True:
		import sys, ckpt
		sys.exit(not ckpt.__file__.startswith(sys.argv[1]))' "${dir:-$packages}" \
		2>"$scratch/said"
}

if imports "$scratch/plain/bin/python"; then
	echo "a plain virtual environment needs no PYTHONPATH"
	exit 1
fi
imports "$scratch/plain/bin/python" PYTHONPATH="$packages" CKPT_LIBRARY="$library" || {
	cat "$scratch/said"
	echo "a plain virtual environment does not import ckpt by PYTHONPATH"
	exit 1
}

# The other one looks where `make install` puts the package for /usr/local and for /usr.
for prefix in /usr/local /usr; do
	dir=$("$top_srcdir/scripts/python-dir" $prefix)
	"$top_srcdir/scripts/python-dir" --finds "$dir" "$scratch/system/bin/python" || {
		echo "a virtual environment with the system's packages does not look at $dir"
		exit 1
	}
	if "$top_srcdir/scripts/python-dir" --finds "$dir" "$scratch/plain/bin/python"; then
		echo "a plain virtual environment is said to look at $dir"
		exit 1
	fi
done

# Where this process may mount, the package is put there for it alone.
dir=$("$top_srcdir/scripts/python-dir" /usr/local)
[ -d "$dir" ] && unshare --mount true 2>"$scratch/said" || exit 0
unshare --mount sh -ec 'mount --bind "$1" "$2"; shift 2; exec "$@"' sh "$packages" "$dir" \
	env PYTHONDONTWRITEBYTECODE=1 CKPT_LIBRARY="$library" "$scratch/system/bin/python" -c 'if True:
	import sys, ckpt
	assert ckpt.__file__.startswith(sys.argv[1]), ckpt.__file__' "$dir"
