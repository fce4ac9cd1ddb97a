#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Memory comes from base/alloc.h alone, so that every allocation can be made to fail; time and
# randomness come from the tables in base/ alone, so that the simulator owns them. Files below a
# data folder are named through storage/beneath.h alone, which follows no link and lends no right of
# root's.
set -e
. "${top_srcdir:-.}/tests/lib/functions.sh"
cd "$top_srcdir"

# <functions>: <files that may call them, patterns>: the files that implement the tables, and
# programs of their own that no simulation runs.
rows='
malloc calloc realloc reallocarray strdup strndup asprintf vasprintf free posix_memalign aligned_alloc memalign getline getdelim open_memstream: base/alloc.c
getrandom getentropy arc4random: base/rng.c
rand rand_r srand random srandom drand48 lrand48 mrand48 random_r:
clock_gettime clock_getres: ckptd/loop_*.c ckptd/log.c ckptd/predecessor.c ckptd/reader.c ckptd/supervise.c ckptd/workers.c client/pump.c client/clock.c tools/*
time gettimeofday clock ftime timespec_get:
localtime localtime_r gmtime gmtime_r strftime: ckptd/log*.c tools/*
usleep nanosleep clock_nanosleep sleep: tools/*
'

# Who else may name files, all of them elsewhere than below a data folder.
paths='open openat openat2 fopen freopen creat opendir scandir fts_open nftw stat lstat fstatat statx access faccessat mkdir mkdirat mkfifo mknod rename renameat renameat2 unlink unlinkat remove rmdir link linkat symlink symlinkat truncate chmod fchmodat chown lchown fchownat mkstemp mkostemp mkdtemp realpath utimensat'
rows="$rows
$paths:"'
	storage/beneath.c storage/disk_posix.c
	base/fault.c client/* detect/replay/*
	ckptd/collect_disk.c ckptd/collect_file.c ckptd/collect_kmsg.c ckptd/processes.c ckptd/system_memory.c
	ckptd/config.c ckptd/text_file.c ckptd/main.c ckptd/injector.c ckptd/recorder.c
	ckptd/data_folder.c ckptd/listener.c ckptd/memory_memfd.c
	tools/newfile.c tools/import.c tools/export.c tools/layout.c tools/layout_file.c tools/side.c
	tools/safetensors_*.c tools/dcp_*.c tools/torch_*.c tools/xid.c
	tools/check_*.c tools/node_check.c tools/files.c tools/silence.c'
rows=$(printf '%s' "$rows" | sed -e ':a' -e 'N' -e '$!ba' -e 's/\n\t/ /g')

# Unit tests, the simulator, bench/ and examples/ are their own masters.
files=$(c_files $product_folders | grep -v '/test_[^/]*\.[ch]$')
perl tests/style/code.pl $files | ROWS=$rows perl -ne '
	BEGIN {
		for (grep /\S/, split /\n/, $ENV{ROWS}) {
			my ($names, $files) = /^([^:]+):(.*)/ or die "bad row $_";
			my @may = map { my $g = quotemeta; $g =~ s/\\\*/.*/g; qr/^$g$/ } split " ", $files;
			$may{$_} = \@may for split " ", $names;
		}
		$any = join "|", sort keys %may;
	}
	my ($file, $line, $code) = /^([^:]+):(\d+):(.*)/ or next;
	# A member that is called free or time is something else, and so is a declaration.
	while ($code =~ /(?<![\w.])(?<!->)($any)\s*\(/g) {
		my $name = $1;
		next if grep { $file =~ $_ } @{ $may{$name} };
		print "$file:$line: calls $name()\n";
		$failed = 1;
	}
	END { $? ||= $failed }
'
