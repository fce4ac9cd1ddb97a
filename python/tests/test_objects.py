#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every kind of object that Python has for a tensor, a name, a blob or a shape: what is saved is what
is loaded, byte for byte, or the object is refused with a sentence and nothing is saved under its name.
And what becomes of memory, blocks and threads meanwhile. Needs numpy; torch cases are left out
without torch.

Prints "ok NAME" or "not ok NAME" for each case; exits 1 if one failed. CKPT_BUILD names the build
folder."""

import array
import copy
import ctypes
import enum
import gc
import mmap
import os
import pathlib
import pickle
import sys
import tempfile
import threading
import warnings

import numpy as np

from harness import EXTENSION_IS_USED, Skip, cases_of, raises, run_with_ckptd

import ckpt

try:
    import torch
except ImportError:
    torch = None

EINVAL, ESTATE, EMISMATCH, ETORN = -22, -1015, -1008, -1007
_jobs = iter(range(10 ** 6))


def a_job(**options):
    return ckpt.open(f"objects-{next(_jobs)}", 0, 1, **options)


def numbers(shape, dtype=np.float32):
    return (np.arange(int(np.prod(shape))) * 7 % 251).astype(dtype).reshape(shape)


# ---- Tensors that are right

def memmapped(mode):
    with tempfile.NamedTemporaryFile() as f:
        f.write(numbers(64).tobytes())
        f.flush()
        return np.memmap(f.name, np.float32, mode, shape=(8, 8))


class Ours(np.ndarray):
    """A subclass that only has another name."""


def arrays():
    a, cube = numbers((12, 10)), numbers((4, 5, 6))
    readonly = numbers((3, 3))
    readonly.flags.writeable = False
    out = {f"numpy {n}": numbers((5, 3), n) for n in (
        "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
        "float32", "float64", "complex64", "complex128")}
    out.update({
        "no dimensions": np.array(3.5), "empty": np.zeros((0,)), "empty in the middle": np.zeros((3, 0, 2)),
        "one element": np.ones((1, 1, 1)), "eight dimensions": numbers((1, 2, 1, 2, 1, 2, 1, 2)),
        "Fortran": np.asfortranarray(a), "transposed": cube.transpose(2, 0, 1), "turned": a[::-1],
        "turned both ways": a[::-1, ::-2], "a column": a[:, 3], "columns": a[:, 1:7:2], "rows": a[::3],
        "diagonal": a.diagonal(), "broadcast": np.broadcast_to(numbers(10), (4, 10)),
        "broadcast column": np.broadcast_to(numbers((4, 1)), (4, 10)), "read-only": readonly,
        "one of a size": numbers((7, 1, 5))[:, :, ::2], "matrix": np.matrix(numbers((3, 4))),
        "memmap": memmapped("r+"), "memmap to read": memmapped("r"), "subclass": a[:4].view(Ours),
        "windows": np.lib.stride_tricks.sliding_window_view(numbers(20), 5),
        "unaligned": np.frombuffer(b"x" + numbers(9).tobytes(), np.uint8)[1:].view(np.float32),
        "over a bytearray": np.frombuffer(bytearray(numbers(9).tobytes()), np.float32),
        "native by name": numbers(5).astype("<f4"),
        "real part": numbers(6, np.complex64).real, "imaginary part": numbers(6, np.complex64).imag,
    })
    return out


def tensors():
    t = torch.arange(120.).reshape(12, 10)
    cube = torch.arange(2 * 3 * 4 * 5.).reshape(2, 3, 4, 5)
    leaf = torch.arange(12.).reshape(3, 4).requires_grad_()
    shared = torch.arange(40.)
    out = {f"torch {n}": (torch.arange(15) % 7).reshape(5, 3).to(getattr(torch, n)) for n in (
        "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
        "complex64", "complex128", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2",
        "float8_e4m3fnuz", "float8_e5m2fnuz") if hasattr(torch, n)}
    out.update({
        "no dimensions": torch.tensor(2.5), "empty": torch.zeros(0), "empty in the middle": torch.zeros(2, 0, 3),
        "transposed": t.t(), "columns": t[:, 1::3], "permuted": cube.permute(3, 1, 0, 2),
        "channels last": cube.contiguous(memory_format=torch.channels_last),
        "expanded": torch.arange(10.).expand(4, 10), "unfolded": torch.arange(20.).unfold(0, 5, 1),
        "parameter": torch.nn.Parameter(t[:3].clone()), "leaf": leaf, "not a leaf": leaf * 2,
        "in the middle of a storage": shared[7:20], "over numpy": torch.from_numpy(numbers((3, 5))),
        "shared memory": torch.arange(9.).share_memory_(), "resolved": torch.arange(6.).to(
            torch.complex64).conj().resolve_conj(), "inference": in_inference(),
        "subclass": torch.arange(6.).as_subclass(type("Sub", (torch.Tensor,), {})),
        "double back": torch.arange(6.).to(torch.complex64).conj().conj(),
        "real part of conj": torch.arange(6.).to(torch.complex64).conj().real,
    })
    return out


def in_inference():
    with torch.inference_mode():
        return torch.arange(8.)


def bytes_of(x):
    """Its elements in row-major order."""
    if isinstance(x, np.ndarray):
        return np.array(x, order="C", subok=False).tobytes()
    flat = x.detach().resolve_conj().contiguous()
    return bytes(ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()))


def empty_like(x):
    """Of its kind, all of its bytes others, memory of its own that is laid out like it where that can
    be."""
    if isinstance(x, np.ndarray):
        return np.full_like(x, 9, subok=False) if x.flags.writeable else np.full(x.shape, 9, x.dtype)
    like = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) if 0 not in x.stride() and not (
        x.dim() == 2 and x.stride() == (1, 1)) else torch.empty(x.shape, dtype=x.dtype)
    like.copy_(torch.full(x.shape, 1).to(x.dtype)) if like.numel() else None
    return like


def turned_like(x):
    """The last dimension lies first in memory."""
    if isinstance(x, np.ndarray):
        return np.zeros(x.shape[::-1], x.dtype).T
    return torch.zeros(tuple(x.shape)[::-1], dtype=x.dtype).permute(tuple(range(x.dim()))[::-1])


def check_round_trip(things):
    """All in one job, and then each alone into memory of its own kind and of another layout."""
    with a_job() as c:
        for name, x in things.items():
            c.declare(name, x)
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        with c.stored(1) as s:
            assert {h.name: h.shape for h in s.shards} == {
                n: tuple(x.shape) for n, x in things.items()}
        for turned in (False, True):
            into = {n: empty_like(x) for n, x in things.items()}
            if turned:
                into = {n: turned_like(x) for n, x in things.items()}
            for name, x in into.items():
                c.bind(name, x)
            c.load(step=1)
            for name, x in things.items():
                assert bytes_of(into[name]) == bytes_of(x), (name, turned)
        with c.stored(1) as s:  # the other way to read
            into = {n: empty_like(x) for n, x in things.items()}
            s.read([ckpt.Want(n, x, tuple(x.shape), (0,) * len(x.shape)) for n, x in into.items()])
            for name, x in things.items():
                assert bytes_of(into[name]) == bytes_of(x), name


def case_arrays(d):
    check_round_trip(arrays())


def case_torch_tensors(d):
    need_torch()
    check_round_trip(tensors())


def subclasses():
    """What they say of themselves is not so; the object, and the tensor that it is."""
    turned = torch.arange(12.).reshape(3, 4).t()
    has = {"place": {"data_ptr": lambda t: torch.Tensor.data_ptr(t) + 8},
           "layout": {"is_contiguous": lambda t: True}, "strides": {"stride": lambda t: (1, 1)},
           "count": {"numel": lambda t: 3}, "start": {"storage_offset": lambda t: 4}}
    out = {n: (turned.clone().as_subclass(type("Liar", (torch.Tensor,), h)), turned) for n, h in has.items()}
    marked = turned.clone()
    marked.is_contiguous = lambda: True
    out["attribute"] = marked, turned
    parameter = torch.nn.Parameter(turned.clone())
    parameter.sharded = True
    return {**out, "marked parameter": (parameter, turned.clone())}


def case_subclasses_that_say_otherwise(d):
    """Their memory is looked at, not what they say; where that is of another shape they are refused."""
    need_torch()
    with a_job() as c:
        things = subclasses()
        for name, (x, plain) in things.items():
            c.declare(name, x)
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        for name, (x, plain) in things.items():
            c.bind(name, torch.zeros(4, 3))
        c.load(step=1)
        for (name, (x, plain)), got in zip(things.items(), c._tensors):
            assert bytes_of(got) == bytes_of(plain), name
    negated = torch.arange(6.).to(torch.complex64).conj().imag

    def raises_it(cls, func, types, args=(), kwargs=None):
        raise KeyError("no")

    def of(kind, **has):
        return torch.arange(3.).as_subclass(type(kind, (torch.Tensor,), has))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_refused({
            "shape": (of("Liar", shape=property(lambda t: torch.Size((1, 3)))), "Liar says"),
            "dtype": (of("Liar", dtype=torch.int32), "Liar says"),
            "raising": (of("Raises", __torch_function__=classmethod(raises_it)), "Raises"),
            "negated": (negated.as_subclass(type("Liar", (torch.Tensor,), {
                "is_neg": lambda t: False})), "negates"),
            "no tensor yet": (torch.nn.parameter.UninitializedParameter(), "Uninitialized"),
            "class": (type("Liar", (), {"__class__": torch.Tensor})(), "Liar")})


def case_broadcast_arrays(d):
    """numpy warns where their flags are asked for."""
    a, b = np.broadcast_arrays(numbers(4), numbers((3, 4)))
    with a_job() as c, warnings.catch_warnings():
        warnings.simplefilter("error")
        c.declare("a", a)
        c.declare("b", b)
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        for name in "ab":
            c.bind(name, np.zeros((3, 4), np.float32))
        c.load(step=1)
        assert [bytes_of(x) for x in c._tensors] == [bytes_of(x) for x in (a, b)]
    row, _ = np.broadcast_arrays(numbers(4), numbers((1, 4)))
    with a_job() as c, warnings.catch_warnings():  # contiguous, and still not to be written to
        warnings.simplefilter("error")
        c.declare("row", row)
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        assert "read-only" in str(raises(ckpt.CkptError, lambda: c.load(step=1)))


def case_pointers(d):
    a = numbers((3, 4))
    with a_job() as c:
        c.declare("w", (a.ctypes.data, "float32", (3, 4)))
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        want, b = a.copy(), np.zeros((3, 4), np.float32)
        a[:] = 0
        c.load(step=1)
        assert (a == want).all()
        c.bind("w", (b.ctypes.data, np.dtype("f4"), [3, 4]))
        c.load(step=1)
        assert (b == want).all()


# ---- Tensors that are not

def bad_arrays():
    a = numbers((3, 4))
    return {
        "numpy scalar": (np.float32(1), "scalar"), "numpy bool": (np.True_, "scalar"),
        "structured": (np.zeros(3, [("a", "f4"), ("b", "i4")]), "dtype"),
        "record": (np.zeros(3, [("a", "f4")]).view(np.recarray), "dtype"),
        "object": (np.array([a, None], object), "dtype"), "dates": (np.zeros(3, "M8[ns]"), "dtype"),
        "spans": (np.zeros(3, "m8[s]"), "dtype"), "str": (np.array(["a", "b"]), "dtype"),
        "bytes": (np.array([b"a"]), "dtype"), "void": (np.zeros(3, "V4"), "dtype"),
        "big-endian": (a.astype(">f4"), "order"), "swapped": (a.byteswap().view(a.dtype.newbyteorder()),
                                                              "order"),
        "long double": (np.zeros(3, np.longdouble), "dtype"), "masked": (np.ma.array(a, mask=a > 3),
                                                                         "masked"),
        "list": ([1., 2.], "list"), "int": (5, "int"), "float": (1.5, "float"), "None": (None, "None"),
        "bytes object": (b"abcd", "bytes"), "bytearray": (bytearray(4), "bytearray"),
        "memoryview": (memoryview(bytearray(4)), "memoryview"), "array.array": (array.array("f", [1]), "array"),
        "ctypes": ((ctypes.c_float * 4)(), "c_float"), "str object": ("w", "str"),
        "interface of a temporary": (Temporary(), "Temporary"), "two": ((1, "float32"), "tuple of 2"),
        "pointer that is none": (("x", "float32", (1,)), "pointer"),
        "pointer below 0": ((-8, "float32", (1,)), "pointer"),
        "pointer True": ((True, "float32", (1,)), "pointer"),
        "shape below 0": ((a.ctypes.data, "float32", (-1,)), "shape"),
        "shape beyond 2^64": ((a.ctypes.data, "float32", (1 << 64,)), "shape"),
        "shape that wraps": ((a.ctypes.data, "float32", (1 << 33, 1 << 33)), "bytes"),
        "shape of fractions": ((a.ctypes.data, "float32", (1.5,)), "shape"),
        "shape that is none": ((a.ctypes.data, "float32", 3), "shape"),
        "unknown dtype": ((a.ctypes.data, "float31", (1,)), "dtype"),
        "swapped dtype": ((a.ctypes.data, np.dtype(">f4"), (1,)), "order"),
    }


class Temporary:
    """Like a numpy scalar: each look makes an array, which is gone then."""
    dtype, shape, strides = np.dtype("f4"), (1000,), (4,)

    @property
    def __array_interface__(self):
        return np.zeros(1000, np.float32).__array_interface__


def bad_tensors():
    z = torch.arange(6.).to(torch.complex64)
    freed = torch.ones(8)
    storage_of(freed).resize_(0)
    out = {
        "conj": (z.conj(), "conj"), "neg": (z.conj().imag, "negates"), "freed": (freed, "memory"),
        "size": (torch.Size((1, 2, 3)), "Size"),
        "meta": (torch.ones(3, device="meta"), "meta"), "sparse": (torch.eye(3).to_sparse(), "layout"),
        "sparse csr": (torch.eye(3).to_sparse_csr(), "layout"),
        "quantized": (torch.quantize_per_tensor(torch.ones(3), .1, 0, torch.quint8), "dtype"),
        "complex32": (torch.ones(3, dtype=torch.complex32), "dtype"),
        "zero tensor": (torch._efficientzerotensor(3), "bytes"),
        "functional": (torch._to_functional_tensor(torch.ones(3)), "bytes"),
        "wrapper": (wrapper(), "Wrapper"),
    }
    try:
        from torch._subclasses import FakeTensorMode
        with FakeTensorMode():
            out["fake"] = (torch.ones(3), "FakeTensor")
    except ImportError:
        pass
    if torch.backends.mkldnn.is_available():
        out["mkldnn"] = (torch.ones(3).to_mkldnn(), "layout")
    if hasattr(torch, "nested_tensor"):
        out["nested"] = (torch.nested_tensor([torch.ones(2), torch.ones(3)]), "nested")
    return out


def storage_of(t):
    return t.untyped_storage() if hasattr(t, "untyped_storage") else t._storage()


def wrapper():
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise NotImplementedError("no")
    return Wrapper(torch.ones(3))


def check_refused(things):
    """At declare(), at bind(), and as what is read into; the declaration goes on without it."""
    good = np.ones(3, np.float32)
    with a_job() as c:
        for name, (x, word) in things.items():
            e = raises((TypeError, ValueError), lambda: c.declare(name, x))
            assert word in str(e) and repr(name) in str(e), (name, e)
        c.declare("good", good)
        for name, (x, word) in things.items():
            e = raises((TypeError, ValueError), lambda: c.bind("good", x))
            assert word in str(e), (name, e)
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        with c.stored(1) as s:
            assert [h.name for h in s.shards] == ["good"], s.shards
            for name, (x, word) in things.items():
                e = raises((TypeError, ValueError), lambda: s.read([ckpt.Want("good", x, (3,), (0,))]))
                assert word in str(e), (name, e)
            got = np.zeros(3, np.float32)
            s.read([ckpt.Want("good", got, (3,), (0,))])
        assert (got == 1).all()


def case_arrays_that_are_not(d):
    check_refused(bad_arrays())


def case_torch_tensors_that_are_not(d):
    need_torch()
    check_refused(bad_tensors())


def case_functorch(d):
    """A tensor of a transformation stands for a batch."""
    need_torch()
    try:
        from functorch import vmap
    except ImportError:
        vmap = getattr(torch, "vmap", None)
    if vmap is None:
        raise Skip("this torch has no vmap")
    said = []
    with a_job() as c:
        def look(x):
            said.append(str(raises(TypeError, lambda: c.declare("batched", x))))
            return x
        vmap(look)(torch.ones(3, 2))
    assert "bytes" in said[0] and "'batched'" in said[0], said


# ---- Another shape than was declared

def case_other_shapes(d):
    """The declared shape's strides would be read from behind the bound one's."""
    whole = np.zeros((1000, 1000), np.float32)
    thin = numbers((2000000,))[::2]  # as many elements, one dimension
    with a_job() as c:
        c.declare("w", whole)
        others = {"one dimension": thin, "turned": numbers((1000, 1000)).T[:500].reshape(1000, 500),
                  "three": numbers((1000, 10, 200))[:, :, ::2], "a row": whole.reshape(-1),
                  "other type": whole.view(np.int32), "0": np.zeros(0, np.float32)}
        for name, x in others.items():
            e = raises(ValueError, lambda: c.bind("w", x))
            assert "declared as float32 (1000, 1000)" in str(e), (name, e)
        raises(ValueError, lambda: c.bind("v", whole))
        raises(ValueError, lambda: c.bind("w", whole, 1))
        raises(ValueError, lambda: c.bind("w", whole, -1))
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
    flat = np.zeros(6, np.float32)
    with a_job() as c:
        c.declare_flat("f", flat, (4, 6), 3, 9)
        c.bind("f", numbers((2, 3)))  # of a range the size counts
        raises(ValueError, lambda: c.bind("f", numbers(12)[::2]))
        raises(ValueError, lambda: c.bind("f", numbers(5)))
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        c.bind("f", flat)
        c.load(step=1)
        assert (flat == numbers(6)).all()


def case_changed_after_declare(d):
    """The object is the same, and its memory or shape is not."""
    need_torch()
    changes = {
        "freed": lambda t: storage_of(t).resize_(0), "shrunk": lambda t: storage_of(t).resize_(16),
        "other shape": lambda t: t.resize_(8, 2), "other strides": lambda t: t.as_strided_((4, 4), (0, 1)),
        "larger": lambda t: t.resize_(100)}
    for name, change in changes.items():
        t, other = torch.arange(16.).reshape(4, 4), numbers(3)
        with a_job() as c, warnings.catch_warnings():
            warnings.simplefilter("ignore", ckpt.CkptWarning)
            c.declare("t", t)
            c.declare("o", other)
            assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
            change(t)
            if name != "other strides":
                s = c.save(2, wait_credit=True)
                assert s.status == "failed" and s.error.code == EINVAL and "'t'" in str(s.error), (name, s)
                with c.saving(3, wait_credit=True) as s:
                    assert s.status == "failed", s
                assert s.error.code == EINVAL, s
            e = raises(ckpt.CkptError, lambda: c.load(step=1))
            assert e.code == EINVAL and "'t'" in str(e), (name, e)
            assert [i.step for i in c.list()] == [1]
            c.bind("t", torch.zeros(4, 4))
            c.load(step=1)
            assert torch.equal(c._tensors[0], torch.arange(16.).reshape(4, 4))
    with a_job(on_error="raise") as c:
        t = torch.ones(4)
        c.declare("t", t)
        c.prepare()
        t.resize_(5)
        assert raises(ckpt.CkptError, lambda: c.save(1)).code == EINVAL
        t.resize_(4)
        assert c.save(1, wait_credit=True)


def bindings(c, writable):
    """What libckpt is given, and what the table leaves to Python."""
    left = []
    fill = c._table.fill if c._table else lambda tensors, *_: range(len(tensors))

    class Table:
        def fill(self, *args):
            left.extend(fill(*args))
            return left

        def first_read_only(self, out):
            return c._table_of.first_read_only(out) if c._table_of else None
    c._table_of, c._table = c._table, Table()
    try:
        out, n, keep = c._bindings(writable)
    finally:
        c._table = c._table_of
    return [(b.ptr, b.device, b.dtype, b.ndim, b.bytes, b.strides[:b.ndim] if b.strides else None)
            for b in out[:n]], left, keep


def case_looked_at_alike(d):
    """By the extension and by Python; and it does look at what it is for."""
    if not EXTENSION_IS_USED:
        with a_job() as c:
            assert c._table is None
        return
    things = {**arrays(), **(tensors() if torch else {})}
    for writable in (False, True):
        if writable:
            things = {n: x for n, x in things.items() if not isinstance(x, np.ndarray) or x.flags.writeable}
        with a_job() as c:
            for name, x in things.items():
                c.declare(name, x)
            ours, left, keep = bindings(c, writable)
            assert bindings(c, writable)[:2] == (ours, left)  # of what was seen already
            c._table, table = None, c._table
            theirs, all_of_them, keep_too = bindings(c, writable)
            c._table = table
        for name, a, b in zip(things, ours, theirs):
            assert a == b, (name, a, b)
        assert len(all_of_them) == len(things)
        left = {name for i, name in enumerate(things) if i in left}
        plain = {n for n, x in things.items() if n.startswith(("numpy ", "torch "))} | {
            "no dimensions", "empty", "one element", "eight dimensions", "over a bytearray"} | (
            {"parameter", "leaf", "in the middle of a storage", "over numpy"} if torch else set())
        assert not left & plain, left & plain
        assert {"Fortran", "memmap", "subclass"} <= left, left


def case_declared_alike(d):
    """What is said of a tensor counts the same whether the extension or Python takes it."""
    a, wide = numbers((4, 6)), np.uint8(2)
    for given in ({}, {"global_shape": (8, 6), "offset": (4, 0)}, {"global_shape": [8, 6], "offset": [4, 0]},
                  {"global_shape": (8, 9), "offset": (wide, wide)}, {"trained": True}, {"trained": 1},
                  {"global_shape": (8, 6)}):
        with a_job() as c:
            c.declare("a", a, **given)
            assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
            with c.stored(1) as s:
                h, = s.shards
            assert h.global_shape == tuple(given.get("global_shape", (4, 6))), h
            assert h.offset == tuple(given.get("offset", (0, 0))) and h.shape == (4, 6), h
            assert h.trained == bool(given.get("trained", False)), h
    with a_job() as c:
        for given in ({"offset": (0,)}, {"global_shape": (8, 6, 1)}, {"offset": (-1, 0)}, {"offset": (True, 0)},
                      {"global_shape": (2, 6)}, {"offset": (1, 0)}):
            raises((ValueError, TypeError, ckpt.CkptError), lambda: c.declare("a", a, **given))
        c.declare("a", a)
        e = raises(ckpt.CkptError, lambda: [c.declare("a", a), c.prepare()])
        assert "'a'" in str(e), e
    if torch:
        ours = {"p": torch.nn.Parameter(torch.ones(3)), "t": torch.ones(3), "f": torch.ones(3)}
        with a_job() as c:
            for name, t in ours.items():
                c.declare(name, t, trained=False if name == "f" else None)
            assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
            with c.stored(1) as s:
                assert {h.name: h.trained for h in s.shards} == {"p": True, "t": False, "f": False}
    with a_job() as c:
        c.declare("a", a)
        if EXTENSION_IS_USED:  # a key was hit between the call of libckpt and what comes behind it
            c._table.add(12, (1,), 4)
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)


# ---- Targets

def case_targets(d):
    base = numbers((6, 8))
    with a_job() as c:
        c.declare("a", base[:, ::2].copy())
        c.declare("b", base[:, 1::2].copy())
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        room = np.full((6, 9), -1, np.float32)
        well = {
            "columns in turn": (room[:, :8:2], room[:, 1:8:2]), "halves": (room[:, :4], room[:, 4:8]),
            "turned": (room[:, 3::-1], room[::-1, 4:8]), "rows in turn": (
                np.zeros((12, 4), np.float32)[::2], np.zeros((12, 4), np.float32)[1::2])}
        for name, (a, b) in well.items():
            c.bind("a", a)
            c.bind("b", b)
            c.load(step=1)
            assert (a == base[:, ::2]).all() and (b == base[:, 1::2]).all(), name
        assert (room[:, 8] == -1).all(), "bytes outside were written"
        room[:] = -1
        readonly = np.zeros((6, 4), np.float32)
        readonly.flags.writeable = False
        strided = np.lib.stride_tricks.as_strided
        buffer = np.zeros(200, np.float32)
        badly = {
            "a column in both": ((room[:, :4], room[:, 3:7]), "overlaps"),
            "every third in every second": ((room[:, :8:2], room[:, 2::2]), "overlaps"),
            "turned onto": ((room[:, 3::-1], room[:, :4]), "overlaps"),
            "read-only": ((readonly, room[:, :4]), "read-only"),
            "broadcast": ((np.broadcast_to(numbers(4), (6, 4)), room[:, :4]), "read-only"),
            "one row": ((strided(buffer, (6, 4), (0, 4)), room[:, :4]), "one place"),
            "windows": ((strided(buffer, (6, 4), (4, 4)), room[:, :4]), "one place")}
        for name, ((a, b), word) in badly.items():
            c.bind("a", a)
            c.bind("b", b)
            e = raises(ckpt.CkptError, lambda: c.load(step=1))
            assert e.code == EINVAL and word in str(e), (name, e)
            with c.stored(1) as s:
                wants = [ckpt.Want("a", a, (6, 4), (0, 0)), ckpt.Want("b", b, (6, 4), (0, 0))]
                e = raises((ckpt.CkptError, ValueError), lambda: s.read(wants))
                assert word in str(e), (name, e)
            assert (room == -1).all() and not buffer.any(), f"{name}: something was written"


def case_memory_that_cannot_be_written(d):
    """Of which torch does not know: a write there would end the process."""
    need_torch()
    page = mmap.PAGESIZE
    with tempfile.TemporaryFile() as f, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what torch makes of a read-only array
        f.write(bytes(2 * page))
        f.flush()
        mapped = np.frombuffer(mmap.mmap(f.fileno(), 2 * page, prot=mmap.PROT_READ), np.float32)
        half = np.frombuffer(mmap.mmap(-1, 2 * page), np.float32)
        bad = {"mapped": torch.from_numpy(mapped)[:100], "pointer": (mapped.ctypes.data, "float32", (100,)),
               "unmapped": (page, "float32", (100,)), "strided": torch.from_numpy(mapped)[:400:4]}
        good = {"all": torch.from_numpy(half)[:100], "backwards": half[::-1][:100], "every third": half[:300:3]}
        with a_job() as c:
            c.declare("w", numbers(100))
            assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
            for name, x in {**good, **bad}.items():
                c.bind("w", x)
                with c.stored(1) as s:
                    wants = [ckpt.Want("w", x, (100,), (0,))]
                    if name in good:
                        assert c.load(step=1).bytes == 400 and bytes_of(x) == bytes_of(numbers(100)), name
                        s.read(wants)
                        continue
                    e = raises(ckpt.CkptError, lambda: c.load(step=1))
                    assert e.code == EINVAL and "read-only" in str(e), (name, e)
                    assert "read-only" in str(raises(ValueError, lambda: s.read(wants))), name


def case_files_made_shorter(d):
    """What was mapped and is gone cannot be read: doing so would end the process."""
    page = mmap.PAGESIZE

    def mapped(path):
        with open(path, "r+b") as f:
            return mmap.mmap(f.fileno(), 4 * page)

    kinds = {
        "memmap": lambda p: np.memmap(p, np.float32, "r+", shape=(4 * page // 4,)),
        "of a later page": lambda p: np.memmap(p, np.float32, "r+", 2 * page + 8, (2 * page // 4 - 2,)),
        "to read": lambda p: np.memmap(p, np.float32, "r", shape=(4 * page // 4,)),
        "part of one": lambda p: np.asarray(np.memmap(p, np.float32, "r+"))[64:][::-1],
        "of mmap": lambda p: np.frombuffer(mapped(p), np.float32),
        "of a view": lambda p: np.frombuffer(memoryview(mapped(p))[8:], np.float32)}
    for name, kind in kinds.items():
        with tempfile.NamedTemporaryFile() as f, a_job() as c, warnings.catch_warnings():
            warnings.simplefilter("ignore", ckpt.CkptWarning)
            f.write(numbers(4 * page, np.uint8).tobytes())
            f.flush()
            x = kind(f.name)
            c.declare("w", x)
            assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED), name
            f.truncate(3 * page)
            s = c.save(2, wait_credit=True)
            assert s.status == "failed" and "'w': its file has 12288 bytes" in str(s.error), (name, s.error)
            with c.saving(3, wait_credit=True) as s:
                pass
            assert s.status == "failed", name
            if x.flags.writeable:
                assert "made shorter" in str(raises(ckpt.CkptError, lambda: c.load(step=1))), name
            f.truncate(4 * page)
            assert c.save(4, wait_credit=True).wait(ckpt.COMMITTED), name


def case_wants_once(d):
    """What can be gone through once only."""
    a = np.zeros(100, np.float32)
    with a_job() as c:
        c.declare("w", numbers(100))
        assert c.save(1, {"x": b"12", "y": b""}, wait_credit=True).wait(ckpt.COMMITTED)
        with c.stored(1) as s:
            got, _, _ = s.read((ckpt.Want("w", a, (100,), (0,)) for _ in "1"), ((0, n) for n in "xy"))
            assert got == {(0, "x"): b"12", (0, "y"): b""} and bytes_of(a) == bytes_of(numbers(100))


def case_tied(d):
    """One memory under two names: as it was saved, and as it was not."""
    w = numbers((20, 30))
    with a_job() as c:
        for name in ("embed", "head"):
            c.declare(name, w)
        c.declare("turned", w.T[::-1])
        c.declare("turned again", w.T[::-1])
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        other = w.copy()
        other[19, 29] += 1
        c.bind("head", other)
        assert c.save(2, wait_credit=True).wait(ckpt.COMMITTED)
        tied, turned = np.zeros_like(w), np.zeros((31, 22), np.float32)
        view = turned[1:, :20][::-1]
        for name, x in (("embed", tied), ("head", tied), ("turned", view), ("turned again", view)):
            c.bind(name, x)
        c.load(step=1)
        assert (tied == w).all() and (view == w.T[::-1]).all()
        e = raises(ckpt.CkptError, lambda: c.load(step=2))
        assert e.code == EMISMATCH and "'embed' and 'head' are bound to the same memory" in str(e), e
    with a_job() as c:  # one of two is not there
        c.declare("head", w)
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        job = f"objects-{next(_jobs) - 1}"
    with ckpt.open(job, 0, 1) as c:
        tied = np.zeros_like(w)
        c.declare("embed", tied)
        c.declare("head", tied)
        assert "embed" in "".join(c.load(step=1, strict=False).problems) and (tied == w).all()


# ---- Names, shapes, blobs, numbers

def case_names(d):
    w = numbers(3)
    good = ["a b/c.d", "ä", "\U0001f600", "x" * 1023, "a\nb", "%s"]
    with a_job() as c:
        for name, error in {"a\0b": ValueError, "a\0c": ValueError, "\0": ValueError, "\udc80": ValueError,
                            "a\ud800": ValueError, b"w": TypeError, None: TypeError, 5: TypeError,
                            pathlib.Path("w"): TypeError}.items():
            raises(error, lambda: c.declare(name, w))
            raises(error, lambda: c.declare_flat(name, w, (3,), 0, 3))
            raises(error, lambda: c.save(1, {name: b"1"}))
            raises(error, lambda: c.saving(1, {name: b"1"}))
        for name in ("", "x" * 1024, "ä" * 512):
            assert raises(ckpt.CkptError, lambda: c.declare(name, w)).code == EINVAL
        for name in good:
            c.declare(name, w)
        assert c.save(1, {n: n.encode() for n in good}, wait_credit=True).wait(ckpt.COMMITTED)
        for call in (lambda: c.role("a\0b"), lambda: c.phase("idle", what="a\0b"),
                     lambda: c.skip(2, "a\0b"), lambda: c.beat(1, **{"a\0b": 1.})):
            raises(ValueError, call)
        with c.stored(1) as s:
            assert sorted(h.name for h in s.shards) == sorted(good)
            assert sorted(b.name for b in s.blobs) == sorted(good)
            raises(ValueError, lambda: s.read([ckpt.Want("ä\0", w.copy(), (3,), (0,))]))
            raises(ValueError, lambda: s.read(blobs=[(0, "ä\0")]))
            raises(ValueError, lambda: s.read(blobs=[(1 << 32, "ä")]))  # not rank 0
            raises(ValueError, lambda: s.read(blobs=[(-1, "ä")]))
            raises(TypeError, lambda: s.read(blobs=[("0", "ä")]))
        assert c.load(step=1).blobs == {n: n.encode() for n in good}
    for option in ({"run_id": "a\0b"}, {"token": "a\0b"}, {"socket": "a\0b"}):
        raises(ValueError, lambda: a_job(**option))
    raises(ValueError, lambda: ckpt.open("a\0b", 0, 1))
    raises(ValueError, lambda: ckpt.open("x", 1 << 32, 1 << 33))  # not rank 0 of 0
    raises(ValueError, lambda: ckpt.open("x", -2, 1))


def case_texts_of_other_types(d):
    """They are what a str of them is."""
    class Text(str):
        def encode(self, *_):
            return b"other"

        def __contains__(self, x):
            return False

        def __hash__(self):
            return id(self)

    class Words(str, enum.Enum):
        EMBED = "embed"
    with a_job() as c:
        raises(ValueError, lambda: c.declare(Text("a\0b"), numbers(3)))
        c.declare(Text("w"), numbers(3))
        c.declare(Words.EMBED, numbers(4))
        c.bind("w", numbers(3) + 1)
        c.bind(Words.EMBED, numbers(4) + 1)
        s = c.save(1, {Text("a"): b"1", Text("a"): b"2"}, wait_credit=True)
        assert s.error.code == EINVAL and "'a' is given twice" in str(s.error), s
        assert c.save(1, {Text("a"): b"1", Words.EMBED: b"2"}, wait_credit=True).wait(ckpt.COMMITTED)
        assert c.load(step=1).blobs == {"a": b"1", "embed": b"2"}
        with c.stored(1) as s:
            assert [h.name for h in s.shards] == ["embed", "w"], s.shards


def case_shapes(d):
    w, e = numbers((2, 3)), (TypeError, ValueError)
    wrong = [(-1, 3), (1 << 64, 3), ((1 << 64) + 2, 3), (2.0, 3), (2,), (2, 3, 1), 6, None, ("2", 3)]
    with a_job() as c:
        for shape in wrong:
            if shape is not None:
                raises(e, lambda: c.declare("w", w, global_shape=shape))
            if shape not in ((2,), (2, 3, 1)):
                raises(e, lambda: c.declare_flat("w", w, shape, 0, 6))
        for offset in ((-1, 0), ((1 << 64) - 1, 0), (1 << 65, 0), (0,), (0, 0, 0), (.5, 0)):
            raises(e, lambda: c.declare("w", w, (4, 3), offset))
            raises(e, lambda: c.declare_flat("w", w, (4, 3), 0, 6, offset=offset, shape=(2, 3)))
            raises(e, lambda: c.declare_flat("w", w, (4, 3), 0, 6, shape=offset))
        for a, b in ((-6, 0), ((1 << 64), (1 << 64) + 6), (0, 5), (0., 6.), (6, 0)):
            raises(e, lambda: c.declare_flat("w", w, (4, 3), a, b))
        for shape, offset in (((1 << 40, 1 << 40), (0, 0)), ((2, 2), (0, 0)), ((2, 3), (1, 0)),
                              ((4, 3), ((1 << 63) - 1, 0))):
            assert raises(ckpt.CkptError, lambda: c.declare("w", w, shape, offset)).code == EINVAL
        assert raises(ckpt.CkptError, lambda: c.declare_flat("w", w, (4, 3), 9, 15)).code == EINVAL
        c.declare("w", w, (np.int64(4), np.uint8(3)), [2, 0])
        for n in (-1, 1 << 64, 1.5, "1"):
            raises(e, lambda: c.prepare(n))
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        with c.stored(1) as s:
            assert [(h.global_shape, h.offset, h.shape) for h in s.shards] == [((4, 3), (2, 0), (2, 3))]
            for size, offset in (((4, 3), (-1, 0)), ((1 << 65, 3), (0, 0)), ((4,), (0,))):
                raises(e, lambda: s.read([ckpt.Want("w", np.zeros((2, 3), np.float32), size, offset)]))


class Longer(bytes):
    def __len__(self):
        return 1 << 16


def released():
    m = memoryview(b"abc")
    m.release()
    return m


def case_blobs(d):
    w = numbers(3)
    floats = np.arange(12, dtype=np.float32).reshape(3, 4)
    good = {
        "bytes": (b"abc", b"abc"), "empty": (b"", b""), "bytearray": (bytearray(b"ab"), b"ab"),
        "memoryview": (memoryview(b"abc"), b"abc"), "strided memoryview": (memoryview(b"abcdef")[::2], b"ace"),
        "array": (floats, floats.tobytes()), "Fortran": (np.asfortranarray(floats), floats.tobytes()),
        "column": (floats[:, 1], floats[:, 1].tobytes()), "numpy scalar": (np.int64(7), np.int64(7).tobytes()),
        "array.array": (array.array("i", [1, 2]), array.array("i", [1, 2]).tobytes()),
        "ctypes": ((ctypes.c_uint8 * 3)(1, 2, 3), b"\1\2\3"), "nul": (b"a\0b", b"a\0b"),
        "mmap": (mmap.mmap(-1, 4096), bytes(4096)), "longer": (Longer(b"abc"), b"abc"),
        "complex": (floats.astype(np.complex64), floats.astype(np.complex64).tobytes()),
        "field O": (np.zeros(2, [("O", "i1"), ("P&z", "<i2")]), bytes(6))}
    bad = {"str": "abc", "None": None, "int": 5, "bool": True, "list": [1, 2], "float": 1.5, "dict": {},
           "path": pathlib.Path("/tmp"), "objects": np.array([1, None], object), "iterator": iter(b"abc"),
           "masked": np.ma.array([1, 2], mask=[0, 1]), "dates": np.zeros(2, "M8[s]"),
           "field of objects": np.zeros(2, [("x", "O"), ("y", "i2")]), "text": ctypes.c_char_p(b"abc"),
           "texts": (ctypes.c_wchar_p * 2)("a", "b"), "pointer": ctypes.pointer(ctypes.c_int(5)),
           "address": ctypes.c_void_p(5), "function": ctypes.CFUNCTYPE(None)(print),
           "struct": type("Pair", (ctypes.Structure,), {"_fields_": [("i", ctypes.c_int), (
               "text", ctypes.c_char_p)]})(1, b"x"), "released": released()}
    if torch is not None:
        bad["tensor"] = torch.tensor(3)  # bytes() of it would be three zeros
    with a_job() as c:
        c.declare("w", w)
        for name, data in bad.items():
            e = raises(TypeError, lambda: c.save(1, {name: data}, wait_credit=True))
            assert repr(name) in str(e), e
            raises(TypeError, lambda: c.saving(1, {name: data}))
        for blobs in ([("a", b"1")], b"1", "ab", 7):
            raises(TypeError, lambda: c.save(1, blobs))
        assert c.list() == []
        assert c.save(1, {n: x for n, (x, _) in good.items()}, wait_credit=True).wait(ckpt.COMMITTED)
        assert c.load(step=1).blobs == {n: x for n, (_, x) in good.items()}
        changing = bytearray(b"before")
        with c.saving(2, {"b": changing}, wait_credit=True) as s:
            changing[:] = b"behind"
        assert s.wait() and c.load(step=2).blobs["b"] == b"before"


def case_times(d):
    with a_job() as c:
        c.declare("w", numbers(3))
        for seconds in (float("inf"), 1e30, 10 ** 30):  # not cut to some other time
            assert c.save(c.stats["saves"] + 1, wait_credit=True, timeout=seconds).wait(timeout=seconds)
        for seconds in (np.float32(20), np.array(20), 20.5):
            assert c.save(c.stats["saves"] + 1, wait_credit=True, timeout=seconds).wait(timeout=seconds)
        s = c.save(c.stats["saves"] + 1, wait_credit=True)
        calls = {"timeout": (lambda n: c.save(9, timeout=n), lambda n: c.saving(9, timeout=n),
                             lambda n: s.wait(timeout=n), lambda n: c.load(timeout=n),
                             lambda n: c.stored(timeout=n), lambda n: ckpt.open("times", 0, 1, timeout=n)),
                 "connect_timeout": (lambda n: ckpt.open("times", 0, 1, connect_timeout=n),)}
        for what, call in ((what, call) for what, these in calls.items() for call in these):
            for n in (-1, -0.001, float("nan"), -float("inf"), -10 ** 400):
                e = raises(ValueError, lambda: call(n))
                assert str(e) == f"{what} is {n!r}: give seconds from 0 on, or None for the default", e
            for n in ("5", b"5", [5], 5j):
                e = raises(TypeError, lambda: call(n))
                assert str(e) == (f"{what} is {n!r}, not a number: give seconds from 0 on, or None for the "
                                  "default"), e
        raises(ValueError, lambda: c.beat(1, tokens=-1))
        truths = [True, np.True_, np.array(False)] + ([torch.tensor(True)] if torch is not None else [])
        for step in (-1, (1 << 64) - 1, 1 << 64, 1.5, "1", None, np.arange(2), *truths):
            raises(ValueError, lambda: c.save(step))
            raises(ValueError, lambda: c.saving(step))
        for n in truths:
            raises(TypeError, lambda: c.declare("v", numbers(1), (1,), (n,)))


class TwoFaced:
    """A number that is another when it is asked again."""

    def __init__(self, first, then):
        self.numbers = [first, then]

    def __index__(self):
        return self.numbers.pop(0) if len(self.numbers) > 1 else self.numbers[0]


def case_steps_that_go_on(d):
    """A counter that is counted in place: a save is of the step that it was."""
    counters = [np.array(5)] + ([torch.tensor(50)] if torch is not None else [])
    with a_job() as c:
        c.declare("w", numbers(3))
        for step in counters:
            first, s = int(step), c.save(step, wait_credit=True)
            step += 1
            assert s.wait(ckpt.COMMITTED) and s.step == first and type(s.step) is int, s
            with c.saving(step, wait_credit=True) as s:
                step += 1
            assert s.wait(ckpt.COMMITTED) and s.step == first + 1, s
        assert c.save(TwoFaced(60, 60 + (2 << 64)), wait_credit=True).step == 60
        raises(ValueError, lambda: c.declare_flat("f", numbers(3), (3,), 0, TwoFaced(1 << 64, 3)))


# ---- Lifetimes

def case_temporaries(d):
    """What was declared stays, and so does what is copied while it is copied."""
    n = 1 << 20
    with a_job() as c:
        c.declare("w", numbers(n) + 1)
        gc.collect()
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        with c.saving(2, wait_credit=True, full_compare=True) as s:
            for i in range(20):  # the memory of what was bound is free for others, unless it is kept
                c.bind("w", np.full(n, i, np.float32))
        assert s.wait(), s
        got = np.zeros(n, np.float32)
        c.bind("w", got)
        for step in (1, 2):
            got[:] = 0
            c.load(step=step)
            assert (got == numbers(n) + 1).all(), step


def case_memory_that_is_exchanged(d):
    """A tensor is given other memory in the block: what was copied is the memory of its start."""
    need_torch()
    n = 1 << 20
    for exchange in (lambda t: setattr(t, "data", torch.zeros(n)), lambda t: t.set_(torch.zeros(n))):
        t = torch.arange(float(n))
        with a_job() as c:
            c.declare("t", t)
            with c.saving(1, wait_credit=True, full_compare=True) as s:
                exchange(t)
                other = [torch.full((n,), 7.) for _ in range(8)]
            del other
            assert s.wait(), s
            c.load(step=1)
            assert torch.equal(t, torch.arange(float(n)))


def check_usable(c, step, *steps):
    """It is not stuck: another save and a load, after which no others but these may be there."""
    assert c.save(step, wait_credit=True).wait(ckpt.COMMITTED)
    assert c.load(step=step).step == step
    assert {i.step for i in c.list()} <= {step, *steps}, c.list()


def case_exceptions_on_entering(d):
    """A block that was not entered has no end: the handle is free all the same."""
    with a_job() as c:
        c.declare("w", numbers(1 << 16))

        really = c._status
        try:
            for kind in (ckpt.CkptWarning, KeyboardInterrupt):
                def interrupted(bits, kind=kind):
                    raise kind("here")
                c._status = interrupted

                def enter():
                    with c.saving(c.stats["saves"] + 1, wait_credit=True):
                        raise AssertionError("the block ran")
                raises(kind, enter)
                assert c.stats["saves"] > 0 and c._begun is None
        finally:
            c._status = really
        check_usable(c, 9, 1, 2)


def case_blocks(d):
    with a_job() as c, warnings.catch_warnings():
        warnings.simplefilter("ignore", ckpt.CkptWarning)
        c.declare("w", numbers(1 << 16))

        def fail(step):
            with c.saving(step, wait_credit=True) as s:
                assert s.status == "begun" and not s
                raise ZeroDivisionError
        raises(ZeroDivisionError, lambda: fail(1))
        check_usable(c, 2, 1)

        def halves():
            with c.saving(3, wait_credit=True):
                yield
        g = halves()
        next(g)
        g.close()
        check_usable(c, 4, 1, 2, 3)
        block = c.saving(5, wait_credit=True)
        with block:
            raises(ckpt.CkptError, block.__enter__)  # once
            s = c.save(6, wait_credit=True)
            assert s.error.code == ESTATE and "begun" in str(s.error), s
            with c.saving(7, wait_credit=True) as s:
                pass
            assert s.error.code == ESTATE, s
            assert raises(ckpt.CkptError, lambda: c.load(step=1)).code == ESTATE
        assert raises(ckpt.CkptError, block.__enter__).code == ESTATE
        check_usable(c, 8, 1, 2, 3, 4, 5)
        entered = c.saving(9, wait_credit=True)
        entered.__enter__()
        del entered  # nobody will end it
        check_usable(c, 10, 1, 2, 3, 4, 5, 8, 9)
        entered = c.saving(11, wait_credit=True)
        entered.__enter__()
        c._tensors[0][77] += 1  # and it is torn
        del entered
        check_usable(c, 12, 1, 2, 3, 4, 5, 8, 9, 10)


def case_closed_in_use(d):
    c = a_job()
    c.declare("w", numbers(1 << 20))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ckpt.CkptWarning)
        with c.saving(1, wait_credit=True) as s:
            c.close()
        assert s.status == "failed" and "closed" in str(s.error), s
    for call in (lambda: c.save(2), lambda: c.load(), lambda: c.bind("w", numbers(1 << 20)), lambda: c.rank,
                 lambda: c.list(), lambda: c.stats, lambda: c.beat(1), lambda: c.fileno(),
                 lambda: s.wait()):
        assert "closed" in str(raises(ckpt.CkptError, call))
    c.close()
    with a_job(on_error="raise") as c:
        c.declare("w", numbers(10))

        def close():
            with c.saving(1, wait_credit=True):
                c.abandon()
        assert "closed" in str(raises(ckpt.CkptError, close))
    with a_job() as c:
        c.declare("w", numbers(10))
        assert c.save(1, wait_credit=True).wait()
        s = c.stored(1)
    assert [h.name for h in s.shards] == ["w"]  # it is a copy
    raises(ckpt.CkptError, lambda: s.read([ckpt.Want("w", numbers(10), (10,), (0,))]))
    s.close()
    s.close()
    s = ckpt.Stored(c, None, None, None)
    assert "closed" in str(raises(ckpt.CkptError, lambda: s.shards))


def case_copies(d):
    """There is one of each: a copy would end it twice."""
    with a_job() as c:
        c.declare("w", numbers(100))
        s = c.save(1, wait_credit=True)
        assert s.wait(ckpt.COMMITTED)
        with c.stored(1) as stored, c.saving(2, wait_credit=True):
            block = c.saving(3)
            for x in (c, stored, block):
                for make in (copy.copy, copy.deepcopy, pickle.dumps):
                    assert "copied or pickled" in str(raises(TypeError, lambda: make(x))), x
            raises(TypeError, lambda: pickle.dumps(s))
            assert [h.name for h in stored.shards] == ["w"]
        check_usable(c, 4, 1, 2)
    ckpt.Stored.__new__(ckpt.Stored).__del__()


# ---- Keys that are hit: an exception behind any call

def interrupted(f):
    """f() again and again, interrupted behind its first, second, ... call in Python or of a builtin,
    until none is left. How often it was."""
    for n in range(10 ** 6):
        left = [n]

        def look(frame, event, arg):
            if event in ("call", "c_return") and frame.f_code.co_filename.endswith(OF_CKPT) and (
                    frame.f_code.co_name not in ENDS):
                left[0] -= 1
                if left[0] < 0:
                    sys.setprofile(None)
                    raise KeyboardInterrupt
        sys.setprofile(look)
        try:
            f()
            return n
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)


OF_CKPT = os.path.join("ckpt", "__init__.py"), os.path.join("ckpt", "_stored.py")
ENDS = "__del__", "_free", "_problems"  # called by what ends an object: Python only prints what they raise


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def case_interrupted_anywhere(d):
    steps = iter(range(1, 10 ** 6))
    with a_job() as c, warnings.catch_warnings():
        warnings.simplefilter("ignore", ckpt.CkptWarning)
        w = numbers(1000)
        c.declare("w", w)
        assert c.save(next(steps), wait_credit=True).wait(ckpt.COMMITTED)

        def block():
            with c.saving(next(steps), wait_credit=True) as s:
                pass
            assert s.status == "sealed", s

        def stored():
            with c.stored(newest) as s:
                assert len(s.shards) == 1

        def save():
            assert c.save(next(steps), wait_credit=True)
        for f in (lambda: c.beat(1, loss=1.), save, block, lambda: c.load(step=newest), stored, c.list):
            newest = c.list()[0].step  # older ones go
            assert interrupted(f) > 5
            check_usable(c, next(steps), *range(1, next(steps)))
        before = descriptors()
        name = f"objects-{next(_jobs)}"
        assert interrupted(lambda: ckpt.open(name, 0, 1).close()) > 5
        gc.collect()
        assert descriptors() == before


def behind(name, kind=KeyboardInterrupt):
    """From now libckpt's function raises when it has returned, once."""
    from ckpt import _lib as L
    really = getattr(L.lib, name)

    def call(*args):
        setattr(L.lib, name, really)
        really(*args)
        raise kind
    setattr(L.lib, name, call)


