#!/usr/bin/perl
# SPDX-License-Identifier: Apache-2.0
#
# code.pl FILE... - prints "FILE:LINE:code" of C files with comments and the contents of strings
# and character constants blanked, so that a check sees code only.
use strict;
use warnings;

for my $file (@ARGV) {
	open my $in, '<', $file or die "$file: $!\n";
	my $text = do { local $/; <$in> } // '';
	close $in;
	# One pass, so that a quote in a comment and a comment in a string are what they are.
	$text =~ s{(/\*.*?\*/) | (//[^\n]*) | ("(?:\\.|[^"\\\n])*") | ('(?:\\.|[^'\\\n])*')}
		  { my $t = $1 // $2;
		    if (defined $t) { $t =~ s/[^\n]/ /g } else { $t = $3 ? '""' : "''" }
		    $t }gsex;
	my $line = 0;
	print "$file:", ++$line, ":$_\n" for split /\n/, $text, -1;
}
