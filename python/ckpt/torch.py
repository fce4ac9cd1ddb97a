# SPDX-License-Identifier: Apache-2.0
"""ckpt.torch: torch.distributed.checkpoint saves to and loads from ckptd.

    import torch.distributed.checkpoint as dcp, ckpt.torch as ck

    dcp.load(state, storage_reader=ck.Reader("run7"))             # at a start: the newest before it
    writer = ck.Writer("run7")
    dcp.save(state, checkpoint_id=f"ckpt://run7/{step}", storage_writer=writer)   # or dcp.async_save
    dcp.load(state, storage_reader=ck.Reader("run7", step))       # of this launch, by its step

Under torch 1.13: save_state_dict(state, ck.Writer("run7", step)), load_state_dict(state,
ck.Reader("run7")). Any number of ranks loads what any other saved, from memory or disk, and so does
ckpt.load(): tensors are stored under their names as boxes of the whole, never pickled. What DCP says
of them (properties, chunks, its planner's data) is JSON in the blob 'ckpt.torch' of the coordinator;
items that are no tensors are blobs with the bytes that DCP's planner made of them.

Importing this module needs neither torch nor ckptd; Writer and Reader are made when they are first
asked for. Writers and readers of one process share one handle on the job: see ckpt._session. A
writer's methods may be called from another thread, as async_save does, one save at a time.
"""

import dataclasses
import io
import json
import os
import sys
import threading
import time
import weakref
from typing import Any, Dict, List, Optional, Tuple

from . import CkptError, Want, _json, _ms
from ._session import check_step, close_all, parse, session
from ._tensors import DTYPES

__all__ = ["Writer", "Reader", "close_all"]

METADATA = "ckpt.torch"        # the coordinator's blob
PACKED = "ckpt.torch.packed"   # bytes items beyond what may be blobs of their own
BLOBS_OWN = 1000               # libckpt takes 1024 in one save,
BLOB_NAMES = 48 << 10          # and so many bytes of their names
_UNAVAILABLE, _TIMED_OUT = -1004, -1013
FORMAT = 1


class _Torch:
    """The parts of torch that are used, by the names of 2.x, or of 1.13 where that is there."""

    def __init__(self):
        import torch
        self.torch = torch
        try:
            from torch.distributed.checkpoint import metadata, planner, storage
        except ImportError:
            try:
                from torch.distributed._shard.checkpoint import metadata, planner, storage
            except ValueError as e:
                raise ImportError(
                    f"torch {torch.__version__} cannot import its DCP under Python "
                    f"{sys.version_info[0]}.{sys.version_info[1]} ({e}): use torch 2, or Python "
                    "3.10, or what ckpt-torch(7) says of Debian 12") from None
        self.metadata, self.planner, self.storage = metadata, planner, storage
        self.future = torch.futures.Future
        try:  # what torch's own writers put into Metadata.version
            from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION as version
        except ImportError:
            version = None
        self.version = version


def _done(api: _Torch, value: Any) -> Any:
    future = api.future()
    future.set_result(value)
    return future


