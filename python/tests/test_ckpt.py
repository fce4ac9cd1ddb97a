#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The Python binding against a real ckptd. Needs numpy; torch cases are left out without torch.

Prints "ok NAME" or "not ok NAME" for each case; exits 1 if one failed. CKPT_BUILD names the build
folder."""

import ctypes
import hashlib
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import time
import warnings
import weakref

import numpy as np

from harness import CKPTCTL, EXTENSION_IS_USED, TOP, Daemon, Skip, cases_of, ctl, raises, run_with_ckptd

import ckpt

try:
    import torch
except ImportError:
    torch = None


def arange(shape, dtype=np.float32, start=0):
    n = int(np.prod(shape))
    return (np.arange(n) + start).astype(dtype).reshape(shape)


def test_round_trip(d):
    w, v, s = arange((64, 32)), arange((7,), np.int64, 5), np.array(3.5)
    with ckpt.open("round", 0, 1) as c:
        for name, t in (("w", w), ("v", v), ("s", s)):
            c.declare(name, t)
        assert c.load() is None
        assert c.save(1, blobs={"rng": b"abc", "empty": b""}, wait_credit=True).wait(ckpt.DURABLE)
        assert [i.step for i in c.list()] == [1]
        assert c.stats["saves"] == 1 and c.stats["last_bytes"] >= w.nbytes
    w2, v2, s2 = np.zeros_like(w), np.zeros_like(v), np.zeros_like(s)
    with ckpt.open("round", 0, 1) as c:
        for name, t in (("w", w2), ("v", v2), ("s", s2)):
            c.declare(name, t)
        got = c.load()
    assert got.step == 1 and got.tier == "memory", got
    assert got.blobs == {"rng": b"abc", "empty": b""}
    text = repr(got)
    assert "step 1 from memory" in text and "'rng': 3 bytes" in text and "abc" not in text, text
    assert (w2 == w).all() and (v2 == v).all() and s2 == s


def test_why_a_save_is_skipped(d):
    """Rank 1 never comes: the first save waits within its time, the next one not at all; both say why,
    and so do stats and the end."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with ckpt.open("alone", 0, 2, run_id="r") as c:
            c.declare("w", arange((8,)), global_shape=(16,), offset=(0,))
            c.prepare()
            start = time.monotonic()
            first = c.save(1, timeout=0.5)
            assert first.status == "skipped" and time.monotonic() - start >= 0.5, first
            second = c.save(2)
            assert second.status == "skipped" and not second, second
            assert "not all ranks of the job are connected" in second.reason, second.reason
            assert "ckptctl status alone" in second.reason and second.reason in repr(second)
            stats = c.stats
            assert stats["skipped_by"] == {"absent": 2} and stats["skip_reason"] == "absent", stats
            assert stats["skip_step"] == 2 and stats["uncommitted"] == 0, stats
    texts = [str(w.message) for w in said]
    assert any("the last save was skipped" in t and "step 2 of job 'alone'" in t for t in texts), texts


def test_the_page_has_each_figure(d):
    with open(os.path.join(TOP, "man", "ckpt-python.7.pod"), encoding="utf-8") as f:
        page = f.read()
    with ckpt.open("figures", 0, 1) as c:
        missing = [key for key in c.stats if f"C<{key}>" not in page]
        c.declare("w", arange((8,)))
        missing += [name for name in vars(c.save(1)) if name[0] != "_" and f"I<{name}>" not in page]
    missing += [name for name, of in vars(ckpt.Save).items()
                if isinstance(of, property) and f"I<{name}>" not in page]
    assert not missing, missing


def test_a_last_save_that_works_is_not_warned_of(d):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ckpt.open("quiet", 0, 1) as c:
            c.declare("w", arange((8,)))
            assert c.save(1) and c.save(2, wait_credit=True).reason == ""


