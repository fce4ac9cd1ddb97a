# SPDX-License-Identifier: Apache-2.0
"""Files of torch for test_ctl_torch.sh, written and read by torch itself (Debian's 1.13.1), with the
tensors of test_exchange.py. What torch 2 writes, which Debian does not have, is made with stand-ins
of its classes: their fields are those of torch/distributed/checkpoint/{metadata,filesystem}.py.

    test_torch.py COMMAND ARGUMENTS...
"""

import collections
import dataclasses
import enum
import io
import os
import pathlib
import pickle
import runpy
import shutil
import struct
import sys
import types as types_module
import zipfile

import numpy as np
import torch

import test_exchange as exchange

# The file alone: the package wants libckpt.
torch113_patch = runpy.run_path(os.path.join(os.path.dirname(__file__), "..", "python", "ckpt",
                                             "torch113.py"))["patch"]

DTYPES = {"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16,
          "I32": torch.int32, "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16,
          "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64,
          "C128": torch.complex128}
VALUES = {"step": 7, "config": {"lr": 0.1, "names": ["a", "b"], "none": None, "t": (1, 2)},
          "bytes": b"\x00\xff\x80text"}


def canonical(t):
    """torch copies a bool as 0 or 1, whatever the byte was."""
    dtype, shape, raw = t
    return (dtype, shape, bytes(b != 0 for b in raw) if dtype == "BOOL" else raw)


def wanted(c128=True):
    """{name: (dtype, shape, bytes)} of what torch 1.13 can hold."""
    return {k: canonical(t) for k, t in exchange.types(c128=c128).items() if t[0] in DTYPES}


def tensor_of(t):
    dtype, shape, raw = t
    out = torch.empty(shape, dtype=DTYPES[dtype])
    if raw:
        bytes_of(out)[:] = np.frombuffer(raw, dtype=np.uint8)
    return out


def bytes_of(tensor):
    """The memory of a contiguous tensor."""
    assert tensor.is_contiguous()
    n = tensor.numel() * tensor.element_size()
    if n == 0:
        return np.empty(0, dtype=np.uint8)
    import ctypes
    return np.ctypeslib.as_array(ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_uint8)), (n,))


def raw_of(tensor):
    packed = tensor.detach().clone(memory_format=torch.contiguous_format)
    return bytes_of(packed).tobytes()


def same(tensor, t, what):
    dtype, shape, raw = t
    assert tensor.dtype == DTYPES[dtype], (what, tensor.dtype)
    assert list(tensor.shape) == list(shape), (what, tensor.shape)
    assert raw_of(tensor) == raw, what


# ---- torch 1.13's DCP

