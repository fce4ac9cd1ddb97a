# SPDX-License-Identifier: Apache-2.0
"""What a live tensor is: pointer, device, dtype, shape, strides. numpy and torch are never imported.

What is given back is the tensor's own memory, which holds its values as they are, and stays while
View.owner does. Of an object whose memory is another's or holds something else (a view that negates,
a wrapper, a temporary) it says so instead: TypeError.
"""

import bisect
import mmap
import operator
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ._lib import HOST

DTYPES = {
    "bool": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "uint32": 6, "int32": 7,
    "uint64": 8, "int64": 9, "float16": 10, "bfloat16": 11, "float32": 12, "float64": 13,
    "float8_e4m3fn": 14, "float8_e5m2": 15, "float8_e4m3fnuz": 16, "float8_e5m2fnuz": 17,
    "float8_e8m0fnu": 18, "complex64": 19, "complex128": 20,
}
DTYPE_WORDS = {code: name for name, code in DTYPES.items()}
ITEMSIZE = {1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 4, 8: 8, 9: 8, 10: 2, 11: 2, 12: 4, 13: 8,
            14: 1, 15: 1, 16: 1, 17: 1, 18: 1, 19: 8, 20: 16}
BYTES_MAX = 1 << 63  # no memory has so many; beyond 2^64 ctypes would cut what it is given


class View(NamedTuple):
    """Where a tensor's bytes are now. strides is None when they are contiguous, else in bytes. owner
    keeps the memory, whatever becomes of the tensor."""
    ptr: int
    device: int
    dtype: int
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]
    nbytes: int
    writable: bool
    owner: Any

    @property
    def kind(self) -> str:
        """'float32 (3, 4)'"""
        return f"{DTYPE_WORDS[self.dtype]} {self.shape}"

    @property
    def reach(self) -> Tuple[int, int]:
        """The addresses of its first byte and behind its last one."""
        if self.strides is None:
            return self.ptr, self.ptr + self.nbytes
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides)]
        return (self.ptr + sum(s for s in steps if s < 0),
                self.ptr + sum(s for s in steps if s > 0) + ITEMSIZE[self.dtype])


_codes: Dict[Any, int] = {}  # of the dtypes that were seen: asking for a name takes longer


def dtype_code(dtype: Any) -> int:
    """The number of a dtype of numpy or torch, or of its name."""
    try:
        return _codes[dtype]
    except (KeyError, TypeError):
        pass  # what _code() raises is then no error during another
    code = _code(dtype)
    if len(_codes) < 1000:
        _codes[dtype] = code
    return code


def _code(dtype: Any) -> int:
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or str(dtype)
    name = name[len("torch."):] if name.startswith("torch.") else name
    if name not in DTYPES or getattr(dtype, "names", None) is not None:
        raise TypeError(f"dtype {dtype} is not one that ckptd stores: {', '.join(DTYPES)}")
    code = DTYPES[name]
    if not getattr(dtype, "isnative", True):
        raise TypeError(f"dtype {dtype} has its bytes in another order than this machine: convert the "
                        f"array first, .astype('{name}')")
    if getattr(dtype, "itemsize", ITEMSIZE[code]) != ITEMSIZE[code]:
        raise TypeError(f"dtype {dtype} has {dtype.itemsize} bytes, and {name} has {ITEMSIZE[code]}")
    return code


def as_int(value: Any) -> Optional[int]:
    """A whole number as a plain int, which stays what it is when the value changes; else None. Truth
    values, numpy's and torch's too, are no numbers."""
    if isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool"):
        return None
    try:
        return int.__int__(operator.index(value))
    except TypeError:
        return None


def whole(what: str, value: Any, least: int, most: int) -> int:
    """A number as libckpt takes it, or TypeError or ValueError: ctypes would cut it to its bits."""
    n = as_int(value)
    if n is None:
        raise TypeError(f"{what} is {value!r}, not a whole number")
    if not least <= n <= most:
        raise ValueError(f"{what} is {n}, not from {least} to {most}")
    return n