def saved_and_said(c, step):
    """Saves and tells what was warned of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert c.save(step, wait_credit=True)
    return [str(w.message) for w in said if isinstance(w.message, ckpt.CkptWarning)]


def test_a_launch_that_forgets_to_load_is_warned(d):
    def launch(**options):
        c = ckpt.open("forgets", 0, 1, **options)
        c.declare("w", arange((8,)))
        return c
    with launch() as c:
        assert not saved_and_said(c, 119) and c.save(120, wait_credit=True).wait(ckpt.DURABLE)
    with launch() as c:
        first = saved_and_said(c, 0)
        assert len(first) == 1 and "rank 0 has not loaded step 120, which the job has" in first[0], first
        assert "job 'forgets'" in first[0] and "another job name" in first[0], first
        assert not saved_and_said(c, 1), "said twice"
        status = subprocess.run([CKPTCTL, "status", "--json"], text=True, capture_output=True)
        problems = [p for j in json.loads(status.stdout)["jobs"] if j["job"] == "forgets"
                    for p in j["problems"]]
        assert [p["problem"] for p in problems] == ["goes-back"], problems
        for step in range(2, 10):
            assert c.save(step, wait_credit=True).wait(ckpt.DURABLE)
    with launch() as c:
        assert c.load().step == 9
        assert c.load(step=120).step == 120  # it is still there
        below = saved_and_said(c, 12)
        assert len(below) == 1 and "rank 0 saves step 12" in below[0], below
    with launch(own_state=True) as c:
        assert not saved_and_said(c, 13)


def test_ranks_of_which_one_loads_save_nothing(d):
    def launch(run_id):
        ranks = [ckpt.open("mixed", rank, 2, run_id=run_id) for rank in range(2)]
        for rank, c in enumerate(ranks):
            c.declare("w", arange((8,)), global_shape=(16,), offset=(8 * rank,))
            c.prepare()
        return ranks
    a, b = launch("r1")
    assert a.save(12) and b.save(12)
    assert b._run(b._wait, 12, ckpt.COMMITTED, 20)
    a.close(), b.close()
    a, b = launch("r2")
    assert a.load().step == 12
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        saves = [a.save(13, timeout=2), b.save(13, timeout=2)]
        saves += [a.save(14), b.save(14)]
    assert not all(saves[:2]) and not any(saves[2:]), saves
    words = [s.reason or str(s.error) for s in saves if not s]
    assert any("rank 1 has not loaded" in w for w in words), words
    assert [i.step for i in a.list()] == [12]
    assert b.load().step == 12
    assert a.save(15, wait_credit=True) and b.save(15, wait_credit=True)
    assert b._run(b._wait, 15, ckpt.COMMITTED, 20)
    a.close(), b.close()


def test_min_trust(d):
    w = arange((8, 8))
    with ckpt.open("trusted", 0, 1) as c:
        c.declare("w", w)
        assert c.load(min_trust="verified") is None  # there never was one: it begins
        for step in (1, 2):
            w[:] = step
            assert c.save(step, wait_credit=True).wait(ckpt.DURABLE)
    ctl("trust", "trusted", "1", "--set", "verified")
    with ckpt.open("trusted", 0, 1) as c:
        c.declare("w", w)
        raises(ValueError, lambda: c.load(min_trust="much"))
        assert c.load(min_trust="verified").step == 1 and (w == 1).all()
        assert c.load().step == 1  # the epoch's base for all from here on
        w[:] = 3
        assert c.save(3, wait_credit=True).wait(ckpt.DURABLE)
    os.environ["CKPT_MIN_TRUST"] = "verified"
    try:
        with ckpt.open("trusted", 0, 1) as c:
            c.declare("w", w)
            assert c.load().step == 1 and (w == 1).all()
    finally:
        del os.environ["CKPT_MIN_TRUST"]


def test_all_dtypes(d):
    names = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
             "float16", "float32", "float64", "complex64", "complex128"]
    src = {n: arange((5, 3), n) for n in names}
    with ckpt.open("dtypes", 0, 1) as c:
        for n, t in src.items():
            c.declare(n, t)
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        dst = {n: np.zeros_like(t) for n, t in src.items()}
        for n, t in dst.items():
            c.bind(n, t)
        assert c.load(step=1).step == 1
    for n in names:
        assert (src[n] == dst[n]).all(), n


def test_strided(d):
    big = arange((20, 30))
    part = big[2:18:3, ::-1][:, 4:20:2]
    want = part.copy()
    with ckpt.open("strided", 0, 1) as c:
        c.declare("p", part)
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        into = np.zeros((20, 40), np.float32)
        view = into[3:15:2, 1:33:4]
        c.bind("p", view)
        c.load(step=1)
    assert (view == want).all()
    view[...] = 0
    assert (into == 0).all(), "bytes outside the view were written"


def test_flat_ranges_reshard(d):
    whole = arange((10, 7))
    flat = whole.reshape(-1)
    cut = 23
    handles = []
    for rank, (a, b) in enumerate(((0, cut), (cut, 70))):
        c = ckpt.open("flat", rank, 2, run_id="one")
        c.declare_flat("m", flat[a:b].copy(), (10, 7), a, b)
        c.prepare()
        handles.append(c)
    saves = [c.save(5, wait_credit=True) for c in handles]
    assert all(s.wait(ckpt.DURABLE) for s in saves)
    for c in handles:
        c.close()
    got = np.zeros((4, 7), np.float32)
    with ckpt.open("flat", 0, 1, run_id="two") as c:  # another world, another sharding
        c.declare("m", got, global_shape=(10, 7), offset=(3, 0))
        assert c.load().step == 5
    assert (got == whole[3:7]).all()


def test_stored(d):
    whole = arange((10, 7))
    handles = []
    for rank, (a, b) in enumerate(((0, 4), (4, 10))):
        c = ckpt.open("stored", rank, 2, run_id="one")
        c.declare("w", whole[a:b].copy(), global_shape=(10, 7), offset=(a, 0), trained=True)
        c.prepare()
        handles.append(c)
    saves = [c.save(5, {"who": str(c.rank).encode(), "none": b""}, wait_credit=True)
             for c in handles]
    assert all(s.wait(ckpt.DURABLE) for s in saves)
    with handles[0].stored(5) as s:  # beside another declaration
        assert s.step == 5 and s.info.memory
        assert [(h.rank, h.name, h.dtype, h.offset, h.shape, h.flat, h.trained) for h in s.shards] == [
            (0, "w", "f32", (0, 0), (4, 7), None, True), (1, "w", "f32", (4, 0), (6, 7), None, True)]
        assert sorted(s.blobs) == [(0, "none", 0), (0, "who", 1), (1, "none", 0), (1, "who", 1)]
        part, column = np.zeros((4, 3), np.float32), np.zeros((10, 2), np.float32)
        blobs, got, _ = s.read([ckpt.Want("w", part[:, ::-1], (10, 7), (3, 2)),
                                ckpt.Want("w", column, (10, 7), (0, 5))],
                               [(1, "who"), (0, "none")])
        assert blobs == {(1, "who"): b"1", (0, "none"): b""} and got.bytes == 48 + 80
        assert (part[:, ::-1] == whole[3:7, 2:5]).all() and (column == whole[:, 5:]).all()
        for wants, blobs, word in ([ckpt.Want("v", part, (4, 3), (0, 0))], (), "'v'"), (
                (), [(1, "nobody")], "nobody"), (
                [ckpt.Want("w", part.astype(np.int8), (10, 7), (0, 0))], (), "'w'"):
            e = raises(ckpt.CkptError, lambda: s.read(wants, blobs))
            assert e.code == -1008 and word in str(e), e
        got = s.read([ckpt.Want("w", part, (10, 7), (0, 0)), ckpt.Want("v", column, (10, 2), (0, 0))],
                     strict=False)
        assert (part == whole[:4, :3]).all() and "'v'" in got[2][0], got[2]
    assert handles[1].save(6, wait_credit=True) and handles[0].save(6, wait_credit=True)
    for c in handles:
        c.close()
    with ckpt.open("stored-none", 0, 1) as c:
        assert c.stored() is None
        assert raises(ckpt.CkptError, lambda: c.stored(7)).code == -1014


def test_skip(d):
    with ckpt.open("skip", 0, 1) as c, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        c.declare("w", arange((5,)))
        c.prepare()
        c.skip(1, "not finite")
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        assert [i.step for i in c.list()] == [1]


class BeatPage:
    """The page that the handle opened last writes to, as doc/protocol.md has it."""

    def __init__(self):
        with open("/proc/self/maps") as f:
            maps = [line.split() for line in f if "/memfd:beat." in line]
        newest = max(maps, key=lambda m: int(m[4]))  # by inode
        self.at = int(newest[0].split("-")[0], 16)

    def read(self, offset, form):
        return struct.unpack(form, ctypes.string_at(self.at + offset, struct.calcsize(form)))

    def written(self):
        return self.read(128, "<Q")[0]

    def phase(self):
        return self.read(144, "<Q")[0] & 15

    def want(self, step):
        ctypes.memmove(self.at + 64, struct.pack("<Q", step), 8)

    def text(self, offset):
        return self.read(offset, "32s")[0].rstrip(b"\0").decode()

    def entry(self, n):
        """sequence, time, kind, flags, step, busy, tokens, loss, grad_norm, metrics"""
        return self.read(4096 + 128 * ((n - 1) % 64), "<QQIIQQQdd8d")


def test_beats(d):
    with ckpt.open("beats", 0, 1) as c:
        page = BeatPage()
        assert page.written() == 0
        c.beat(0)
        assert page.entry(1)[:1] + page.entry(1)[2:5] == (1, 1, 0, 0)
        c.role("stage 1")
        c.beat(1, loss=float("nan"), tokens=4096, lr=0.5, scale=1024)
        n, t, kind, flags, step, _, tokens, loss, _, *metrics = page.entry(2)
        assert (n, kind, flags, step, tokens) == (2, 1, 1 | 4 | 256 | 512, 1, 4096)
        assert loss != loss and metrics[:2] == [0.5, 1024]
        assert abs(t - time.monotonic_ns()) < 60e9
        assert page.text(200) == "stage 1"
        assert page.text(232) == "lr" and page.text(264) == "scale"
        c.beat(2, np.float32(1.5), grad_norm=2, scale=7)
        assert page.entry(3)[3] == 1 | 2 | 512 and page.entry(3)[7:9] == (1.5, 2)
        assert page.read(136, "<Q") == (3,)
        raises(ckpt.CkptError, lambda: c.beat(3, **{f"m{i}": 0 for i in range(7)}))
        raises(ckpt.CkptError, lambda: c.role("x" * 32))
    raises(ckpt.CkptError, lambda: c.beat(4))


def test_phases(d):
    with ckpt.open("phases", 0, 1) as c:
        page = BeatPage()
        sync = c.phase("sync")
        for _ in range(2):
            with sync:
                assert page.phase() == 2
            assert page.phase() == 0
        assert page.written() == 0
        with c.phase("evaluate", expected=1800, what="test set"):
            assert page.phase() == 6
            assert page.entry(1)[2:5] == (2, 6, 1800 * 10**9)
            assert page.text(4096 + 32) == "test set"
        assert page.entry(2)[2:4] == (3, 6)
        try:
            with c.phase("idle"):
                raise KeyError
        except KeyError:
            pass
        assert page.phase() == 0
        raises(ValueError, lambda: c.phase("evaluation"))
        raises(ckpt.CkptError, lambda: c.phase("other", expected=-1).__enter__())
        raises(ckpt.CkptError, lambda: c.phase("other").__exit__(None, None, None))


def test_should_save(d):
    w = arange((5,))
    with ckpt.open("should", 0, 1) as c:
        page = BeatPage()
        c.declare("w", w)
        assert not c.should_save(10)
        page.want(12)
        assert [c.should_save(s) for s in (11, 12, 13)] == [False, True, True]
        assert c.save(12, wait_credit=True)
        assert not c.should_save(13)


def test_strict_and_lenient(d):
    a, b = arange((4, 4)), arange((3,))
    with ckpt.open("strict", 0, 1) as c:
        c.declare("a", a)
        c.declare("b", b)
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
    a2, n2, f2 = np.zeros_like(a), np.zeros((2,), np.float32), np.zeros((3,), np.float64)
    with ckpt.open("strict", 0, 1) as c:
        c.declare("a", a2)
        c.declare("new", n2)
        c.declare("b", f2)
        e = raises(ckpt.CkptError, c.load)
        assert e.code == -1008 and len(e.problems) == 2, e.problems
        assert "step 1 of job 'strict': " in str(e) and "'ckptctl show strict 1' lists it" in str(e), e
        assert "'new'" in "\n".join(e.problems) and "'b'" in "\n".join(e.problems)
        assert pickle.loads(pickle.dumps(e)).problems == e.problems
        assert "'ckptctl list strict'" in str(raises(ckpt.CkptError, lambda: c.load(step=77)))
        with c.stored(1) as s:
            wants = [ckpt.Want(n, t, t.shape, (0,)) for n, t in (("new", n2), ("b", f2))]
            assert len(raises(ckpt.CkptError, lambda: s.read(wants)).problems) == 2
        assert (a2 == 0).all(), "a strict load wrote before it failed"
        got = c.load(strict=False)
        assert (a2 == a).all()
        text = "\n".join(got.problems)
        assert "new" in text and "'b'" in text, text


def test_a_cut_list_of_problems_says_so(d):
    """The first 32 are listed, then the number of the others: of a load and of a read, strict or not."""
    w = arange((3,))
    with ckpt.open("cut", 0, 1) as c:
        c.declare("w", w)
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
    for n, rest in ((32, None), (33, "and 1 more problem"), (40, "and 8 more problems"),
                    (1000, "and at least 968 more problems"), (1001, "and at least 968 more problems")):
        x = np.zeros((n,), np.float32)
        with ckpt.open("cut", 0, 1) as c:
            c.declare("w", w)
            for i in range(n):
                c.declare(f"x.{i:04}", x[i:i + 1])
            listed = [raises(ckpt.CkptError, c.load).problems]
            with c.stored(1) as s:
                wants = [ckpt.Want(f"x.{i:04}", x[i:i + 1], (1,), (0,)) for i in range(n)]
                listed.append(raises(ckpt.CkptError, lambda: s.read(wants)).problems)
            listed.append(c.load(strict=False).problems)
        for problems in listed:
            assert all("'x.%04d'" % i in problems[i] for i in range(32)), problems
            assert problems[32:] == ([rest] if rest else []), (n, problems[32:])


def test_connect_timeout_of_the_environment(d):
    """ckpt.torch and ckpt:// wait for ckptd as long as everything else does."""
    from ckpt import _session
    seen = []

    def opening(*_, **options):
        seen.append(options.get("connect_timeout"))
        raise ckpt.CkptError(-1004, "nobody is there")
    really, _session._open = _session._open, opening
    said = os.environ.pop("CKPT_CONNECT_TIMEOUT")
    try:
        for options in ({}, {"connect_timeout": 3}):
            raises(ckpt.CkptError, lambda: _session.Session("patient", options).handle)
            os.environ["CKPT_CONNECT_TIMEOUT"] = "1"
        raises(ckpt.CkptError, lambda: _session.Session("patient", {}).handle)
    finally:
        _session._open = really
        os.environ["CKPT_CONNECT_TIMEOUT"] = said
    assert seen == [_session.CONNECT_TIMEOUT, 3, None], seen