def case_interrupted_in_libckpt(d):
    """Nothing stays open or begun, also while the exception, and what it holds, lives on."""
    with a_job() as c:
        c.declare("w", numbers(1000))
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        before = descriptors()
        behind("ckpt_open")
        e = raises(KeyboardInterrupt, a_job)
        assert descriptors() == before, "the session is still open"
        del e
        freed = []
        free, L = ckpt.L.lib.ckpt_stored_close, ckpt.L
        L.lib.ckpt_stored_close = lambda s: freed.append(bool(s)) or free(s)
        try:
            behind("ckpt_stored_open")
            e = raises(KeyboardInterrupt, lambda: c.stored(1))
            assert freed == [True], freed
        finally:
            L.lib.ckpt_stored_close = free

        def block(step):
            with c.saving(step, wait_credit=True):
                pass
        for step, name in ((2, "ckpt_save_begin"), (4, "ckpt_save_fence")):
            behind(name)
            e = raises(KeyboardInterrupt, lambda: block(step))
            with c.saving(step + 1, wait_credit=True) as s:
                pass
            assert s.status == "sealed" and c._begun is None, (name, s)
            del e
        check_usable(c, 6, *range(6))


def case_fork(d):
    with a_job() as c:
        c.declare("w", numbers(1 << 16))
        c.prepare()
        with c.saving(1, wait_credit=True) as s:
            pid = os.fork()
            if pid == 0:
                ok = False
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        ok = (c.save(2).error.code == -1 and
                              raises(ckpt.CkptError, lambda: c.load()).code == -1 and
                              raises(ckpt.CkptError, lambda: c.beat(1)).code == -1)
                    c.close()
                finally:
                    os._exit(0 if ok else 1)
            assert os.waitpid(pid, 0)[1] == 0
        assert s.wait()
        check_usable(c, 2, 1)


