#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt.torch against a real ckptd: with Debian's torch 1.13.1 and gloo for real; what torch 2.x asks
for beyond that against a stand-in of its classes (fake_dcp.py), in the order in which it calls.

Prints "ok NAME" or "not ok NAME" for each case; exits 1 if one failed. CKPT_BUILD names the build
folder."""

import os
import pickle
import socket
import subprocess
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from test_ckpt import BUILD, Daemon, kill_all  # noqa: E402

import ckpt  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

RUN = os.path.join(HERE, "torch_rank.py")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ranks(world, case, *args, ok=True):
    """Runs torch_rank.py on so many ranks; returns what they printed, rank by rank."""
    env = dict(os.environ, WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
               MASTER_PORT=str(free_port()), OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    all_ranks = [subprocess.Popen([sys.executable, RUN, case, *map(str, args)], text=True,
                                  env=dict(env, RANK=str(r)), stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE) for r in range(world)]
    out = [p.communicate(timeout=150) for p in all_ranks]
    if ok:
        assert all(p.returncode == 0 for p in all_ranks), "\n".join(a + b for a, b in out)
    else:
        assert all(p.returncode for p in all_ranks), "\n".join(a + b for a, b in out)
    return [a + b for a, b in out]


def test_dcp113_save_on_2_load_on_4_and_1(d):
    """Sharded, plain, bytes, bf16, views; newest and by step; from memory, then from disk."""
    ranks(2, "save", "run7", "10", "20")
    for world in (4, 1):
        out = ranks(world, "load", "run7", "-", "20")
        assert all("tier memory" in o for o in out), out
    ranks(2, "load", "run7", "10", "10")
    kill_all(d)
    d.start()
    for world in (4, 1):
        out = ranks(world, "load", "run7", "-", "20")
        assert all("tier disk" in o for o in out), out
    ranks(1, "load", "run7", "10", "10")


def test_dcp113_ckptd_killed_between_saves(d):
    out = ranks(2, "killed", "killed", d.child())
    assert all("step 1 and 2 are there" in o for o in out), out


def test_dcp113_plan_changes(d):
    """Other tensors, larger bytes: the handles are opened anew, all ranks together."""
    ranks(2, "changes", "changes")


def test_dcp113_rank_without_items_and_a_failed_save(d):
    ranks(3, "failing", "failing")


def test_dcp113_missing_tensor(d):
    out = ranks(2, "missing", "missing", ok=False)
    assert all("'not there' is wanted and is not in step 1" in o for o in out), out


def test_plain_checkpoints(d):
    """Saved by ckpt.save(), flat ranges and replicas and blobs, loaded by DCP; and the other way."""
    ranks(1, "plain", "plain")


def test_lenient_and_strict(d):
    ranks(1, "lenient", "lenient")


def test_damaged_newest(_):
    """A flipped byte is never read: the load says so, and the next one has the step before."""
    before = os.environ["CKPT_SOCKET"]
    d = Daemon()
    try:
        ranks(1, "two_steps", "damaged")
        kill_all(d)
        for at, _, files in os.walk(os.path.join(d.dir, "data", "jobs")):
            if "rank-0.shard" in files and "/2." in at:
                with open(os.path.join(at, "rank-0.shard"), "r+b") as f:
                    f.seek(4096 + 70000)
                    byte = f.read(1)[0]
                    f.seek(-1, os.SEEK_CUR)
                    f.write(bytes([byte ^ 1]))
        d.start()
        out, = ranks(1, "damaged", "damaged")
        assert "then step 1" in out, out
    finally:
        d.stop()
        os.environ["CKPT_SOCKET"] = before


def test_errors(d):
    ranks(1, "errors", "errors")


def test_2x_surface(d):
    """In a process of its own: the stand-in takes the place of torch.distributed.checkpoint."""
    ranks(1, "surface", "surface")


def test_2x_turns(d):
    """Saves that overlap, or were given up half way, never meet in one checkpoint, nor wait for ever."""
    ranks(1, "surface", "turns", "run_turns")


def test_2x_more(d):
    """Plan caching; copies that are kept; errors that DCP's loader swallows."""
    ranks(1, "surface", "more", "run_more")


def test_no_daemon(_):
    """Says so once its time is over, not after twice that."""
    start = time.monotonic()
    before, os.environ["CKPT_SOCKET"] = os.environ["CKPT_SOCKET"], "/nonexistent/ckptd.sock"
    try:
        out, = ranks(1, "alone", "alone")
    finally:
        os.environ["CKPT_SOCKET"] = before
    assert "ckptd cannot be reached" in out and "opened 1 times" in out, (out, time.monotonic() - start)


def metadata_of(folder):
    """.metadata as torch 2 would have it, by stand-ins of its classes."""
    class Any2(dict):
        def __init__(self, *args):
            self.args = args

        def __setstate__(self, state):
            self.state = state

        def __hash__(self):
            return id(self)

    class Reader(pickle.Unpickler):
        def find_class(self, module, name):
            return Any2

    with open(os.path.join(folder, ".metadata"), "rb") as f:
        return Reader(f).load().state


def test_export(d):
    """ckptctl gives what was saved: all items, none of the adapter's own, and the planner's data."""
    ranks(1, "surface", "export", "run_export")

    def ctl(*args):
        r = subprocess.run([os.path.join(BUILD, "ckptctl"), *args, "--data",
                            os.path.join(d.dir, "data")], text=True, capture_output=True)
        assert r.returncode == 0, r.stdout + r.stderr
        return r.stdout + r.stderr

    old, new = os.path.join(d.dir, "dcp113"), os.path.join(d.dir, "dcp2")
    ctl("export", "export", "--format", "dcp", "--torch", "1.13", "--output", old)
    ranks(1, "exported", old)
    assert "left out" not in ctl("export", "export", "--format", "dcp", "--output", new)
    planner = metadata_of(new)["planner_data"]
    assert planner == {"model.w": ("model", "w"), "opt.0.lr": ("opt", 0, "lr"), "n": ("n", 0),
                       "x": ("x", 0), "ckpt.torch": ("ckpt.torch", 0),
                       "empty": ("empty", 0)}, planner
    # And in again: the same tensors.
    ctl("import", new, "--as", "again")
    ctl("diff", "export", "again")
    ctl("diff", new, "export")
    weights = os.path.join(d.dir, "export.safetensors")
    ctl("export", "export", "--format", "safetensors", "--output", weights)
    ctl("diff", weights, "export")


def test_import_needs_nothing(_):
    code = ("import sys; sys.modules['torch'] = None\n"
            "import ckpt.torch as ck\n"
            "try: ck.Writer\n"
            "except ImportError: print('only then')\n"
            "try: ck.nothing\n"
            "except AttributeError: print('not there')")
    r = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True,
                       env=dict(os.environ, PYTHONPATH=os.path.join(HERE, "..")))
    assert r.stdout == "only then\nnot there\n", r.stdout + r.stderr


def main():
    wanted = sys.argv[1:]
    d = Daemon()
    failed = 0
    try:
        for name, test in sorted(globals().items()):
            if not name.startswith("test_") or (wanted and name not in wanted):
                continue
            if torch is None and name != "test_import_needs_nothing":
                print("skip", name, "torch is not installed", flush=True)
                continue
            try:
                test(d)
                print("ok", name, flush=True)
            except Exception:
                failed += 1
                traceback.print_exc()
                print("not ok", name, flush=True)
        if failed:
            with open(os.path.join(d.dir, "log")) as f:
                sys.stderr.write(f.read()[-8000:])
    finally:
        d.stop()
    assert ckpt.version()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
