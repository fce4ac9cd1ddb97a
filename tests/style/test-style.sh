#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The style checks themselves: in a small tree of our own each rule is broken once, and the check
# that owns the rule has to say so and to name the place.
#
# What is planted comes by standard input from a process substitution: in a pipe the shell would
# forget the failure.
set -eu
. "${top_srcdir:-.}/tests/lib/functions.sh"
scratch

tree=$scratch/tree build=$scratch/build failed=0
mkdir -p "$tree/tests" "$tree/base" "$tree/include" "$build/.libs" "$build/ckptd"
cp -R "$top_srcdir/tests/lib" "$top_srcdir/tests/style" "$tree/tests/"
chmod -R u+w "$tree"
: >"$tree/tests/style/long-functions.txt"
: >"$tree/base/faults.def"
: >"$tree/base/bugs.def"
rm -f "$tree"/tests/lib/*.[ch]
printf '/* SPDX-License-Identifier: Apache-2.0 */\n' >"$tree/base/list.h"

# run CHECK - its output is in $scratch/said
run() {
	(
		cd "$tree"
		top_srcdir=$tree top_builddir=$build sh "tests/style/check-$1.sh"
	) >"$scratch/said" 2>&1
}

# refuses CHECK PATTERN WHAT - after something was planted: the check fails and says PATTERN
refuses() {
	local status=0
	run "$1" || status=$?
	if [ $status -eq 0 ] || [ $status -eq 77 ] || ! grep -qe "$2" "$scratch/said"; then
		echo "not ok $1.$3"
		echo "status $status, no line matches '$2':"
		cat "$scratch/said"
		failed=1
	else
		echo "ok $1.$3"
	fi
}

# accepts CHECK WHAT
accepts() {
	if run "$1"; then
		echo "ok $1.$2"
	else
		echo "not ok $1.$2"
		cat "$scratch/said"
		failed=1
	fi
}

# plant FILE - a well-formed C file with the lines of standard input after its head
plant() {
	planted=$tree/$1
	mkdir -p "$(dirname "$planted")"
	{
		printf '/* SPDX-License-Identifier: Apache-2.0 */\n'
		case $1 in *.c) printf '#include <config.h>\n\n' ;; esac
		cat
	} >"$planted"
}
unplant() {
	rm -f "$planted"
}

# refuses_code CHECK FILE PATTERN WHAT - the code is standard input
refuses_code() {
	plant "$2"
	refuses "$1" "$3" "$4"
	unplant
}
accepts_code() {
	plant "$2"
	accepts "$1" "$3"
	unplant
}

if command -v ctags >/dev/null; then
	accepts size clean
	refuses_code size model/planted.c 'planted.c:f: longer' long-function \
		< <(echo 'int f(void)'; echo '{'; seq -f '	g(%g);' 68; echo '}')
	accepts_code size model/planted.c function-of-70 \
		< <(echo 'int f(void)'; echo '{'; seq -f '	g(%g);' 67; echo '}')
	refuses_code size tools/planted.c 'planted.c:4: over 100' wide-line \
		< <(printf '\t\t/* %s */\n' "$(printf 'x%.0s' {1..80})")
	echo model/planted.c:f >>"$tree/tests/style/long-functions.txt"
	refuses size 'planted.c:f: is short now' stale-exception
	: >"$tree/tests/style/long-functions.txt"
else
	echo "skip size ctags is missing"
fi

accepts layers clean
refuses_code layers model/planted.c 'may not include storage/' upward \
	< <(echo '#include "storage/store.h"')
refuses_code layers storage/planted.h 'may not include coord/' sideways \
	< <(echo '#include "coord/single.h"')
refuses_code layers ckptd/planted.c 'may not include client/' client-in-daemon \
	< <(echo '#include "client/client.h"')
refuses_code layers tools/planted.c 'may not include ckptd/' daemon-in-tools \
	< <(echo '#include "ckptd/node.h"')
