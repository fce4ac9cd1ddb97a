#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt.torch against a real ckptd: with Debian's torch 1.13.1 and gloo for real; what torch 2.x asks
for beyond that against a stand-in of its classes (fake_dcp.py), in the order in which it calls.

Prints "ok NAME" or "not ok NAME" for each case; exits 1 if one failed. CKPT_BUILD names the build
folder."""

import os
import pickle
import subprocess
import sys
import time

from harness import HERE, Daemon, Skip, cases_of, ctl, run_ranks, run_with_ckptd

import ckpt

try:
    import torch
except ImportError:
    torch = None


def ranks(world, case, *args, ok=True):
    return run_ranks("torch_rank.py", world, case, *args, ok=ok)


def test_dcp113_save_on_2_load_on_4_and_1(d):
    """Sharded, plain, bytes, bf16, views; newest and by step; from memory, then from disk."""
    ranks(2, "save", "run7", "10", "20")
    for world in (4, 1):
        out = ranks(world, "load", "run7", "-", "20")
        assert all("tier memory" in o for o in out), out
    ranks(2, "load", "run7", "10", "10")
    d.lose_memory()
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
    with Daemon() as d:
        ranks(1, "two_steps", "damaged")
        d.kill()
        shard, = d.shards_of(2, "rank-0.shard")
        with open(shard, "r+b") as f:
            f.seek(4096 + 70000)
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte ^ 1]))
        d.start()
        out, = ranks(1, "damaged", "damaged")
        assert "then step 1" in out, out


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


def test_2x_odd_values(d):
    """Conjugated, tied, expanded; names with NUL; what is refused leaves the next save alone."""
    ranks(1, "surface", "odd", "run_odd")


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
    in_data = ("--data", d.data)
    old, new = os.path.join(d.dir, "dcp113"), os.path.join(d.dir, "dcp2")
    ctl("export", "export", "--format", "dcp", "--torch", "1.13", "--output", old, *in_data)
    ranks(1, "exported", old)
    said = "".join(ctl("export", "export", "--format", "dcp", "--output", new, *in_data))
    assert "left out" not in said, said
    planner = metadata_of(new)["planner_data"]
    assert planner == {"model.w": ("model", "w"), "opt.0.lr": ("opt", 0, "lr"), "n": ("n", 0),
                       "x": ("x", 0), "ckpt.torch": ("ckpt.torch", 0),
                       "empty": ("empty", 0)}, planner
    # And in again: the same tensors.
    ctl("import", new, "--as", "again", *in_data)
    ctl("diff", "export", "again", *in_data)
    ctl("diff", new, "export", *in_data)
    weights = os.path.join(d.dir, "export.safetensors")
    ctl("export", "export", "--format", "safetensors", "--output", weights, *in_data)
    ctl("diff", weights, "export", *in_data)


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


def no_torch(_):
    raise Skip("torch is not installed")


if __name__ == "__main__":
    cases = cases_of(globals())
    if torch is None:
        cases = {n: f if n == "test_import_needs_nothing" else no_torch for n, f in cases.items()}
    assert ckpt.version()
    sys.exit(run_with_ckptd(cases, sys.argv[1:]))