# ---- Threads

class Paused:
    """A tensor's stand-in for a moment in which its call goes on in another thread."""

    def __init__(self, c, shape):
        self.entered, self.go = threading.Event(), threading.Event()
        really = c._bindings

        def bindings(*args):
            self.entered.set()
            assert self.go.wait(60)
            return really(*args)
        c._bindings = bindings


def in_a_thread(f):
    out = []
    t = threading.Thread(target=lambda: out.append(f()), daemon=True)
    t.start()
    return t, out


def case_two_threads(d):
    """The second is refused at once; the first does not notice."""
    with a_job() as c:
        c.declare("w", numbers(100))
        c.prepare()
        pause = Paused(c, 100)
        t, out = in_a_thread(lambda: c.save(1, wait_credit=True))
        assert pause.entered.wait(60)
        for call in (lambda: c.save(2), lambda: c.load(), lambda: c.list(), lambda: c.beat(1),
                     lambda: c.stats, lambda: c.stored(), lambda: c.should_save(1), lambda: c.skip(2),
                     lambda: c.bind("w", numbers(100)), lambda: c.declare("v", numbers(1)),
                     lambda: c.prepare(), lambda: c.saving(2).__enter__(), lambda: c.pump(),
                     lambda: c.phase("idle").__enter__(), lambda: c.role("x"), lambda: c.fileno(),
                     lambda: ckpt.Save(c, 1, "sealed").wait()):
            e = raises(ckpt.CkptError, call)
            assert e.code == ESTATE and "another thread" in str(e), e
        assert c.rank == 0 and c.world == 1
        pause.go.set()
        t.join(60)
        assert out[0] and out[0].wait(), out
        assert [i.step for i in c.list()] == [1]


