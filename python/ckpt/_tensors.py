# SPDX-License-Identifier: Apache-2.0
"""What a live tensor is: pointer, device, dtype, shape, strides. numpy and torch are never imported."""

from typing import Any, NamedTuple, Optional, Tuple

from ._lib import HOST

DTYPES = {
    "bool": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "uint32": 6, "int32": 7,
    "uint64": 8, "int64": 9, "float16": 10, "bfloat16": 11, "float32": 12, "float64": 13,
    "float8_e4m3fn": 14, "float8_e5m2": 15, "float8_e4m3fnuz": 16, "float8_e5m2fnuz": 17,
    "float8_e8m0fnu": 18, "complex64": 19, "complex128": 20,
}
ITEMSIZE = {1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 4, 8: 8, 9: 8, 10: 2, 11: 2, 12: 4, 13: 8,
            14: 1, 15: 1, 16: 1, 17: 1, 18: 1, 19: 8, 20: 16}


class View(NamedTuple):
    """Where a tensor's bytes are now. strides is None when they are contiguous, else in bytes."""
    ptr: int
    device: int
    dtype: int
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]
    nbytes: int


def dtype_code(dtype: Any) -> int:
    """The number of a dtype of numpy or torch, or of its name."""
    name = getattr(dtype, "name", None) or str(dtype)
    name = name.split(".")[-1]
    if name not in DTYPES:
        raise TypeError(f"dtype {dtype} is not one that ckptd stores: {', '.join(DTYPES)}")
    return DTYPES[name]


def _contiguous(shape, strides, itemsize):
    want = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent > 1 and stride != want:
            return False
        want *= extent
    return True


def _elements(shape):
    n = 1
    for extent in shape:
        n *= extent
    return n


def view(tensor: Any) -> View:
    """Of a torch tensor, a numpy array, or (pointer, dtype, shape) on the host."""
    if isinstance(tensor, tuple):
        ptr, dtype, shape = tensor
        code, shape, strides, device = dtype_code(dtype), tuple(shape), None, HOST
    elif hasattr(tensor, "data_ptr"):  # torch
        code = dtype_code(tensor.dtype)
        ptr, shape = tensor.data_ptr(), tuple(tensor.shape)
        strides = tuple(s * ITEMSIZE[code] for s in tensor.stride())
        device = HOST
        if tensor.device.type == "cuda":
            device = tensor.device.index or 0
        elif tensor.device.type != "cpu":
            raise TypeError(f"tensors on device '{tensor.device}' cannot be saved: cpu or cuda")
    elif hasattr(tensor, "__array_interface__"):  # numpy
        interface = tensor.__array_interface__
        code = dtype_code(tensor.dtype)
        if tensor.dtype.byteorder == ">":
            raise TypeError("big-endian arrays cannot be saved")
        ptr, shape, strides, device = interface["data"][0], tensor.shape, tensor.strides, HOST
    else:
        raise TypeError(f"{type(tensor).__name__} is no tensor: give a torch tensor, a numpy "
                        "array, or (pointer, dtype, shape)")
    if strides is not None and (_elements(shape) == 0 or
                                _contiguous(shape, strides, ITEMSIZE[code])):
        strides = None
    return View(ptr, device, code, shape, strides, _elements(shape) * ITEMSIZE[code])
