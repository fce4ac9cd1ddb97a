#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Refuses includes that cross the layers, and foreign headers outside their home.
#
# A header of ours is named with its folder, "storage/store.h", so that each edge can be seen;
# only "ckpt.h" goes without. A folder may include its own headers and those of its row.
set -e
. "${top_srcdir:-.}/tests/lib/functions.sh"
cd "$top_srcdir"

# <folder>: <folders it may include>
layers='
include:
base:
model: base codec
codec: base
proto: base
storage: base model codec proto
fabric: base model codec proto
detect: base model codec proto
coord: base model codec proto
client: base model codec proto
ckptd: base model codec proto storage fabric detect coord
tools: base model codec proto storage fabric detect coord client
bench: base model codec proto storage fabric detect coord client
tests: base model codec proto storage fabric detect coord client ckptd tools
python:
examples:
'

# <header, a pattern>: <files that may include it, patterns>. Tests may use any of them but rdma:
# an oracle has to come from somewhere. The first row that matches counts.
homes='
rdma/*:
rocksdb/*: storage/index_rocksdb.c
zstd*.h: codec/compress.c codec/zstd_stream.c
zdict.h:
zip.h: tools/torch_zip.c
zlib.h: tools/torch_zip_write.c
yajl/*: tools/json_read.c
xxh*.h: codec/digest*.c codec/copy*.c
liburing*: storage/disk_uring.c bench/*
protobuf-c/*: proto/*
*.pb-c.h: proto/* client/* ckptd/* tools/*
ini.h: ckptd/*
jansson.h: ckptd/* tools/* bench/* detect/goodput_json.*
fuse*.h:
cmocka.h:
Python.h: python/look.h
'

files=$(c_files $all_folders)
printf '%s\n' "$files" | LAYERS=$layers HOMES=$homes perl -ne '
	BEGIN {
		sub glob_re { my $g = quotemeta shift; $g =~ s/\\\*/.*/g; return qr/^$g$/ }
		for (grep /\S/, split /\n/, $ENV{LAYERS}) {
			my ($folder, $may) = /^(\w+):(.*)/ or die "bad row $_";
			$may{$folder} = { map { $_ => 1 } $folder, split " ", $may };
		}
		for (grep /\S/, split /\n/, $ENV{HOMES}) {
			my ($header, $files) = /^(\S+):(.*)/ or die "bad row $_";
			push @homes, [ glob_re($header), map { glob_re($_) } split " ", $files ];
		}
	}
	chomp(my $file = $_);
	my ($folder) = $file =~ m{^(\w+)/};
	my $is_test = $folder eq "tests" || $file =~ m{/test_[^/]*\.[ch]$};
	open my $in, "<", $file or die "$file: $!";
	while (<$in>) {
		my ($how, $header) = /^\s*#\s*include\s*([<"])([^>"]+)/ or next;
		my $bad;
		if ($header =~ m{^\.\.?/}) {
			$bad = "a relative path";
		} elsif ($how eq "\"" && $header !~ m{/}) {
			$bad = "a header of ours without its folder" if $header ne "ckpt.h";
		} elsif ($header =~ m{^(\w+)/} && $may{$1}) {
			$bad = "$folder/ may not include $1/" if !$may{$folder}{$1} &&
				!($is_test && $1 eq "tests");
		} elsif ($how eq "\"") {
			$bad = "no such folder";
		}
		my ($home) = grep { $header =~ $_->[0] } @homes;
		if (!$bad && $home && !($is_test && $header !~ m{^rdma/})) {
			my (undef, @files) = @$home;
			$bad = "this header has another home" if !grep { $file =~ $_ } @files;
		}
		next if !$bad;
		print "$file:$.: $header: $bad\n";
		$failed = 1;
	}
	END { $? ||= $failed }
'
