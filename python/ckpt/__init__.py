# SPDX-License-Identifier: Apache-2.0
"""ckpt: save, wait for, list and load the state of one rank of a training job, through ckptd.

    import ckpt

    with ckpt.open("run7") as c:               # rank and world from the environment
        c.declare("w", w, global_shape=(8192, 1024), offset=(2048, 0))
        got = c.load()                         # None when there is nothing yet
        for step in range(got.step + 1 if got else 0, steps):
            train(step)
            if step % 100 == 0:
                c.save(step, blobs={"rng": rng_bytes})

Shapes and offsets are in elements, row-major; sizes in bytes; timeouts in seconds (None: the
default, CKPT_TIMEOUT of the environment or 60). A handle is used by one thread at a time. Tensors
are torch tensors, numpy arrays, or (pointer, dtype, shape); their memory is read and written in
place, never copied in Python, and looked up anew at every call, so they may move.
"""

import atexit
import ctypes as C
import operator
import sys
import warnings
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from . import _lib as L
from ._stored import Shard, Stored, StoredBlob, Want
from ._tensors import ITEMSIZE, view

__all__ = ["open", "Checkpointer", "CkptError", "CkptWarning", "Loaded", "Save", "Info", "SEALED",
           "COMMITTED", "DURABLE", "Stored", "Shard", "StoredBlob", "Want"]

SEALED, COMMITTED, DURABLE = 1, 2, 3
_TRUST = ("latest", "complete", "verified")
_TIERS = {0: None, 1: "memory", 2: "disk"}


class CkptError(RuntimeError):
    """One sentence: which object, what failed, why, what to do. code is -errno or CKPT_E*; problems
    are sentences about all tensors that a strict load could not fill."""

    def __init__(self, code: int, text: str, problems: Sequence[str] = ()):
        super().__init__(text)
        self.code = code
        self.problems: List[str] = list(problems)

    def __reduce__(self):
        return CkptError, (self.code, str(self), self.problems)  # launchers send errors from rank to rank


class CkptWarning(UserWarning):
    """Something that did not fail but should be known: ckptd was restarted, the job fell back."""


class Loaded(NamedTuple):
    """What a load gave. tier: 'memory' or 'disk', the slowest used. problems: sentences about
    missing, extra and mismatched tensors (lenient loads)."""
    step: int
    tier: Optional[str]
    blobs: Dict[str, bytes]
    bytes: int
    bytes_read: int
    problems: List[str]
    fell_back: bool

    def __repr__(self) -> str:
        """Blobs by their sizes: they can be megabytes."""
        blobs = ", ".join(f"{name!r}: {len(data)} bytes" for name, data in self.blobs.items())
        return (f"<Loaded step {self.step} from {self.tier}, {self.bytes} bytes, blobs {{{blobs}}}"
                + (f", problems {self.problems}" if self.problems else "")
                + (", fell back" if self.fell_back else "") + ">")


class Info(NamedTuple):
    """One checkpoint of the job. latest: what load() gives in this epoch."""
    step: int
    bytes: int
    attempt: str
    epoch: int
    time_ns: int
    memory: bool
    disk: bool
    pinned: bool
    latest: bool
    world: int


def _last_error() -> str:
    return L.lib.ckpt_last_error(None).decode("utf-8", "replace")


def _check(result: int, problems: Iterable[str] = ()) -> int:
    """problems: what ckpt_problem() says, looked at only when tensors do not match."""
    if result < 0:
        raise CkptError(result, _last_error(), list(problems) if result == L.EMISMATCH else ())
    return result


def _ms(seconds: Optional[float]) -> int:
    if seconds is None:
        return L.DEFAULT_TIMEOUT
    if seconds == float("inf"):
        return L.FOREVER
    return max(0, int(seconds * 1000))


def _array(values: Optional[Sequence[int]]):
    return None if values is None else (L.u64 * max(1, len(values)))(*values)


def _info(i: L.Info) -> Info:
    return Info(i.step, i.bytes, bytes(i.attempt).hex(), i.epoch, i.time_ns, bool(i.memory),
                bool(i.disk), bool(i.pinned), bool(i.latest), i.world)


