#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt:// of fsspec against a real ckptd, by fsspec's own open, ls, rename; and in the order in which
torch 2.x's FsspecWriter and FsspecReader call, on one rank and on three.

Prints "ok NAME" or "not ok NAME" for each case; exits 1 if one failed."""

import glob
import importlib.metadata
import importlib.util
import io
import os
import subprocess
import sys
import threading
import time
import warnings

import numpy as np

from harness import Skip, cases_of, raises, run_ranks, run_with_ckptd

import ckpt
from ckpt import _session

try:
    import fsspec
    import ckpt.fsspec as fsspec_module
except ImportError:
    fsspec = None


def test_found_by_its_protocol(_):
    assert "ckpt" in {e.name for e in importlib.metadata.entry_points().select(group="fsspec.specs")}
    fs, path = fsspec.core.url_to_fs("ckpt://run7/100/x")  # nothing is opened for it
    assert type(fs).__name__ == "CkptFileSystem" and path == "run7/100/x"
    assert importlib.metadata.version("ckptd") == ckpt.version().split()[-1], ckpt.version()


def test_looking_makes_no_job(d):
    fs = fsspec.filesystem("ckpt")
    def jobs():
        return set(glob.glob(os.path.join(d.data, "jobs", "*")))

    before = jobs()
    looks = [lambda: fs.ls("ckpt://typo"), lambda: fs.ls("ckpt://typo/7"), lambda: fs.info("ckpt://typo"),
             lambda: fs.open("ckpt://typo/7/x", "rb"), lambda: fs.cat("ckpt://typo/7/x"),
             lambda: fs.modified("ckpt://typo/7"), lambda: fs.rm("ckpt://typo/7", recursive=True)]
    for look in looks:
        assert "there is no job 'typo'" in str(raises(FileNotFoundError, look))
    assert not fs.exists("ckpt://typo") and not fs.exists("ckpt://typo/7") and not fs.isdir("ckpt://typo")
    assert jobs() == before
    error = raises(ckpt.CkptError, lambda: ckpt.open("typo", 0, 1, existing=True))
    assert "there is no job 'typo'" in str(error), error
    assert jobs() == before
    with fs.open("ckpt://typo/7/x", "wb") as f:  # writing does
        f.write(b"x")
    assert len(jobs() - before) == 1
    fs.rm("ckpt://typo/7", recursive=True)
    assert fs.ls("ckpt://typo") == []  # it is there, and has nothing
    _session.close_all()
    assert fs.ls("ckpt://typo") == []
    _session.close_all()
    ckpt.open("typo", 0, 1, existing=True).close()


def test_looking_beside_a_training(d):
    """Listing and reading take no rank from who trains, whatever run id the looker has."""
    w = np.arange(16, dtype=np.uint8)
    with ckpt.open("trained", 0, 1, run_id="run") as c:
        c.declare("w", w)
        assert c.save(1) and c.save(2, wait_credit=True).wait()
        os.environ["CKPT_RUN_ID"] = "other"
        try:
            fs = fsspec.filesystem("ckpt")
            assert fs.ls("ckpt://trained", detail=False) == ["trained/1", "trained/2"]
            assert fs.cat("ckpt://trained/2/w") == bytes(w)
            _session.close_all()
            with ckpt.open("trained", 0, 1, existing=True) as look:
                assert look.stored().step == 2 and [i.epoch for i in look.list()] == [1, 1]
                assert "CKPT_TRAINS (trains=True)" in str(raises(ckpt.CkptError, lambda: look.skip(9)))
            assert c.save(3, wait_credit=True).wait()
            assert {i.epoch for i in c.list()} == {1}
        finally:
            del os.environ["CKPT_RUN_ID"]


def warned_by(call):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call()
    return [(str(w.message), w.filename) for w in said if w.category is ckpt.CkptWarning]


def test_what_is_not_committed_is_told(d):
    fs = fsspec.filesystem("ckpt")
    def write(step):
        for name in "xy":
            with fs.open(f"ckpt://told/{step}/{name}", "wb") as f:
                f.write(b"%d" % step)

    write(100)
    (said, where), = warned_by(lambda: write(200))
    assert "step 200 begins: 2 files of ckpt://told/100 were closed and never committed" in said, said
    assert where == __file__, where
    assert not warned_by(lambda: fs.commit("ckpt://told/200"))
    assert not warned_by(lambda: write(300)) and fs.ls("ckpt://told/200")
    fs.rm("ckpt://told/300", recursive=True)
    _session.close_all()
    end = subprocess.run([sys.executable, "-c", "import harness, fsspec\n"
                          "with fsspec.open('ckpt://told/400/x', 'wb') as f: f.write(b'4')"], text=True,
                         capture_output=True, cwd=os.path.dirname(os.path.abspath(__file__)))
    assert end.returncode == 0 and "interpreter ends: 1 file of ckpt://told/400 was" in end.stderr, end.stderr
    assert not fs.exists("ckpt://told/400")


def test_commit_on_close(d):
    fs = fsspec.filesystem("ckpt", commit_on_close=True)
    with fs.open("ckpt://closed/1/x", "wb") as x, fs.open("ckpt://closed/1/y", "wb") as y:
        x.write(b"1")
        y.write(b"2")
    assert not fsspec_module._pending and fs.cat("ckpt://closed/1/x") + fs.cat("ckpt://closed/1/y") == b"12"
    e = raises(FileExistsError, lambda: fs.open("ckpt://closed/1/z", "wb"))
    assert "cannot change" in str(e), e


def test_what_was_written_last_is_latest(d):
    fs = fsspec.filesystem("ckpt")
    for step in (200, 100):
        with fs.open(f"ckpt://back/{step}/x", "wb") as f:
            f.write(b"%d" % step)
        fs.commit(f"ckpt://back/{step}")
    assert sorted(e["name"] for e in fs.ls("ckpt://back")) == ["back/100", "back/200"]
    _session.close_all()
    with ckpt.open("back", 0, 1) as c:
        assert [i.step for i in c.list() if i.latest] == [100]
    assert fs.cat("ckpt://back/200/x") == b"200"


def test_files_become_a_checkpoint(d):
    fs = fsspec.filesystem("ckpt", durable=True)
    base = "ckpt://files/100"
    big = os.urandom(300000)
    assert not fs.exists(base) and not fs.exists(base + "/.metadata")
    fs.makedirs(base, exist_ok=True)
    with fs.open(base + "/__0_0.distcp", "wb") as f:
        f.write(big)
    with fsspec.open(base + "/sub/empty", "wb") as f:
        pass
    with fsspec.open(base + "/words.txt", "w") as f:
        f.write("a\nb\n")
    with fs.open(base + "/wrong", "wb") as f:
        f.write(b"?")
    fs.rm(base + "/wrong")
    raises(ZeroDivisionError, lambda: fails_inside(fs, base + "/half"))
    assert not fs.exists(base + "/half")
    assert fs.exists(base + "/words.txt") and fs.cat(base + "/words.txt") == b"a\nb\n"
    assert _session.session("files").handle.list() == []  # nobody else sees it
    with fs.open(base + "/.metadata.tmp", "wb") as f:
        f.write(b"meta")
        raises(io.UnsupportedOperation, f.fileno)
    fs.rename(base + "/.metadata.tmp", base + "/.metadata")
    check_files(fs, base, big)
    _session.close_all()
    d.lose_memory()
    check_files(fs, base, big)  # from disk
    raises(FileExistsError, lambda: fs.open(base + "/new", "wb"))
    raises(PermissionError, lambda: fs.rm(base + "/words.txt"))
    raises(PermissionError, lambda: fs.mv(base + "/words.txt", base + "/x"))
    raises(ValueError, lambda: fs.open(base + "/words.txt", "ab"))
    e = raises(FileNotFoundError, lambda: fs.open(base + "/nothing", "rb"))
    assert "of job 'files' has no file 'nothing': fs.ls(" in str(e), e
    raises(FileNotFoundError, lambda: fs.ls("ckpt://files/101"))
    raises(FileNotFoundError, lambda: fs.rm(base + "/nothing"))
    fs.makedirs(base, exist_ok=True)
    raises(FileExistsError, lambda: fs.makedirs(base))


def fails_inside(fs, path):
    with fs.open(path, "wb") as f:
        f.write(b"half")
        1 / 0


def check_files(fs, base, big):
    stem = base[len("ckpt://"):]
    assert fs.ls("ckpt://files", detail=False) == [stem]
    assert fs.ls(base, detail=False) == [f"{stem}/{n}" for n in (
        ".metadata", "__0_0.distcp", "sub", "words.txt")], fs.ls(base)
    assert fs.info(base)["type"] == "directory" and fs.isdir(base + "/sub")
    assert fs.info(base + "/__0_0.distcp")["size"] == len(big)
    assert fs.cat(base + "/sub/empty") == b"" and fs.cat(base + "/.metadata") == b"meta"
    with fs.open(base + "/__0_0.distcp", "rb", block_size=4096) as f:
        for at, n in ((123456, 70000), (0, 10), (299990, 100)):
            f.seek(at)
            assert f.read(n) == big[at:at + n], at
    assert fs.cat_file(base + "/__0_0.distcp", 1000, 2000) == big[1000:2000]
    with fsspec.open(base + "/words.txt", "r") as f:
        assert f.read() == "a\nb\n"
    assert fs.find(base) == sorted(f"{stem}/{n}" for n in (
        ".metadata", "__0_0.distcp", "sub/empty", "words.txt"))


def test_steps_one_after_another(d):
    fs = fsspec.filesystem("ckpt")
    for step in (1, 2, 3):
        fs.makedirs(f"ckpt://steps/{step}", exist_ok=True)
        with fs.open(f"ckpt://steps/{step}/a", "wb") as f:
            f.write(b"x" * step * 1000)
        if step != 2:  # begun and never finished
            with fs.open(f"ckpt://steps/{step}/.metadata", "wb") as f:
                f.write(b"m")
    assert fs.ls("ckpt://steps", detail=False) == ["steps/1", "steps/3"]
    assert fs.size("ckpt://steps/3/a") == 3000 and fs.size("ckpt://steps/1/a") == 1000
    fs.makedirs("ckpt://steps/4")
    with fs.open("ckpt://steps/4/only", "wb") as f:
        f.write(b"no mark")
    fs.commit("ckpt://steps/4")
    assert fs.cat("ckpt://steps/4/only") == b"no mark"
    raises(FileNotFoundError, lambda: fs.commit("ckpt://steps/5"))


def test_other_checkpoints_can_be_read(d):
    w = (np.arange(1000) % 256).astype(np.uint8)
    with ckpt.open("other", 0, 1) as c:
        c.declare("bytes", w)
        c.declare("w", np.arange(9, dtype=np.float32).reshape(3, 3))
        assert c.save(7, {"rng": b"abc"}, wait_credit=True).wait(ckpt.COMMITTED)
    fs = fsspec.filesystem("ckpt")
    assert fs.find("ckpt://other/7") == ["other/7/blobs/0/rng", "other/7/bytes"]
    assert fs.cat("ckpt://other/7/bytes") == w.tobytes()
    assert fs.cat("ckpt://other/7/blobs/0/rng") == b"abc"
    fs.get("ckpt://other/7/bytes", os.path.join(d.dir, "bytes"))
    with open(os.path.join(d.dir, "bytes"), "rb") as f:
        assert f.read() == w.tobytes()


def test_a_timeout_that_is_none_is_refused(_):
    e = raises(ValueError, lambda: fsspec.filesystem("ckpt", timeout=float("nan"), skip_instance_cache=True))
    assert str(e) == "timeout is nan: give seconds from 0 on, or None for the default", e


def test_what_comes_too_late_is_told(_):
    """A file that is closed when its step is a checkpoint, or was given up, is in none."""
    fs = fsspec.filesystem("ckpt")
    late = fs.open("ckpt://late/1/a", "wb")
    late.write(b"x" * 1000)
    with fs.open("ckpt://late/1/.metadata", "wb") as f:
        f.write(b"m")
    assert "late/1/a" in str(raises(OSError, late.close))
    assert late.closed and fs.find("ckpt://late/1") == ["late/1/.metadata"]
    late = fs.open("ckpt://late/2/a", "wb")
    fs.makedirs("ckpt://late/3")
    raises(OSError, late.close)
    with fs.open("ckpt://late/3/b.tmp", "wb") as f:
        f.write(b"y")
    fs.mv("ckpt://late/3/b.tmp", "ckpt://late/3/b")
    fs.mv("ckpt://late/3/b", "ckpt://late/3/b")
    fs.commit("ckpt://late/3")
    assert fs.cat("ckpt://late/3/b") == b"y"


def test_a_step_that_is_saved_anew_is_not_mixed(d):
    """It is damaged, the job falls back to the step before and comes to it again."""
    def save(step, byte):
        with ckpt.open("anew", 0, 1) as c:
            a = np.zeros(40000, "uint8")
            c.declare("a", a)
            c.load()
            a[:] = byte
            assert c.save(step, wait_credit=True).wait(ckpt.DURABLE)

    save(1, 1)
    save(2, 2)
    fs = fsspec.filesystem("ckpt")
    f = fs.open("ckpt://anew/2/a", "rb", block_size=4096, cache_type="none")
    assert f.read(4096) == b"\2" * 4096
    _session.close_all()
    d.kill()
    shards = glob.glob(os.path.join(d.data, "jobs", "*", "2.*", "rank-0.shard"))
    with open(max(shards, key=os.path.getmtime), "r+b") as damaged:
        damaged.seek(4096)
        damaged.write(b"?" * 4096)
    d.start()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        save(2, 3)
    assert any("cannot be restored" in str(w.message) for w in told), told
    assert "anew" in str(raises(OSError, lambda: f.read(4096)))
    assert fs.cat("ckpt://anew/2/a") == b"\3" * 40000


def test_threads_begin_a_step_once(_):
    made, real = [], fsspec_module._Pending

    def slow(*args):
        made.append(args)
        time.sleep(0.1)
        return real(*args)

    fs = fsspec.filesystem("ckpt")
    fsspec_module._Pending = slow
    try:
        def write(i):
            with fs.open(f"ckpt://threads/1/{i}", "wb") as f:
                f.write(b"%d" % i)
        all_threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
        for t in all_threads:
            t.start()
        for t in all_threads:
            t.join()
    finally:
        fsspec_module._Pending = real
    assert len(made) == 1, made
    fs.commit("ckpt://threads/1")
    assert [fs.cat(f"ckpt://threads/1/{i}") for i in range(4)] == [b"0", b"1", b"2", b"3"]


def test_a_session_without_room_goes_on(_):
    """What a save could not have, the next one does not need: the handle is not stuck with it."""
    w = np.arange(64, dtype=np.float32)
    s = _session.session("room")
    with s.lock:
        e = raises(ckpt.CkptError, lambda: s.declare([("w", w, w.shape, (0,))], 1 << 37))
        assert "memory" in str(e), e
        for step in (1, 2):
            s.declare([("w", w, w.shape, (0,))], 100)
            s.save(step, {"b": b"x" * 100}, None)
            s.wait(step, False, None)
    assert s.generation == 1


def test_every_rank_gives_its_files(d):
    """The order of FsspecWriter: makedirs on all, files, and .metadata on the coordinator alone."""
    if importlib.util.find_spec("torch") is None:
        raise Skip("torch is not installed")
    run_ranks("torch_rank.py", 3, "files", "ranks")
    _session.close_all()
    fs = fsspec.filesystem("ckpt")
    assert fs.find("ckpt://ranks/2") == [f"ranks/2/{n}" for n in (
        ".metadata", "__0_0.distcp", "__2_0.distcp")], fs.find("ckpt://ranks/2")
    assert fs.cat("ckpt://ranks/2/__2_0.distcp") == b"2" * 2000


def no_fsspec(_):
    raise Skip("fsspec is not installed")


if __name__ == "__main__":
    cases = cases_of(globals())
    if fsspec is None:
        cases = dict.fromkeys(cases, no_fsspec)
    sys.exit(run_with_ckptd(cases, sys.argv[1:], _session.close_all))