def test_overlapped_and_torn(d):
    w = arange((1 << 18,))
    with ckpt.open("torn", 0, 1) as c, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        c.declare("w", w)
        with c.saving(1, wait_credit=True) as s:
            pass
        assert s and s.wait(ckpt.COMMITTED)
        with c.saving(2, wait_credit=True, full_compare=True) as s:
            w += 1
        assert s.status == "failed" and s.error.code == -1007, s.error
        assert str(s.error) in repr(s), s
        assert c.save(3, wait_credit=True).wait(ckpt.COMMITTED)
        assert [i.step for i in c.list() if i.memory][0] == 3


def moves(a):
    """The same array, elsewhere."""
    shape = a.shape
    a.resize((1 << 20,), refcheck=False)
    a.resize(shape, refcheck=False)
    a += 1


def other_buffer(a):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            a.data = arange(a.shape, start=1000).data
        except AttributeError:  # numpy from 2.3 on
            a.__setstate__((1, a.shape, a.dtype, False, arange(a.shape, start=1000).tobytes()))


def test_arrays_that_change_between_saves(d):
    """Each save is of the memory that an array has then, in its shape then, or is refused."""
    changes = {
        "values": lambda a: a.fill(7), "moved": moves, "other buffer": other_buffer,
        "transposed": lambda a: setattr(a, "strides", (4, 32)),
        "read-only": lambda a: a.setflags(write=False),
        "shape": lambda a: setattr(a, "shape", (4, 16)), "flat": lambda a: setattr(a, "shape", (64,)),
        "dtype": lambda a: setattr(a, "dtype", np.int32),
        "larger": lambda a: a.resize((9, 8), refcheck=False),
        "smaller": lambda a: a.resize((7, 8), refcheck=False)}
    refused = {"shape", "flat", "dtype", "larger", "smaller"}
    for name, change in changes.items():
        ours = [arange((8, 8), start=i).copy() for i in range(40)]
        with ckpt.open("changes-" + name.replace(" ", "-"), 0, 1) as c, warnings.catch_warnings():
            warnings.simplefilter("ignore", ckpt.CkptWarning)
            for i, a in enumerate(ours):
                c.declare(f"w.{i}", a)
            assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
            change(ours[20])
            s = c.save(2, wait_credit=True)
            if name in refused:
                assert s.status == "failed" and s.error.code == -22 and "'w.20'" in str(s.error), (name, s)
                e = raises(ckpt.CkptError, c.load)
                assert e.code == -22 and "'w.20'" in str(e), (name, e)
                assert [i.step for i in c.list()] == [1]
                continue
            assert s.wait(ckpt.COMMITTED), s
            got = [np.zeros((8, 8), np.float32) for _ in ours]
            with c.stored(2) as stored:
                stored.read([ckpt.Want(f"w.{i}", a, (8, 8), (0, 0)) for i, a in enumerate(got)])
            assert all((a == b).all() for a, b in zip(got, ours)), name
            if name == "read-only":
                assert "read-only" in str(raises(ckpt.CkptError, c.load))
            else:
                c.load(step=1)
                assert all((a == arange((8, 8), start=i)).all() for i, a in enumerate(ours)), name


