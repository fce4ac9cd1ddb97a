#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Every test that doc/features.md names is there, and so is every case that it names of it.
set -e
. "${top_srcdir:-.}/tests/lib/functions.sh"
cd "$top_srcdir"
scratch

# check PAGE - the last cell of each row of a table: "FILE: WORD, WORD (remark); FILE ..."
check() {
	perl -ne '
		next if !/^\|/ || /^\|---/ || /^\| row /;
		my @cells = split /\|/;
		(my $cell = $cells[-2]) =~ s/\([^()]*\)//g;
		$rows++;
		for (split /;/, $cell) {
			next if !/^\s*(?:and that an omission is found:\s*)?([\w.-]+\/[\w.\/-]+)\s*(?::\s*(.*?))?\s*$/;
			my ($name, $words) = ($1, $2 // "");
			my ($file) = grep { -e } map { "$name$_" } "", ".c", ".sh", ".py";
			$tests++;
			if (!$file) {
				print "$name: there is no such test\n";
				$bad = 1;
				next;
			}
			my $text = "";
			if (!-d $file) {
				open my $in, "<", $file or die "$file: $!";
				local $/;
				$text = <$in>;
			}
			for my $word (split /\s*,\s*/, $words) {
				next if $text =~ /\b\Q$word\E\b/;
				print "$file: there is no $word\n";
				$bad = 1;
			}
		}
		END {
			print "$rows rows, $tests tests\n";
			$? = 1 if $bad || ($rows // 0) < 20 || ($tests // 0) < 50;
		}
	' "$1"
}

check doc/features.md
for damage in s/test_full_disk/test_fuller_disk/ s/test_retention/test_attention/; do
	sed "$damage" doc/features.md >"$scratch/page"
	if check "$scratch/page" >"$scratch/said"; then
		echo "a page damaged by $damage was found good"
		exit 1
	fi
done
