# SPDX-License-Identifier: Apache-2.0
"""A stand-in for torch.distributed.checkpoint of torch 2.x: its abstract classes with the documented
signatures, and save, async_save and load that call them in the order of its sources (state_dict_saver,
state_dict_loader, staging, default_planner). The real one is used by torch2_adapter.py. One process, no
collectives."""

import abc
import concurrent.futures
import contextlib
import enum
import inspect
import io
import sys
import threading
import types
from dataclasses import dataclass, field, replace
from typing import Any, List, Optional, Protocol, runtime_checkable

import torch


@dataclass(frozen=True)
class MetadataIndex:
    fqn: str
    offset: Any = None
    index: Any = field(hash=False, compare=False, default=None)


@dataclass
class TensorProperties:
    dtype: Any = torch.float32
    layout: Any = torch.strided
    requires_grad: bool = False
    memory_format: Any = torch.contiguous_format
    pin_memory: bool = False


@dataclass
class ChunkStorageMetadata:
    offsets: Any
    sizes: Any


@dataclass
class TensorStorageMetadata:
    properties: TensorProperties
    size: Any
    chunks: List[ChunkStorageMetadata]


@dataclass
class BytesStorageMetadata:
    pass


@dataclass
class Metadata:
    state_dict_metadata: Any
    planner_data: Any = None
    storage_data: Any = None
    storage_meta: Any = None
    version: Optional[str] = None


class WriteItemType(enum.Enum):
    TENSOR, SHARD, BYTE_IO = 1, 2, 3


class LoadItemType(enum.Enum):
    TENSOR, BYTE_IO = 1, 2


@dataclass(frozen=True)
class TensorWriteData:
    chunk: ChunkStorageMetadata
    properties: TensorProperties
    size: Any


@dataclass(frozen=True)
class WriteItem:
    index: MetadataIndex
    type: WriteItemType
    tensor_data: Any = None


@dataclass(frozen=True)
class ReadItem:
    type: LoadItemType
    dest_index: MetadataIndex
    dest_offsets: Any
    storage_index: MetadataIndex
    storage_offsets: Any
    lengths: Any


@dataclass(frozen=True)
class SavePlan:
    items: List[WriteItem]
    storage_data: Any = None
    planner_data: Any = None
    usable: bool = True


@dataclass
class LoadPlan:
    items: List[ReadItem]
    storage_data: Any = None
    planner_data: Any = None


@dataclass(frozen=True)
class WriteResult:
    index: MetadataIndex
    size_in_bytes: int
    storage_data: Any


class StorageWriter(abc.ABC):
    @abc.abstractmethod
    def reset(self, checkpoint_id=None): ...
    @abc.abstractmethod
    def set_up_storage_writer(self, is_coordinator, *args, **kwargs): ...
    @abc.abstractmethod
    def prepare_local_plan(self, plan): ...
    @abc.abstractmethod
    def prepare_global_plan(self, plans): ...
    @abc.abstractmethod
    def write_data(self, plan, planner): ...
    @abc.abstractmethod
    def finish(self, metadata, results): ...
    @classmethod
    @abc.abstractmethod
    def validate_checkpoint_id(cls, checkpoint_id): ...
    def storage_meta(self): return None


class StorageReader(abc.ABC):
    @abc.abstractmethod
    def reset(self, checkpoint_id=None): ...
    @abc.abstractmethod
    def read_metadata(self, *args, **kwargs): ...
    @abc.abstractmethod
    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs): ...
    @abc.abstractmethod
    def prepare_local_plan(self, plan): ...
    @abc.abstractmethod
    def prepare_global_plan(self, plans): ...
    @abc.abstractmethod
    def read_data(self, plan, planner): ...
    @classmethod
    @abc.abstractmethod
    def validate_checkpoint_id(cls, checkpoint_id): ...


@runtime_checkable
class AsyncStager(Protocol):
    _synchronize_after_execute: bool = True
    @property
    def should_synchronize_after_execute(self): ...
    def stage(self, state_dict): ...
    def synchronize_staging(self): ...
    def close(self): ...