def test_no_memory_is_kept_from_save_to_save(d):
    """What a tensor was given up for can be freed: nothing of the last save holds it."""
    need_torch()
    array = arange((1000,))
    held, t = weakref.ref(array), torch.from_numpy(array)
    with ckpt.open("kept", 0, 1) as c:
        c.declare("t", t)
        for step in (1, 2):
            assert c.save(step, wait_credit=True).wait(ckpt.COMMITTED)
        del array
        assert held() is not None
        t.data = torch.zeros(1000)
        assert held() is None
        assert c.save(3, wait_credit=True).wait(ckpt.COMMITTED)


def test_whether_it_is_durable_yet(d):
    """Asked between steps: no call waits for it, and at last it is."""
    with ckpt.open("reached", 0, 1) as c:
        c.declare("a", arange((1 << 22,)))
        save = c.save(1, wait_credit=True)
        end, longest = time.monotonic() + 60, 0
        while True:
            before = time.monotonic()
            reached = save.reached()
            longest = max(longest, time.monotonic() - before)
            if reached:
                break
            assert time.monotonic() < end
            time.sleep(0.01)
        assert longest < 2 and save.reached(ckpt.SEALED) and save.reached(ckpt.COMMITTED)
        os.kill(d.child(), signal.SIGSTOP)
        try:
            before = time.monotonic()
            assert not save.reached() and time.monotonic() - before < 2
        finally:
            os.kill(d.child(), signal.SIGCONT)
        assert save.wait(ckpt.DURABLE) and save.reached()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            failed = c.save(1, wait_credit=True)
        assert not failed
        raises(ckpt.CkptError, failed.reached)