def seconds(what: str, value: Any) -> float:
    """A time as it is given, or TypeError or ValueError."""
    try:
        n = None if isinstance(value, (str, bytes, bytearray)) else float(value)
    except OverflowError:  # of a whole number
        n = float("inf") if value > 0 else -1.0
    except TypeError:
        n = None
    if n is None:
        raise TypeError(f"{what} is {value!r}, not a number: give seconds from 0 on, or None for the "
                        "default")
    if not n >= 0:  # nor NaN
        raise ValueError(f"{what} is {value!r}: give seconds from 0 on, or None for the default")
    return n


def extents(what: str, values: Sequence[int]) -> Tuple[int, ...]:
    """Of a shape, or offsets."""
    try:
        values = tuple(values)
    except TypeError:
        raise TypeError(f"{what} is {values!r}, not one number for each dimension") from None
    return tuple(whole(what, v, 0, BYTES_MAX - 1) for v in values)


def _elements(shape):
    n = 1
    for extent in shape:
        n *= extent
    return n


def _of_pointer(tensor: tuple) -> View:
    if len(tensor) != 3:
        raise TypeError(f"a tuple of {len(tensor)} is no tensor: give (pointer, dtype, shape)")
    ptr, dtype, shape = tensor
    code, shape = dtype_code(dtype), extents("the shape", shape)
    return View(whole("the pointer", ptr, 0, BYTES_MAX), HOST, code, shape, None,
                _elements(shape) * ITEMSIZE[code], True, None)


def _check_file(numpy: Any, array: Any) -> None:
    """Of an array of a mapped file: touching what the file has no bytes for ends the process."""
    below, start = array, 0
    while isinstance(below, (numpy.ndarray, memoryview)):
        if isinstance(below, numpy.memmap) and isinstance(getattr(below, "offset", None), int):
            start = below.offset - below.offset % mmap.ALLOCATIONGRANULARITY
        below = below.obj if isinstance(below, memoryview) else below.base
    if not isinstance(below, mmap.mmap):
        return
    try:
        size = below.size()
    except (OSError, ValueError):  # not of a file; or closed, which numpy does not let happen
        return
    if start + len(below) > size:
        raise ValueError(f"its file has {size} bytes now, and {start + len(below)} are mapped: it was "
                         "made shorter after it was mapped; map it again")


def _of_numpy(numpy: Any, array: Any) -> View:
    if isinstance(array, numpy.ma.MaskedArray):
        raise TypeError("a masked array is two arrays: give its .data and its .mask one by one")
    owner = numpy.ndarray.view(array, numpy.ndarray) if type(array) is not numpy.ndarray else array
    code = dtype_code(owner.dtype)
    strides = owner.strides if owner.size and not owner.flags.c_contiguous else None
    # Not flags.writeable, which warns of what np.broadcast_arrays() made.
    ptr, readonly = owner.__array_interface__["data"]
    _check_file(numpy, owner)
    return View(ptr, HOST, code, owner.shape, strides, owner.size * ITEMSIZE[code], not readonly, owner)


def _storage(tensor: Any) -> Any:
    """Untyped; it holds the memory when the tensor is given another."""
    untyped = getattr(tensor, "untyped_storage", None)
    return untyped() if untyped is not None else tensor._storage()  # torch 1.13


