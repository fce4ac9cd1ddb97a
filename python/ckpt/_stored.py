# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds, and reads of any part of it: ckpt_stored_open(3) for Python."""

import ctypes as C
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _lib as L
from ._tensors import View, extents, first_read_only, view, whole


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
    knows: nothing is held there, and the checkpoint may be removed meanwhile. Its calls are calls with
    the handle: one thread at a time. Read before the handle is closed."""

    _s: Optional[C.c_void_p] = None

    def __init__(self, owner: Any, stored: C.c_void_p, check: Callable[..., int], info: Any):
        # stored may be empty still: it is filled, and info set, by who makes this.
        self._owner, self._s, self._check, self.info = owner, stored, check, info
        self._shards: Optional[List[Shard]] = None
        self._blobs: Optional[List[StoredBlob]] = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("what is stored is open in one place: it cannot be copied or pickled; call "
                        "stored() again")

    def __enter__(self) -> "Stored":
        return self

    def __exit__(self, kind, value, traceback) -> None:
        self.close()

    def __del__(self):
        self._free()

    def close(self) -> None:
        """May be called twice."""
        if self._s is not None:
            self._owner._run(self._free, closed=True)

    def _free(self) -> None:
        s, self._s = self._s, None
        if s is not None:
            L.lib.ckpt_stored_close(s)

    def _open(self) -> C.c_void_p:
        if self._s is None:
            self._owner._raise(L.EBADF, "what is stored was closed; open it again with stored()")
        return self._s

    @property
    def step(self) -> int:
        return self.info.step

    @property
    def shards(self) -> List[Shard]:
        """Of all ranks: ranks in order, within a rank by name and offset."""
        if self._shards is None:
            self._shards = self._owner._run(lambda: list(self._walk_shards()), closed=True)
        return self._shards

    def _walk_shards(self):
        s = L.StoredShard(C.sizeof(L.StoredShard))
        i = 0
        while True:
            result = L.lib.ckpt_stored_shard_at(self._open(), i, C.byref(s))
            if result == L.ENOTFOUND:
                return
            self._check(result)
            n = s.ndim
            yield Shard(s.rank, s.name.decode("utf-8", "surrogateescape"), L.DTYPE_NAMES[s.dtype],
                        tuple(s.global_shape[:n]), tuple(s.offset[:n]), tuple(s.shape[:n]),
                        (s.start, s.stop) if s.flags & L.FLAT else None,
                        bool(s.flags & L.TRAINED), s.bytes)
            i += 1

    @property
    def blobs(self) -> List[StoredBlob]:
        if self._blobs is None:
            self._blobs = self._owner._run(self._walk_blobs, closed=True)
        return self._blobs

    def _walk_blobs(self) -> List[StoredBlob]:
        blobs: List[StoredBlob] = []
        b = L.StoredBlob()
        while True:
            result = L.lib.ckpt_stored_blob_at(self._open(), len(blobs), C.byref(b))
            if result == L.ENOTFOUND:
                return blobs
            self._check(result)
            blobs.append(StoredBlob(b.rank, b.name.decode("utf-8", "surrogateescape"), b.bytes))

    def read(self, wants: Sequence[Want] = (), blobs: Sequence[Tuple[int, str]] = (),
             strict: bool = True, resume: bool = False, timeout_ms: int = L.DEFAULT_TIMEOUT
             ) -> Tuple[Dict[Tuple[int, str], bytes], L.Loaded, List[str]]:
        """Reads boxes into tensors, which may have strides and be on a CUDA device, and blobs by
        (rank, name), all in one go, verified. No element twice in one call. Returns the blobs, what
        ckpt_loaded says, and with strict=False the problems. resume: the rank goes on from here, and
        may save in the job's current epoch."""
        wants, blobs = list(wants), [(rank, name) for rank, name in blobs]
        sizes = {(b.rank, b.name): b.bytes for b in self.blobs} if blobs else {}
        return self._owner._run(self._read, wants, blobs, sizes, strict, resume, timeout_ms)

    def _read(self, wants: Sequence[Want], blobs: Sequence[Tuple[int, str]],
              sizes: Dict[Tuple[int, str], int], strict: bool, resume: bool, timeout_ms: int):
        n, m = len(wants), len(blobs)
        tensors, bindings = (L.Tensor * max(1, n))(), (L.Binding * max(1, n))()
        keep: List[Any] = []
        views: List[View] = []
        for i, want in enumerate(wants):
            tensors[i], bindings[i] = self._want(want, keep, views)
        read_only = first_read_only(views)
        if read_only is not None:
            raise ValueError(f"'{wants[read_only].name}': its memory is read-only, as that of a file that "
                             "is mapped to be read, so nothing can be read into it")
        places = (L.StoredBlob * max(1, m))()
        for i, key in enumerate(blobs):
            size = sizes.get(key, 0)
            buffer = C.create_string_buffer(max(1, size))
            keep.append(buffer)
            places[i] = L.StoredBlob(whole("a blob's rank", key[0], 0, (1 << 31) - 1),
                                     L.text("a blob's name", key[1], "surrogateescape"),
                                     C.cast(buffer, C.c_void_p), size)
        self._owner._settle()
        args = L.ReadArgs(C.sizeof(L.ReadArgs), tensors, bindings, n, places, m, timeout_ms,
                          (0 if strict else L.LENIENT) | (L.RESUME if resume else 0))
        out = L.Loaded(C.sizeof(L.Loaded))
        self._check(L.lib.ckpt_stored_read(self._open(), C.byref(args), C.byref(out)),
                    self._owner._problems())
        got = {key: C.string_at(places[i].data, places[i].bytes)
               for i, key in enumerate(blobs)}
        return got, out, [] if strict else list(self._owner._problems())

    @staticmethod
    def _want(want: Want, keep: List[Any], views: List[View]):
        try:
            v = view(want.tensor)
            if v.nbytes and not v.writable:
                raise ValueError("its array is read-only, so nothing can be read into it")
        except (TypeError, ValueError) as e:
            raise type(e)(f"'{want.name}': {e}") from None
        size, offset = (extents(f"'{want.name}': {what}", values) for what, values in (
            ("global_shape", want.global_shape), ("offset", want.offset)))
        if not len(v.shape) == len(size) == len(offset):
            raise ValueError(f"'{want.name}': {len(size)} global extents and {len(offset)} offsets for "
                             f"a tensor of {len(v.shape)} dimensions")

        def array(values):
            return (L.u64 * max(1, len(values)))(*values)

        strides = None
        if v.strides is not None:
            strides = (L.i64 * len(v.strides))(*v.strides)
        name = L.text("a tensor's name", want.name, "surrogateescape")
        tensor = L.Tensor(C.sizeof(L.Tensor), name, v.dtype, len(v.shape), array(size),
                          array(offset), array(v.shape))
        keep += [strides, tensor, want.tensor, v.owner]
        views.append(v)
        return tensor, L.Binding(v.ptr, v.device, v.dtype, len(v.shape), v.nbytes, strides)