class _Target:
    """What Writer and Reader have in common: which job, which step, how the handle is opened."""

    _api: _Torch

    def __init__(self, job: Optional[str] = None, step: Optional[int] = None, *,
                 timeout: Optional[float] = None, **options: Any):
        self.job: Optional[str] = None
        self.step = step
        _ms(timeout)  # one that is none is refused here
        self.timeout = timeout
        self._options = options
        if job is not None:
            name, in_url, _ = parse(job)
            self.job = name
            self.step = step if step is not None else in_url

    def reset(self, checkpoint_id: Any = None) -> None:
        """DCP's: another checkpoint is meant from now on, 'ckpt://JOB/STEP'; None: the same."""
        if checkpoint_id is not None:
            self.job, self.step, _ = parse(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        try:
            return str(checkpoint_id).startswith("ckpt://") and bool(parse(checkpoint_id))
        except ValueError:
            return False

    @property
    def checkpoint_id(self) -> str:
        return f"ckpt://{self.job}" + ("" if self.step is None else f"/{self.step}")

    def _session(self):
        return self._session_of(self.job)

    def _session_of(self, job: Optional[str]):
        if job is None:
            raise CkptError(-22, "no job is named: give checkpoint_id='ckpt://JOB/STEP', or "
                            f"{type(self).__name__}('JOB')")
        return session(job, **self._options)


# ---- Saving ----

@dataclasses.dataclass
class _Saving:
    """One rank's part of a save, between write_data and finish."""
    step: int
    tensors: List[Tuple[str, Any, Tuple[int, ...], Tuple[int, ...]]]
    blobs: Dict[str, bytes]


def _place_bytes(items: List[Tuple[str, bytes]]) -> Tuple[Dict[str, bytes], Dict[str, Tuple]]:
    """Blobs, and where each item is: (blob, offset, length). As many as may be are their own."""
    blobs: Dict[str, bytes] = {}
    places: Dict[str, Tuple] = {}
    packed, names = io.BytesIO(), 0
    for fqn, data in items:
        size = len(fqn.encode("utf-8", "surrogatepass"))
        is_name = "\0" not in fqn and fqn.encode("utf-8", "ignore").decode() == fqn
        if is_name and len(blobs) < BLOBS_OWN and names + size < BLOB_NAMES and size <= 1023 and fqn not in (
                METADATA, PACKED, "") and fqn not in blobs:
            blobs[fqn], places[fqn], names = data, (fqn, 0, len(data)), names + size
        else:
            places[fqn] = (PACKED, packed.tell(), len(data))
            packed.write(data)
    if packed.tell():
        blobs[PACKED] = packed.getvalue()
    return blobs, places


class _Turns:
    """Which thread's save goes on: one at a time of a writer, or a save would go on with the step and
    the staged copy of another. DCP does not tell a writer that a save has failed: a turn ends too when
    its thread does, when that begins another, or when another has waited for it in vain."""

    POLL = 0.02  # seconds; a thread's end wakes nobody

    def __init__(self, patience: Any):
        self._patience = patience
        self._changed = threading.Condition()
        self._owner: Optional[threading.Thread] = None
        self._announced = False              # staged for a thread that is still to come
        self._ousted: Any = weakref.WeakSet()

    def _wait(self, free: Any) -> bool:
        deadline = time.monotonic() + self._patience()
        while not free():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._changed.wait(min(left, self.POLL))
        return True

    def _is_free(self) -> bool:
        return (self._owner is None or self._owner is threading.current_thread() or
                not self._owner.is_alive())

    def begin(self) -> None:
        me = threading.current_thread()
        with self._changed:
            if not self._wait(self._is_free):
                self._ousted.add(self._owner)
            self._ousted.discard(me)
            self._owner, self._announced = me, False

    def check(self) -> None:
        with self._changed:
            if threading.current_thread() in self._ousted:
                raise CkptError(-1013, "another save of this writer took the place of this one, which "
                                f"was not over after {self._patience():g} seconds")

    def end(self) -> None:
        with self._changed:
            if threading.current_thread() not in self._ousted:
                self._owner = None
            self._changed.notify_all()

    def announce(self) -> None:
        """A save by another thread is to come."""
        with self._changed:
            if not self._wait(lambda: not self._announced and self._is_free()):
                self._announced = False
                raise CkptError(-1013, "the save before by this writer is not over after "
                                f"{self._patience():g} seconds: wait for its future before the next, "
                                "or give the writer a longer timeout")
            self._owner, self._announced = None, True

    def withdraw(self) -> None:
        with self._changed:
            self._announced = False
            self._changed.notify_all()


class _Writer(_Target):
    """StorageWriter and AsyncStager in one.

    Writer(job, step=None, *, durable=False, timeout=None, process_group=None, rank=None, world=None,
    run_id=None, socket=None, token=None, connect_timeout=None): job is a name or 'ckpt://JOB/STEP';
    the step is that of checkpoint_id, or the attribute `step`, which rises from save to save. finish()
    returns when the checkpoint is COMMITTED, with durable=True when it is DURABLE, and raises
    CkptError when it will not be. timeout (seconds, default CKPT_TIMEOUT or 60) bounds each wait.
    """

    _synchronize_after_execute = False

    def __init__(self, job: Optional[str] = None, step: Optional[int] = None, *,
                 durable: bool = False, timeout: Optional[float] = None, **options: Any):
        self._of_thread = threading.local()  # .target: what reset() named for this thread's next save
        super().__init__(job, step, timeout=timeout, **options)
        self.durable = durable
        self._coordinator = False
        self._collectives = True
        self._job: Optional[str] = None      # of the save that goes on
        self._now: Optional[int] = None      # its step
        self._pending: Optional[_Saving] = None
        self._metadata_bytes = 0
        self._turns = _Turns(self._patience)
        self._stager: Any = None
        self._staged_like: Any = None

    @property
    def step(self) -> Optional[int]:
        return self._step

    @step.setter
    def step(self, step: Optional[int]) -> None:
        self._step = step
        self._of_thread.target = None

    def _patience(self) -> float:
        if self.timeout is not None:
            return self.timeout
        try:
            return float(os.environ.get("CKPT_TIMEOUT", "") or 60)
        except ValueError:  # ckpt.open() will say so
            return 60.0

    # Order of calls: reset, set_up_storage_writer (1.13: init), prepare_local_plan,
    # prepare_global_plan on the coordinator, write_data, finish on the coordinator. All of one save are
    # in one thread; async_save's are in a thread of their own, while the trainer's goes on.

    def reset(self, checkpoint_id: Any = None) -> None:
        super().reset(checkpoint_id)
        if checkpoint_id is not None:
            job, step, _ = parse(checkpoint_id)  # another thread may set the attributes meanwhile
            self._of_thread.target = job, step

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        target = getattr(self._of_thread, "target", None) or (self.job, self.step)
        self._of_thread.target = None
        self._turns.begin()
        if self._pending is not None:
            self._drop("the save before was not finished")
        self._job, self._now = target
        self._coordinator = is_coordinator
        self._collectives = kwargs.get("use_collectives", True)

    def init(self, is_coordinator: bool) -> None:
        """1.13's name of set_up_storage_writer."""
        self.set_up_storage_writer(is_coordinator)

    def storage_meta(self) -> None:
        return None

    def prepare_local_plan(self, plan: Any) -> Any:
        if self._now is None:
            raise CkptError(-22, f"no step is named for job '{self._job}': give checkpoint_id="
                            "'ckpt://JOB/STEP', or set the writer's step")
        check_step(self._now)
        s = self._session_of(self._job)
        with s.lock:
            said = {"generation": s.generation, "again": s.again}
        return dataclasses.replace(plan, storage_data=said)

    def prepare_global_plan(self, plans: List[Any]) -> List[Any]:
        """All ranks open their handles anew together when the plan of one has changed. With DCP's plan
        caching a rank whose plan is not usable keeps the one that it had: where there is a new
        generation to be told it is given that plan once more."""
        s = self._session_of(self._job)
        with s.lock:
            known, generation = s.plans, s.generation
            plans = list(plans)
            full = [known[i] if not getattr(p, "usable", True) and known and i < len(known) else p
                    for i, p in enumerate(plans)]
            s.plans = full
        said = [p.storage_data or {} for p in plans if getattr(p, "usable", True)]
        generation = max([generation] + [x.get("generation", 0) for x in said])
        changed = known is not None and [_plan_key(p) for p in known] != [_plan_key(p) for p in full]
        new = changed or any(x.get("again") or x.get("generation", generation) != generation
                             for x in said)
        if new:
            generation += 1
        self._metadata_bytes = sum(256 + 2 * len(_json.dumps(p.planner_data)) +
                                   sum(_item_bytes(i) for i in p.items) for p in full)
        return [dataclasses.replace(f, storage_data={"generation": generation, "again": False})
                if new or getattr(p, "usable", True) else p for p, f in zip(plans, full)]

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Copies this rank's items out; the coordinator's go with the metadata, in finish()."""
        self._turns.check()
        s, step = self._session_of(self._job), self._now
        try:
            with s.lock:
                generation = (plan.storage_data or {}).get("generation", s.generation)
                if generation > s.generation:
                    s.new_generation(generation)
                try:
                    saving, results = self._resolve(plan, planner, s, step)
                except BaseException:
                    self._skip(s, step, "its items could not be resolved")
                    raise
                if self._coordinator or not self._collectives:
                    self._pending = saving
                else:
                    self._save(s, saving)
            return _done(self._api, results)
        finally:
            if self._pending is None:
                self._turns.end()

    def _resolve(self, plan: Any, planner: Any, s: Any, step: int):
        types = self._api.planner.WriteItemType
        tensors, items = [], []
        for item in plan.items:
            data = planner.resolve_data(item)
            if item.type == types.BYTE_IO:
                items.append((item.index.fqn, bytes(data.getbuffer())))
                continue
            # Of a view that conjugates or negates a tensor of its own: its memory holds other values.
            data = data.detach().resolve_conj().resolve_neg()
            if str(data.dtype).split(".")[-1] not in DTYPES:
                raise CkptError(-22, f"tensor '{item.index.fqn}': {data.dtype} is not a type that "
                                f"ckptd stores: {', '.join(DTYPES)}")
            chunk = item.tensor_data.chunk
            tensors.append((item.index.fqn, data, tuple(item.tensor_data.size),
                            tuple(chunk.offsets)))
        blobs, places = _place_bytes(items)
        room = sum(len(b) for b in blobs.values())
        if self._coordinator or not self._collectives:
            room += self._metadata_bytes + (64 << 10)
        self._synchronize([t for _, t, _, _ in tensors])
        s.declare(tensors, room)
        results = []
        sizes = {(name, offset): t.numel() * t.element_size() for name, t, _, offset in tensors}
        for item in plan.items:
            if item.type == types.BYTE_IO:
                place = places[item.index.fqn]
                results.append(self._result(item, place[2], (s.rank,) + place))
            else:
                offset = tuple(item.tensor_data.chunk.offsets)
                results.append(self._result(item, sizes[item.index.fqn, offset], None))
        return _Saving(step, tensors, blobs), results

    def _result(self, item: Any, size: int, data: Any) -> Any:
        return self._api.storage.WriteResult(index=item.index, size_in_bytes=size, storage_data=data)

    def _synchronize(self, tensors: List[Any]) -> None:
        """What the streams of the devices still compute is to be in the copy."""
        for device in {t.device for t in tensors if t.device.type == "cuda"}:
            self._api.torch.cuda.synchronize(device)

    def _save(self, s: Any, saving: _Saving) -> None:
        try:
            s.save(saving.step, saving.blobs, self.timeout)
        finally:
            s.unbind()

    def _skip(self, s: Any, step: int, why: str) -> None:
        """The error that led here is the one to be seen."""
        error = sys.exc_info()[1]
        if not s.is_open and getattr(error, "code", 0) in (_UNAVAILABLE, _TIMED_OUT):
            return  # it would wait for ckptd as long once more
        try:
            s.handle.skip(step, why)
        except CkptError:
            pass

    def _drop(self, why: str) -> None:
        pending, self._pending = self._pending, None
        s = self._session_of(self._job)
        with s.lock:
            self._skip(s, pending.step, why)
            s.unbind()

    def finish(self, metadata: Any, results: List[List[Any]]) -> None:
        self._turns.check()
        pending, self._pending = self._pending, None
        if pending is None:
            raise CkptError(-1015, "finish() without write_data()")
        s = self._session_of(self._job)
        try:
            with s.lock:
                try:
                    pending.blobs[METADATA] = _encode_metadata(self._api, metadata, results)
                except BaseException:
                    self._skip(s, pending.step, "its metadata cannot be stored")
                    raise
                self._save(s, pending)
                s.wait(pending.step, self.durable, self.timeout)
        finally:
            self._turns.end()

    # AsyncStager: async_save uses the writer itself as stager.

    @property
    def should_synchronize_after_execute(self) -> bool:
        return self._synchronize_after_execute

    def stage(self, state_dict: Any, **kwargs: Any) -> Any:
        """A copy on the CPU, in memory that is kept from save to save (pinned where there is CUDA).
        Waits for the save before, whose copy it would overwrite, and raises when that does not end."""
        self._turns.announce()
        from torch.distributed.checkpoint.staging import BlockingAsyncStager
        try:
            if not self._api.torch.cuda.is_available():
                return BlockingAsyncStager().stage(state_dict)
            like = _structure(state_dict)
            if self._stager is None or self._staged_like != like:
                self._stager = BlockingAsyncStager(cache_staged_state_dict=True)
                self._staged_like = like
            try:
                return self._stager.stage(state_dict)
            except ValueError:  # values of types that the kept copy does not take
                self._stager = None
                return BlockingAsyncStager().stage(state_dict)
        except BaseException:
            self._turns.withdraw()
            raise

    def synchronize_staging(self) -> None:
        """Nothing is left to do when stage() returns."""

    def close(self) -> None:
        """Ends what was begun and not finished. The handle stays, for readers; see close_all()."""
        if self._pending is not None:
            self._drop("the writer was closed")
            self._turns.end()
        self._stager = self._staged_like = None


def _structure(value: Any) -> Any:
    """What a kept copy must have in common with what is copied into it: copy_() would broadcast and
    convert."""
    if isinstance(value, dict):
        return tuple((k, _structure(v)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_structure(v) for v in value)
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return type(value)
    shards = [value]
    if hasattr(value, "local_shards"):
        shards = [shard.tensor for shard in value.local_shards()]
    elif hasattr(value, "_local_tensor"):
        shards = [value._local_tensor]
    return (type(value), str(value.dtype), tuple(value.shape),
            tuple((tuple(t.shape), str(t.dtype)) for t in shards))


def _plan_key(plan: Any) -> Tuple:
    return tuple(_item_key(i) for i in plan.items)


def _item_key(item: Any) -> Tuple:
    d = item.tensor_data
    if d is None:
        return (item.index.fqn,)
    return (item.index.fqn, str(d.properties.dtype), tuple(d.size), tuple(d.chunk.offsets),
            tuple(d.chunk.sizes))


def _item_bytes(item: Any) -> int:
    """Of an item in the metadata's JSON, at most."""
    dims = len(item.tensor_data.size) if item.tensor_data is not None else 0
    return 400 + 6 * len(item.index.fqn.encode("utf-8", "surrogatepass")) + 3 * 22 * dims


# ---- Metadata as JSON ----

_PROPERTIES = ("dtype", "layout", "requires_grad", "memory_format", "pin_memory")


def _encode_metadata(api: _Torch, metadata: Any, results: List[List[Any]]) -> bytes:
    at = {r.index.fqn: list(r.storage_data) for rank in results for r in rank if r.storage_data}
    items: Dict[str, Any] = {}
    for fqn, md in metadata.state_dict_metadata.items():
        if isinstance(md, api.metadata.TensorStorageMetadata):
            p = md.properties
            items[fqn] = {"size": list(md.size),
                          "properties": [str(getattr(p, n)) if n in ("dtype", "layout", "memory_format")
                                         else bool(getattr(p, n)) for n in _PROPERTIES],
                          "chunks": [[list(c.offsets), list(c.sizes)] for c in md.chunks]}
        else:
            items[fqn] = {"at": at.get(fqn)}
    return json.dumps({"format": FORMAT, "items": items,
                       "version": getattr(metadata, "version", None),
                       "planner_data": _json.tagged(metadata.planner_data)},
                      separators=(",", ":")).encode()


def _torch_word(api: _Torch, word: str) -> Any:
    """'torch.float32' and the like: an attribute of torch, of one of three types."""
    t = api.torch
    value = getattr(t, word.split(".")[-1], None)
    if not isinstance(value, (t.dtype, t.layout, t.memory_format)):
        raise CkptError(-1012, f"the checkpoint's metadata speak of '{word}', which torch "
                        f"{t.__version__} does not have")
    return value


def _properties(api: _Torch, words: List[Any]) -> Any:
    fields = {n: _torch_word(api, w) if isinstance(w, str) else w
              for n, w in zip(_PROPERTIES, words)}
    return api.metadata.TensorProperties(**fields)


def _flat_boxes(offset, shape, start, stop):
    """Elements [start, stop), row-major, of the box at offset: as boxes, at most 2d - 1."""
    if not shape:
        return [(offset, shape)] if stop > start else []
    inner = 1
    for n in shape[1:]:
        inner *= n
    if stop <= start or inner == 0:
        return []
    if len(shape) == 1:
        return [((offset[0] + start,), (stop - start,))]
    first, last = start // inner, (stop - 1) // inner

    def rows(row, a, b):
        return [((offset[0] + row,) + o, (1,) + n)
                for o, n in _flat_boxes(tuple(offset[1:]), tuple(shape[1:]), a, b)]

    if first == last:
        return rows(first, start - first * inner, stop - first * inner)
    out = []
    lo, hi = first, last + 1
    if start > first * inner:
        out += rows(first, start - first * inner, inner)
        lo += 1
    tail = []
    if stop < (last + 1) * inner:
        tail = rows(last, 0, stop - last * inner)
        hi -= 1
    if hi > lo:
        out.append(((offset[0] + lo,) + tuple(offset[1:]), (hi - lo,) + tuple(shape[1:])))
    return out + tail


def _overlap(a, b) -> bool:
    return all(x < y + n and y < x + m for x, m, y, n in zip(a[0], a[1], b[0], b[1]))


def _chunks_of(shards: List[Any]) -> List[Tuple[Tuple[int, ...], Tuple[int, ...]]]:
    """Each stored box once. DCP reads what it wants of a tensor from every chunk that overlaps it:
    of chunks that overlap each other, as ranks that save without DCP may store, the whole is one."""
    boxes: Dict[Tuple, None] = {}
    for s in shards:
        for box in _flat_boxes(s.offset, s.shape, *s.flat) if s.flat else [(s.offset, s.shape)]:
            boxes.setdefault(box)
    out = list(boxes)
    whole = shards[0].global_shape
    elements, total = 0, 1
    for _, shape in out:
        n = 1
        for extent in shape:
            n *= extent
        elements += n
    for extent in whole:
        total *= extent
    if elements > total or (len(out) <= 1000 and any(
            _overlap(a, b) for i, a in enumerate(out) for b in out[:i])):
        return [((0,) * len(whole), tuple(whole))]
    return out


class _NotStored(CkptError, KeyError):
    def __init__(self, text: str):
        CkptError.__init__(self, -1008, text)

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self):
        return _NotStored, (str(self),)


