# SPDX-License-Identifier: Apache-2.0
"""A stand-in for torch.distributed.checkpoint of torch 2.x: its abstract classes with the documented
signatures, and save, async_save and load that call them in the documented order. Written from the
documentation; the real one is used by torch2_adapter.py. One process, no collectives."""

import abc
import concurrent.futures
import enum
import io
import sys
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
    def __init__(self, cache_staged_state_dict=False, type_check=False):
        assert not cache_staged_state_dict, "pinned memory without CUDA"

    def stage(self, state_dict):
        return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in state_dict.items()}


class Planner:
    """Both planners' parts that storage sees."""

    def __init__(self, state_dict):
        self.sd = state_dict

    def plan(self):
        items = []
        for name, v in self.sd.items():
            if not isinstance(v, torch.Tensor):
                items.append(WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO))
                continue
            zeros = torch.Size([0] * v.dim())
            items.append(WriteItem(MetadataIndex(name, zeros), WriteItemType.TENSOR, TensorWriteData(
                ChunkStorageMetadata(zeros, v.shape), TensorProperties(v.dtype), v.shape)))
        return SavePlan(items, planner_data={n: (n, 0) for n in self.sd})

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


def save(state_dict, *, checkpoint_id=None, storage_writer, use_collectives=True):
    w, planner = storage_writer, Planner(state_dict)
    if checkpoint_id is not None:
        w.reset(checkpoint_id)
    assert isinstance(w, StorageWriter)
    w.set_up_storage_writer(True, rank=0, use_collectives=use_collectives)
    w.storage_meta()
    plan = w.prepare_local_plan(planner.plan())
    md = global_metadata([plan])
    plan, = w.prepare_global_plan([plan])
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
    md = r.read_metadata()
    r.set_up_storage_reader(md, True, rank=0, use_collectives=True)
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