class BlockingAsyncStager:
    """A kept copy is copied into as torch does it: copy_() broadcasts and converts, other keys are an
    error without words, and so are values of types that it does not know."""

    def __init__(self, cache_staged_state_dict=False, type_check=False):
        self.keeps, self.kept = cache_staged_state_dict, None

    def stage(self, state_dict):
        if not self.keeps:
            return {k: v.clone() if isinstance(v, torch.Tensor) else v
                    for k, v in state_dict.items()}
        if self.kept is None:
            self.kept = self.__class__().stage(state_dict)
        if self.kept.keys() != state_dict.keys():
            raise RuntimeError("")
        for k, v in state_dict.items():
            if isinstance(v, torch.Tensor):
                self.kept[k].copy_(v)
            elif isinstance(v, (int, float, str, bytes)):
                self.kept[k] = v
            else:
                raise ValueError(f"Unexpected value type {type(v)}")
        return self.kept


class Planner:
    """Both planners' parts that storage sees."""

    def __init__(self, state_dict):
        self.sd = state_dict

    paths = {}
    cached = {}  # DefaultSavePlanner's plan caching

    def global_plan(self, plan, caching):
        """What is scattered: with caching a plan that did not change is not usable, and empty."""
        if caching and self.cached.get("global") == plan.items:
            return SavePlan([], usable=False)
        self.cached["global"] = plan.items
        return plan

    def finish_plan(self, plan, caching):
        if caching and not plan.usable:
            return self.cached["final"]
        self.cached["final"] = plan
        return plan

    def plan(self):
        items = []
        for name, v in self.sd.items():
            if not isinstance(v, torch.Tensor):
                items.append(WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO))
                continue
            zeros = torch.Size([0] * v.dim())
            items.append(WriteItem(MetadataIndex(name, zeros), WriteItemType.TENSOR, TensorWriteData(
                ChunkStorageMetadata(zeros, v.shape), TensorProperties(v.dtype), v.shape)))
        return SavePlan(items, planner_data={n: self.paths.get(n, (n, 0)) for n in self.sd})

    def resolve_data(self, item):
        v = self.sd[item.index.fqn]
        if item.type == WriteItemType.BYTE_IO:
            out = io.BytesIO()
            torch.save(v, out)
            return out
        return v

    def load_plan(self, md):
        items = []
        for name, v in self.sd.items():
            stored = md.state_dict_metadata[name]
            if isinstance(stored, BytesStorageMetadata):
                index = MetadataIndex(name)
                items.append(ReadItem(LoadItemType.BYTE_IO, index, (0,), index, (0,), (0,)))
                continue
            for i, chunk in enumerate(stored.chunks):
                items.append(ReadItem(LoadItemType.TENSOR, MetadataIndex(name), chunk.offsets,
                                      MetadataIndex(name, chunk.offsets, i),
                                      torch.Size([0] * v.dim()), chunk.sizes))
        return LoadPlan(items)

    def resolve_tensor(self, item):
        t = self.sd[item.dest_index.fqn]
        for dim, (at, n) in enumerate(zip(item.dest_offsets, item.lengths)):
            t = t.narrow(dim, at, n)
        return t

    def commit_tensor(self, item, tensor): pass

    def load_bytes(self, item, value):
        self.sd[item.dest_index.fqn] = torch.load(value)


def global_metadata(plans):
    md = {}
    for item in [i for p in plans for i in p.items]:
        d = item.tensor_data
        md[item.index.fqn] = BytesStorageMetadata() if d is None else TensorStorageMetadata(
            d.properties, d.size, [d.chunk])
    return Metadata(md, planner_data=plans[0].planner_data)


def save(state_dict, *, checkpoint_id=None, storage_writer, use_collectives=True, caching=False):
    w, planner = storage_writer, Planner(state_dict)
    if checkpoint_id is not None:
        w.reset(checkpoint_id)
    assert isinstance(w, StorageWriter)
    w.set_up_storage_writer(True, rank=0, use_collectives=use_collectives)
    w.storage_meta()
    plan = w.prepare_local_plan(planner.plan())
    md = global_metadata([plan])
    plan, = w.prepare_global_plan([planner.global_plan(plan, caching)])
    plan = planner.finish_plan(plan, caching)
    writes = w.write_data(plan, planner)
    writes.wait()
    w.finish(metadata=md, results=[writes.value()])
    return md


