# SPDX-License-Identifier: Apache-2.0
"""The module ckpt._bindings, compiled where ckptd was: it looks at many tensors without Python for each.

What it does not find simple is left to _tensors.py, and without it everything is: the same comes out,
later. CKPT_EXTENSION names its file; "no" does without it.

It also ends a call that waits where a signal handler of Python has raised: ../interrupt.c.
"""

import array
import ctypes as C
import importlib.util
import math
import mmap
import os
import sys
import threading
import warnings
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

from . import _lib as L
from ._tensors import _storage, dtype_code, writable_ranges

_CALLS = ("data_ptr", "is_contiguous", "is_neg", "is_conj", "storage", "storage_offset", "get_device")
NDIM_MAX = 5  # UNCHANGED_NDIM_MAX of unchanged.h
_ATTRIBUTES = ("shape", "dtype", "is_cpu", "is_cuda", "requires_grad")


def _load() -> Any:
    name = os.environ.get("CKPT_EXTENSION")
    if name == "no":
        return None
    try:
        if name:
            spec = importlib.util.spec_from_file_location("ckpt._bindings", name)
            if spec is None or spec.loader is None:
                raise ImportError("its name ends like none of an extension of this Python")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            from . import _bindings as module  # type: ignore[attr-defined]
    except ImportError as e:
        if name:
            raise ImportError(f"CKPT_EXTENSION names '{name}', which cannot be loaded: {e}; name the "
                              "_bindings.abi3.so of ckptd, or 'no'") from None
        return None  # not compiled, or for other Pythons than this one
    return module if module.BINDING_BYTES == C.sizeof(L.Binding) else None


_module = _load()
_declare = C.cast(L.lib.ckpt_declare, C.c_void_p).value
if _module is not None:
    for _name in L.WAITING:
        getattr(L.lib, _name).errcheck = _module.raise_kept


def interrupt() -> Tuple[Optional[int], Optional[int]]:
    """The last two members of ckpt_options; None: signals wait for the call to return."""
    return (None, None) if _module is None else (_module.INTERRUPTED, threading.main_thread().ident)


def table() -> Optional["Table"]:
    """One for a handle; None where there is no such module."""
    return None if _module is None else Table(_module.Table(dtype_code))


def _sample(x: Any) -> Tuple:
    """An array as numpy describes it."""
    ptr, read_only = x.__array_interface__["data"]
    return x, ptr, x.shape, x.strides, x.base, x.dtype, x.flags.c_contiguous, not read_only


