#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Words that have no place in the tree: paths of one machine, hosts of package archives (a site's
# mirror is apt's business), and marks of unfinished work.
set -e
. "${top_srcdir:-.}/tests/lib/functions.sh"
cd "$top_srcdir"

# Everything but what git ignores, and the files that must spell these words out.
find . \( -path './_*' -o -path './.git' -o -path './autom4te.cache' -o -path './build-aux' \
	-o -path './m4' -o -name __pycache__ \) -prune -o -type f \
	! -name '*~' ! -path ./configure ! -path ./aclocal.m4 ! -name 'Makefile.in' ! -name 'config.h.in*' \
	! -path './tests/style/check-words.sh' ! -path './tests/style/test-style.sh' \
	! -path './tests/fuzz/corpus/*' -print | LC_ALL=C sort | tr '\n' '\0' |
	xargs -0 perl -ne '
		my @rules = (
			[ qr{(?<![\w.\$\}])/(?:work|root|home/\w+)/}, "a path of one machine" ],
			[ qr{(?:deb|snapshot|security)\.debian\.org|pypi\.org|pythonhosted\.org|crates\.io},
			  "the host of a package archive" ],
			[ qr{\b(?:TODO|FIXME|XXX|HACK)\b}, "a mark of unfinished work" ],
		);
		for my $rule (@rules) {
			next if !/$rule->[0]/;
			print substr($ARGV, 2), ":$.: $rule->[1]: $&\n";
			$failed = 1;
		}
		close ARGV if eof;
		END { $? ||= $failed }
	'