def async_save(state_dict, *, checkpoint_id=None, storage_writer, pool):
    assert isinstance(storage_writer, AsyncStager)
    staged = storage_writer.stage(state_dict)
    future = pool.submit(save, staged, checkpoint_id=checkpoint_id, storage_writer=storage_writer)
    if storage_writer.should_synchronize_after_execute:
        storage_writer.synchronize_staging()
    return future


def load(state_dict, *, checkpoint_id=None, storage_reader):
    r, planner = storage_reader, Planner(state_dict)
    assert isinstance(r, StorageReader)
    if checkpoint_id is not None:
        r.reset(checkpoint_id)
    md, use_collectives = None, True
    with contextlib.suppress(Exception):
        md = r.read_metadata()
    if not md and "kwargs" in inspect.signature(r.read_metadata).parameters:
        with contextlib.suppress(Exception):
            md = r.read_metadata(rank=0)
            use_collectives = False
    if md is None:
        raise AssertionError("metadata is None")
    r.set_up_storage_reader(md, True, rank=0, use_collectives=use_collectives)
    assert use_collectives, "one rank alone would leave the collectives"
    plan = r.prepare_local_plan(planner.load_plan(md))
    plan, = r.prepare_global_plan([plan])
    r.read_data(plan, planner).wait()
    return md


def install():
    """Takes the place of torch.distributed.checkpoint in this process."""
    me = sys.modules[__name__]
    package = types.ModuleType("torch.distributed.checkpoint")
    package.__path__ = []
    for name in ("metadata", "planner", "storage", "staging"):
        part = types.ModuleType(f"torch.distributed.checkpoint.{name}")
        part.__dict__.update({k: v for k, v in vars(me).items() if not k.startswith("__")})
        setattr(package, name, part)
        sys.modules[part.__name__] = part
    sys.modules[package.__name__] = package
    torch.distributed.checkpoint = package


def run(job):
    import ckpt
    import ckpt.torch as ck
    assert issubclass(ck.Writer, StorageWriter) and ck.Writer is ck.Writer

    def sd(step, fill=1):
        return {"w": torch.arange(24.).reshape(4, 6).t() * step * fill, "n": step * fill,
                "b": torch.full((7,), step * fill, dtype=torch.bfloat16)}

    def check(step, into):
        want = sd(step)
        assert torch.equal(want["w"], into["w"]) and torch.equal(want["b"], into["b"])
        assert into["n"] == step

    writer, reader = ck.Writer(), ck.Reader(job)
    save(sd(1), checkpoint_id=f"ckpt://{job}/1", storage_writer=writer)
    into = sd(1, 0)
    md = load(into, storage_reader=ck.Reader(), checkpoint_id=f"ckpt://{job}/1")
    check(1, into)
    assert md.planner_data == {"w": ("w", 0), "n": ("n", 0), "b": ("b", 0)}, md.planner_data
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        state = sd(2)
        future = async_save(state, checkpoint_id=f"ckpt://{job}/2", storage_writer=writer, pool=pool)
        state["w"].zero_()  # training goes on: the copy was staged
        future.result()
        for step in (2, 3):  # each before the next one takes its place in memory
            into = sd(step, 0)
            load(into, storage_reader=reader, checkpoint_id=f"ckpt://{job}/{step}")
            check(step, into)
            async_save(sd(3), checkpoint_id=f"ckpt://{job}/3", storage_writer=writer,
                       pool=pool).result() if step == 2 else None
    assert reader.loaded_step == 3
    save(sd(4), checkpoint_id=f"ckpt://{job}/4", storage_writer=writer, use_collectives=False)
    into = sd(4, 0)
    load(into, storage_reader=reader, checkpoint_id=f"ckpt://{job}/4")
    check(4, into)
    # Begun and never finished: the next try of the same step is whole.
    writer.reset(f"ckpt://{job}/5")
    writer.set_up_storage_writer(True, rank=0, use_collectives=True)
    planner = Planner(sd(50))
    plan, = writer.prepare_global_plan([writer.prepare_local_plan(planner.plan())])
    writer.write_data(plan, planner)
    save(sd(5), checkpoint_id=f"ckpt://{job}/5", storage_writer=writer)
    into = sd(5, 0)
    load(into, storage_reader=reader, checkpoint_id=f"ckpt://{job}/5")
    check(5, into)
    writer.close()
    assert not writer.should_synchronize_after_execute
    durable = ck.Writer(job, durable=True)
    save(sd(6), checkpoint_id=f"ckpt://{job}/6", storage_writer=durable)
    s = ckpt._session.session(job)
    with s.lock:
        assert s.handle.list()[0].disk, s.handle.list()
    assert replace(MetadataIndex("a"), index=3) == MetadataIndex("a")


