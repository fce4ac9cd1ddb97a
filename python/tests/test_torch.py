#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt.torch against a real ckptd: with Debian's torch 1.13.1 and gloo for real; what torch 2.x asks
for beyond that against a stand-in of its classes (fake_dcp.py), in the order in which it calls.

Prints "ok NAME" or "not ok NAME" for each case; exits 1 if one failed. CKPT_BUILD names the build
folder."""

import json
import os
import pickle
import random
import subprocess
import sys
import textwrap
import time
import warnings
import weakref

from harness import EXTENSION_IS_USED, HERE, Daemon, Skip, cases_of, ctl, raises, run_ranks, run_with_ckptd

import ckpt
from ckpt._tensors import DTYPES, view

try:
    import numpy as np
except ImportError:
    np = None
try:
    import torch
except ImportError:
    torch = None


def ranks(world, case, *args, ok=True):
    return run_ranks("torch_rank.py", world, case, *args, ok=ok)


def need_113():
    """The planner of 2.x calls the reader in another way, and has sentences of its own."""
    if not torch.__version__.startswith("1.13"):
        raise Skip(f"torch is {torch.__version__}, and this is of 1.13")


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
    need_113()
    out = ranks(2, "killed", "killed", d.child())
    assert all("step 1 and 2 are there" in o for o in out), out


def test_dcp113_plan_changes(d):
    """Other tensors, larger bytes: the handles are opened anew, all ranks together."""
    ranks(2, "changes", "changes")


def test_dcp113_rank_without_items_and_a_failed_save(d):
    ranks(3, "failing", "failing")


def test_dcp113_missing_tensor(d):
    need_113()
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


def test_the_example_of_the_page(d):
    """ckpt-torch(7): the first launch finds nothing to load and begins, the second one goes on."""
    for steps, first in ((101, 0), (201, 101)):
        out = ranks(2, "example", "example", steps)
        assert all(f"from step {first}\n" in o for o in out), out


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


def other_storage(t):
    """Where the old one was, as like as not."""
    values = t.detach().clone() + 1
    with torch.no_grad():
        t.set_(torch.empty(0))
        t.set_(values.clone())


def grown_again(t):
    storage = t._storage() if hasattr(t, "_storage") else t.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    with torch.no_grad():
        t.fill_(5)


def resized(t, nbytes):
    (t._storage() if hasattr(t, "_storage") else t.untyped_storage()).resize_(nbytes)


def give(t, other):
    t.data = other


CHANGES = {  # name: what is done to one tensor of (8, 8) between two saves
    "values": lambda t: t.data.fill_(7), "data": lambda t: give(t, torch.full((8, 8), 3.)),
    "storage": other_storage, "grown again": grown_again,
    "transposed": lambda t: give(t, t.data.t()), "in place": lambda t: t.data.t_(),
    "offset": lambda t: give(t, torch.arange(100.)[10:74].view(8, 8)),
    "every second": lambda t: give(t, torch.arange(128.).view(8, 16)[:, ::2]),
    "expanded": lambda t: give(t, torch.arange(8.).expand(8, 8)),
    "resized": lambda t: t.detach().resize_(8, 8)}
REFUSED = {
    "freed": lambda t: resized(t, 0), "shrunk": lambda t: resized(t, 8 * 8 * 4 - 4),
    "shrunk below an offset": lambda t: [give(t, torch.arange(100.)[36:].view(8, 8)), resized(t, 256)],
    "larger": lambda t: give(t, torch.zeros(9, 8)), "flat": lambda t: give(t, t.data.view(64)),
    "one more dimension": lambda t: give(t, t.data.view(8, 1, 8)),
    "dtype": lambda t: give(t, t.data.view(torch.int32)), "half": lambda t: give(t, t.data.half()),
    "negative": lambda t: give(t, torch._neg_view(t.data)),
    "another device": lambda t: give(t, t.data.to("meta"))}


NOT_IN_TORCH_1 = (("another device", True), ("another device", False), ("dtype", True))


def test_tensors_that_change_between_saves(d):
    """Each save is of the memory that a tensor has then, whatever is done to it, or is refused."""
    for name, change in {**CHANGES, **REFUSED}.items():
        for kind in (torch.nn.Parameter, lambda x: x):
            ours = [kind(torch.arange(64.).view(8, 8) + i) for i in range(40)]
            with ckpt.open("changing", 0, 1) as c, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                first = 0 if (got := c.stored()) is None else got.step + 1
                for i, t in enumerate(ours):
                    c.declare(f"w.{i}", t)
                if first:
                    c.load()
                assert c.save(first, wait_credit=True).wait(ckpt.COMMITTED)
                try:
                    change(ours[20])
                except RuntimeError as e:  # torch itself does not let it happen
                    assert (name, kind is torch.nn.Parameter) in NOT_IN_TORCH_1, (name, e)
                    continue
                s = c.save(first + 1, wait_credit=True)
                if name in REFUSED:
                    assert s.status == "failed" and s.error.code == -22, (name, s)
                    assert "'w.20'" in str(s.error), (name, s.error)
                    continue
                assert s.wait(ckpt.COMMITTED), (name, s)
                got = [torch.zeros(8, 8) for _ in ours]
                with c.stored(first + 1) as stored:
                    stored.read([ckpt.Want(f"w.{i}", t, (8, 8), (0, 0)) for i, t in enumerate(got)])
                assert all(torch.equal(a, b) for a, b in zip(got, ours)), name


def test_tensors_of_one_storage_that_changes(d):
    """A change of the storage that many tensors share is seen of the first that it concerns."""
    for name, size, culprit in (("freed", 0, "w.0"), ("shrunk", 30 * 64 * 4 - 4, "w.29"),
                                ("as it was", 40 * 64 * 4, None)):
        block = torch.arange(40 * 64.)
        with ckpt.open("one-storage", 0, 1) as c, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first = 0 if (got := c.stored()) is None else got.step + 1
            for i, t in enumerate(block.split(64)):
                c.declare(f"w.{i}", t)
            if first:
                c.load()
            for step in (first, first + 1):
                block += 1
                assert c.save(step, wait_credit=True).wait(ckpt.COMMITTED), name
            resized(block, size)
            s = c.save(first + 2, wait_credit=True)
            if culprit is None:
                assert s.wait(ckpt.COMMITTED), (name, s)
            else:
                assert s.status == "failed" and f"'{culprit}'" in str(s.error), (name, s)


def test_memory_of_a_save_that_goes_on(d):
    """It stays until the end of the block, also when torch's objects were as they had been."""
    array = np.arange(1000, dtype=np.float32)
    held, t = weakref.ref(array), torch.from_numpy(array)
    with ckpt.open("goes-on", 0, 1) as c:
        c.declare("t", t)
        for step in (1, 2):
            assert c.save(step, wait_credit=True).wait(ckpt.COMMITTED)
        del array
        with c.saving(3, wait_credit=True):
            t.data = torch.zeros(1000)
            assert held() is not None
        assert held() is None