def test_what_the_caller_saw(d):
    w = arange((1 << 16,))
    with ckpt.open("saw", 0, 1) as c, warnings.catch_warnings():
        warnings.simplefilter("ignore", ckpt.CkptWarning)
        c.declare("w", w)
        assert c.stats["last_call_ns"] == 0
        start = time.monotonic_ns()
        assert c.save(1, wait_credit=True)
        took, s = time.monotonic_ns() - start, c.stats
        assert 0 < s["last_stall_ns"] <= s["last_call_ns"] <= took, (took, s)
        start = time.monotonic_ns()
        with c.saving(2, wait_credit=True) as save:
            time.sleep(1)
        took, s, before = time.monotonic_ns() - start, c.stats, s
        assert save and s["last_call_ns"] != before["last_call_ns"], s
        # The block is the caller's own time.
        assert s["last_stall_ns"] <= s["last_call_ns"] <= took - 1000000000, (took, s)
        assert save.wait(timeout=30)  # before that the step could be tried again
        assert not c.save(2)  # a failed one is not the last that was sealed
        assert c.stats["last_call_ns"] == s["last_call_ns"]


def test_no_daemon_says_what_to_do(d):
    e = raises(ckpt.CkptError,
               lambda: ckpt.open("x", 0, 1, socket="/nonexistent/sock", connect_timeout=0.01))
    assert "/nonexistent/sock" in str(e), e


def test_an_earlier_launch_is_named(d):
    """By the pids of its processes: its user is to end them."""
    other = ("import os, sys\nos.environ['CKPT_CONNECT_TIMEOUT'] = '0'\nimport ckpt\n"
             "ckpt.open('twice', 0, 1)")
    with ckpt.open("twice", 0, 1):
        r = subprocess.run([sys.executable, "-c", other], text=True, capture_output=True,
                           env=dict(os.environ, PYTHONPATH=os.path.join(TOP, "python")))
        assert f"process {os.getpid()} of an earlier launch still lives (epoch" in r.stderr, r.stderr
        assert "started again within its launch needs that launch's CKPT_RUN_ID" in r.stderr, r.stderr
        e = raises(ckpt.CkptError, lambda: ckpt.open("twice", 0, 1, connect_timeout=0.1))
        assert f"this process, {os.getpid()}, has the job open already, as rank 0" in str(e), e


def test_one_traceback(d):
    """An error says what is wrong with a tensor once, not of each function that looked at it."""
    with ckpt.open("foreign", 0, 1) as c:
        e = raises(TypeError, lambda: c.declare("w", np.zeros(3, ">f4")))
        assert "'w': dtype >f4 has its bytes in another order" in str(e), e
        assert e.__cause__ is None and (e.__suppress_context__ or e.__context__ is None)


def test_nothing_to_save(d):
    with ckpt.open("nothing", 0, 1) as c, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        s = c.save(5)
        assert not s and s.error.code == -22 and "declare each tensor" in repr(s), s


def test_where_the_library_is(d):
    def importing(value):
        env = dict(os.environ, PYTHONPATH=os.path.join(TOP, "python"), CKPT_LIBRARY=value)
        return subprocess.run([sys.executable, "-c", "import ckpt"], env=env, text=True,
                              capture_output=True).stderr
    assert "AttributeError" not in importing(""), importing("")
    assert "name the file in CKPT_LIBRARY" in importing("/nonexistent.so")
    assert "is not libckpt" in importing("libc.so.6"), importing("libc.so.6")


def test_where_the_extension_is(d):
    """It is used where it is, missed in silence where it is not, and missed aloud where it is named."""
    def importing(value):
        r = subprocess.run([sys.executable, "-c", "import ckpt; print(ckpt._many.table())"], text=True,
                           env=dict(os.environ, PYTHONPATH=os.path.join(TOP, "python"),
                                    CKPT_EXTENSION=value), capture_output=True)
        return r.stdout + r.stderr
    for nothing in ("no", ""):
        assert importing(nothing) == "None\n", importing(nothing)
    for bad in ("/nonexistent/_bindings.abi3.so", os.environ["CKPT_LIBRARY"], __file__ + ".txt"):
        said = importing(bad)
        assert "ImportError: CKPT_EXTENSION names '" in said and bad in said, said
    if EXTENSION_IS_USED:
        assert "Table object" in importing(os.environ["CKPT_EXTENSION"])


def test_ckptd_lost_and_back(d):
    w = arange((1000,))
    with ckpt.open("lost", 0, 1) as c, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        c.declare("w", w)
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        os.kill(d.child(), signal.SIGKILL)
        ok = None
        for attempt in range(50):  # training goes on; the library reconnects in a later call
            ok = c.save(2 + attempt, wait_credit=True, timeout=10)
            if ok:
                break
            time.sleep(0.1)
        assert ok and ok.wait(ckpt.COMMITTED)
        assert any("ckptd was lost" in str(x.message) for x in seen), [str(x.message) for x in seen]
        w2 = np.zeros_like(w)
        c.bind("w", w2)
        assert c.load(step=1).step == 1, "what was committed before the crash is gone"
        assert (w2 == w).all()