def expect(words, call):
    try:
        call()
    except Exception as e:
        assert words in str(e), (words, e)
        return
    raise AssertionError(f"nothing was refused: {words}")


def numbered(step):
    return {"w": torch.full((4,), float(step)), "n": step}


def loaded(ck, job, step):
    into = {"w": torch.zeros(4), "n": None}
    load(into, checkpoint_id=f"ckpt://{job}/{step}", storage_reader=ck.Reader())
    assert into["n"] == step and torch.equal(into["w"], numbered(step)["w"]), into


def run_turns(job):
    """Saves that overlap, and saves that were given up."""
    import ckpt.torch as ck
    writer = ck.Writer(job, timeout=10)
    inside, go = threading.Event(), threading.Event()
    write_data = writer.write_data

    def slow(plan, planner):
        inside.set()
        assert go.wait(20)
        return write_data(plan, planner)

    writer.write_data = slow
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        def begin(step):
            return async_save(numbered(step), checkpoint_id=f"ckpt://{job}/{step}",
                              storage_writer=writer, pool=pool)
        first = begin(1)
        assert inside.wait(20)
        writer.timeout = 0.2
        expect("wait for its future", lambda: begin(2))
        writer.timeout = 10
        with concurrent.futures.ThreadPoolExecutor(1) as trainer:
            second = trainer.submit(begin, 2)  # waits until the first is over
            writer.reset(f"ckpt://{job}/99")   # and what others say does not move it elsewhere
            assert not second.done()
            go.set()
            first.result(20)
            second.result(20).result(20)
    for step in (1, 2):
        loaded(ck, job, step)
    # Begun, and another rank failed: finish() never comes. The next one does not wait for it.
    writer.write_data = write_data
    writer.reset(f"ckpt://{job}/3")

    def given_up():
        writer.reset(f"ckpt://{job}/3")
        writer.set_up_storage_writer(True, rank=0, use_collectives=True)
        planner = Planner(numbered(50))
        plan, = writer.prepare_global_plan([writer.prepare_local_plan(planner.plan())])
        writer.write_data(plan, planner)

    for way in ("thread", "here"):
        if way == "thread":
            thread = threading.Thread(target=given_up)
            thread.start()
            thread.join()
        else:
            given_up()
        step = 4 if way == "thread" else 5
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            writer.timeout = 600  # the test's own limit is shorter
            async_save(numbered(step), checkpoint_id=f"ckpt://{job}/{step}", storage_writer=writer,
                       pool=pool).result(30)
        loaded(ck, job, step)
    # The attribute says the step where no checkpoint_id does.
    writer.step = 6
    save(numbered(6), storage_writer=writer)
    loaded(ck, job, 6)