refuses_code layers base/planted.c 'may not include tests/' test-in-product \
	< <(echo '#include "tests/lib/test.h"')
accepts_code layers base/test_planted.c test-in-unit-test \
	< <(echo '#include "tests/lib/test.h"')
refuses_code layers model/planted.c 'may not include storage/' upward-by-brackets \
	< <(echo '#include <storage/store.h>')
refuses_code layers storage/planted.c 'without its folder' without-folder \
	< <(echo '#include "store.h"')
refuses_code layers model/planted.c 'a relative path' relative \
	< <(echo '#include "../storage/store.h"')
for pair in rocksdb/c.h:storage zstd.h:model xxhash.h:storage liburing.h:ckptd \
	protobuf-c/protobuf-c.h:storage rdma/fabric.h:bench ini.h:base jansson.h:coord; do
	refuses_code layers "${pair#*:}/planted.c" 'has another home' "home-of-${pair%%[/.]*}" \
		< <(echo "#include <${pair%:*}>")
done
accepts_code layers codec/digest_planted.c home-of-xxhash-itself \
	< <(echo '#include <xxhash.h>')

accepts alloc clean
for call in malloc calloc realloc strdup asprintf free; do
	refuses_code alloc model/planted.c "calls $call()" "$call" \
		< <(echo "void f(void) { $call(x); }")
done
for call in time clock_gettime gettimeofday rand random usleep nanosleep getrandom; do
	refuses_code alloc storage/planted.c "calls $call()" "$call" \
		< <(echo "void f(void) { $call(x); }")
done
for call in open openat fopen opendir mkdir rename unlink stat; do
	refuses_code alloc storage/planted.c "calls $call()" "$call" \
		< <(echo "void f(void) { $call(x); }")
done
accepts_code alloc storage/beneath.c names-files < <(echo 'void f(void) { openat(x); }')
accepts_code alloc storage/planted.c by-a-table < <(echo 'void f(void) { d->ops->open(d); }')
accepts_code alloc storage/planted.c not-a-call \
	< <(printf '/* malloc(x) */\nvoid f(void) { g("free(x)"); a->free(b); c.free(d); my_free(e); }\n')
accepts_code alloc storage/test_planted.c unit-test \
	< <(echo 'void f(void) { free(x); }')

mkdir -p "$tree/scripts"
# caps_of FULL AGAIN - the lists of a scripts/check
caps_of() {
	printf "full_caps='\n%s\n'\nagain_caps='\n%s\n'\n" "$1" "$2" >"$tree/scripts/check"
}
caps_of CKPT_KNOWN=100 CKPT_KNOWN=10
accepts_code caps model/test_planted.c known < <(echo 'int n = test_cap("CKPT_KNOWN", 7);')
refuses_code caps model/test_planted.c 'CKPT_OTHER: ' unknown \
	< <(echo 'int n = test_cap("CKPT_OTHER", 7);')
caps_of CKPT_KNOWN=100 CKPT_KNOWN=100
refuses_code caps model/test_planted.c 'CKPT_KNOWN=100: ' again-as-much \
	< <(echo 'int n = test_cap("CKPT_KNOWN", 7);')
caps_of CKPT_OTHER=100 CKPT_KNOWN=10
refuses_code caps model/test_planted.c 'CKPT_KNOWN: ' again-only \
	< <(echo 'int n = test_cap("CKPT_KNOWN", 7);')
caps_of CKPT_KNOWN=100 CKPT_KNOWN=10

accepts format clean
printf '#include <config.h>\n' >"$tree/base/planted.c"
refuses format 'planted.c:1: no SPDX' spdx
rm "$tree/base/planted.c"
printf '/* SPDX-License-Identifier: Apache-2.0 */\n#include <errno.h>\n#include <config.h>\n' \
	>"$tree/base/planted.c"