def sharded(t, dim, ranks):
    """A ShardedTensor of this shape and dtype, cut in torch's way along dim; not filled."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    spec = ChunkShardingSpec(dim=dim, placements=[f"rank:{r}/cpu" for r in range(ranks)])
    return sharded_tensor.empty(spec, *t[1], dtype=DTYPES[t[0]])


def parts(st):
    for shard in st.local_shards():
        m = shard.metadata
        yield shard.tensor, tuple(slice(o, o + n) for o, n in zip(m.shard_offsets, m.shard_sizes))


CUT = {"big": 0, "flat": 1, "few": 0, "five": 2, "every.bf16": 0, "every.c128": 1}


def state_dict(ranks, fill):
    """All of wanted(): cut over the ranks, whole, not in row-major order, larger storages."""
    out = {}
    for name, t in wanted().items():
        full = tensor_of(t)
        if name in CUT:
            out[name] = sharded(t, CUT[name], ranks)
            for tensor, where in parts(out[name]):
                tensor.copy_(full[where]) if fill else bytes_of(tensor).fill(0x5a)
        elif not fill:
            out[name] = torch.zeros_like(full)
        elif name == "every.f32":
            out[name] = full.t().contiguous().t()
        elif name == "every.i16":
            out[name] = torch.cat([full, full])[:7]
        else:
            out[name] = full
    out.update(VALUES if fill else {k: None for k in VALUES})
    return out


def on_ranks(rank, command, ranks, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dcp = torch113_patch()
    import torch.distributed as dist
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    if command == "save":
        dcp.save_state_dict(state_dict(ranks, True),
                            dcp.FileSystemWriter(folder, single_file_per_rank=ranks % 2 == 0))
    else:
        state = state_dict(ranks, False)
        dcp.load_state_dict(state, dcp.FileSystemReader(folder))
        for name, t in wanted().items():
            if name in CUT:
                for tensor, where in parts(state[name]):
                    assert raw_of(tensor) == raw_of(tensor_of(t)[where]), (rank, name)
            else:
                same(state[name], t, name)
        for name, value in VALUES.items():
            assert state[name] == value, (name, state[name])
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_ranks(command, ranks, folder):
    import torch.multiprocessing as mp
    mp.spawn(on_ranks, (command, ranks, free_port(), folder), nprocs=ranks)


# ---- torch.save

def save_files(folder):
    """all.pt: everything; and what each tensor in it is, as safetensors with DCP's names."""
    base = torch.arange(60, dtype=torch.float32).reshape(6, 10)
    cut = tensor_of(wanted()["every.c64"])
    state = {
        "plain": {k: tensor_of(t) for k, t in wanted(c128=False).items()},
        "views": collections.OrderedDict(
            base=base, rows=base[2:4], columns=base[:, 3:5], transposed=base.t(),
            step=base[::2, ::3], one=base[1, 1], wide=torch.ones(1).expand(4, 3),
            none=base[3:3], scalar_of=cut[0, 0]),
        "parameter": torch.nn.Parameter(torch.arange(4.)),
        "attributes": torch.ones(3, dtype=torch.bfloat16),
        "model": torch.nn.BatchNorm1d(3).state_dict(),
        "optimizer": {"state": {0: {"exp_avg": torch.full((2, 2), 0.5), "step": 3}, 1: {}},
                      "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1]}]},
        "listed": [torch.zeros(2), {"deep": (torch.ones(1), "text")}],
        "tied": base,
        "epoch": 3, "big_int": 1 << 100, "negative": -(1 << 40), "nothing": None, "yes": True,
        "float": float("-inf"), "raw": b"\x00\x80\xff", "set": {1, 2}, "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16, "device": torch.device("cpu"), "complex": 1 + 2j,
        "words": ["a", ["b", ("c",)]], 5: "int key", "empty": {}, "unicode": "\u00e9\U0001f600",
    }
    state["attributes"].note = "a Python attribute"
    torch.save(state, f"{folder}/all.pt")
    torch.save(state, f"{folder}/legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(torch.arange(5.), f"{folder}/tensor.pt")
    torch.save(state["plain"], f"{folder}/proto4.pt", pickle_protocol=4)
    torch.save({"a": torch.ones(2, 2).to_sparse()}, f"{folder}/sparse.pt")
    torch.save({"a": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)},
               f"{folder}/quantized.pt")
    torch.save({"a": torch.ones(2), "b": types_module.SimpleNamespace(x=1)},
               f"{folder}/object.pt")
    torch.save({"a": torch.ones(2), "a.b": torch.ones(1), "a": {"b": torch.ones(1)}},
               f"{folder}/twice.pt")
    torch.save({"a": 1}, f"{folder}/values.pt")
    torch.jit.script(torch.nn.Linear(1, 1)).save(f"{folder}/script.pt")
    names = {v: k for k, v in DTYPES.items()}
    flat = {}

    def walk(path, value):
        if isinstance(value, torch.Tensor):
            flat[".".join(path)] = (names[value.dtype], list(value.shape), raw_of(value))
        elif isinstance(value, dict):
            for k, v in value.items():
                walk(path + [str(k)], v)
        elif isinstance(value, (list, tuple)):
            for i, v in enumerate(value):
                walk(path + [str(i)], v)

    walk([], state)
    exchange.write(f"{folder}/all.safetensors", flat)
    exchange.write(f"{folder}/plain.safetensors", wanted(c128=False))
    exchange.write(f"{folder}/tensor.safetensors",
                   {"tensor": ("F32", [5], raw_of(torch.arange(5.)))})


# ---- Hostile files, made byte by byte

def archive(data_pkl, records=(), prefix="archive"):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        z.writestr(f"{prefix}/data.pkl", data_pkl)
        for name, data in records:
            z.writestr(f"{prefix}/{name}", data)
        z.writestr(f"{prefix}/version", "3\n")
    return out.getvalue()


def tensor_pickle(numel=4, offset=0, size=(4,), stride=(1,), storage="FloatStorage", key="0", extra=()):
    """{"a": tensor}, as torch 1.13 pickles it, with these numbers."""
    class Storage:
        pass

    class Rebuild:
        def __reduce__(self):
            return (torch._utils._rebuild_tensor_v2,
                    (Storage(), offset, size, stride, False, collections.OrderedDict()) + extra)

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            if isinstance(obj, Storage):
                return ("storage", getattr(torch, storage), key, "cpu", numel)
            return None

    out = io.BytesIO()
    Pickler(out, protocol=2).dump({"a": Rebuild()})
    return out.getvalue()


def hostile_files(folder):
    class System:
        def __reduce__(self):
            return (os.system, (f"touch {folder}/executed",))

    class Eval:
        def __reduce__(self):
            return (eval, ("1+1",))

    deep = b"\x80\x02" + b"]" * 2000 + b"a" * 1999 + b"."
    itself = b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s."
    laughs = b"\x80\x02(]q\x00(NNe" + b"".join(
        b"]r%s(j%sj%sj%sj%se" % ((struct.pack("<I", i),) + (struct.pack("<I", i - 1),) * 4)
        for i in range(1, 60)) + b"t."
    files = {
        "system": archive(pickle.dumps({"a": System()}, protocol=2)),
        "eval": archive(pickle.dumps({"a": Eval()}, protocol=4)),
        "inst": archive(b"\x80\x02(ios\nsystem\n."),
        "obj": archive(b"\x80\x02(cos\nsystem\no."),
        "ext": archive(b"\x80\x02\x82\x01."),
        "proto0": archive(b"\x80\x00N."),
        "deep": archive(deep),
        "itself": archive(itself),
        "laughs": archive(laughs),
        "memo": archive(b"\x80\x02Nr\xff\xff\xff\x7f."),
        "unmemo": archive(b"\x80\x02h\x07."),
        "long": archive(b"\x80\x02X\xff\xff\xff\xffabc"),
        "longer": archive(b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7fabc"),
        "stack": archive(b"\x80\x020000."),
        "short": archive(b"\x80\x02}"),
        "call": archive(b"\x80\x02ctorch\nfloat32\n)R."),
        "outside": archive(tensor_pickle(offset=1), [("data/0", bytes(16))]),
        "overflow": archive(tensor_pickle(size=(1 << 62, 1 << 62), stride=(0, 0)), [("data/0", bytes(16))]),
        "strided": archive(tensor_pickle(size=(2,), stride=(1 << 62,)), [("data/0", bytes(16))]),
        "negative": archive(tensor_pickle(stride=(-1,)), [("data/0", bytes(16))]),
        "bomb": archive(tensor_pickle(numel=1, size=(1 << 40,), stride=(0,)), [("data/0", bytes(4))]),
        "missing": archive(tensor_pickle()),
        "lies": archive(tensor_pickle(), [("data/0", bytes(12))]),
        "conj": archive(tensor_pickle(numel=2, size=(2,), storage="ComplexFloatStorage",
                                      extra=({"conj": True},)), [("data/0", bytes(16))]),
        "nine": archive(tensor_pickle(size=(1,) * 9, stride=(1,) * 9), [("data/0", bytes(16))]),
        "big_endian": archive(tensor_pickle(), [("data/0", bytes(16)), ("byteorder", b"big")]),
        "key": archive(tensor_pickle(key="../../etc"), [("data/0", bytes(16))]),
        "zip": archive(b"", prefix="other").replace(b"data.pkl", b"data.txt"),
    }
    for name, data in files.items():
        with open(f"{folder}/{name}.pt", "wb") as f:
            f.write(data)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("archive/data.pkl", tensor_pickle())
        z.writestr("archive/data/0", bytes(1 << 20))
    with open(f"{folder}/deflated.pt", "wb") as f:
        f.write(out.getvalue())


# ---- torch 2 by stand-ins

def stand_ins():
    """The modules of torch 2's checkpoint, with classes of the same names and fields."""
    for dtype in ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
                  "float8_e5m2fnuz", "float8_e8m0fnu"):
        setattr(torch, dtype, dtype)
    metadata = types_module.ModuleType("torch.distributed.checkpoint.metadata")
    filesystem = types_module.ModuleType("torch.distributed.checkpoint.filesystem")

    def add(module, cls):
        cls.__module__ = module.__name__
        cls.__qualname__ = cls.__name__
        setattr(module, cls.__name__, cls)
        return cls

    class _MEM_FORMAT_ENCODING(enum.Enum):
        TORCH_CONTIGUOUS_FORMAT = 0
        TORCH_CHANNELS_LAST = 1
        TORCH_PRESERVE_FORMAT = 2
    add(metadata, _MEM_FORMAT_ENCODING)

    class TensorProperties:
        def __init__(self, dtype):
            self.dtype = dtype

        def __getstate__(self):
            return (self.dtype, torch.strided, False, _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT,
                    False)

        def __setstate__(self, state):
            self.dtype, self.layout, self.requires_grad, self.memory_format, self.pin_memory = state
            assert self.memory_format is _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
            assert self.layout == torch.strided
    add(metadata, TensorProperties)
    for name, fields, module in (
            ("TensorStorageMetadata", ("properties", "size", "chunks"), metadata),
            ("BytesStorageMetadata", (), metadata),
            ("ChunkStorageMetadata", ("offsets", "sizes"), metadata),
            ("StorageMeta", ("checkpoint_id", "save_id", "load_id", "modules"), metadata),
            ("Metadata", ("state_dict_metadata", "planner_data", "storage_data", "storage_meta",
                          "version"), metadata),
            ("_StorageInfo", ("relative_path", "offset", "length", "transform_descriptors"),
             filesystem)):
        add(module, dataclasses.make_dataclass(
            name, [(f, object, dataclasses.field(default=None)) for f in fields]))
    filesystem._StorageInfo.__getstate__ = \
        lambda self: {k: v for k, v in self.__dict__.items() if v is not None}

    @dataclasses.dataclass(frozen=True)
    class MetadataIndex:
        fqn: str
        offset: object = None
        index: object = dataclasses.field(hash=False, compare=False, default=None)
    add(metadata, MetadataIndex)
    package = types_module.ModuleType("torch.distributed.checkpoint")
    sys.modules.update({m.__name__: m for m in (package, metadata, filesystem)})
    return metadata, filesystem


class Folder2:
    """A folder as torch 2's FileSystemWriter leaves it, to be changed before it is written."""

    def __init__(self):
        self.m, self.f = stand_ins()
        self.items, self.places, self.files = {}, {}, collections.defaultdict(bytes)
        self.paths = {}

    def put(self, index, file, data, **more):
        self.places[index] = self.f._StorageInfo(file, len(self.files[file]), len(data), **more)
        self.files[file] += data

    def tensor(self, name, tensor, cuts, dim=0, save=None):
        """cuts: where the chunks begin along dim."""
        chunks = []
        stops = cuts[1:] + [tensor.shape[dim] if tensor.dim() else 0]
        for i, (start, stop) in enumerate(zip(cuts, stops)):
            part = tensor.narrow(dim, start, stop - start).clone() if tensor.dim() else tensor.clone()
            offset = torch.Size([start if d == dim else 0 for d in range(tensor.dim())])
            chunks.append(self.m.ChunkStorageMetadata(offset, part.size()))
            data = io.BytesIO()
            torch.save(part if save is None else save, data)
            self.put(self.m.MetadataIndex(name, offset, i), f"__{i}_0.distcp", data.getvalue())
        self.items[name] = self.m.TensorStorageMetadata(
            self.m.TensorProperties(tensor.dtype), tensor.size(), chunks)

    def value(self, name, value):
        data = io.BytesIO()
        torch.save(value, data)
        self.items[name] = self.m.BytesStorageMetadata()
        self.put(self.m.MetadataIndex(name), "__0_0.distcp", data.getvalue())

    def write(self, folder, protocol=4):
        os.makedirs(folder, exist_ok=True)
        for name, data in self.files.items():
            with open(f"{folder}/{name}", "wb") as f:
                f.write(data)
        meta = self.m.StorageMeta(pathlib.Path(folder), "save-id", None, [])
        with open(f"{folder}/.metadata", "wb") as f:
            pickle.dump(self.m.Metadata(self.items, self.paths or {k: (k,) for k in self.items},
                                        self.places, meta, "1"), f, protocol=protocol)


def sample_2(change=None):
    """All kinds of chunks; one deviation, if change is given."""
    d = Folder2()
    for name, t in wanted(c128=False).items():
        rows = t[1][0] if t[1] else 0
        d.tensor(name, tensor_of(t), [0, rows // 3, rows // 2] if rows > 5 else [0])
    d.value("step", 7)
    d.paths = {k: tuple(k.split(".")) for k in d.items}
    if change:
        change(d)
    return d


def folders_2(folder):
    sample_2().write(f"{folder}/good")
    sample_2().write(f"{folder}/protocol2", protocol=2)
    ones = torch.ones(4, 6)

    def cut(name, cuts, **more):
        def change(d):
            d.items = {}
            d.tensor(name, ones, cuts, **more)
        return change

    def hole(d):
        cut("x", [0, 1, 2])(d)
        del d.items["x"].chunks[1]

    def overlap(d):
        cut("x", [0, 1, 2])(d)
        d.items["x"].chunks[1].sizes = torch.Size([2, 6])

    def outside(d):
        cut("x", [0, 2])(d)
        d.items["x"].chunks[1].sizes = torch.Size([3, 6])

    def beyond(d):
        cut("x", [0])(d)
        d.places[d.m.MetadataIndex("x", torch.Size([0, 0]))].length += 1 << 20

    def huge(d):
        cut("x", [0])(d)
        d.places[d.m.MetadataIndex("x", torch.Size([0, 0]))].offset = (1 << 63) - 1

    def elsewhere(d):
        cut("x", [0])(d)
        d.places[d.m.MetadataIndex("x", torch.Size([0, 0]))].relative_path = "../secret"

    def nowhere(d):
        cut("x", [0, 2])(d)
        del d.places[d.m.MetadataIndex("x", torch.Size([2, 0]))]

    def transformed(d):
        cut("x", [0])(d)
        d.places[d.m.MetadataIndex("x", torch.Size([0, 0]))].transform_descriptors = ["zstd"]

    def gone(d):
        cut("x", [0])(d)
        d.places[d.m.MetadataIndex("x", torch.Size([0, 0]))].relative_path = "__9_0.distcp"

    changes = {
        "hole": hole, "overlap": overlap, "outside": outside, "beyond": beyond, "huge": huge,
        "elsewhere": elsewhere, "nowhere": nowhere, "transformed": transformed, "gone": gone,
        "dtype": cut("x", [0], save=ones.double()), "shape": cut("x", [0], save=ones.t().clone()),
        "value": cut("x", [0], save={"not": "a tensor"}),
    }
    for name, change in changes.items():
        sample_2(change).write(f"{folder}/{name}")
    os.makedirs(f"{folder}/perrank")
    shutil.copy(f"{folder}/value/.metadata", f"{folder}/perrank/__0.metadata")
    os.makedirs(f"{folder}/system")

    class System:
        def __reduce__(self):
            return (os.system, (f"touch {folder}/executed",))

    with open(f"{folder}/system/.metadata", "wb") as f:
        pickle.dump(System(), f)
    os.makedirs(f"{folder}/other")
    with open(f"{folder}/other/.metadata", "wb") as f:
        pickle.dump({"a": 1}, f)


def check_2(folder, skip=()):
    """A folder that was exported for torch 2: its metadata by the stand-ins, its archives by torch."""
    metadata, _ = stand_ins()
    with open(f"{folder}/.metadata", "rb") as f:
        m = pickle.load(f)
    assert type(m) is metadata.Metadata and m.storage_meta is None
    want = {k: t for k, t in wanted().items() if k not in skip}
    found = {}
    for name, item in m.state_dict_metadata.items():
        assert m.planner_data[name], name
        if type(item) is metadata.BytesStorageMetadata:
            found[name] = torch.load(io.BytesIO(part_of(folder, m.storage_data[
                metadata.MetadataIndex(name)])))
            continue
        if name not in want:
            continue
        out = torch.empty(item.size, dtype=item.properties.dtype)
        for i, c in enumerate(item.chunks):
            info = m.storage_data[metadata.MetadataIndex(name, c.offsets)]
            part = torch.load(io.BytesIO(part_of(folder, info)))
            assert part.size() == c.sizes and part.is_contiguous(), name
            out[tuple(slice(o, o + n) for o, n in zip(c.offsets, c.sizes))] = part
        same(out, want[name], name)
        found[name] = len(item.chunks)
    assert set(want) <= set(found), set(want) - set(found)
    return m, found


def part_of(folder, info):
    with open(f"{folder}/{info.relative_path}", "rb") as f:
        f.seek(info.offset)
        data = f.read(info.length)
    assert len(data) == info.length
    return data


def tree_of(folder):
    """The nested dictionary that planner_data says, with tensors of one chunk each."""
    metadata, _ = stand_ins()
    with open(f"{folder}/.metadata", "rb") as f:
        m = pickle.load(f)
    root = {}
    for name, item in m.state_dict_metadata.items():
        offset = None
        if type(item) is metadata.TensorStorageMetadata:
            assert len(item.chunks) == 1 and item.chunks[0].sizes == item.size, name
            offset = item.chunks[0].offsets
        info = m.storage_data[metadata.MetadataIndex(name, offset)]
        value = torch.load(io.BytesIO(part_of(folder, info)))
        at, path = root, m.planner_data[name]
        for key, after in zip(path, path[1:]):
            if isinstance(at, list):
                at.extend([None] * (key + 1 - len(at)))
                at[key] = at[key] if at[key] is not None else [] if isinstance(after, int) else {}
                at = at[key]
            else:
                at = at.setdefault(key, [] if isinstance(after, int) else {})
        if isinstance(at, list):
            at.extend([None] * (path[-1] + 1 - len(at)))
        at[path[-1]] = value
    return root


def same_tree(a, b, what=""):
    """b is what torch.save() was given, a what came back: tuples that were gone through are lists."""
    if isinstance(b, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape and raw_of(a) == raw_of(b), what
    elif isinstance(b, dict) and b:
        assert list(a) == [str(k) for k in b] or set(a) == {str(k) for k in b}, (what, list(a))
        for k, v in b.items():
            same_tree(a[str(k)], v, f"{what}.{k}")
    elif isinstance(b, (list, tuple)) and isinstance(a, list):
        assert len(a) == len(b), what
        for i, v in enumerate(b):
            same_tree(a[i], v, f"{what}.{i}")
    else:
        assert type(a) is type(b) and a == b, (what, a, b)


COMMANDS = {
    "tree": lambda folder, file: same_tree(tree_of(folder), torch.load(file)),
    "save": lambda folder, ranks: run_ranks("save", int(ranks), folder),
    "load": lambda folder, ranks: run_ranks("load", int(ranks), folder),
    "files": save_files, "hostile": hostile_files, "folders": folders_2,
    "check": lambda folder: check_2(folder),
}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
