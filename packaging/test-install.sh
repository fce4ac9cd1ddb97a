#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What `make install` installs is where it is looked for, and works from there.
set -e
. "$top_srcdir/tests/lib/functions.sh"
requires test -x /usr/bin/python3
requires sh -c '! grep -q "^pythondir = no$" "$top_builddir/Makefile"'
scratch
unset MAKEFLAGS MAKELEVEL MFLAGS
source=$(cd "$top_srcdir" && pwd)

# Both places that belong to the system's Python are among those it looks at.
for prefix in /usr /usr/local; do
	dir=$("$top_srcdir/scripts/python-dir" $prefix)
	env -i /usr/bin/python3 -c 'import sys; sys.exit(sys.argv[1] not in sys.path)' "$dir" || {
		echo "python3 does not look at $dir"
		exit 1
	}
	case $dir in $prefix/*) ;; *) echo "$dir is not below $prefix"; exit 1 ;; esac
done
# Without a Python its headers say the version, and without both nothing is guessed.
printf '#!/bin/sh\necho 3.42\n' >"$scratch/pkg-config"
chmod +x "$scratch/pkg-config"
packages=site-packages
[ ! -f /etc/debian_version ] || packages=dist-packages
[ "$("$top_srcdir/scripts/python-dir" /opt/x /nonexistent "$scratch/pkg-config")" = \
	/opt/x/lib/python3.42/$packages ]
guess=$("$top_srcdir/scripts/python-dir" /opt/x /nonexistent /nonexistent) && {
	echo "without Python and headers the place is $guess"
	exit 1
}
"$top_srcdir/scripts/python-dir" --finds "$("$top_srcdir/scripts/python-dir" /usr/local)"
if "$top_srcdir/scripts/python-dir" --finds /usr/local/lib/python3/dist-packages; then
	echo "python3 is said to look where it does not"
	exit 1
fi

# Places that are fixed are not moved without a word: what asks for it is refused, and what names
# them as they are, as distributions do, is not. Nor is a static library made, whose hundreds of names
# would be its users'.
for option in sysconfdir=/opt/etc localstatedir=/srv runstatedir=/opt/run enable-static; do
	mkdir -p "$scratch/refused"
	if (cd "$scratch/refused" && "$source/configure" -q --$option) >"$scratch/said" 2>&1; then
		echo "configure takes --$option"
		exit 1
	fi
	grep -q "configure: error: --$option: .*leave this option out" "$scratch/said" || {
		cat "$scratch/said"
		exit 1
	}
done
(cd "$scratch/refused" && CC=/nonexistent "$source/configure" -q --sysconfdir=/etc \
	--localstatedir=/var --runstatedir=/run --disable-static) >"$scratch/said" 2>&1 || true
! grep -q 'leave this option out' "$scratch/said" || { cat "$scratch/said"; exit 1; }
rm -r "$scratch/refused"

# An earlier install has left a copy elsewhere: this one says so, and of its own copy nothing.
prefix=$(sed -n "s/^prefix = //p" "$top_builddir/Makefile")
stale=$scratch$prefix/lib/python3.2/site-packages
mkdir -p "$stale/ckpt"
touch "$stale/ckpt/_lib.py"
for time in first second; do
	make -s -C "$top_builddir" install DESTDIR="$scratch" >"$scratch/said" 2>&1 || {
		cat "$scratch/said"
		exit 1
	}
	[ "$(grep -c 'another copy of the Python package' "$scratch/said")" = 1 ] &&
		grep -qF "$stale has another copy" "$scratch/said" || {
		cat "$scratch/said"
		echo "the $time install does not name the copy in $stale alone"
		exit 1
	}
done
rm -r "$stale"

# Where configure has put it, python3 finds the package, and that the library.
package=$(find "$scratch" -path '*/ckpt/__init__.py')
library=$(find "$scratch" -name libckpt.so.0)
[ -n "$package" ] && [ -n "$library" ]
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
# What texts that are installed name of the documentation and the tables is installed too, and
# nothing of the source is named that is not.
docdir=$(sed -n 's/^docdir = //p' "$top_builddir/Makefile" | sed \
	-e 's|[$][({]datarootdir[)}]|${prefix}/share|' -e 's|[$][({]PACKAGE_TARNAME[)}]|ckptd|' \
	-e "s|[$][({]prefix[)}]|$prefix|")
[ -f "$scratch$docdir/README.md" ] || { echo "the documentation is not in $docdir"; exit 1; }

# The licence that every file names, in full.
licence=$scratch$docdir/LICENSE
[ -f "$licence" ] && [ -f "$scratch$docdir/NEWS" ] && [ -f "$scratch$docdir/SECURITY.md" ]
grep -q 'Version 2.0, January 2004' "$licence" && grep -q 'END OF TERMS' "$licence"
[ ! -f /usr/share/common-licenses/Apache-2.0 ] || cmp "$licence" /usr/share/common-licenses/Apache-2.0

