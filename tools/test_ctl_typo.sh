#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A job's name that is misspelt makes no job, whatever looks for it; and a trainer that nothing tells
# its rank is rank 0 of 1, and hears so.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
needs_daemon
preload=
if nm -D "$build/.libs/libckpt.so" | grep -q __asan; then
	preload=$(gcc -print-file-name=libasan.so)
	export ASAN_OPTIONS=detect_leaks=0
fi
# python CODE...: with the binding; its output is then in $dir/out and $dir/err.
python () {
	checks=$((checks + 1))
	env LD_PRELOAD="$preload" PYTHONPATH="$src/python" PYTHONDONTWRITEBYTECODE=1 \
		CKPT_SOCKET="$sock" CKPT_LIBRARY="$build/.libs/libckpt.so" \
		timeout 120 /usr/bin/python3 -c "$1" >"$dir/out" 2>"$dir/err" ||
		{ fail "python: $1"; cat "$dir/err"; }
}
# jobs NAMES: these are there, and no others.
jobs () {
	checks=$((checks + 1))
	ctl -q status --socket "$sock" >"$dir/names"
	[ "$(echo $(cat "$dir/names"))" = "$1" ] || fail "jobs: $(cat "$dir/names")"
}
start_daemon
python 'import ckpt
with ckpt.open("run7", 0, 1) as c: pass'
jobs run7

# ---- ckptctl

for line in "status rnu7" "list rnu7" "show rnu7" "verify rnu7" "goodput rnu7" "trust rnu7" "rm rnu7 1 --yes" \
	"rm-job rnu7 --yes" "pin rnu7 1" "unpin rnu7 1" "gc rnu7" "diff rnu7 rnu8" "token rnu7" "why rnu7" \
	"clear rnu7" "export rnu7 --output $dir/x" "layout fsdp2=2 rnu7" "reshard rnu7 --to fsdp2=2 --as new"; do
	run 2 $line --socket "$sock"
	case $line in rm*" 1 "*) ;; *) says err "(did you mean 'run7'?)" ;; esac
done
jobs run7

# ---- Python: looking, the file system, and a reader of torch.distributed.checkpoint

python 'import ckpt
for flags in (dict(existing=True), dict(existing=True, trains=True)):
    try:
        ckpt.open("rnu7", 0, 1, **flags)
        raise SystemExit("it was opened")
    except ckpt.CkptError as e:
        assert e.code == -1014 and "(did you mean \x27run7\x27?)" in str(e), e'
jobs run7
if /usr/bin/python3 -c 'import fsspec' 2>/dev/null; then
	python 'import ckpt.fsspec
fs = ckpt.fsspec.CkptFileSystem()
for look in (lambda: fs.ls("ckpt://rnu7/1"), lambda: fs.open("ckpt://rnu7/1/x"), lambda: fs.info("ckpt://rnu7/1")):
    try:
        look()
        raise SystemExit("it was found")
    except FileNotFoundError:
        pass
assert not fs.exists("ckpt://rnu7/1")'
	jobs run7
fi
if /usr/bin/python3 -c 'import torch.distributed.checkpoint' 2>/dev/null; then
	python 'import ckpt, ckpt.torch as ck
r = ck.Reader("rnu7")
try:
    r.read_metadata()
    raise SystemExit("it was read")
except ckpt.CkptError as e:
    assert e.code == -1014 and "no checkpoint yet" in str(e) and "run7" in str(e), e'
	jobs run7
fi

# ---- Rank 0 of 1, where nothing says otherwise

python 'import ckpt, warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    with ckpt.open("alone") as c:
        assert (c.rank, c.world) == (0, 1)
assert [w.category for w in told] == [ckpt.CkptWarning] and "rank 0 of 1 is assumed" in str(told[0].message), told
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    ckpt.open("alone", 0, 1).close()
assert told == []'
grep -q "job 'alone': process [0-9]* is rank 0 of 1, which libckpt assumed" "$dir/log" || fail "log: $(cat "$dir/log")"
[ "$(grep -c 'libckpt assumed' "$dir/log")" = 1 ] || fail "more than once: $(cat "$dir/log")"
jobs "alone run7"
python 'import os, ckpt
os.environ["RANK"] = "0"
try:
    ckpt.open("half")
    raise SystemExit("it was opened")
except ckpt.CkptError as e:
    assert "rank and world are not given" in str(e), e'
jobs "alone run7"
# So it is through the adapters, which share one handle: half of what a launcher says is refused, and
# what is assumed is said, also by a process that has looked before. To look takes no rank.
python 'import os, warnings
from ckpt import CkptError, CkptWarning, _session
for name in ("RANK", "LOCAL_RANK", "PMIX_RANK", "PALS_RANKID", "WORLD_SIZE"):
    os.environ[name] = "1"
    _session.session("run7").existing().list()
    _session.close_all()
    for use in (lambda: _session.session("half").handle, lambda: _session.session("run7").existing(trains=True)):
        try:
            use()
            raise SystemExit(f"{name} alone: it was opened")
        except CkptError as e:
            assert "rank and world are not given" in str(e), e
        _session.close_all()
    del os.environ[name]
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    s = _session.session("run7")
    s.existing().list()
    assert told == []
    assert (s.handle.rank, s.handle.world, s.rank, s.world) == (0, 1, 0, 1)
    s.new_generation(1)
    assert s.handle.rank == 0
assert [w.category for w in told] == [CkptWarning] and "rank 0 of 1 is assumed" in str(told[0].message), told'
jobs "alone run7"
stop_daemon
ending 40