def _plain(torch: Any, tensor: Any) -> Any:
    """The tensor itself, without what a subclass or an attribute of it says of shape, layout and
    memory in place of torch."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.__dict__:
        return tensor
    said = tuple(tensor.shape), tensor.dtype
    with torch._C.DisableTorchFunction():
        plain = torch.Tensor.as_subclass(tensor, torch.Tensor)
    if said != (tuple(plain.shape), plain.dtype):
        raise TypeError(f"this {type(tensor).__name__} says that it is {said[1]} {said[0]}, and its "
                        f"memory holds {plain.dtype} {tuple(plain.shape)}: give a plain tensor")
    return plain


def _of_torch(torch: Any, tensor: Any) -> View:
    kind = type(tensor).__name__
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise TypeError(f"a {kind} has no memory of its own: give the plain tensor that it stands for "
                        "(of a DTensor .to_local())")
    tensor = _plain(torch, tensor)
    if tensor.layout is not torch.strided or getattr(tensor, "is_nested", False):
        raise TypeError(f"a nested tensor or one of layout {tensor.layout} is not one block of memory: "
                        "give the tensors that it is made of one by one, or .to_dense()")
    place = tensor.device
    if place.type not in ("cpu", "cuda"):
        raise TypeError(f"tensors on device '{place}' cannot be saved: cpu or cuda")
    code = dtype_code(tensor.dtype)
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError("the memory of a view that conjugates or negates holds other values: give "
                        ".resolve_conj().resolve_neg() of it, a tensor of its own")
    item, nbytes = ITEMSIZE[code], tensor.numel() * ITEMSIZE[code]
    shape, strides = tuple(tensor.shape), None
    owner, ptr = _storage(tensor), tensor.data_ptr()
    if nbytes:
        reach = nbytes
        if not tensor.is_contiguous():
            strides = tuple(s * item for s in tensor.stride())
            reach = item + sum((n - 1) * s for n, s in zip(shape, strides))
        if not ptr or tensor.storage_offset() * item + reach > owner.nbytes():
            raise TypeError(f"the tensor has no memory for its {nbytes} bytes: its storage was freed or "
                            "made smaller, or it only stands for another")
    return View(ptr, HOST if place.type == "cpu" else place.index or 0, code, shape, strides, nbytes,
                True, owner)


def _look(tensor: Any) -> View:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(tensor, torch.Tensor):
        try:
            return _of_torch(torch, tensor)
        except (TypeError, ValueError):
            raise
        except Exception as e:  # what torch has no memory to show of, or what a subclass raises
            raise TypeError(f"it is not known where the bytes of this {type(tensor).__name__} are: {e}"
                            ) from e
    if numpy is not None and isinstance(tensor, numpy.ndarray):
        return _of_numpy(numpy, tensor)
    if isinstance(tensor, tuple) and not hasattr(tensor, "numel"):  # torch.Size
        return _of_pointer(tensor)
    if numpy is not None and isinstance(tensor, numpy.generic):
        raise TypeError(f"a numpy scalar ({type(tensor).__name__}) has no memory that stays: give an "
                        "array of no dimensions, np.array(x)")
    raise TypeError(f"{type(tensor).__name__} is no tensor: give a torch tensor, a numpy array, or "
                    "(pointer, dtype, shape)")


def writable_ranges() -> Optional[Tuple[List[int], List[int]]]:
    """Where this process may write: starts and ends of ranges, sorted; None where that is not known."""
    starts: List[int] = []
    ends: List[int] = []
    try:
        with open("/proc/self/maps") as f:
            for line in f:
                where, rights, _ = line.split(" ", 2)
                if rights[1] != "w":
                    continue
                start, end = (int(n, 16) for n in where.split("-"))
                if ends and ends[-1] == start:
                    ends[-1] = end
                else:
                    starts.append(start)
                    ends.append(end)
    except (OSError, ValueError):
        return None
    return starts, ends


def first_read_only(views: Sequence[View]) -> Optional[int]:
    """Which of these lies in memory that cannot be written to. torch makes tensors of mapped files and
    does not know that they were mapped to be read; a load into one would end the process."""
    ranges = writable_ranges()
    if ranges is None:
        return None
    starts, ends = ranges
    for i, v in enumerate(views):
        if v.device != HOST or not v.nbytes:
            continue
        first, behind = v.reach
        at = bisect.bisect_right(starts, first) - 1
        if at < 0 or behind > ends[at]:
            return i
    return None


def view(tensor: Any) -> View:
    """Of a torch tensor, a numpy array, or (pointer, dtype, shape) on the host."""
    v = _look(tensor)
    if v.nbytes >= BYTES_MAX:
        raise ValueError(f"a tensor of shape {v.shape} has {v.nbytes} bytes, more than memory can have")
    return v