def test_the_end_tells_of_failed_saves(d):
    """And every warning names the line of the caller, not one of the library."""
    w = np.arange(16, dtype=np.uint8)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with ckpt.open("fails", 0, 1) as c:
            c.declare("w", w)
            assert c.save(1, wait_credit=True) and c.save(2, wait_credit=True).wait(ckpt.COMMITTED)
            large = {"large": bytes(16 << 20)}  # more than any slot has room for
            with c.saving(3, large, wait_credit=True) as s:
                pass
            assert s.status == "failed" and c.save(4, large, wait_credit=True).status == "failed"
            stats = c.stats
            assert stats["sealed_step"] == 2 and stats["failed_step"] == 4, stats
    said = [w for w in said if w.category is ckpt.CkptWarning]
    assert [w.filename for w in said] == [__file__] * 3, [(w.filename, w.lineno) for w in said]
    assert "the last 2 saves failed, from step 3 on; the newest checkpoint is step 2: " in str(
        said[-1].message), said[-1].message
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with ckpt.open("fails", 0, 1) as c:
            c.declare("w", w)
            c.load()
            assert c.save(3).wait() and not c.save(3, wait_credit=True) and c.save(4, wait_credit=True)
        assert len(said) == 1, [str(w.message) for w in said]  # the failure itself
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with ckpt.open("fails-alone", 0, 2, run_id="r") as c:  # one of the two is the last
            c.declare("w", w, global_shape=(32,), offset=(0,))
            c.prepare()
            assert c.save(1, timeout=0.2).status == "skipped"
            with c.saving(2, large, timeout=0.2) as s:
                pass
            assert s.status == "failed", s
    texts = [str(w.message) for w in said]
    assert not any("was skipped" in t for t in texts), texts
    assert "the last save, of step 2, failed; there is no checkpoint: " in texts[-1], texts


def test_the_end_tells_of_steps_without_a_commit(d):
    """The data folder is gone: saves seal, and nothing is committed. The last words name the caller's
    line."""
    aside = d.data + ".aside"
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with ckpt.open("nowhere", 0, 1) as c:
                c.declare("w", arange((8,)))
                assert c.save(1, wait_credit=True).wait(ckpt.DURABLE)
                os.rename(d.data, aside)
                assert c.save(2, wait_credit=True)
                until = time.monotonic() + 60
                while c.stats["uncommitted"] == 0 and time.monotonic() < until:
                    time.sleep(0.05)
                stats = c.stats
                assert stats["uncommitted"] == 1 and stats["uncommitted_from"] == 2, stats
    finally:
        if os.path.exists(aside):
            os.rename(aside, d.data)
    said = [w for w in said if "and not committed" in str(w.message)]
    assert len(said) == 1 and said[0].category is ckpt.CkptWarning and said[0].filename == __file__, said
    assert "1 steps from 2 on are saved and not committed: ckptd cannot write the job's log" in str(
        said[0].message), said[0].message
    with ckpt.open("nowhere", 0, 1) as c:  # the folder is back, and so are commits
        c.declare("w", arange((8,)))
        assert c.load().step >= 1
        assert c.save(3, wait_credit=True).wait(ckpt.DURABLE)


def two_ranks(job, then):
    """Both commit step 1. Rank 1, a process of its own, then does as it is said, and ends; rank 0's
    handle."""
    def opened(rank):
        c = ckpt.open(job, rank, 2, run_id="r")
        c.declare("w", np.zeros(16, np.uint8), global_shape=(32,), offset=(16 * rank,))
        c.load()
        assert c.save(1, wait_credit=True).wait()
        return c
    pid = os.fork()
    if pid == 0:
        try:
            then(opened(1))
        finally:
            os._exit(0)
    return opened(0), pid


def test_the_end_tells_of_an_aborted_save(d):
    """The other rank ends before it has saved: this rank's bytes are sealed, and never committed."""
    read, write = os.pipe()
    c, pid = two_ranks("aborted", lambda c: (os.read(read, 1), c.close()))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        s = c.save(2, wait_credit=True)
        assert s.status == "sealed", s
        os.write(write, b"x")
        assert raises(ckpt.CkptError, s.wait).code == -1006
        c.close()
    os.waitpid(pid, 0)
    os.close(read), os.close(write)
    said = [str(w.message) for w in said if w.filename == __file__]
    assert len(said) == 1 and said[0].startswith(
        "the last save, of step 2, is not committed; the newest checkpoint is step 1: ") and (
        "rank 1 ended before it sealed" in said[0]), said


def test_the_end_is_quiet_of_saves_that_go_on(d):
    """What another rank has still to save, or what is committed; and a ckptd that says nothing costs a
    second."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ckpt.CkptWarning)
        c, pid = two_ranks("goes-on", lambda c: (time.sleep(1), c.save(2), c.close()))
        assert c.save(2, wait_credit=True)
        c.close()
        os.waitpid(pid, 0)
        with ckpt.open("stops", 0, 1) as c:
            c.declare("w", arange((8,)))
            assert c.save(1, wait_credit=True)
            child = d.child()
            os.kill(child, signal.SIGSTOP)
            try:
                start = time.monotonic()
                c.close()
                took = time.monotonic() - start
            finally:
                os.kill(child, signal.SIGCONT)
            assert took < 3, took
    deadline = time.monotonic() + 20
    while not any(i["step"] == 2 for i in listed_of("goes-on")):
        assert time.monotonic() < deadline, "step 2 is not committed"
        time.sleep(0.05)


def listed_of(job):
    return json.loads(ctl("--json", "list", job)[0])["jobs"][0]["checkpoints"]


def test_ckptd_is_away(d):
    """Training goes on without a warning at each step: one when it goes, one when it is back."""
    w = arange((1000,))
    with ckpt.open("away", 0, 1) as c, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        c.declare("w", w)
        assert c.save(1, wait_credit=True).wait(ckpt.DURABLE)
        d.kill()
        began = time.monotonic()
        saves = [c.save(step, wait_credit=True, timeout=10) for step in range(2, 12)]
        assert time.monotonic() - began < 5, "each save waits for it"
        assert all(s.status == "failed" and s.error.code == -1004 for s in saves), saves
        assert "has been away for" in str(saves[-1].error), saves[-1]
        assert len(seen) == 1, [str(x.message) for x in seen]
        d.start()
        for step in range(12, 312):
            ok = c.save(step, wait_credit=True, timeout=10)
            if ok:
                break
            time.sleep(0.1)
        assert ok, ok
        said = [str(x.message) for x in seen[1:]]
        assert len(said) == 1 and "is back" in said[0], said
        assert f"{step - 2} saves failed meanwhile" in said[0], said


FAILING = """
import os, signal, sys, time
import ckpt
rank, job, how = int(sys.argv[1]), *sys.argv[2:]