class Save:
    """How a save went. Truthy when this rank's bytes are sealed. status is 'sealed', 'skipped' or
    'failed'; error holds the CkptError of a failed one (I13: a failed save never ends training)."""

    def __init__(self, owner: "Checkpointer", step: int, status: str,
                 error: Optional[CkptError] = None):
        self._owner, self.step, self.status, self.error = owner, step, status, error

    def __bool__(self) -> bool:
        return self.status == "sealed"

    def __repr__(self) -> str:
        why = f": {self.error}" if self.error is not None else ""
        return f"<Save step {self.step} {self.status}{why}>"

    def wait(self, what: int = COMMITTED, timeout: Optional[float] = None) -> bool:
        """Waits until the checkpoint is SEALED, COMMITTED or DURABLE. True when it is; False when
        this rank skipped it or a newer one took its place. Raises CkptError when it was aborted,
        failed, or the timeout (seconds) passed."""
        if self.error is not None:
            raise self.error
        if self.status == "skipped":
            return False
        newer = L.u64(0)
        result = L.lib.ckpt_wait(self._owner._handle(), self.step, what, _ms(timeout),
                                 C.byref(newer))
        if result == -1005:  # CKPT_ESUPERSEDED
            return False
        self._owner._status(_check(result))
        return True


def check_step(step: int) -> int:
    """The step as libckpt takes it, or ValueError: ctypes would cut it to 64 bits."""
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise ValueError(f"{step!r} is no step: steps are whole numbers")
    if not 0 <= operator.index(step) < L.LATEST:
        raise ValueError(f"{step} is no step: steps are from 0 to {L.LATEST - 1}")
    return operator.index(step)


def _step_or_latest(step: Optional[int]) -> int:
    return L.LATEST if step is None else check_step(step)


class _Saving:
    """The block of Checkpointer.saving(): begin at its start, fence at its end."""

    def __init__(self, owner: "Checkpointer", step: int, args: L.SaveArgs, keep: Any, flags: int):
        self._owner, self._args, self._keep, self._flags = owner, args, keep, flags
        self.save = Save(owner, step, "failed")

    def __enter__(self) -> Save:
        result = L.lib.ckpt_save_begin(self._owner._handle(), C.byref(self._args))
        self._owner._finish(self.save, result)
        return self.save

    def __exit__(self, kind, value, traceback) -> None:
        if self.save.status != "sealed":
            return
        result = L.lib.ckpt_save_fence(self._owner._handle(), self._flags)
        self._keep = None
        if kind is None:
            self._owner._finish(self.save, result)
        elif result < 0:  # the block's own exception goes first
            self.save.status, self.save.error = "failed", CkptError(result, _last_error())


class _Phase:
    """One phase, for `with`; may be entered again and again."""

    def __init__(self, owner: "Checkpointer", phase: int, what: Optional[bytes], expected_ms: int):
        self._owner, self._phase, self._what, self._expected_ms = owner, phase, what, expected_ms

    def __enter__(self) -> None:
        _check(L.lib.ckpt_phase_begin(self._owner._handle(), self._phase, self._what,
                                      self._expected_ms))

    def __exit__(self, kind, value, traceback) -> None:
        _check(L.lib.ckpt_phase_end(self._owner._handle()))


def _is_failure(kind, value) -> bool:
    """Whether what leaves the block says that the trainer fails: not where somebody ended it."""
    if kind is None or issubclass(kind, (KeyboardInterrupt, GeneratorExit)):
        return False
    return not (issubclass(kind, SystemExit) and getattr(value, "code", value) in (None, 0))


_uncaught = False  # the interpreter ends by an exception


def _ends() -> None:
    """Looks now: when handles are deleted sys has forgotten it."""
    global _uncaught
    _uncaught = _is_failure(getattr(sys, "last_type", None), None)


atexit.register(_ends)