def table_that_knows_torch():
    table = ckpt._many.table()
    table.fill([], (ckpt._lib.Binding * 1)(), False, [])
    return table


def test_digests_are_trusted_where_they_show_each_change(d):
    """This torch's objects are understood; were one change not seen, or torch's objects elsewhere than
    was thought, tensors would be looked at by calls."""
    if ckpt._many.table() is None:
        raise Skip("the extension is not used")
    assert table_that_knows_torch().trusts_digests
    real, learn = ckpt._many.changes, ckpt._many.Table._learn
    try:
        ckpt._many.changes = lambda torch: [*real(torch), (lambda: torch.zeros(8), lambda x: None)]
        assert not table_that_knows_torch().trusts_digests
        ckpt._many.changes = real
        ckpt._many.Table._learn = lambda self, torch, make: self._table.learn(make(), 64, 4096, 4096)
        assert not table_that_knows_torch().trusts_digests
    finally:
        ckpt._many.changes, ckpt._many.Table._learn = real, learn


def test_what_was_seen_of_a_tensor_changes_with_it(d):
    """By random changes, one or several, of tensors that were looked at before: what the extension
    says of each is what Python says of it."""
    rng = random.Random(7)
    last = ("freed", "shrunk", "shrunk below an offset")  # what torch itself cannot touch any more
    changes = [f for n, f in {**CHANGES, **REFUSED}.items() if n not in last]
    if ckpt._many.table() is None:
        raise Skip("the extension is not used")
    for _ in range(60):
        block = torch.arange(640.)
        ours = [torch.arange(64.).view(8, 8) for _ in range(10)] + [t.view(8, 8) for t in block.split(64)]
        table = table_that_knows_torch()
        for _ in ours:
            table.add(DTYPES["float32"], (8, 8), 256)
        out = (ckpt._lib.Binding * len(ours))()
        for turn in range(4):
            odd = table.fill(ours, out, False, [])
            for i, t in enumerate(ours):
                try:
                    v = view(t)
                    good = v.strides is None and (v.dtype, v.shape) == (DTYPES["float32"], (8, 8))
                except TypeError:
                    good = False
                assert (i not in odd) == good, (i, odd)
                if good:
                    assert (out[i].ptr or 0, out[i].device) == (v.ptr, v.device), i
            now = changes if turn < 2 else [REFUSED[n] for n in last]
            for _ in range(rng.randrange(4) if turn < 2 else 1):
                try:
                    rng.choice(now)(rng.choice(ours))
                except RuntimeError:
                    pass  # torch does not let it happen


def recipe():
    """The example of ckpt-python(7) in place of torch.save(), that saves each tenth step."""
    with open(os.path.join(HERE, "..", "..", "man", "ckpt-python.7.pod"), encoding="utf-8") as f:
        text = f.read()
    text = text[text.index(" def split("):text.index("C<train> steps the optimizer")]
    assert "step % 100" in text
    return textwrap.dedent(text).replace("step % 100", "step % 10")