refuses format 'config.h> is not the first' config-first
rm "$tree/base/planted.c"
refuses_code format base/planted.c ':4: blanks at the end' trailing \
	< <(printf 'int a;  \n')
refuses_code format base/planted.c ':4: blanks at the end' carriage-return \
	< <(printf 'int a;\r\n')
refuses_code format base/planted.c ':4: indented with blanks' blanks \
	< <(printf '        int a;\n')
refuses_code format base/planted.c ':4: a blank before a tab' blank-tab \
	< <(printf '  \tint a;\n')
refuses_code format base/planted.c 'one newline' no-newline \
	< <(printf 'int a;')
refuses_code format base/planted.c 'one newline' empty-last-line \
	< <(printf 'int a;\n\n')

accepts words clean
for word in TODO FIXME XXX; do
	refuses_code words model/planted.c "mark of unfinished work: $word" "$word" \
		< <(echo "/* $word: later */")
done
accepts_code words model/planted.c template \
	< <(echo 'char t[] = "a.XXXXXX";')
refuses_code words model/planted.c 'a path of one machine' path \
	< <(echo '/* see /work/x */')
refuses_code words model/planted.c 'package archive' host \
	< <(echo '/* deb.debian.org */')

names() {
	printf '%s\n' "$1" >"$tree/base/faults.def"
	printf '%s\n' "$2" >"$tree/base/bugs.def"
}
names 'F(PLANTED_POINT, "text")' ''
refuses faults 'FAULT(PLANTED_POINT) stands nowhere' point-without-code
plant model/planted.c < <(echo 'int f(void) { return FAULT(PLANTED_POINT); }')
code=$planted
refuses faults 'PLANTED_POINT: no test names it' point-without-test
accepts_code faults model/test_planted.c named \
	< <(echo 'void f(void) { arm(FAULT_PLANTED_POINT); }')
accepts_code faults tests/fault/planted.c swept \
	< <(echo 'void f(void) { for (p = 0; p < FAULT_POINTS; p++) sweep(fault_name(p)); }')
refuses_code faults model/test_planted.c 'no test names it' longer-name \
	< <(echo 'void f(void) { arm(FAULT_PLANTED_POINT_2); }')
rm "$code"
names '' 'B(PLANTED_BUG, "I1", "text")'
refuses faults 'BUG(PLANTED_BUG) stands nowhere' bug-without-code
plant model/planted.c < <(echo 'int f(void) { return BUG(PLANTED_BUG); }')
code=$planted
refuses_code faults tests/fault/planted.c 'PLANTED_BUG: no test names it' bug-without-test \
	< <(echo 'void f(void) { for (b = 0; b < PLANTED_BUGS; b++) sweep(b); }')
accepts_code faults tests/fault/planted.c bug-named \
	< <(echo 'void f(void) { bug_set(BUG_PLANTED_BUG, true); }')
rm "$code"

mkdir -p "$tree/client"
printf 'CKPT_1 {\nglobal:\n\tckpt_a;\n\tckpt_b;\nlocal: *;\n};\n' >"$tree/client/libckpt.map"
printf 'CKPT_API int ckpt_a(void);\nCKPT_API int ckpt_b(void);\n' >"$tree/include/ckpt.h"
refuses symbols 'libckpt.so: no object found' missing-library
library() {
	${CC:-cc} -shared -fPIC -x c -o "$build/.libs/libckpt.so" - <<<"$1"
}
if command -v nm >/dev/null; then
	library 'int ckpt_a(void) { return 0; } int ckpt_b(void) { return 0; }'
	accepts symbols same
	library 'int ckpt_a(void) { return 0; } int ckpt_b(void) { return 0; } int leak;'
	refuses symbols '^+leak' leaked
	library 'int ckpt_a(void) { return 0; }'
	refuses symbols '^-ckpt_b' not-exported
	library 'int ckpt_a(void) { return 0; } int ckpt_b(void) { return 0; }'
	echo 'CKPT_API int ckpt_c(void);' >>"$tree/include/ckpt.h"
	refuses symbols '^+ckpt_c' declared-only
