# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds, and reads of any part of it: ckpt_stored_open(3) for Python."""

import ctypes as C
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _lib as L
from ._tensors import view


class Shard(NamedTuple):
    """One rank's part of a tensor, as it is stored. Shapes in elements; dtype as a word ('f32');
    flat: (start, stop), row-major elements of the box, where the rank holds a flat range of it."""
    rank: int
    name: str
    dtype: str
    global_shape: Tuple[int, ...]
    offset: Tuple[int, ...]
    shape: Tuple[int, ...]
    flat: Optional[Tuple[int, int]]
    trained: bool
    bytes: int


class StoredBlob(NamedTuple):
    rank: int
    name: str
    bytes: int


class Want(NamedTuple):
    """A box of a tensor: the part of `name` of global_shape at offset goes into tensor, whose shape
    it has."""
    name: str
    tensor: Any
    global_shape: Sequence[int]
    offset: Sequence[int]


class Stored:
    """One checkpoint, opened by Checkpointer.stored(); a context manager. It is a copy of what ckptd
    knows: nothing is held there, and the checkpoint may be removed meanwhile. Used by the handle's
    thread, closed before the handle."""

    def __init__(self, handle: Callable[[], C.c_void_p], stored: C.c_void_p,
                 check: Callable[..., int], info: Any):
        self._handle, self._s, self._check, self.info = handle, stored, check, info
        self._shards: Optional[List[Shard]] = None
        self._blobs: Optional[List[StoredBlob]] = None

    def __enter__(self) -> "Stored":
        return self

    def __exit__(self, kind, value, traceback) -> None:
        self.close()

    def __del__(self):
        self.close()

    def close(self) -> None:
        """May be called twice."""
        if self._s is not None:
            L.lib.ckpt_stored_close(self._s)
            self._s = None

    @property
    def step(self) -> int:
        return self.info.step

    @property
    def shards(self) -> List[Shard]:
        """Of all ranks: ranks in order, within a rank by name and offset."""
        if self._shards is None:
            self._shards = list(self._walk_shards())
        return self._shards

    def _walk_shards(self):
        s = L.StoredShard(C.sizeof(L.StoredShard))
        i = 0
        while True:
            result = L.lib.ckpt_stored_shard_at(self._s, i, C.byref(s))
            if result == L.ENOTFOUND:
                return
            self._check(result)
            n = s.ndim
            yield Shard(s.rank, s.name.decode(), L.DTYPE_NAMES[s.dtype], tuple(s.global_shape[:n]),
                        tuple(s.offset[:n]), tuple(s.shape[:n]),
                        (s.start, s.stop) if s.flags & L.FLAT else None,
                        bool(s.flags & L.TRAINED), s.bytes)
            i += 1

    @property
    def blobs(self) -> List[StoredBlob]:
        if self._blobs is None:
            self._blobs = []
            b = L.StoredBlob()
            while True:
                result = L.lib.ckpt_stored_blob_at(self._s, len(self._blobs), C.byref(b))
                if result == L.ENOTFOUND:
                    break
                self._check(result)
                self._blobs.append(StoredBlob(b.rank, b.name.decode(), b.bytes))
        return self._blobs

    def read(self, wants: Sequence[Want] = (), blobs: Sequence[Tuple[int, str]] = (),
             strict: bool = True, resume: bool = False, timeout_ms: int = L.DEFAULT_TIMEOUT
             ) -> Tuple[Dict[Tuple[int, str], bytes], L.Loaded, List[str]]:
        """Reads boxes into tensors, which may have strides and be on a CUDA device, and blobs by
        (rank, name), all in one go, verified. No element twice in one call. Returns the blobs, what
        ckpt_loaded says, and with strict=False the problems. resume: the rank goes on from here, and
        may save in the job's current epoch."""
        self._handle()  # raises when it is closed
        n, m = len(wants), len(blobs)
        tensors, bindings = (L.Tensor * max(1, n))(), (L.Binding * max(1, n))()
        keep: List[Any] = []
        for i, want in enumerate(wants):
            tensors[i], bindings[i] = self._want(want, keep)
        sizes = {(b.rank, b.name): b.bytes for b in self.blobs} if m else {}
        places = (L.StoredBlob * max(1, m))()
        for i, key in enumerate(blobs):
            size = sizes.get(tuple(key), 0)
            buffer = C.create_string_buffer(max(1, size))
            keep.append(buffer)
            places[i] = L.StoredBlob(key[0], key[1].encode(), C.cast(buffer, C.c_void_p), size)
        args = L.ReadArgs(C.sizeof(L.ReadArgs), tensors, bindings, n, places, m, timeout_ms,
                          (0 if strict else L.LENIENT) | (L.RESUME if resume else 0))
        out = L.Loaded(C.sizeof(L.Loaded))
        self._check(L.lib.ckpt_stored_read(self._s, C.byref(args), C.byref(out)),
                    self._problems())
        got = {tuple(key): C.string_at(places[i].data, places[i].bytes)
               for i, key in enumerate(blobs)}
        return got, out, [] if strict else list(self._problems())

    def _problems(self):
        i = 0
        while True:
            text = L.lib.ckpt_problem(self._handle(), i)
            if text is None:
                return
            yield text.decode("utf-8", "replace")
            i += 1

    @staticmethod
    def _want(want: Want, keep: List[Any]):
        v = view(want.tensor)
        if not len(v.shape) == len(want.global_shape) == len(want.offset):
            raise ValueError(f"'{want.name}': {len(want.global_shape)} global extents and "
                             f"{len(want.offset)} offsets for a tensor of {len(v.shape)} dimensions")

        def array(values):
            return (L.u64 * max(1, len(values)))(*values)

        strides = None
        if v.strides is not None:
            strides = (L.i64 * len(v.strides))(*v.strides)
        tensor = L.Tensor(C.sizeof(L.Tensor), want.name.encode(), v.dtype, len(v.shape),
                          array(want.global_shape), array(want.offset), array(v.shape))
        keep += [strides, tensor, want.tensor]
        return tensor, L.Binding(v.ptr, v.device, v.dtype, v.nbytes, strides)