def begin():
    c = ckpt.open(job, rank, 3, run_id="one")
    for step in range(4):
        c.beat(step)
        time.sleep(0.02)
    while len(os.listdir(job)) < 3:  # all are here
        open(os.path.join(job, str(rank)), "w").close()
        time.sleep(0.01)
    if rank != 1:  # another fails first
        while not os.path.exists(os.path.join(job, "failed")):
            time.sleep(0.01)
    return c

def fail():
    if how == "exit":
        sys.exit(3)
    if how == "exit-well":
        sys.exit()
    if how == "dies" and rank == 1:
        os._exit(1)
    if how == "dies":
        return
    if how == "interrupted":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    raise RuntimeError("it fails")

def train():
    if how == "plain":
        c = begin()
        fail()
    if how == "caught":
        try:
            with begin():
                fail()
        except RuntimeError:
            return
    with begin():
        fail()

train()
"""


def fail_on_three(job, how, first, done):
    """Runs three ranks that fail, the others once first is true of dead_of(). Their exit statuses, and
    dead_of() when done. Until then nobody reaps them: not every kernel tells later how they ended."""
    env = dict(os.environ, PYTHONPATH=os.path.join(TOP, "python"))
    with tempfile.TemporaryDirectory() as at:
        where = os.path.join(at, job)
        os.mkdir(where)
        ranks = [subprocess.Popen([sys.executable, "-c", FAILING, str(r), job, how], cwd=at,
                                  stderr=subprocess.DEVNULL, env=env) for r in range(3)]
        os.waitid(os.P_PID, ranks[1].pid, os.WEXITED | os.WNOWAIT)
        dead_of(job, first)
        open(os.path.join(where, "failed"), "w").close()
        dead = dead_of(job, done)
        return [p.wait() for p in ranks], dead


def dead_of(job, done):
    """The events of ranks of the job that are dead, once done(them, all events of the job)."""
    for _ in range(1200):
        events = [e for e in json.loads(ctl("events", "--json")[0])["events"]
                  if e.get("subject", {}).get("job") == job]
        dead = [e for e in events if e["kind"] == "verdict" and e["class"] == "dead"]
        if done(dead, events):
            return dead
        time.sleep(0.05)
    raise AssertionError(events)


def test_a_trainer_that_fails_is_told(d):
    for how, status in (("with", 1), ("plain", 1), ("exit", 3)):
        job = "fails-" + how
        ended, dead = fail_on_three(job, how, lambda dead, _: dead, lambda dead, _: len(dead) == 3)
        assert ended == [status] * 3, ended
        assert [e["level"] for e in dead] == ["alarm", "note", "note"], dead
        assert dead[0]["subject"]["rank"] == 1 and f"with status {status} " in dead[0]["why"], dead
        assert all("after rank 1 had" in e["why"] for e in dead[1:]), dead
        r = subprocess.run([CKPTCTL, "why", job], text=True, capture_output=True)
        assert r.returncode == 1 and "dead (process-ended), alarm" in r.stdout, r
        spent = json.loads(ctl("goodput", job, "--json")[0])["goodput"]["seconds"]
        assert spent["restart"] > 0 and spent["away"] == 0, spent


def test_a_death_stands(d):
    """The others say goodbye: it is told until the job runs again."""
    def told(dead, events):
        return dead and any(e["kind"] == "job-ended" for e in events)
    ended, dead = fail_on_three("dies", "dies", lambda dead, _: dead, told)
    assert ended == [0, 1, 0] and [e["state"] for e in dead] == ["raised"], (ended, dead)
    r = subprocess.run([CKPTCTL, "why", "dies"], text=True, capture_output=True)
    assert r.returncode == 1 and "rank 1 of job 'dies': dead" in r.stdout, r
    with ckpt.open("dies", 0, 3, run_id="two"):
        assert [e["state"] for e in dead_of("dies", lambda dead, _: len(dead) == 2)] == [
            "raised", "cleared"]
    r = subprocess.run([CKPTCTL, "why", "dies"], text=True, capture_output=True)
    assert r.returncode == 0, r


def test_a_trainer_that_ends_is_not(d):
    """Status 0, or somebody ended it: all of them have said goodbye."""
    for how, status in (("caught", 0), ("exit-well", 0), ("interrupted", -signal.SIGINT)):
        job = "ends-" + how
        ended, dead = fail_on_three(job, how, lambda *_: True, lambda _, events:
                                    any(e["kind"] == "job-ended" for e in events))
        assert ended == [status] * 3 and not dead, (ended, dead)


def test_a_failure_is_caught(d):
    """The same process opens the job again, in whatever way."""
    def fail(*where, **more):
        with ckpt.open("caught", *where, **more) as c:
            c.declare("w", arange((10,)))
            c.prepare()
            raise ValueError("no")
    for where, more in (((0, 1), {}), ((0, 1), {}), ((1, 2), {}), ((0, 3), {}),
                        ((0, 2), {"run_id": "one"}), ((1, 2), {"run_id": "one"}),
                        ((1, 2), {"run_id": "one"})):
        raises(ValueError, lambda: fail(*where, **more, connect_timeout=5))
    with ckpt.open("caught", 0, 2, run_id="one") as c:
        c.abandon()
        c.close()
    with ckpt.open("caught", 0, 1):
        pass
    assert not dead_of("caught", lambda dead, events: events[-1]["kind"] == "job-ended")


def damage(d, step, name, at):
    path, = d.shards_of(step, name)
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(b"\xff\xff\xff\xff")


def load_damaged():
    w = np.zeros((64, 32), np.float32)
    with ckpt.open("damaged", 0, 1) as c, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        c.declare("w", w)
        return c.load(), [str(x.message) for x in caught]


def test_damaged(_):
    with Daemon() as d:
        for step in (1, 2):
            with ckpt.open("damaged", 0, 1) as c:
                c.declare("w", arange((64, 32)))
                c.load()
                assert c.save(step, wait_credit=True).wait(ckpt.DURABLE)
        d.kill()
        damage(d, 2, "COMMIT", 200)
        d.start()
        got, said = load_damaged()  # made again from the shard and the log
        assert got.step == 2 and not got.fell_back and not said, (got, said)
        d.kill()
        damage(d, 2, "COMMIT", 200)
        damage(d, 2, "rank-0.shard", 8192)
        d.start()
        got, said = load_damaged()
        assert got.step == 1 and got.fell_back, got
        assert any("step 2" in s and "step 1" in s for s in said), said
        d.kill()
        damage(d, 1, "rank-0.shard", 8192)
        d.start()
        e = raises(ckpt.CkptError, load_damaged)
        assert e.code == -1016 and "ckptctl" in str(e), e


def need_torch():
    if torch is None:
        raise Skip("torch is not installed")


def test_torch(d):
    need_torch()
    p = torch.nn.Parameter(torch.arange(12.).reshape(3, 4))
    b = torch.ones(5, dtype=torch.bfloat16) * 3
    with ckpt.open("torch", 0, 1) as c:
        c.declare("p", p)
        c.declare("b", b)
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        with torch.no_grad():
            p.zero_()
            b.zero_()
        c.load(step=1)
    assert torch.equal(p.data, torch.arange(12.).reshape(3, 4)) and (b == 3).all()


def trainer(job, ranks, steps, *more):
    return [sys.executable, os.path.join(TOP, "examples", "train_lm.py"), "--job", job, "--ranks",
            str(ranks), "--steps", str(steps), "--width", "32", *more]


def train(job, ranks, steps, *more):
    r = subprocess.run(trainer(job, ranks, steps, *more), capture_output=True, text=True,
                       timeout=120)
    assert r.returncode == 0, r.stdout + r.stderr
    return r.stdout


def test_example_says_what_it_does(d):
    need_torch()

    def run(ranks, steps):
        return train("example", ranks, steps, "--layers", "1")
    out = run(1, 6)
    assert "no checkpoint to resume from" in out and "step 5, loss" in out and "sealed" in out, out
    assert "resumed from step 6 from memory" in run(2, 8)  # more ranks than saved
    assert "resumed from step 8 from memory" in run(1, 9)  # and fewer
    out = run(2, 7)
    assert "step 9 is there and --steps is 7" in out and "committed" not in out, out
    out = run(2, 9)
    assert "step 9 is there and --steps is 9" in out and "committed" not in out, out
    assert "resumed from step 9 from" in run(1, 10)
    out = train("faulty", 2, 5, "--layers", "1", "--every", "2", "--evaluate", "2", "1",
                "--fault", "nan@2:1")
    assert "step 1, evaluated: 5." in out and "step 2, loss nan" not in out, out
    assert "step 4, loss nan" in out and "step 3, evaluated: nan" in out, out


def test_example_waits_for_ever(d):
    need_torch()
    p = subprocess.Popen(trainer("stuck", 2, 4, "--layers", "1", "--every", "1",
                                 "--fault", "deadlock@3:1"), stdout=subprocess.PIPE, text=True)
    while "step 2, loss" not in (line := p.stdout.readline()):
        assert line, "it ended before"
    raises(subprocess.TimeoutExpired, lambda: p.wait(timeout=3))
    p.terminate()
    rest = p.stdout.read()
    assert p.wait() != 0 and "step 3" not in rest, rest


def state_digest(job, width, layers):
    """What the example's --digest should be: its state loaded whole by one rank of another kind."""
    sys.path.insert(0, os.path.join(TOP, "examples"))
    import train_lm
    args = train_lm.argparse.Namespace(width=width, layers=layers, context=64, seed=99)
    shapes = [(n, tuple(p.shape)) for n, p in train_lm.make_model(args).named_parameters()]
    arrays = [(prefix + n, np.full(shape, 7, np.float32)) for n, shape in shapes
              for prefix in ("", "adam.m.", "adam.v.")]
    with ckpt.open(job, 0, 1) as c:
        for name, a in arrays:
            c.declare(name, a)
        step = c.load().step
    return step, hashlib.sha256(b"".join(a.tobytes() for _, a in arrays)).hexdigest()