def case_two_threads_below(d):
    """Past Python's own look: libckpt is called by two at once."""
    from ckpt import _lib as L
    with a_job() as c:
        c.declare("w", numbers(100))
        c.prepare()
        codes, stop = [], threading.Event()

        def others():
            stats = L.Stats(ctypes.sizeof(L.Stats))
            while not stop.is_set():
                codes.append(L.lib.ckpt_stats(c._c, ctypes.byref(stats)))
        threads = [in_a_thread(others)[0] for _ in range(3)]
        for _ in range(200):
            infos = (L.Info * 4)()
            got = L.lib.ckpt_list(c._c, infos, 4)
            assert got in (0, ESTATE), got
        stop.set()
        for t in threads:
            t.join(60)
        assert set(codes) <= {0, ESTATE}, set(codes)


def case_closed_by_another_thread(d):
    """The call ends well, and with it the session."""
    for how in ("close", "abandon"):
        c = a_job()
        c.declare("w", numbers(100))
        c.prepare()
        pause = Paused(c, 100)
        t, out = in_a_thread(lambda: c.save(1, wait_credit=True))
        assert pause.entered.wait(60)
        getattr(c, how)()
        assert "closed" in str(raises(ckpt.CkptError, lambda: c.rank))
        pause.go.set()
        t.join(60)
        assert out[0].status == "sealed" and c._c is None, out