# texts - what the programs, the library, the pages and other installed files that are read say. The
# documentation itself may name sources.
texts() {
	strings -a -n 12 "$scratch$prefix"/bin/* "$scratch$prefix"/sbin/* "$library"
	find "$scratch$prefix/share/man" -type f -exec sed -e 's/\\-/-/g' -e 's/\\&//g' \
		-e 's/\\f[A-Z]//g' -e 's/\\f(..//g' {} +
	find "$scratch" -type f \( -path '*/examples/*' -o -path '*/ckpt/*.py' -o -name '*.tsv' -o \
		-name '*.h' -o -name '*.pc' -o -name '*.bash' -o -name ckptd.conf -o \
		-name ckptd.service \) -exec cat {} +
}
# missing_documents - of what standard input names, what is not installed.
missing_documents() {
	grep -aoE '[$~/A-Za-z0-9_][$~/A-Za-z0-9_.-]*' | sed 's/[.]*$//' | sort -u |
		grep -E '[A-Za-z-]{3}\.(md|tsv)$|^(bench|doc|examples|man|packaging|python|scripts|share|tests)/' |
		while read -r name; do
		case $name in
		examples/*) [ -f "$scratch$docdir/$name" ] ;;
		/etc/ckptd/*.tsv | '$datadir/ckptd/'*.tsv) [ -f "$scratch$prefix/share/ckptd/${name##*/}" ] ;;
		*/*) false ;;
		*.tsv) [ -f "$scratch$prefix/share/ckptd/$name" ] ;;
		*.md) [ -f "$scratch$docdir/$name" ] ;;
		esac || echo "$name"
	done
}
texts >"$scratch/texts"
missing=$(missing_documents <"$scratch/texts")
[ -z "$missing" ] || { echo "named, but not installed: $missing"; exit 1; }
for name in examples/train_lm.c operations.md policy.tsv; do
	grep -qF "$name" "$scratch/texts" || { echo "texts() misses $name"; exit 1; }
done
for name in doc/json.md nothing.md scripts/demo examples/none.c none.tsv python/tests/torch113.py; do
	[ "$(echo "\"(see $name)\"." | missing_documents)" = "$name" ] || {
		echo "the search would not find $name"
		exit 1
	}
done
# So it is with what is read first: of README.md files of doc/ lie beside it, and it says so, and what
# is in the source alone.
first_read() {
	sed -e 's/`[A-Za-z./]*` in the source//g' -e 's|doc/\([a-z-]*\.md\)|\1|g' "$1/README.md" |
		grep -vE '^    scripts/|`scripts/[a-z]*`' | missing_documents
	cat "$1/NEWS" "$1/SECURITY.md" | missing_documents
}
missing=$(first_read "$scratch$docdir")
[ -z "$missing" ] || { echo "named by README.md, NEWS or SECURITY.md, but not installed: $missing"; exit 1; }
grep -qF 'Once installed the files of `doc/` lie beside this one' "$scratch$docdir/README.md"
mkdir "$scratch/first"
for name in README.md NEWS SECURITY.md; do
	cp "$scratch$docdir/README.md" "$scratch$docdir/NEWS" "$scratch$docdir/SECURITY.md" "$scratch/first"
	echo 'see doc/nothing.md' >>"$scratch/first/$name"
	[ -n "$(first_read "$scratch/first")" ] || { echo "a name in $name would not be found"; exit 1; }
done
# Links of the documentation lead to what is installed.
for page in "$scratch$docdir"/*.md; do
	for link in $(grep -o '](\([^)# ]*\)' "$page" | sed -e 's/^](//' -e '/^https*:/d'); do
		[ -f "$scratch$docdir/$link" ] || { echo "${page##*/} links to $link"; exit 1; }
	done
done
# The example is compiled as it says, with what is installed; a program without the sanitizer cannot
# be linked with a library that has it.
[ -n "$preload" ] || ${CC:-cc} -o "$scratch/train_lm" "$scratch$docdir/examples/train_lm.c" \
	-I"$scratch$prefix/include" -L"${library%/*}" -lckpt -lm

# Where this build has the extension, Python finds it beside the module: its absence is silent.
extension=no
! grep -q '^ckptpython_PROGRAMS = python/ckpt/_bindings' "$top_builddir/Makefile" || extension=yes
unset CKPT_EXTENSION
cd /
env LD_PRELOAD="$preload" LD_LIBRARY_PATH="${library%/*}" PYTHONPATH="$scratch$want" \
	PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -c '
import ckpt, ckpt.torch, ckpt.torch113
try:
    ckpt.open("j", 0, 1, socket="/nonexistent")
except ckpt.CkptError as e:
    assert "/nonexistent" in str(e), e
import os, sys
module, table = ckpt._many._module, ckpt._many.table()
assert (table is not None) == (sys.argv[1] == "yes"), (sys.argv, table)
assert table is None or os.path.dirname(module.__file__) == os.path.dirname(ckpt.__file__), module
' "$extension"
for program in bin/ckptctl sbin/ckptd; do
	"$scratch$prefix/$program" --version
done