def run_more(job):
    """Plan caching, a kept copy on the CPU, errors of read_metadata()."""
    import ckpt.torch as ck
    from ckpt import _session
    writer = ck.Writer(job, timeout=20)
    expect("no checkpoint yet", lambda: load(numbered(0), storage_reader=ck.Reader(job)))
    for step in (1, 2, 3):
        save(numbered(step), checkpoint_id=f"ckpt://{job}/{step}", storage_writer=writer, caching=True)
        loaded(ck, job, step)
    assert _session.session(job).generation == 0
    more = dict(numbered(4), extra=torch.ones(3))
    save(more, checkpoint_id=f"ckpt://{job}/4", storage_writer=writer, caching=True)
    loaded(ck, job, 4)
    assert _session.session(job).generation == 1
    expect("no such checkpoint", lambda: load(numbered(0), checkpoint_id=f"ckpt://{job}/77",
                                              storage_reader=ck.Reader()))
    expect("is no step", lambda: load(numbered(0), storage_reader=ck.Reader(job, -1)))

    class Cuda:
        is_available = staticmethod(lambda: True)

    class Torch:
        """As where there is CUDA: copies are kept."""
        cuda = Cuda

        def __getattr__(self, name):
            return getattr(torch, name)

    api, staged = ck.Writer._api, []
    before, api.torch = api.torch, Torch()
    states = [{"a": torch.arange(4.)}, {"a": torch.arange(4.) + 1}, {"a": torch.ones(1)},
              {"a": torch.ones(1, dtype=torch.float64) / 3}, {"b": torch.ones(2)},
              {"b": torch.ones(2), "c": torch.float16}]
    try:
        for state in states:
            writer._turns.withdraw()
            staged.append(writer.stage(state))
            for k, v in state.items():
                have = staged[-1][k]
                assert have is v or (have.dtype == v.dtype and torch.equal(have, v)), (state, have)
    finally:
        api.torch = before
        writer._turns.withdraw()
    assert staged[0] is staged[1] and staged[1] is not staged[2]


def run_export(job):
    """For ckptctl export: paths, more bytes items than may be blobs, names of the adapter's own."""
    import ckpt.torch as ck
    ck.BLOBS_OWN = 2
    Planner.paths = {"model.w": ("model", "w"), "opt.0.lr": ("opt", 0, "lr")}
    save({"model.w": torch.arange(12.).reshape(3, 4), "opt.0.lr": 0.5, "n": 7, "x": [1, "two"],
          "ckpt.torch": {"mine": True}, "empty": torch.zeros(0, 2)},
         checkpoint_id=f"ckpt://{job}/1", storage_writer=ck.Writer(durable=True))


def run_odd(job):
    """Values whose memory is not theirs, or is two items'; names that cannot be a blob's."""
    import ckpt
    import ckpt.torch as ck
    z = torch.arange(12.).to(torch.complex64).reshape(3, 4) * (1 + 2j)
    w = torch.arange(20.).reshape(4, 5)
    state = {"conj": z.conj(), "neg": z.conj().imag, "columns": w[:, 1::2], "tied": w, "tied too": w,
             "expanded": torch.arange(5.).expand(4, 5), "n\0": 1, "n\0\0": 2, "half \ud800": 3, "plain": 4}
    writer = ck.Writer(job)
    save(state, checkpoint_id=f"ckpt://{job}/1", storage_writer=writer)
    into = {k: torch.zeros(v.shape, dtype=v.dtype) if isinstance(v, torch.Tensor) else 0
            for k, v in state.items()}
    into["tied too"] = into["tied"]
    load(into, checkpoint_id=f"ckpt://{job}/1", storage_reader=ck.Reader(job))
    for k, v in state.items():
        assert torch.equal(into[k], v.resolve_conj().resolve_neg()) if isinstance(v, torch.Tensor) else (
            into[k] == v), k
    for k, target in (("conj", torch.zeros(3, 4, dtype=torch.complex64).conj()),
                      ("columns", torch.zeros(4, 1).expand(4, 2))):  # where nothing can be put
        try:
            load(dict(into, **{k: target}), checkpoint_id=f"ckpt://{job}/1", storage_reader=ck.Reader(job))
            raise AssertionError(k)
        except (TypeError, ckpt.CkptError) as e:
            assert f"'{k}'" in str(e), e
    for bad in ({"t": torch.eye(3).to_sparse()}, {"t": torch.ones(3, device="meta")}, {"t\0": w}):
        try:
            save(bad, checkpoint_id=f"ckpt://{job}/2", storage_writer=ck.Writer(job))
            raise AssertionError(bad)
        except (TypeError, ValueError) as e:
            assert "t" in str(e), e
    save(state, checkpoint_id=f"ckpt://{job}/3", storage_writer=writer)  # what failed is no trouble
    into["plain"] = 0
    load(into, checkpoint_id=f"ckpt://{job}/3", storage_reader=ck.Reader(job))
    assert into["plain"] == 4