def changes(torch: Any) -> Iterator[Tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """What makes a tensor, and what changes one thing that is seen of it and no other, if it can."""
    def give(make: Callable[[Any], Any]) -> Callable[[Any], None]:
        def change(x: Any) -> None:
            x.data = make(x.data)
        return change

    def maker(extents: Sequence[int], offset: int = 0, dtype: str = "float32") -> Callable[[], Any]:
        return lambda: torch.zeros(200, dtype=getattr(torch, dtype), device="cpu").as_strided(
            extents, strides_of(extents), offset)

    def strides_of(extents: Sequence[int]) -> List[int]:
        return [math.prod(extents[i + 1:]) for i in range(len(extents))]

    def strided(i: int, extent: int, stride: int) -> Callable[[Any], None]:
        def other(values: Sequence[int], add: int) -> List[int]:
            return [v + add * (j == i) for j, v in enumerate(values)]
        return give(lambda x: x.as_strided(other(x.shape, extent), other(x.stride(), stride)))

    for n in range(1, NDIM_MAX + 1):
        for i in range(n):
            yield maker([2] * n), strided(i, -1, 0)
            yield maker([2] * n), strided(i, 0, 1)
        yield maker([2] * n), give(lambda x: x[None] if x.dim() < 5 else x[0])
    plain = maker([4, 8], 3)
    yield plain, give(lambda x: x.as_strided((4, 8), (8, 1), 4))
    yield plain, give(lambda x: x.view(torch.int32))
    yield plain, give(torch._neg_view)
    yield maker([4, 8], 3, "complex64"), give(torch.conj)
    yield plain, give(lambda x: torch.zeros(200).as_strided((4, 8), (8, 1), 3))
    yield plain, give(lambda x: x.to("meta"))
    yield plain, lambda x: x.set_(torch.zeros(200), 3, (4, 8), (8, 1))
    for size in (0, 34 * 4, 201 * 4):
        yield plain, lambda x, size=size: _storage(x).resize_(size)


class Table:
    """What a handle has declared, in declared order."""

    def __init__(self, table: Any):
        self._table = table
        self._numpy = self._torch = False  # whether it was told of them
        self.trusts_digests = False        # of torch's objects
        self.add = table.add

    def _know(self) -> bool:
        """Tells it of the libraries that were imported since; whether there was one."""
        before = self._numpy, self._torch
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if not self._numpy and hasattr(numpy, "ndarray"):
            self._numpy = True
            whole = numpy.arange(24, dtype="float32").reshape(2, 3, 4)
            read_only = numpy.zeros((5, 0), "int8")
            read_only.setflags(write=False)
            self._table.know_numpy(numpy.ndarray, mmap.mmap, tuple(_sample(x) for x in (
                whole, whole.base, whole[1:, ::-1, ::2], whole.T, read_only, numpy.array(1.5))))
        if not self._torch and hasattr(torch, "nn") and hasattr(torch.nn, "Parameter"):
            self._torch = True
            self._know_torch(torch)
        return before != (self._numpy, self._torch)

    def _know_torch(self, torch: Any) -> None:
        tensor = torch.zeros(1, device="cpu")
        untyped = "untyped_storage" if hasattr(tensor, "untyped_storage") else "_storage"  # torch 1.13
        try:
            storage = getattr(tensor, untyped)()
            calls = [getattr(tensor, untyped if name == "storage" else name) for name in _CALLS]
            calls.append(storage.nbytes)
            attributes = [getattr(torch.Tensor, name) for name in _ATTRIBUTES]
        except AttributeError:
            return  # of a torch that is not known here
        if self._table.know_torch(torch.Tensor, torch.nn.Parameter, type(storage), tuple(calls),
                                  tuple(attributes)):
            self._trust_digests(torch)

    def _trust_digests(self, torch: Any) -> None:
        """Lets digests of torch's objects stand for what was seen, where in this torch each change
        changes them. What fails here for another reason leaves tensors to be looked at by calls."""
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                good = all(self._learn(torch, make) and self._sees(change, make)
                           for make, change in changes(torch))
        except Exception:
            return
        if good:
            self._table.trust()
            self.trusts_digests = True

    def _learn(self, torch: Any, make: Callable[[], Any]) -> bool:
        kept = [make(), torch.nn.Parameter(make())]  # at once: at different addresses
        return all(self._table.learn(x, type(x).__basicsize__, x._cdata, _storage(x)._cdata) for x in kept)

    def _sees(self, change: Callable[[Any], Any], make: Callable[[], Any]) -> bool:
        x, before = make(), 0
        _storage(x).resize_(_storage(x).nbytes())  # what is made at a first change is there at the next
        for _ in range(3):
            x.data = x.data
            before, last = self._table.digest(x), before
        x.fill_(1)
        if before == 0 or before != last or self._table.digest(x) != before:
            return False  # it is of no use, or shows another change than the one to be made
        try:
            change(x)
        except RuntimeError:
            return True  # torch does not let it happen
        return self._table.digest(x) != before

    def declare(self, handle: C.c_void_p, *args: Any) -> Optional[Tuple[int, int, Tuple[int, ...], int]]:
        """(name, tensor, global_shape, offset, trained): what ckpt_declare() answers, dtype, shape and
        bytes; None: nothing was done, as the tensor or what is said of it is not simple."""
        said = self._table.declare(_declare, handle.value, *args)
        if said is None and self._know():
            said = self._table.declare(_declare, handle.value, *args)
        return said

    def fill(self, tensors: List[Any], out: Any, writable: bool, keep: List[Any]) -> Sequence[int]:
        """Writes the bindings of those that are simple and as they were declared, and returns the
        indices of the others. tensors, and what is appended to keep, hold their memory."""
        self._know()
        return self._table.fill(tensors, C.addressof(out), writable, keep)

    def first_read_only(self, out: Any) -> Optional[int]:
        """Which of the bindings, those without strides, lies in memory that cannot be written to."""
        ranges = writable_ranges()
        if ranges is None:
            return None
        starts, ends = (array.array("Q", r).tobytes() for r in ranges)
        i = self._table.first_outside(C.addressof(out), len(out), starts, ends)
        return None if i < 0 else i