else
	echo "skip symbols nm is missing"
fi

objects() {
	printf '%s = %s\n' ckptd_ckptd_SOURCES "$1" ckptd_ckptd_LDADD "$2" \
		tests_sim_sim_SOURCES "$3" tests_sim_sim_LDADD "$4" >"$build/Makefile"
}
refuses objects 'ckptd_ckptd: no object found' no-makefile
objects ckptd/main.c libnode.la tests/sim/sim.c libnode.la
sed -i /^tests_sim_sim_SOURCES/d "$build/Makefile"
refuses objects 'tests_sim_sim: no object found' no-simulator
objects ckptd/main.c 'libckptd_os.la libnode.la \
	libbase.la $(LIBS)' tests/sim/sim.c 'libnode.la libbase.la'
accepts objects same
objects ckptd/main.c 'libnode.la \
	libstorage.la' tests/sim/sim.c 'libnode.la libbase.la'
refuses objects 'libstorage.la and the simulator' other-archive
objects 'ckptd/main.c ckptd/job.c' libnode.la tests/sim/sim.c libnode.la
refuses objects 'ckptd/job.c of its own' own-source
objects ckptd/main.c libnode.la 'tests/sim/sim.c storage/store.c' libnode.la
refuses objects 'compiles storage/store.c itself' compiled-twice

if command -v groff >/dev/null && command -v pod2man >/dev/null; then
	mkdir -p "$tree/man"
	echo 'CKPT_API int ckpt_a(void);' >"$tree/include/ckpt.h"
	page() {
		printf '=head1 %s\n\n%s\n\n' NAME 'p - q' SYNOPSIS "$1" DESCRIPTION x 'SEE ALSO' y
	}
	mkdir -p "$tree/packaging"
	echo '#keep = 3' >"$tree/packaging/ckptd.conf"
	page 'keep' >"$tree/man/ckptd.conf.5.pod"
	page 'ckpt_a --level' >"$tree/man/ckptd.8.pod"
	page '--help' | tee "$tree/man/ckptctl.1.pod" >"$tree/man/ckpt-bench.1.pod"
	refuses docs 'ckptd/ckptd: no object found' not-built
	mkdir -p "$build/bench"
	printf '#!/bin/sh\necho "  --level  text"\n' >"$build/ckptd/ckptd"
	printf '#!/bin/sh\necho "  --help  text"\n' | tee "$build/ckptctl" >"$build/bench/ckpt-bench"
	chmod +x "$build/ckptd/ckptd" "$build/ckptctl" "$build/bench/ckpt-bench"
	accepts docs complete
	echo '#keep_all = 3' >>"$tree/packaging/ckptd.conf"
	refuses docs 'keep_all: man/ckptd.conf.5.pod does not' configuration
	echo '#keep = 3' >"$tree/packaging/ckptd.conf"
	page '--level' >"$tree/man/ckptd.8.pod"
	refuses docs 'ckpt_a: no page' function
	page 'ckpt_a --levels' >"$tree/man/ckptd.8.pod"
	refuses docs '--level: man/ckptd.8.pod does not name' option
	page 'ckpt_a --level' >"$tree/man/other.8.pod"
	refuses docs '--level: man/ckptd.8.pod does not name' option-elsewhere
	rm "$tree/man/ckptd.8.pod"
	refuses docs 'no page for this program' program
	mv "$tree/man" "$tree/man.away"
	refuses docs 'no pages found' no-manual
	mv "$tree/man.away" "$tree/man"
	page 'ckpt_a --level' >"$tree/man/ckptd.8.pod"
	printf '=head1 NAME\n\n=over 4\n\nckpt_a --level\n' >"$tree/man/other.8.pod"
	refuses docs 'other.8.pod' malformed
else
	echo "skip docs groff or pod2man is missing"
fi
exit $failed