class Checkpointer:
    """One rank's handle; made by open(). A context manager: leaving it closes the handle, or, by an
    exception, abandons it."""

    def __init__(self, handle: C.c_void_p, on_error: str):
        self._c: Optional[C.c_void_p] = handle
        self._on_error = on_error
        self._tensors: List[Any] = []
        self._names: Dict[str, List[int]] = {}
        self._ndim: List[int] = []
        self._beat = L.Beat(C.sizeof(L.Beat))
        self._metrics: Dict[str, int] = {}

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind, value, traceback) -> None:
        if _is_failure(kind, value):
            self.abandon()
        else:
            self.close()

    def close(self) -> None:
        """Ends the session. Sealed snapshots live on in ckptd. May be called twice."""
        if self._c is not None:
            L.lib.ckpt_close(self._c)
            self._c = None

    def abandon(self) -> None:
        """close() for a trainer that fails and is about to end: without a goodbye, so that ckptd tells
        how its process ends, unless that is with status 0 or it opens the job again. An exception that
        leaves the `with` does it, and so does the end of the interpreter by an exception."""
        if self._c is not None:
            L.lib.ckpt_abandon(self._c)
            self._c = None

    def __del__(self):
        if _uncaught:
            self.abandon()
        else:
            self.close()

    def _handle(self) -> C.c_void_p:
        if self._c is None:
            raise CkptError(-9, "the handle is closed; open the job again")
        return self._c

    @property
    def rank(self) -> int:
        return L.lib.ckpt_rank(self._handle())

    @property
    def world(self) -> int:
        return L.lib.ckpt_world(self._handle())

    def _status(self, bits: int) -> None:
        if bits & L.RECONNECTED:
            warnings.warn("ckptd was lost and is back; the session was opened again", CkptWarning,
                          stacklevel=3)

    def _finish(self, save: Save, result: int) -> Save:
        if result < 0:
            save.status, save.error = "failed", CkptError(result, _last_error())
            if self._on_error == "raise":
                raise save.error
            warnings.warn(f"step {save.step} was not saved: {save.error}", CkptWarning,
                          stacklevel=3)
            return save
        save.status = "skipped" if result & L.SKIPPED else "sealed"
        self._status(result)
        return save

    # ---- Declaring ----

    def _declare(self, name: str, tensor: Any, t: L.Tensor, trained: Optional[bool]) -> None:
        if trained is None:
            trained = bool(getattr(tensor, "requires_grad", False))
        t.size = C.sizeof(L.Tensor)
        t.name = name.encode()
        if trained:
            t.flags |= L.TRAINED
        index = _check(L.lib.ckpt_declare(self._handle(), C.byref(t)))
        assert index == len(self._tensors)
        self._tensors.append(tensor)
        self._names.setdefault(name, []).append(index)

    def declare(self, name: str, tensor: Any, global_shape: Optional[Sequence[int]] = None,
                offset: Optional[Sequence[int]] = None, trained: Optional[bool] = None) -> None:
        """Declares a box: tensor is the part of `name` that starts at offset (elements, default
        zeros) in a whole of global_shape (default: the tensor is the whole). trained (default:
        requires_grad of a torch tensor, else False): it should change from step to step; the
        stale-snapshot alarm looks at it. Once per layout, before prepare(), save() or load()."""
        v = view(tensor)
        shape = _array(v.shape)
        t = L.Tensor(dtype=v.dtype, ndim=len(v.shape), shape=shape, offset=_array(offset),
                     global_shape=_array(v.shape if global_shape is None else global_shape))
        if global_shape is not None and len(global_shape) != len(v.shape):
            raise ValueError(f"'{name}': global_shape has {len(global_shape)} dimensions, the "
                             f"tensor {len(v.shape)}")
        if offset is not None and len(offset) != len(v.shape):
            raise ValueError(f"'{name}': offset has {len(offset)} dimensions, the tensor "
                             f"{len(v.shape)}")
        self._declare(name, tensor, t, trained)

    def declare_flat(self, name: str, tensor: Any, global_shape: Sequence[int], start: int,
                     stop: int, offset: Optional[Sequence[int]] = None,
                     shape: Optional[Sequence[int]] = None,
                     trained: Optional[bool] = None) -> None:
        """Declares a flat range (ZeRO, FSDP1): tensor holds elements [start, stop), in row-major
        order, of the box at offset of extents shape (default: the whole) of `name`. tensor is
        contiguous, of any shape with stop - start elements."""
        v = view(tensor)
        if v.strides is not None:
            raise ValueError(f"'{name}': a flat range must be contiguous in memory")
        if v.nbytes != (stop - start) * ITEMSIZE[v.dtype]:
            raise ValueError(f"'{name}': the tensor has {v.nbytes // ITEMSIZE[v.dtype]} elements, "
                             f"the range {stop - start}")
        t = L.Tensor(dtype=v.dtype, ndim=len(global_shape), global_shape=_array(global_shape),
                     offset=_array(offset), shape=_array(shape), start=start, stop=stop,
                     flags=L.FLAT)
        self._declare(name, tensor, t, trained)

    def bind(self, name: str, tensor: Any, index: int = 0) -> None:
        """From now the shard declared as `name` (its index-th, if there are several) is in this
        tensor, of the same dtype and size. Not needed while the declared object stays in use."""
        self._tensors[self._names[name][index]] = tensor

    def prepare(self, blob_space: int = 1 << 20) -> None:
        """Ends the declaration and takes memory for the saves, with room for blob_space bytes of
        blobs in each. Says what is missing before training starts. save() and load() do it."""
        _check(L.lib.ckpt_prepare(self._handle(), blob_space))

    def _bindings(self):
        n = len(self._tensors)
        out = (L.Binding * max(1, n))()
        keep = []
        for i, tensor in enumerate(self._tensors):
            v = view(tensor)
            strides = None
            if v.strides is not None:
                strides = (L.i64 * len(v.strides))(*v.strides)
                keep.append(strides)
            out[i] = L.Binding(v.ptr, v.device, v.dtype, v.nbytes, strides)
        return out, n, keep

    # ---- Saving ----

    def _save_args(self, step: int, blobs: Optional[Mapping[str, Any]], wait_credit: bool,
                   timeout: Optional[float]):
        bindings, n, keep = self._bindings()
        blobs = blobs or {}
        array = (L.Blob * max(1, len(blobs)))()
        for i, (name, data) in enumerate(blobs.items()):
            data = data if isinstance(data, bytes) else bytes(data)
            keep.append(data)
            array[i] = L.Blob(name.encode(), C.cast(C.c_char_p(data), C.c_void_p), len(data))
        args = L.SaveArgs(C.sizeof(L.SaveArgs), check_step(step), bindings, n, array, len(blobs),
                          _ms(timeout), L.WAIT_CREDIT if wait_credit else 0)
        return args, (keep, bindings, array)

    def save(self, step: int, blobs: Optional[Mapping[str, Any]] = None, wait_credit: bool = False,
             timeout: Optional[float] = None) -> Save:
        """Copies this rank's tensors and blobs (bytes by name) out; when it returns they may
        change. Without a credit (memory still busy with older saves) the save is skipped, or, with
        wait_credit, waits for one within timeout seconds. Never raises unless the handle was opened
        with on_error='raise': look at the result."""
        args, keep = self._save_args(step, blobs, wait_credit, timeout)
        result = L.lib.ckpt_save(self._handle(), C.byref(args))
        del keep
        return self._finish(Save(self, step, "failed"), result)

    def saving(self, step: int, blobs: Optional[Mapping[str, Any]] = None,
               wait_credit: bool = False, timeout: Optional[float] = None,
               full_compare: bool = False) -> _Saving:
        """A save that goes on while the block runs: tensors must not change in it. The block's end
        is the fence; a tensor that did change drops the snapshot (sampled, or with full_compare
        every byte). `with c.saving(step) as s:` - s is the Save."""
        args, keep = self._save_args(step, blobs, wait_credit, timeout)
        return _Saving(self, step, args, keep, L.FULL_COMPARE if full_compare else 0)

    def skip(self, step: int, reason: str = "") -> None:
        """In place of a save that cannot be made: the other ranks' attempt at this step ends now."""
        self._status(_check(L.lib.ckpt_skip(self._handle(), check_step(step),
                                            reason.encode()[:127])))

    # ---- Loading ----

    def load(self, step: Optional[int] = None, strict: bool = True,
             timeout: Optional[float] = None, min_trust: str = "latest") -> Optional[Loaded]:
        """Fills the declared tensors from the checkpoint of step (default: the newest, the same
        one on every rank), whatever layout it was saved under; every byte is verified. None when
        nothing was ever saved; where checkpoints were and none can be restored it raises (CKPT_ELOST),
        and the rank may save what it begins with. strict=False loads what matches and lists the rest in .problems.

        min_trust: "complete" (every copy was read again and matched) or "verified" (and the job went
        on from it healthily) goes back to the newest checkpoint that is, for all ranks; the highest
        that one rank asks for, and CKPT_MIN_TRUST, count."""
        if min_trust not in _TRUST:
            raise ValueError(f"min_trust is one of {', '.join(_TRUST)}, not {min_trust!r}")
        bindings, n, keep = self._bindings()
        args = L.LoadArgs(C.sizeof(L.LoadArgs), _step_or_latest(step), bindings, n,
                          _ms(timeout), 0 if strict else L.LENIENT, 0, _TRUST.index(min_trust))
        out = L.Loaded(C.sizeof(L.Loaded))
        result = L.lib.ckpt_load(self._handle(), C.byref(args), C.byref(out))
        del keep
        self._status(_check(result, self._problems()))
        if result & L.NOTHING:
            return None
        if result & L.FELL_BACK:
            warnings.warn(f"step {out.fell_back_from}, the newest checkpoint, cannot be restored: "
                          f"step {out.step} before it was loaded instead; 'ckptctl status' of the "
                          "job says why", CkptWarning, stacklevel=2)
        return Loaded(out.step, _TIERS.get(out.tier), self._blobs(), out.bytes, out.bytes_read,
                      list(self._problems()), bool(result & L.FELL_BACK))

    def _blobs(self) -> Dict[str, bytes]:
        blobs: Dict[str, bytes] = {}
        b = L.Blob()
        while L.lib.ckpt_blob_at(self._handle(), len(blobs), C.byref(b)) >= 0:
            blobs[b.name.decode()] = C.string_at(b.data, b.bytes) if b.bytes else b""
        return blobs

    def _problems(self) -> Iterable[str]:
        i = 0
        while True:
            text = L.lib.ckpt_problem(self._handle(), i)
            if text is None:
                return
            yield text.decode("utf-8", "replace")
            i += 1

    # ---- How training goes on ----

    def beat(self, step: int, loss: Optional[float] = None, grad_norm: Optional[float] = None,
             tokens: Optional[int] = None, **metrics: float) -> None:
        """Says that this rank has finished step, once for each, and what it came to: for ckptd's
        failure detector, without a system call. None is "not given", NaN is a value. At most eight
        names of metrics in a handle's life. float() of a device's tensor waits for the device: give
        such values every so many steps, or one step late."""
        b = self._beat
        flags, b.step = 0, check_step(step)
        if loss is not None:
            flags, b.loss = flags | L.BEAT_LOSS, float(loss)
        if grad_norm is not None:
            flags, b.grad_norm = flags | L.BEAT_GRAD_NORM, float(grad_norm)
        if tokens is not None:
            flags, b.tokens = flags | L.BEAT_TOKENS, int(tokens)
        for name, value in metrics.items():
            i = self._metrics.get(name)
            if i is None:
                i = _check(L.lib.ckpt_metric(self._handle(), name.encode()))
                self._metrics[name] = i
            flags |= L.BEAT_METRIC << i
            b.metrics[i] = float(value)
        b.flags = flags
        _check(L.lib.ckpt_beat(self._handle(), C.byref(b)))

    def phase(self, name: str, expected: Optional[float] = None, what: str = "") -> _Phase:
        """`with c.phase("evaluate", expected=1800):` - a part of a step ("data", "sync": in a
        collective, "optimize") or a long phase in which no step is expected ("evaluate", "compile",
        "idle", "other"; saves and loads declare theirs themselves). expected: seconds. what: your
        word for it; phases of one word have one history."""
        if name not in L.PHASES:
            raise ValueError(f"a phase is one of {', '.join(L.PHASES)}, not '{name}'")
        return _Phase(self, L.PHASES.index(name), what.encode() if what else None,
                      0 if expected is None else int(expected * 1000))

    def role(self, role: str) -> None:
        """Ranks that name the same role (a pipeline stage, say) do the same work and are compared
        with each other; without one all ranks are."""
        _check(L.lib.ckpt_role(self._handle(), role.encode()))

    def should_save(self, step: int) -> bool:
        """Whether ckptd asks for a checkpoint at this step or before it. All ranks that ask at the
        same step get the same answer. Until a save or skip of that step or a later one."""
        return bool(_check(L.lib.ckpt_should_save(self._handle(), check_step(step))))

    # ---- Looking ----

    def list(self) -> List[Info]:
        """The job's checkpoints that can be loaded, newest first."""
        n = 64
        while True:
            infos = (L.Info * n)()
            total = _check(L.lib.ckpt_list(self._handle(), infos, n))
            if total <= n:
                break
            n = total
        return [_info(i) for i in infos[:total]]

    def stored(self, step: Optional[int] = None, timeout: Optional[float] = None
               ) -> Optional[Stored]:
        """Opens the checkpoint of step (default: the newest) for looking at what it holds and reading
        any part of it, whatever this handle declares. None when nothing was ever saved."""
        s = C.c_void_p()
        result = _check(L.lib.ckpt_stored_open(self._handle(), _step_or_latest(step), _ms(timeout),
                                               C.byref(s)))
        self._status(result)
        if result & L.NOTHING:
            return None
        info = L.Info()
        _check(L.lib.ckpt_stored_info(s, C.byref(info)))
        return Stored(self._handle, s, _check, _info(info))

    @property
    def stats(self) -> Dict[str, int]:
        """Counts since open (saves, skipped, failed, reconnects), and of the last save the time it
        kept the caller (ns) and its bytes."""
        s = L.Stats(C.sizeof(L.Stats))
        _check(L.lib.ckpt_stats(self._handle(), C.byref(s)))
        return {name: getattr(s, name) for name, _ in L.Stats._fields_ if name != "size"}

    def fileno(self) -> int:
        """For an event loop: poll it for reading, then call pump()."""
        return L.lib.ckpt_fd(self._handle())

    def pump(self) -> None:
        """Reads what ckptd sent; never waits."""
        _check(L.lib.ckpt_pump(self._handle()))