def trainer(kind, **options):
    """A model, an optimizer of that kind, a schedule that goes on from the rate before, and a step."""
    torch.manual_seed(3)
    sparse = kind is torch.optim.SparseAdam
    model = torch.nn.Sequential(torch.nn.Embedding(16, 8, sparse=True)) if sparse else (
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)))
    optimizer = kind(model.parameters(), **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)

    def loss():
        optimizer.zero_grad()
        x = model(torch.randint(0, 16, (4,)) if sparse else torch.randn(16, 8)).square().mean()
        x.backward()
        return x

    def train(step):
        optimizer.step(loss)
        schedule.step()
    return {"model": model, "optimizer": optimizer, "schedule": schedule, "train": train}


def optimizers():
    """Each of torch.optim but LBFGS and, as it takes matrices alone, Muon; and options that change the state."""
    found = {n: f for n, f in sorted(vars(torch.optim).items())
             if isinstance(f, type) and n not in ("Optimizer", "LBFGS", "Muon")}
    assert len(found) >= 12, found
    yield from ((n, f, {"lr": 0.1}) for n, f in found.items())
    yield "damped", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}
    yield "begun", torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.3}
    yield "averaged", torch.optim.ASGD, {"lr": 0.1, "t0": 3, "weight_decay": 0.1}
    yield "amsgrad", torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1, "amsgrad": True}


def test_recipe_in_place_of_torch_save(d):
    """Begun, ended and begun again it comes to the same bits as a run without end, without ckpt; and so
    do the learning rates."""
    for job, kind, options in optimizers():
        wanted = trainer(kind, **options)
        for step in range(20):
            wanted["train"](step)
        for steps in (14, 20):
            got = trainer(kind, **options)
            exec(recipe().replace('"run8"', f"'{job}', 0, 1"), {  # as a reader would
                "torch": torch, "ckpt": ckpt, "json": json, "steps": steps, **got})
        same_state(wanted, got, job)


def same_state(wanted, got, job):
    """All bits of the model's and the optimizer's state, and the rates."""
    want, have = ([*x["model"].state_dict().values(),
                   *(v for s in x["optimizer"].state_dict()["state"].values() for _, v in sorted(s.items()))]
                  for x in (wanted, got))
    assert len(want) == len(have), job
    for a, b in zip(want, have):
        assert torch.equal(a, b) if torch.is_tensor(a) else a == b, (job, a, b)
    want, have = ([g["lr"] for g in x["optimizer"].param_groups] for x in (wanted, got))
    assert want == have and want != [0.1], (job, want, have)


def test_recipe_refuses_what_it_cannot(d):
    """An optimizer whose tensors change in number is no silent loss."""
    said = trainer(torch.optim.LBFGS, lr=0.1)
    e = raises(TypeError, lambda: exec(recipe().replace('"run8"', "'lbfgs', 0, 1"), {
        "torch": torch, "ckpt": ckpt, "json": json, "steps": 12, **said}))
    assert "Tensor is not JSON" in str(e), e


def test_buffers_in_an_overlapped_save(d):
    """BatchNorm's forward() writes its buffers: the save fails, and with the tutorial's copies of them it
    is what they were."""
    with open(os.path.join(HERE, "..", "..", "man", "ckpt-tutorial.7.pod"), encoding="utf-8") as f:
        text = f.read()
    text = text[text.index(" for name, buffer in model.named_buffers():"):text.index("C<name> is the one")]
    overlapped = textwrap.dedent(text)
    for job, code, works in (("buffers", overlapped, True),
                             ("bare", overlapped[overlapped.index("with c.saving"):], False)):
        said = trainer(torch.optim.SGD, lr=0.1)
        model = said["model"]
        with warnings.catch_warnings(), ckpt.open(job, 0, 1) as c:
            warnings.simplefilter("ignore")
            for name, t in (*model.named_parameters(), *model.named_buffers()):
                c.declare(name, t)
            for step in (1, 2):
                wanted = {n: b.clone() for n, b in model.named_buffers()}
                exec(code, {**said, "c": c, "step": step, "blobs": {},
                            "forward_backward": lambda: model(torch.randn(16, 8)).mean().backward()})
                assert (c.stats["failed"] == 0) == works, (job, step)
            if not works:
                continue
            assert ckpt.Save(c, 2, "sealed").wait(ckpt.COMMITTED)
            got = {n: torch.zeros_like(b) for n, b in wanted.items()}
            with c.stored(2) as stored:
                stored.read([ckpt.Want(n, t, t.shape, (0,) * t.dim()) for n, t in got.items()])
            assert all(torch.equal(got[n], b) for n, b in wanted.items()), (got, wanted)
            assert not torch.equal(got["1.running_mean"], model[1].running_mean)


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
    if not EXTENSION_IS_USED:  # nothing to look at
        del cases["test_digests_are_trusted_where_they_show_each_change"]
        del cases["test_what_was_seen_of_a_tensor_changes_with_it"]
    if torch is None:
        cases = {n: f if n == "test_import_needs_nothing" else no_torch for n, f in cases.items()}
    assert ckpt.version()
    sys.exit(run_with_ckptd(cases, sys.argv[1:]))