def case_many_threads(d):
    """All at once, and closed meanwhile: each call is done or refused."""
    codes = set()
    for _ in range(3):
        c, w = a_job(), numbers(1000)
        c.declare("w", w)
        c.prepare()
        assert c.save(1, {"b": b"x" * 1000}, wait_credit=True).wait(ckpt.COMMITTED)
        start = threading.Barrier(4)

        def work(calls):
            start.wait()
            for i in range(40 * len(calls)):
                try:
                    calls[i % len(calls)]()
                except ckpt.CkptError as e:
                    codes.add(e.code)

        def load():
            assert c.load(step=1).blobs == {"b": b"x" * 1000}
        threads = [in_a_thread(lambda f=f: work(f)) for f in (
            [load], [load, lambda: c.beat(1)], [c.list, lambda: c.stats, c.fileno],
            [lambda: None] * 5 + [c.close])]
        for t, _ in threads:
            t.join(60)
        assert all(out == [None] for _, out in threads), "one ended otherwise"
        c.close()
        assert (w == numbers(1000)).all() and c._c is None
    assert codes <= {ESTATE, -9}, codes


def case_turns(d):
    """Two threads that take turns are well."""
    with a_job() as c:
        c.declare("w", numbers(100))
        lock, done = threading.Lock(), []

        def work(first):
            for step in range(first, 20, 2):
                with lock:
                    if c.save(len(done) + 1, wait_credit=True):
                        done.append(step)
        threads = [in_a_thread(lambda n=n: work(n))[0] for n in (0, 1)]
        for t in threads:
            t.join(60)
        assert len(done) == 20


def need_torch():
    if torch is None:
        raise Skip("torch is not installed")


if __name__ == "__main__":
    sys.exit(run_with_ckptd(cases_of(globals()), sys.argv[1:]))
