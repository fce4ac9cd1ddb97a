#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of test_torch.py: `torch_rank.py CASE ARGUMENT...`, rank and world in the environment."""

import io
import json
import os
import sys
import textwrap
import time
import types

import torch
import torch.distributed as dist

from harness import HERE, raises

import ckpt
import ckpt.torch as ck

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def dcp113():
    from ckpt import torch113
    dcp = torch113.patch()
    dist.init_process_group("gloo")
    return dcp


def whole(step):
    return torch.arange(17 * 6.).reshape(17, 6) + 1000 * step


def sharded(step, fill=True):
    """Rows dealt to the ranks, unevenly: 17 rows."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{r}/cpu" for r in range(WORLD)])
    st = sharded_tensor.empty(spec, 17, 6)
    for shard in st.local_shards():
        rows = shard.metadata.shard_offsets[0]
        shard.tensor.copy_(whole(step)[rows:rows + shard.tensor.shape[0]] if fill
                           else torch.full_like(shard.tensor, -1))
    return st


def state(step, fill=True):
    big = torch.arange(12 * 10.).reshape(12, 10) * step
    s = {
        "sharded": sharded(step, fill),
        "plain": torch.arange(12.).reshape(3, 4) + step,
        "view": big.t()[2:8:2, 1:11:3],          # neither contiguous nor at the start
        "bf16": (torch.arange(300.) + step).to(torch.bfloat16),
        "int64": torch.arange(5) * 7 + step,
        "bool": torch.tensor([True, False, step % 20 == 0]),
        "scalar": torch.tensor(2.5 * step, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "complex": torch.complex(torch.ones(4) * step, torch.arange(4.)),
        "step": step,
        "words": {"loader": ["shard-1", step], "lr": 0.1},
    }
    if not fill:
        for name, value in s.items():
            if type(value) is torch.Tensor:
                s[name] = torch.zeros_like(value).t() if name == "view" else torch.zeros_like(value)
        s["view"] = torch.zeros(4, 3).t()
        s["step"], s["words"] = None, None
    return s


def same(a, b):
    for name, want in a.items():
        have = b[name]
        if name == "sharded":
            assert all(torch.equal(x.tensor, y.tensor) for x, y in
                       zip(want.local_shards(), have.local_shards())), name
        elif isinstance(want, torch.Tensor):
            assert have.dtype == want.dtype and torch.equal(have, want), (name, have, want)
        else:
            assert have == want, (name, have, want)


def tier(job):
    with ckpt._session.session(job).lock:
        info = ckpt._session.session(job).handle.list()[0]
    return "memory" if info.memory else "disk"


def case_save(job, *steps):
    dcp = dcp113()
    writer = ck.Writer(job, durable=True)
    for step in map(int, steps):
        writer.step = step
        dcp.save_state_dict(state(step), writer)
        assert torch.equal(state(step)["plain"], torch.arange(12.).reshape(3, 4) + step)
    assert ckpt._session.session(job).generation == 0  # one handle for all of them


def case_load(job, step, want):
    dcp = dcp113()
    into = state(int(want), fill=False)
    reader = ck.Reader(job, None if step == "-" else int(step))
    dcp.load_state_dict(into, reader)
    assert reader.loaded_step == int(want)
    same(state(int(want)), into)
    md = reader.read_metadata()
    p = md.state_dict_metadata["bf16"].properties
    assert p.dtype == torch.bfloat16 and p.memory_format == torch.contiguous_format, p
    assert len(md.state_dict_metadata["sharded"].chunks) == 2
    print("tier", tier(job))


def case_killed(job, child):
    dcp = dcp113()
    dcp.save_state_dict(state(1), ck.Writer(job, 1, durable=True))
    dist.barrier()
    if RANK == 0:
        os.kill(int(child), 9)  # its supervisor starts another; memory stays
    dist.barrier()
    dcp.save_state_dict(state(2), ck.Writer(job, 2))
    for step in (1, 2):
        into = state(step, fill=False)
        dcp.load_state_dict(into, ck.Reader(f"ckpt://{job}/{step}"))
        same(state(step), into)
    print("step 1 and 2 are there")


def case_changes(job):
    dcp = dcp113()
    s = ckpt._session.session(job)
    writer = ck.Writer(job)

    save_by_step(dcp, writer, job, 1, {"a": torch.ones(4), "n": 1})
    save_by_step(dcp, writer, job, 2, {"a": torch.ones(4) * 2, "n": 2})
    assert s.generation == 0
    e = raises(dcp.CheckpointException,  # this launch began with nothing
               lambda: dcp.load_state_dict({"a": torch.zeros(4)}, ck.Reader(job)))
    assert f"ckpt://{job}/2" in str(e.failures), e
    save_by_step(dcp, writer, job, 3, {"a": torch.ones(4), "b": torch.ones(3, 3), "n": 3})
    assert s.generation == 1, s.generation
    save_by_step(dcp, writer, job, 4, {"a": torch.ones(4), "b": torch.ones(3, 3), "n": 4})
    assert s.generation == 1, s.generation
    big = bytes(range(256)) * (9 << 12)
    larger = {"a": torch.ones(4), "b": torch.ones(3, 3), "n": big}
    e = raises(dcp.CheckpointException, lambda: save_by_step(dcp, writer, job, 5, larger))
    assert "the next save makes more" in str(e.failures), e
    save_by_step(dcp, writer, job, 5, larger)
    assert s.generation == 2, s.generation


def save_by_step(dcp, writer, job, step, data):
    writer.step = step
    dcp.save_state_dict(data, writer)
    into = {k: torch.zeros_like(v) if isinstance(v, torch.Tensor) else None
            for k, v in data.items()}
    dcp.load_state_dict(into, ck.Reader(job, step))
    for k, v in data.items():
        assert torch.equal(v, into[k]) if isinstance(v, torch.Tensor) else v == into[k], (step, k)


def case_failing(job):
    """Ranks 1 and 2 have no items at all; then one rank cannot resolve its items."""
    dcp = dcp113()
    writer = ck.Writer(job, 1)
    dcp.save_state_dict({"a": torch.ones(4), "n": 1}, writer)
    planner = dcp.default_planner.DefaultSavePlanner()
    if RANK == 1:
        def refuse(item):
            raise RuntimeError("no memory for this")
        planner.resolve_data = refuse
    writer.step = 2
    sd = {"s": sharded(2), "n": 2}
    e = raises(dcp.CheckpointException, lambda: dcp.save_state_dict(sd, writer, planner=planner))
    assert "no memory for this" in str(e.failures), e
    dist.barrier()
    # The same step again: nothing of the failed try is in it.
    dcp.save_state_dict({"s": sharded(7), "n": 7}, writer)
    into = {"s": sharded(0, fill=False), "n": 0}
    dcp.load_state_dict(into, ck.Reader(job, 2))
    assert into["n"] == 7
    same({"sharded": sharded(7)}, {"sharded": into["s"]})


def case_missing(job):
    dcp = dcp113()
    dcp.save_state_dict({"a": torch.ones(4)}, ck.Writer(job, 1))
    dcp.load_state_dict({"a": torch.zeros(4), "not there": torch.zeros(2)}, ck.Reader(job, 1))


def case_plain(job):
    dcp = dcp113()
    with ckpt.open(job, 0, 1) as c:
        flat = torch.arange(5., 38.)
        c.declare("w", whole(1), trained=True)
        c.declare_flat("m", flat, (10, 7), 5, 38)
        c.declare_flat("m", torch.cat([torch.arange(5.)]), (10, 7), 0, 5)
        c.declare_flat("m", torch.arange(38., 70.), (10, 7), 38, 70)
        assert c.save(1, {"rng": b"abc"}, wait_credit=True).wait(ckpt.COMMITTED)
    reader = ck.Reader(job)
    md = reader.read_metadata()
    assert md.state_dict_metadata["w"].size == torch.Size([17, 6])
    assert sum(c.sizes.numel() for c in md.state_dict_metadata["m"].chunks) == 70
    seen = {}

    class Planner(dcp.default_planner.DefaultLoadPlanner):
        def load_bytes(self, item, value):
            seen[item.dest_index.fqn] = value.read()

    into = {"w": torch.zeros(17, 6), "m": torch.zeros(10, 7), "rng": None}
    dcp.load_state_dict(into, reader, planner=Planner())
    assert torch.equal(into["w"], whole(1)) and seen == {"rng": b"abc"}
    assert torch.equal(into["m"], torch.arange(70.).reshape(10, 7))
    # And what DCP saves, ckpt.load() has by name.
    dcp.save_state_dict({"w": whole(2), "n": 2}, ck.Writer(job, 2))
    ck.close_all()
    into = torch.zeros(4, 6)
    with ckpt.open(job, 0, 1) as c:
        c.declare("w", into, global_shape=(17, 6), offset=(9, 0))
        got = c.load()
    assert got.step == 2 and torch.equal(into, whole(2)[9:13])
    assert json.loads(got.blobs["ckpt.torch"])["format"] == 1
    assert torch.load(io.BytesIO(got.blobs["n"])) == 2


def case_lenient(job):
    dcp = dcp113()
    from torch.distributed._shard.checkpoint.metadata import MetadataIndex
    dcp.save_state_dict({"a": torch.arange(8.), "b": torch.ones(3)}, ck.Writer(job, 1))
    reader = ck.Reader(job, 1)
    md = reader.read_metadata()
    md.state_dict_metadata["c"] = md.state_dict_metadata["b"]  # says that it is there, and it is not

    def load(strict):
        r = ck.Reader(job, 1, strict=strict)
        r.read_metadata()
        into = {"a": torch.zeros(8), "c": torch.zeros(3)}
        planner = dcp.default_planner.DefaultLoadPlanner()
        planner.init(into, md, True)
        r.init(md, True)
        r.read_data(planner.create_local_plan(), planner).wait()
        return into, r
    e = raises(ckpt.CkptError, lambda: load(True))
    assert e.code == -1008 and "'c'" in str(e), e
    into, r = load(False)
    assert torch.equal(into["a"], torch.arange(8.)) and "'c'" in r.problems[0], r.problems
    # One stored tensor in two places.
    from torch.distributed._shard.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
    items = [ReadItem(LoadItemType.TENSOR, MetadataIndex(n), torch.Size([0]), MetadataIndex("a", (0,)),
                      torch.Size([2]), torch.Size([5])) for n in ("x", "y")]
    into = {"x": torch.zeros(5), "y": torch.zeros(5)}

    class Planner(dcp.default_planner.DefaultLoadPlanner):
        def resolve_tensor(self, item):
            return into[item.dest_index.fqn]

    r.init(md, True)
    r.read_data(LoadPlan(items), Planner()).wait()
    assert all(torch.equal(t, torch.arange(8.)[2:7]) for t in into.values()), into


def case_two_steps(job):
    dcp = dcp113()
    for step in (1, 2):
        dcp.save_state_dict({"w": torch.arange(60000.) * step}, ck.Writer(job, step, durable=True))


def case_damaged(job):
    dcp = dcp113()
    into = {"w": torch.zeros(60000)}
    e = raises(dcp.CheckpointException, lambda: dcp.load_state_dict(into, ck.Reader(job)))
    print(e.failures[0][0])
    reader = ck.Reader(job)
    dcp.load_state_dict(into, reader)
    assert torch.equal(into["w"], torch.arange(60000.) * reader.loaded_step)
    print("then step", reader.loaded_step)
    dcp.save_state_dict({"w": into["w"]}, ck.Writer(job, 3))


def case_errors(job):
    dcp = dcp113()

    def fails(words, code, call, or_torch=None):
        try:
            call()
        except ckpt.CkptError as e:
            assert words in str(e) and e.code == code, (words, e.code, e)
            return
        except dcp.CheckpointException as e:
            text = str(e.failures[0][0])
            assert words in text or (or_torch and or_torch in text), e
            return
        raise AssertionError(f"nothing was refused: {words}")

    sd = {"a": torch.ones(3)}
    fails("no step is named", -22, lambda: dcp.save_state_dict(sd, ck.Writer(job)))
    fails("no job is named", -22, lambda: dcp.save_state_dict(sd, ck.Writer(step=3)))
    fails("no checkpoint yet", -1014, lambda: dcp.load_state_dict(sd, ck.Reader(job)))
    fails("no checkpoint yet", -1014, lambda: dcp.load_state_dict(sd, ck.Reader(job, 99)))
    q = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    fails("not a type that ckptd stores", -22, lambda: dcp.save_state_dict({"q": q}, ck.Writer(job, 1)))
    for bad in (-1, 2**64 - 1, 2**64, "3", 1.0, True):
        fails("is no step", None, lambda: dcp.save_state_dict(sd, ck.Writer(job, bad)))
    for make in (ck.Writer, ck.Reader):
        assert "timeout is -1: give seconds" in str(raises(ValueError, lambda: make(job, timeout=-1)))
    dcp.save_state_dict(sd, ck.Writer(job, 2))
    fails("no such checkpoint", -1014, lambda: dcp.load_state_dict(sd, ck.Reader(job, 99)))
    for shape in ((5,), (2,)):
        fails(f"tensor 'a' is wanted as {list(shape)} but step 2", -1008, lambda: dcp.load_state_dict(
            {"a": torch.zeros(shape)}, ck.Reader(job, 2)), or_torch="Size mismatch")  # torch 2
    fails("is committed already", -17, lambda: dcp.save_state_dict(sd, ck.Writer(job, 2)))
    for bad in ("run7/notastep", "", "ckpt://"):
        assert not ck.Writer.validate_checkpoint_id(bad)
    assert ck.Writer.validate_checkpoint_id("ckpt://run7/100")
    assert ck.Reader.validate_checkpoint_id("ckpt://run7")
    assert not ck.Reader.validate_checkpoint_id("/tmp/run7/100")
    w = ck.Writer("ckpt://a/7")
    w.reset("ckpt://b/8")
    assert (w.job, w.step, w.checkpoint_id) == ("b", 8, "ckpt://b/8")
    w.reset(None)
    assert w.checkpoint_id == "ckpt://b/8"
    from ckpt import _json
    plain = {"a": (1, [None, 2.5, float("inf")]), 3: {"x"}, "b": b"\0\1", ("k", 1): True}
    plain |= {"s": {frozenset({1, (2, "x")}), 4}, frozenset({frozenset(), 1.5}): frozenset("y")}
    back = _json.untagged(json.loads(_json.dumps(plain)))
    assert back == plain and {k: type(v) for k, v in back.items()} == {k: type(v) for k, v in plain.items()}
    assert "builtins.object" in str(raises(TypeError, lambda: _json.dumps({"f": object()})))


def case_files(job):
    """Rank 1 has nothing to write."""
    dcp113()
    import fsspec
    for step in (1, 2):
        fs, _ = fsspec.core.url_to_fs(f"ckpt://{job}/{step}")
        fs.makedirs(f"ckpt://{job}/{step}", exist_ok=True)
        dist.barrier()
        if RANK != 1:
            with fs.open(f"ckpt://{job}/{step}/__{RANK}_0.distcp", "wb") as f:
                f.write(str(RANK).encode() * 1000 * step)
        dist.barrier()
        if RANK == 0:
            with fs.open(f"ckpt://{job}/{step}/.metadata.tmp", "wb") as f:
                f.write(b"m")
            fs.rename(f"ckpt://{job}/{step}/.metadata.tmp", f"ckpt://{job}/{step}/.metadata")
        dist.barrier()
        for r in (0, 2):  # every rank reads all files
            assert fs.cat(f"ckpt://{job}/{step}/__{r}_0.distcp") == str(r).encode() * 1000 * step
    # Two ranks, one name.
    fs.makedirs(f"ckpt://{job}/3", exist_ok=True)
    refused = torch.zeros(1)
    try:
        with fs.open(f"ckpt://{job}/3/same", "wb") as f:
            f.write(b"x")
    except FileExistsError as e:
        assert "is written by rank" in str(e), e
        refused += 1
    dist.all_reduce(refused)
    assert refused == WORLD - 1, refused
    fs.rm(f"ckpt://{job}/3", recursive=True)  # ends the thread that waits for its commit
    time.sleep(0.5)
    dist.barrier()


def case_surface(job, what="run"):
    import fake_dcp
    fake_dcp.install()
    getattr(fake_dcp, what)(job)


def example():
    """That of ckpt-torch(7)."""
    with open(os.path.join(HERE, "..", "..", "man", "ckpt-torch.7.pod"), encoding="utf-8") as f:
        text = f.read()
    return textwrap.dedent(text[text.index(" writer, reader = ck.Writer("):text.index("=head1 SEE ALSO")])


def case_example(job, steps):
    """As a reader would run it, with the names that torch 2 has for what 1.13 does."""
    dcp = dcp113()
    names = types.SimpleNamespace(
        CheckpointException=dcp.CheckpointException,
        load=lambda state, storage_reader: dcp.load_state_dict(state, storage_reader))

    def async_save(state, checkpoint_id, storage_writer):
        storage_writer.step = int(checkpoint_id.rpartition("/")[2])
        dcp.save_state_dict(state, storage_writer)
        return types.SimpleNamespace(result=lambda: None)

    names.async_save = async_save
    state = {"w": torch.zeros(4)}
    said = {"dcp": names, "ck": ck, "state": state, "steps": int(steps),
            "train": lambda state: state["w"].add_(1)}
    exec(example().replace("run7", job), said)
    assert torch.equal(state["w"], torch.full((4,), float(steps))), state
    print("from step", said["first"])


def case_alone(job):
    dcp = dcp113()
    opened = []
    real = ckpt._session._open
    ckpt._session._open = lambda *a, **k: (opened.append(1), real(*a, **k))[1]
    writer = ck.Writer(job, 1, connect_timeout=0.5)
    e = raises(dcp.CheckpointException, lambda: dcp.save_state_dict({"a": torch.ones(2)}, writer))
    print(e.failures[0][0], f"opened {len(opened)} times")


def case_exported(folder):
    """What ckptctl export made of run_export()'s checkpoint, read by torch itself."""
    dcp = dcp113()
    reader = dcp.FileSystemReader(folder)
    names = sorted(reader.read_metadata().state_dict_metadata)
    assert names == ["ckpt.torch", "empty", "model.w", "n", "opt.0.lr", "x"], names
    into = {"model.w": torch.zeros(3, 4), "empty": torch.ones(0, 2), "n": None, "x": None,
            "opt.0.lr": None, "ckpt.torch": None}
    dcp.load_state_dict(into, dcp.FileSystemReader(folder), no_dist=True)
    assert torch.equal(into["model.w"], torch.arange(12.).reshape(3, 4))
    assert (into["n"], into["x"], into["opt.0.lr"], into["ckpt.torch"]) == (
        7, [1, "two"], 0.5, {"mine": True}), into


if __name__ == "__main__":
    start = time.time()
    globals()["case_" + sys.argv[1]](*sys.argv[2:])
    ck.close_all()
    if dist.is_initialized():
        dist.destroy_process_group()
    print(f"rank {RANK} of {WORLD}: {time.time() - start:.1f} s")