class _Items(dict):
    """DCP of torch 1.13 looks up what is wanted, and would only say KeyError."""

    def __init__(self, step: int, items: Any = ()):
        super().__init__(items)
        self.step = step

    def __missing__(self, fqn: str) -> Any:
        raise _NotStored(f"'{fqn}' is wanted and is not in step {self.step}")

    def __reduce__(self):
        return _Items, (self.step, dict(self))


def _decode_metadata(api: _Torch, stored: Any) -> Any:
    """DCP's Metadata: from its JSON where DCP saved it, else from what is stored."""
    m = api.metadata
    keys = [(b.rank, b.name) for b in stored.blobs if b.name == METADATA]
    texts = stored.read(blobs=keys)[0] if keys else {}
    items: Dict[str, Any] = _Items(stored.step)
    at: Dict[Any, Tuple] = {}
    planner_data = None
    more: Dict[str, Any] = {}
    if any(f.name == "version" for f in dataclasses.fields(m.Metadata)):
        more["version"] = api.version
    for key in keys:
        said = json.loads(texts[key])
        if said.get("format") != FORMAT:
            raise CkptError(-1012, f"step {stored.step}: its DCP metadata have format "
                            f"{said.get('format')}, this adapter reads {FORMAT}")
        planner_data = _merge(planner_data, _json.untagged(said["planner_data"]))
        if more and said.get("version"):
            more["version"] = said["version"]
        for fqn, item in said["items"].items():
            if "chunks" in item:
                md = items.get(fqn)
                chunks = [m.ChunkStorageMetadata(offsets=api.torch.Size(o), sizes=api.torch.Size(n))
                          for o, n in item["chunks"]]
                if md is None:
                    items[fqn] = m.TensorStorageMetadata(
                        properties=_properties(api, item["properties"]),
                        size=api.torch.Size(item["size"]), chunks=chunks)
                else:
                    md.chunks.extend(c for c in chunks if c not in md.chunks)
            else:
                items[fqn] = m.BytesStorageMetadata()
                if item["at"]:
                    at[m.MetadataIndex(fqn)] = tuple(item["at"])
    if not keys:
        plain, at = _plain_metadata(api, stored)
        items.update(plain)
    return m.Metadata(state_dict_metadata=items, planner_data=planner_data, storage_data=at,
                      **more)