def open(job: Optional[str] = None, rank: Optional[int] = None, world: Optional[int] = None, *,
         run_id: Optional[str] = None, socket: Optional[str] = None, token: Optional[str] = None,
         connect_timeout: Optional[float] = None, timeout: Optional[float] = None,
         existing: bool = False, on_error: str = "status") -> Checkpointer:
    """Opens job as one rank of world; what is not given comes from the environment (CKPT_JOB, RANK
    and WORLD_SIZE or Slurm's or Open MPI's, CKPT_RUN_ID, CKPT_SOCKET, CKPT_TOKEN). run_id is equal
    on all ranks of one launch and different for the next. on_error: 'status' (a failed save is a
    result and a warning) or 'raise'. Raises CkptError when ckptd cannot be reached within
    connect_timeout seconds (default: at once, or CKPT_CONNECT_TIMEOUT). existing=True makes no job:
    CkptError (CKPT_ENOTFOUND) where there is none of this name."""
    if on_error not in ("status", "raise"):
        raise ValueError("on_error is 'status' or 'raise'")

    def text(s: Optional[str]) -> Optional[bytes]:
        return None if s is None else s.encode()

    options = L.Options(C.sizeof(L.Options), text(run_id), text(socket), text(token),
                        0 if connect_timeout is None else max(1, int(connect_timeout * 1000)),
                        0 if timeout is None else max(1, int(timeout * 1000)),
                        L.EXISTING if existing else 0)
    handle = C.c_void_p()
    _check(L.lib.ckpt_open(text(job), L.FROM_ENV if rank is None else rank,
                           L.FROM_ENV if world is None else world, C.byref(options),
                           C.byref(handle)))
    return Checkpointer(handle, on_error)


def version() -> str:
    """Of libckpt."""
    return L.lib.ckpt_version().decode()
