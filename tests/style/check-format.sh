#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What a script can see of the layout of C files: SPDX line first, <config.h> the first include of
# each .c file, tabs of 8, nothing after the last letter of a line, one newline at the end.
#
# examples/ are programs of users: they have no config.h.
set -e
. "${top_srcdir:-.}/tests/lib/functions.sh"
cd "$top_srcdir"

files=$(c_files $all_folders)
printf '%s\n' "$files" | perl -ne '
	sub bad { print "$_[0]\n"; $failed = 1 }

	chomp(my $file = $_);
	open my $in, "<", $file or die "$file: $!";
	my @lines = <$in>;
	bad("$file:1: no SPDX line") if !@lines ||
		$lines[0] ne "/* SPDX-License-Identifier: Apache-2.0 */\n";
	bad("$file: does not end in one newline") if @lines &&
		($lines[-1] !~ /\n\z/ || $lines[-1] eq "\n");
	my ($first) = grep { /^\s*#\s*include/ } @lines;
	bad("$file: <config.h> is not the first include") if $file =~ /\.c$/ &&
		$file !~ m{^examples/} && ($first // "") !~ /^#include <config\.h>$/;
	for my $n (1 .. @lines) {
		my $line = $lines[$n - 1];
		bad("$file:$n: blanks at the end") if $line =~ /[ \t\r]\n?\z/;
		bad("$file:$n: indented with blanks") if $line =~ /^\t* {8}/;
		bad("$file:$n: a blank before a tab") if $line =~ /^\t* +\t/;
	}
	END { $? ||= $failed }
'