def _merge(a: Any, b: Any) -> Any:
    if isinstance(a, dict) and isinstance(b, dict):
        return {**b, **a}
    return b if a is None else a


def _plain_metadata(api: _Torch, stored: Any) -> Tuple[Dict[str, Any], Dict[Any, Tuple]]:
    """Of a checkpoint that was saved without DCP: tensors by name, of each rank's blobs the first."""
    m, t = api.metadata, api.torch
    by_name: Dict[str, List[Any]] = {}
    for shard in stored.shards:
        by_name.setdefault(shard.name, []).append(shard)
    items: Dict[str, Any] = {}
    for name, shards in by_name.items():
        word = _TORCH_DTYPES[shards[0].dtype]
        properties = _properties(api, [f"torch.{word}", "torch.strided", shards[0].trained,
                                       "torch.contiguous_format", False])
        items[name] = m.TensorStorageMetadata(
            properties=properties, size=t.Size(shards[0].global_shape),
            chunks=[m.ChunkStorageMetadata(offsets=t.Size(o), sizes=t.Size(n))
                    for o, n in _chunks_of(shards)])
    at: Dict[Any, Tuple] = {}
    for b in stored.blobs:
        if b.name not in items:
            items[b.name] = m.BytesStorageMetadata()
            at[m.MetadataIndex(b.name)] = (b.rank, b.name, 0, b.bytes)
    return items, at