def test_example_resumes_on_other_ranks(d):
    """Trained on 4 ranks, it goes on on 2, 3 and 1, and 4 with other shards: parameters and
    moments are the same bit for bit, and are trained further."""
    need_torch()
    log = os.path.join(d.dir, "resumes.log")
    last, step = None, 0
    for ranks, shard in ((4, "zero1"), (2, "fsdp"), (3, "rows"), (1, "zero1"), (4, "rows")):
        open(log, "w").close()
        train("resumes", ranks, step + 3, "--shard", shard, "--layers", "2", "--digest",
              "--log", log)
        with open(log) as f:
            said = [json.loads(line) for line in f]
        digests = [s for s in said if "digest" in s]
        assert [s["step"] for s in digests] == [step, step + 3], said
        assert last in (None, digests[0]["digest"]), f"{ranks} ranks, {shard}: other state"
        assert last is None or any(s.get("resumed") == step for s in said), said
        assert [s["step"] for s in said if "loss" in s] == [step, step + 1, step + 2], said
        assert digests[1]["digest"] != digests[0]["digest"], "it was not trained further"
        last, step = digests[1]["digest"], step + 3
    assert state_digest("resumes", 32, 2) == (step, last)


if __name__ == "__main__":
    sys.exit(run_with_ckptd(cases_of(globals()), sys.argv[1:]))