_TORCH_DTYPES = {
    "bool": "bool", "u8": "uint8", "i8": "int8", "u16": "uint16", "i16": "int16", "u32": "uint32",
    "i32": "int32", "u64": "uint64", "i64": "int64", "f16": "float16", "bf16": "bfloat16",
    "f32": "float32", "f64": "float64", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2",
    "f8_e4m3fnuz": "float8_e4m3fnuz", "f8_e5m2fnuz": "float8_e5m2fnuz",
    "f8_e8m0": "float8_e8m0fnu", "c64": "complex64", "c128": "complex128",
}


# ---- Loading ----

class _Reader(_Target):
    """StorageReader.

    Reader(job, step=None, *, strict=True, timeout=None, process_group=None, rank=None, world=None,
    run_id=None, socket=None, token=None, connect_timeout=None): without a step the checkpoint that this
    launch began with, the newest of all launches before it and the same one on every rank; what this
    launch has saved is loaded by its step. `loaded_step` says which it was. Every byte is verified. A damaged
    newest makes read_data() raise; the next load gives the one before. strict=False reads what matches
    and lists the rest in `problems`.
    """

    def __init__(self, job: Optional[str] = None, step: Optional[int] = None, *,
                 strict: bool = True, timeout: Optional[float] = None, **options: Any):
        super().__init__(job, step, timeout=timeout, **options)
        self.strict = strict
        self.problems: List[str] = []
        self.loaded_step: Optional[int] = None
        self._stored: Any = None
        self._metadata: Any = None
        self._failed: Optional[Exception] = None

    # Order of calls: reset, read_metadata, set_up_storage_reader (1.13: init), prepare_local_plan,
    # prepare_global_plan on the coordinator, read_data.

    def reset(self, checkpoint_id: Any = None) -> None:
        super().reset(checkpoint_id)
        self._close()

    def _close(self) -> None:
        if self._stored is not None:
            self._stored.close()
            self._stored = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """DCP of late torch 2 swallows what this raises, asks again with `rank` for metadata
        of that rank alone, and if it got them would leave the collectives, alone. There are none: it
        gets nothing to use, and set_up_storage_reader() raises what was swallowed."""
        if "rank" in kwargs and self._failed is not None:
            return self._api.metadata.Metadata(state_dict_metadata={})
        self._failed = None
        try:
            return self._read_metadata()
        except Exception as e:
            self._failed = e
            raise

    def _read_metadata(self) -> Any:
        s = self._session()
        with s.lock:
            self._close()
            if self.step is not None:
                check_step(self.step)
            try:
                handle = s.existing(trains=True)  # a name that is misspelt makes no job
            except FileNotFoundError as e:
                raise CkptError(-1014, f"job '{self.job}' has no checkpoint yet: {e}") from None
            self._stored = handle.stored(self.step, self.timeout)
            if self._stored is None:
                raise CkptError(-1014, self._nothing(s))
            self.loaded_step = self._stored.step
            return _decode_metadata(self._api, self._stored)

    def _nothing(self, s: Any) -> str:
        there = s.handle.list()
        if not there:
            return f"job '{self.job}' has no checkpoint yet"
        return (f"job '{self.job}' began without a checkpoint in this launch; those that it has saved "
                f"since are loaded by their step: checkpoint_id='ckpt://{self.job}/{there[0].step}'")

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *args: Any,
                              **kwargs: Any) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        self._metadata = metadata
        if self._stored is None:  # another rank has read it
            self._read_metadata()

    def init(self, metadata: Any, is_coordinator: bool) -> None:
        """1.13's name of set_up_storage_reader."""
        self.set_up_storage_reader(metadata, is_coordinator)

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: List[Any]) -> List[Any]:
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        """All items in one read: boxes into the tensors that the planner resolves, bytes from blobs."""
        types = self._api.planner.LoadItemType
        if self.strict:
            self._check_shapes(planner)
        tensors = [(i, planner.resolve_tensor(i).detach()) for i in plan.items
                   if i.type != types.BYTE_IO]
        bytes_items = [(i, self._place_of(i)) for i in plan.items if i.type == types.BYTE_IO]
        wants = [self._want(item, tensor) for item, tensor in tensors]
        s = self._session()
        with s.lock:
            blobs = self._read(wants, sorted({p[:2] for _, p in bytes_items}))
        for item, (rank, name, offset, length) in bytes_items:
            planner.load_bytes(item, io.BytesIO(blobs[rank, name][offset:offset + length]))
        for item, tensor in tensors:
            planner.commit_tensor(item, tensor)
        return _done(self._api, None)

    def _check_shapes(self, planner: Any) -> None:
        """DCP before torch 2.4 fills what overlaps and leaves the rest of a larger tensor as it was."""
        stored, t = self._metadata.state_dict_metadata, self._api.torch
        wanted = getattr(planner, "state_dict", None)
        for fqn, value in wanted.items() if isinstance(wanted, dict) else ():
            md = stored[fqn] if fqn in stored else None
            size = getattr(value, "size", None)
            if not isinstance(md, self._api.metadata.TensorStorageMetadata) or not callable(size):
                continue
            if isinstance(size(), t.Size) and tuple(size()) != tuple(md.size):
                raise CkptError(-1008, f"tensor '{fqn}' is wanted as {list(size())} but step "
                                f"{self.loaded_step} of job '{self.job}' has it as {list(md.size)}")

    def _read(self, wants: List[Want], blobs: List[Tuple[int, str]]) -> Dict:
        rounds = [wants]
        try:
            got, _, self.problems = self._stored.read(wants, blobs, self.strict, True,
                                                      _ms(self.timeout))
            return got
        except CkptError as e:
            rounds = _disjoint(wants)
            if e.code != -22 or len(rounds) == 1:
                raise
        got, self.problems = {}, []
        for i, part in enumerate(rounds):  # one stored box goes to several places
            more, _, problems = self._stored.read(part, blobs if i == 0 else (), self.strict, True,
                                                  _ms(self.timeout))
            got.update(more)
            self.problems += problems
        return got

    def _place_of(self, item: Any) -> Tuple[int, str, int, int]:
        place = (self._metadata.storage_data or {}).get(
            self._api.metadata.MetadataIndex(item.storage_index.fqn))
        if place is None:
            raise CkptError(-1008, f"'{item.storage_index.fqn}' is not stored in step "
                            f"{self.loaded_step} of job '{self.job}'")
        return tuple(place)

    def _want(self, item: Any, tensor: Any) -> Want:
        """The item's box of the whole tensor: its chunk's place and its place in the chunk."""
        index = item.storage_index
        md = self._metadata.state_dict_metadata[index.fqn]
        if index.offset is not None:
            at = tuple(index.offset)
        elif index.index is not None and index.index < len(md.chunks):
            at = tuple(md.chunks[index.index].offsets)
        else:
            at = (0,) * len(md.size)
        if tuple(tensor.shape) != tuple(item.lengths):
            raise CkptError(-1008, f"tensor '{index.fqn}': {tuple(item.lengths)} elements are to be "
                            f"read into a tensor of {tuple(tensor.shape)}")
        offset = tuple(a + b for a, b in zip(at, item.storage_offsets))
        return Want(index.fqn, tensor, tuple(md.size), offset)


def _disjoint(wants: List[Want]) -> List[List[Want]]:
    """In rounds in which no two boxes of a tensor overlap."""
    rounds: List[List[Want]] = []
    for want in wants:
        box = (want.offset, tuple(want.tensor.shape))
        for part in rounds:
            if not any(other.name == want.name and
                       _overlap(box, (other.offset, tuple(other.tensor.shape))) for other in part):
                part.append(want)
                break
        else:
            rounds.append([want])
    return rounds or [[]]


_made: Dict[str, Any] = {}


def __getattr__(name: str) -> Any:
    """Writer and Reader, as subclasses of this torch's StorageWriter and StorageReader."""
    if name not in ("Writer", "Reader"):
        raise AttributeError(f"module 'ckpt.torch' has no attribute '{name}'")
    if name not in _made:
        api = _Torch()
        base, methods = ((api.storage.StorageWriter, _Writer) if name == "Writer" else
                         (api.storage.StorageReader, _Reader))
        _made[name] = type(name, (methods, base), {"_api": api, "__doc__": methods.__doc__,
                                                   "__module__": __name__})
    return _made[name]
