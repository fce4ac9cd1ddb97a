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
default, CKPT_TIMEOUT of the environment or 60). A handle is used by one thread at a time; a second
one is refused. Tensors are torch tensors, numpy arrays, or (pointer, dtype, shape); their memory is
read and written in place, never copied in Python, and looked up anew at every call, so they may move.
What is not the memory of its values, as a numpy scalar or a conjugated view, is refused.
"""

import atexit
import ctypes as C
import gc
import os
import re
import sys
import time
import warnings
import weakref
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import _lib as L
from . import _many
from ._stored import Shard, Stored, StoredBlob, Want
from ._tensors import DTYPE_WORDS, ITEMSIZE, View, as_int, extents, first_read_only, seconds, view, whole

__all__ = ["open", "Checkpointer", "CkptError", "CkptWarning", "Loaded", "Save", "Info", "SEALED",
           "COMMITTED", "DURABLE", "Stored", "Shard", "StoredBlob", "Want"]

SEALED, COMMITTED, DURABLE = 1, 2, 3
_TRUST = ("latest", "complete", "verified")
# So many objects at once, none of them garbage, would be a collector's work for a third of the time.
_MANY = 10000
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


def _caller() -> int:
    """The stacklevel of warnings.warn() that is the first frame outside of the library."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("ckpt", "fsspec"):
        frame, level = frame.f_back, level + 1
    return level


def _last_error() -> str:
    return L.lib.ckpt_last_error(None).decode("utf-8", "replace")


def _check(result: int, problems: Iterable[str] = ()) -> int:
    """problems: what ckpt_problem() says, looked at only when tensors do not match."""
    if result < 0:
        raise CkptError(result, _last_error(), list(problems) if result == L.EMISMATCH else ())
    return result


def _ms(timeout: Any, what: str = "timeout") -> int:
    if timeout is None:
        return L.DEFAULT_TIMEOUT
    n = seconds(what, timeout)
    return L.FOREVER if n >= 1e15 else int(n * 1000)  # and inf; ctypes would cut it


def _at_least_1_ms(timeout: Any, what: str) -> int:
    """Of an option in which 0 is "not given"."""
    return 0 if timeout is None else max(1, int(min(seconds(what, timeout), 1e15) * 1000))


def _array(values: Optional[Sequence[int]]):
    return None if values is None else (L.u64 * max(1, len(values)))(*values)


# Of a buffer's format: objects, pointers and functions, but not numpy's complex numbers.
_ADDRESSES = re.compile("[OPXz&]|Z(?![fdg])")
_FIELD_NAMES = re.compile(":[^:]*:")


def _blob(name: Any, data: Any) -> bytes:
    """As bytes that nobody else changes. bytes() of a number would be as many zeros, and a subclass of
    bytes may have a length of its own."""
    if type(data) is bytes:
        return data
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(data, numpy.ma.MaskedArray):
        raise TypeError(f"blob {name!r} is a masked array, which is two arrays: give its .data and its "
                        ".mask one by one")
    try:
        m = memoryview(data)
    except (TypeError, ValueError, BufferError) as e:
        raise TypeError(f"blob {name!r} is a {type(data).__name__}, not bytes: encode it first, a str "
                        "with .encode()") from e
    if _ADDRESSES.search(_FIELD_NAMES.sub("", m.format)):
        raise TypeError(f"blob {name!r} is a {type(data).__name__}, whose memory holds addresses, not "
                        "what is there: give the bytes that it points to")
    return m.tobytes()


def _view(name: Any, tensor: Any) -> View:
    """view(), whose errors then say of what."""
    try:
        return view(tensor)
    except (TypeError, ValueError) as e:
        raise type(e)(f"'{name}': {e}") from None


def _info(i: L.Info) -> Info:
    return Info(i.step, i.bytes, bytes(i.attempt).hex(), i.epoch, i.time_ns, bool(i.memory),
                bool(i.disk), bool(i.pinned), bool(i.latest), i.world)


class Save:
    """How a save went. Truthy when this rank's bytes are sealed. status is 'sealed', 'skipped' or
    'failed', in the block of saving() 'begun'; error holds the CkptError of a failed one (I13: a
    failed save never ends training); reason is the sentence that says why it was skipped or failed,
    else ''."""

    def __init__(self, owner: "Checkpointer", step: int, status: str,
                 error: Optional[CkptError] = None):
        self._owner, self.step, self.status, self.error = owner, step, status, error
        self._skipped = ""  # why
        self._committed = False  # and wait() has seen it

    @property
    def reason(self) -> str:
        return self._skipped if self.error is None else str(self.error)

    def __bool__(self) -> bool:
        return self.status == "sealed"

    def __repr__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return f"<Save step {self.step} {self.status}{why}>"

    def wait(self, what: int = COMMITTED, timeout: Optional[float] = None) -> bool:
        """Waits until the checkpoint is SEALED, COMMITTED or DURABLE. True when it is; False when
        this rank skipped it or a newer one took its place. Raises CkptError when it was aborted,
        failed, or the timeout (seconds) passed."""
        if self.error is not None:
            raise self.error
        if self.status == "skipped":
            return False
        return self._owner._run(self._owner._wait, self.step, what, timeout)

    def reached(self, what: int = DURABLE) -> bool:
        """Whether the checkpoint is SEALED, COMMITTED or DURABLE by now: wait() that only asks, for use
        between steps. False when it is not yet, ckptd does not say it within a second, this rank
        skipped it or a newer one took its place; raises CkptError when it was aborted or failed."""
        try:
            return self.wait(what, 0)
        except CkptError as e:
            if e is self.error or e.code not in (L.ETIMEDOUT, L.EUNAVAILABLE):
                raise
            return False


def check_step(step: int) -> int:
    """The step as libckpt takes it, or ValueError: ctypes would cut it to 64 bits."""
    n = as_int(step)
    if n is None:
        raise ValueError(f"{step!r} is no step: steps are whole numbers")
    if not 0 <= n < L.LATEST:
        raise ValueError(f"{n} is no step: steps are from 0 to {L.LATEST - 1}")
    return n


def _step_or_latest(step: Optional[int]) -> int:
    return L.LATEST if step is None else check_step(step)


class _Saving:
    """The block of Checkpointer.saving(): begin at its start, fence at its end. While it is between
    the two the handle keeps what is copied (Checkpointer._begun)."""

    def __init__(self, owner: "Checkpointer", step: int, args: Callable[[], Tuple], flags: int):
        self._owner, self._args, self._flags = owner, args, flags
        self._entered = self._left = False
        self._begin_ns = 0  # that the begin has kept the caller
        self.save = Save(owner, step, "failed")

    def __enter__(self) -> Save:
        if self._entered:
            raise CkptError(L.ESTATE, f"step {self.save.step}: this block was entered already; call "
                            "saving() for each save")
        self._entered = True
        try:
            self._owner._run(self._begin)
            return self.save
        except BaseException:  # its end will not come: a warning was made an error, a key was hit
            self._left = True
            if self._owner._is_begun(self):
                self._owner._run(self._fence, True)
            raise

    def _begin(self) -> None:
        owner, entered = self._owner, time.monotonic_ns()
        owner._settle()
        try:
            args, keep = self._args()
        except CkptError as e:
            owner._failed(self.save, e)
            return
        mine = owner._begun is None
        if mine:
            owner._begun = weakref.ref(self), keep
        result = L.lib.ckpt_save_begin(owner._handle(), C.byref(args))
        if mine and (result < 0 or result & L.SKIPPED):
            owner._begun = None
        self._begin_ns = time.monotonic_ns() - entered
        owner._finish(self.save, result, "begun")

    def _fence(self, quietly: bool) -> None:
        owner, entered = self._owner, time.monotonic_ns()
        if not owner._is_begun(self):  # closed meanwhile
            result, error = L.EBADF, CkptError(L.EBADF, f"step {self.save.step}: the handle was closed "
                                               "before the save's block had ended")
        else:
            handle = owner._handle()
            try:
                result = L.lib.ckpt_save_fence(handle, self._flags)
            finally:  # a key that is hit in the call raises when it has returned
                owner._begun = None
            error = CkptError(result, _last_error()) if result < 0 else None
        if error is None and not result & L.SKIPPED:
            owner._call_ns = self._begin_ns + time.monotonic_ns() - entered
        if not quietly and error is None:
            owner._finish(self.save, result)
        elif not quietly:
            owner._failed(self.save, error)
        else:  # the block's own exception goes first
            self.save.status, self.save.error = "failed" if error else "sealed", error

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a save's block cannot be copied or pickled: call saving() for each save")

    def __exit__(self, kind, value, traceback) -> None:
        self._left = True
        if self.save.status == "begun":
            try:
                self._owner._run(self._fence, kind is not None, closed=True)
            except CkptError as e:
                if self.save.status != "begun":
                    raise
                self.save.status, self.save.error = "failed", e  # another thread is in a call
                if kind is None:
                    self._owner._failed(self.save, e)  # _settle() ends it


class _Phase:
    """One phase, for `with`; may be entered again and again."""

    def __init__(self, owner: "Checkpointer", phase: int, what: Optional[bytes], expected_ms: int):
        self._owner, self._phase, self._what, self._expected_ms = owner, phase, what, expected_ms

    def __enter__(self) -> None:
        self._owner._run(self._begin)

    def _begin(self) -> None:
        _check(L.lib.ckpt_phase_begin(self._owner._handle(), self._phase, self._what,
                                      self._expected_ms))

    def __exit__(self, kind, value, traceback) -> None:
        self._owner._run(self._end)

    def _end(self) -> None:
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


class _Declared(NamedTuple):
    """What was said of a tensor. shape is None for a flat range: of it only the size counts."""
    name: str
    dtype: int
    shape: Optional[Tuple[int, ...]]
    nbytes: int

    def check(self, v: View, writable: bool) -> None:
        """Whether v may be what was declared; libckpt is told of one shape only, the declared one."""
        shape = f"{DTYPE_WORDS[self.dtype]} {self.shape}" if self.shape is not None else (
            f"{self.nbytes // ITEMSIZE[self.dtype]} of {DTYPE_WORDS[self.dtype]}")
        if v.dtype != self.dtype or v.nbytes != self.nbytes or self.shape not in (None, v.shape):
            raise ValueError(f"'{self.name}' was declared as {shape}, and this tensor is {v.kind}")
        if self.shape is None and v.strides is not None:
            raise ValueError(f"'{self.name}': a flat range must be contiguous in memory")
        if writable and not v.writable and v.nbytes:
            raise ValueError(f"'{self.name}' cannot be loaded: its array is read-only; bind one that "
                             "can be written to")


def _exclusive(method: Any) -> Any:
    """A method of Checkpointer that no other thread is in while it runs."""
    def call(self: "Checkpointer", *args: Any, **kwargs: Any) -> Any:
        return self._run(method, self, *args, **kwargs)
    call.__name__, call.__qualname__ = method.__name__, method.__qualname__
    call.__doc__, call.__wrapped__ = method.__doc__, method  # type: ignore[attr-defined]
    return call


class Checkpointer:
    """One rank's handle; made by open(). A context manager: leaving it closes the handle, or, by an
    exception, abandons it."""

    _c: Optional[C.c_void_p] = None

    def __init__(self, handle: C.c_void_p, on_error: str):
        self._on_error = on_error
        self._last_save: Optional[Save] = None
        self._missed = 0  # saves that failed since ckptd is away
        self._failures: List[Save] = []  # the first and the last of those that failed one after the other
        self._n_failed = 0               # how many they are
        self._rank, self._world = -1, -1
        self._pid = os.getpid()
        self._users: Dict[None, object] = {}  # the call that goes on; setdefault() is one step
        self._ending: Any = None              # how to end when it is over
        self._begun: Any = None               # (weak _Saving, what its copy reads)
        self._tensors: List[Any] = []
        self._declared: List[_Declared] = []
        self._names: Dict[str, List[int]] = {}  # of so many of them as bind() has seen
        self._names_of = 0
        self._table = _many.table()           # of what is declared; None: see there
        self._call_ns = 0                     # that the last save kept the caller
        self._beat = L.Beat(C.sizeof(L.Beat))
        self._metrics: Dict[str, int] = {}
        self._c = handle  # empty still: open() fills it

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a handle is a session of one process with ckptd: it cannot be copied or "
                        "pickled; open the job where it is needed")

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind, value, traceback) -> None:
        if _is_failure(kind, value):
            self.abandon()
        else:
            self.close()

    def close(self) -> None:
        """Ends the session. Sealed snapshots live on in ckptd. May be called twice. While another
        thread is in a call it takes effect when that call ends."""
        self._end(L.lib.ckpt_close)

    def abandon(self) -> None:
        """close() for a trainer that fails and is about to end: without a goodbye, so that ckptd tells
        how its process ends, unless that is with status 0 or it opens the job again. An exception that
        leaves the `with` does it, and so does the end of the interpreter by an exception."""
        self._end(L.lib.ckpt_abandon)

    def __del__(self):
        if self._c is None:
            return
        if _uncaught:
            self.abandon()
        else:
            self.close()

    def _end(self, how: Any) -> None:
        if self._c is None:
            return
        me = object()
        self._ending = self._ending or how
        try:
            if self._users.setdefault(None, me) is me:
                self._end_now()
        finally:
            if None in self._users and self._users[None] is me:  # no call: see _run()
                del self._users[None]

    def _end_now(self) -> None:
        c = self._c
        if c is not None:
            try:
                if self._ending is L.lib.ckpt_close:
                    self._warn_of_losses(c)
            finally:  # a warning may be an exception
                self._c = None
                self._ending(c)  # waits for a copy that was begun
        self._begun = None

    def _warn_of_losses(self, c: Any) -> None:
        """Of what a trainer that ends well believes to be saved, and is not."""
        s = L.Stats(C.sizeof(L.Stats))
        if warnings is None or L.lib.ckpt_stats(c, C.byref(s)) < 0:
            return  # the interpreter is ending, or another thread's call is
        last = self._last_save
        if last is not None and last.status == "skipped":
            warnings.warn(f"the last save was skipped: {last.reason}", CkptWarning, stacklevel=_caller())
        if self._n_failed and self._on_error == "status":
            first, last = self._failures[0], self._failures[-1]
            what = (f"the last save, of step {first.step}, failed" if self._n_failed == 1 else
                    f"the last {self._n_failed} saves failed, from step {first.step} on")
            self._warn_of_loss(c, what, str(last.error))
        if s.uncommitted:
            warnings.warn(f"{s.uncommitted} steps from {s.uncommitted_from} on are saved and not "
                          "committed: ckptd cannot write the job's log; see 'ckptctl status'",
                          CkptWarning, stacklevel=_caller())
        elif last is not None and last.status == "sealed" and not last._committed:
            self._warn_of_no_commit(c, last.step)

    def _warn_of_no_commit(self, c: Any, step: int) -> None:
        """Only asks, which takes an answer of ckptd, or a second. A step that other ranks have still to
        seal is no loss: ranks end one after another."""
        result = L.lib.ckpt_wait(c, step, COMMITTED, 0, None)
        if result in (L.EABORTED, L.EEPOCH):
            self._warn_of_loss(c, f"the last save, of step {step}, is not committed", _last_error())

    def _warn_of_loss(self, c: Any, what: str, why: str) -> None:
        infos = (L.Info * 1)()
        n = L.lib.ckpt_list(c, infos, 1)
        newest = ("which checkpoints there are cannot be asked now" if n < 0 else
                  f"the newest checkpoint is step {infos[0].step}" if n else "there is no checkpoint")
        warnings.warn(f"{what}; {newest}: {why}", CkptWarning, stacklevel=_caller())

    def _run(self, f: Any, *args: Any, closed: bool = False, **kwargs: Any) -> Any:
        """f() while no other thread is in a call; it waits for none. closed: also on a closed handle.

        A key that is hit is an exception behind any call, in `finally` too: there is none before the
        handle is free again."""
        me = object()
        try:
            if self._users.setdefault(None, me) is not me:
                raise CkptError(*self._busy())
            if not closed:
                self._check_open()
            return f(*args, **kwargs)
        finally:
            if None in self._users and self._users[None] is me:
                del self._users[None]
                if self._ending is not None:
                    self._end(self._ending)

    def _busy(self) -> Tuple[int, str]:
        if self._pid != os.getpid():
            return -1, ("this process was forked from the one that opened the job, while that was in a "
                        "call; open a handle of its own here")
        return L.ESTATE, ("another thread, or a call below this one, is in a call with this handle; one "
                          "thread at a time uses it: take turns, or open a handle for each job")

    def _handle(self) -> C.c_void_p:
        """Within a call."""
        if self._c is None:
            raise CkptError(L.EBADF, "the handle is closed; open the job again")
        return self._c

    def _check_open(self) -> None:
        if self._c is None or self._ending is not None:
            raise CkptError(L.EBADF, "the handle is closed; open the job again")

    @staticmethod
    def _raise(code: int, text: str) -> None:
        raise CkptError(code, text)

    def _is_begun(self, saving: _Saving) -> bool:
        return self._begun is not None and self._begun[0]() is saving

    def _settle(self) -> None:
        """Ends a save whose block is gone without its end; whether it counts is seen from every byte."""
        if self._begun is None:
            return
        saving = self._begun[0]()
        if saving is None or saving._left:
            L.lib.ckpt_save_fence(self._handle(), L.FULL_COMPARE)
            self._begun = None

    @property
    def rank(self) -> int:
        self._check_open()
        return self._rank

    @property
    def world(self) -> int:
        self._check_open()
        return self._world

    def _status(self, bits: int) -> None:
        missed, self._missed = self._missed, 0
        if bits & L.RECONNECTED:
            count = f"; {missed} saves failed meanwhile" if missed else ""
            warnings.warn(f"ckptd was lost and is back; the session was opened again{count}",
                          CkptWarning, stacklevel=_caller())
        if bits & L.NOTED:
            warnings.warn(L.lib.ckpt_note(self._handle()).decode(), CkptWarning, stacklevel=_caller())

    def _failed(self, save: Save, error: CkptError) -> Save:
        save.status, save.error = "failed", error
        self._last_save = save
        self._n_failed += 1
        self._failures[1:] = [save]
        if self._on_error == "raise":
            raise error
        # While ckptd is away once, not at every step: every result has the sentence.
        away = error.code == L.EUNAVAILABLE
        self._missed = self._missed + 1 if away else 0
        if self._missed <= 1:
            warnings.warn(f"step {save.step} was not saved: {error}", CkptWarning,
                          stacklevel=_caller())
        return save

    def _finish(self, save: Save, result: int, done: str = "sealed") -> Save:
        if result < 0:
            return self._failed(save, CkptError(result, _last_error()))
        save.status = "skipped" if result & L.SKIPPED else done
        if save.status == "skipped" and not save._skipped:
            save._skipped = _last_error()
        self._last_save = save
        if save.status != "begun":
            self._failures, self._n_failed = [], 0
        self._status(result)
        return save

    def _wait(self, step: int, what: int, timeout: Optional[float]) -> bool:
        newer = L.u64(0)
        result = L.lib.ckpt_wait(self._handle(), step, whole("the state", what, 0, 9), _ms(timeout),
                                 C.byref(newer))
        if result == L.ESUPERSEDED:
            return False
        self._status(_check(result))
        if what >= COMMITTED and self._last_save is not None and self._last_save.step == step:
            self._last_save._committed = True
        return True

    # ---- Declaring ----

    def _declare(self, name: str, tensor: Any, v: View, t: L.Tensor, trained: Optional[bool]) -> None:
        if trained is None:
            trained = bool(getattr(tensor, "requires_grad", False))
        t.size = C.sizeof(L.Tensor)
        t.name = L.text("a tensor's name", name)
        name = str.__str__(name)
        t.dtype = v.dtype
        if trained:
            t.flags |= L.TRAINED
        result = L.lib.ckpt_declare(self._handle(), C.byref(t))
        declared = _Declared(name, v.dtype, None if t.flags & L.FLAT else v.shape, v.nbytes)
        self._add(result, tensor, declared)
        if self._table is not None:
            self._table.add(*declared[1:])

    def _add(self, result: int, tensor: Any, declared: _Declared) -> None:
        index = _check(result)
        assert index == len(self._tensors)
        self._tensors.append(tensor)
        self._declared.append(declared)

    @_exclusive
    def declare(self, name: str, tensor: Any, global_shape: Optional[Sequence[int]] = None,
                offset: Optional[Sequence[int]] = None, trained: Optional[bool] = None) -> None:
        """Declares a box: tensor is the part of `name` that starts at offset (elements, default
        zeros) in a whole of global_shape (default: the tensor is the whole). trained (default:
        requires_grad of a torch tensor, else False): it should change from step to step; the
        stale-snapshot alarm looks at it. Once per layout, before prepare(), save() or load()."""
        if self._table is not None:
            said = self._table.declare(self._handle(), name, tensor, global_shape, offset, trained)
            if said is not None:
                self._add(said[0], tensor, _Declared(name, *said[1:]))
                return
        v = _view(name, tensor)
        given = {"global_shape": v.shape if global_shape is None else
                 extents(f"'{name}': global_shape", global_shape)}
        if offset is not None:
            given["offset"] = extents(f"'{name}': offset", offset)
        for what, values in given.items():
            if len(values) != len(v.shape):
                raise ValueError(f"'{name}': {what} has {len(values)} dimensions, the tensor "
                                 f"{len(v.shape)}")
        t = L.Tensor(ndim=len(v.shape), shape=_array(v.shape), offset=_array(given.get("offset")),
                     global_shape=_array(given["global_shape"]))
        self._declare(name, tensor, v, t, trained)

    @_exclusive
    def declare_flat(self, name: str, tensor: Any, global_shape: Sequence[int], start: int,
                     stop: int, offset: Optional[Sequence[int]] = None,
                     shape: Optional[Sequence[int]] = None,
                     trained: Optional[bool] = None) -> None:
        """Declares a flat range (ZeRO, FSDP1): tensor holds elements [start, stop), in row-major
        order, of the box at offset of extents shape (default: the whole) of `name`. tensor is
        contiguous, of any shape with stop - start elements."""
        v = _view(name, tensor)
        if v.strides is not None:
            raise ValueError(f"'{name}': a flat range must be contiguous in memory")
        start, stop = (whole(f"'{name}': {what}", n, 0, (1 << 63) - 1)
                       for what, n in (("start", start), ("stop", stop)))
        if v.nbytes != (stop - start) * ITEMSIZE[v.dtype]:
            raise ValueError(f"'{name}': the tensor has {v.nbytes // ITEMSIZE[v.dtype]} elements, "
                             f"the range {stop - start}")
        global_shape = extents(f"'{name}': global_shape", global_shape)
        given = {what: extents(f"'{name}': {what}", values)
                 for what, values in (("offset", offset), ("shape", shape)) if values is not None}
        for what, values in given.items():
            if len(values) != len(global_shape):
                raise ValueError(f"'{name}': {what} has {len(values)} dimensions, the whole "
                                 f"{len(global_shape)}")
        t = L.Tensor(ndim=len(global_shape), global_shape=_array(global_shape),
                     offset=_array(given.get("offset")), shape=_array(given.get("shape")), start=start,
                     stop=stop, flags=L.FLAT)
        self._declare(name, tensor, v, t, trained)

    @_exclusive
    def bind(self, name: str, tensor: Any, index: int = 0) -> None:
        """From now the shard declared as `name` (its index-th, if there are several) is in this
        tensor, of the same dtype and shape (of a flat range: size). Not needed while the declared
        object stays in use."""
        while self._names_of < len(self._declared):
            self._names.setdefault(self._declared[self._names_of].name, []).append(self._names_of)
            self._names_of += 1
        shards = self._names.get(name, [])
        if not 0 <= whole("index", index, 0, 1 << 32) < len(shards):
            raise ValueError(f"'{name}' was declared {len(shards)} times: there is no shard {index} of it")
        self._declared[shards[index]].check(_view(name, tensor), False)
        self._tensors[shards[index]] = tensor

    def _rebind(self, tensors: Sequence[Any]) -> None:
        """All of them, in declared order; None: its memory is not needed until the next _rebind()."""
        assert len(tensors) == len(self._tensors)
        self._tensors = list(tensors)

    @_exclusive
    def prepare(self, blob_space: int = 1 << 20) -> None:
        """Ends the declaration and takes memory for the saves, with room for blob_space bytes of
        blobs in each. Says what is missing before training starts. If it is not called load() asks for
        memory when it has loaded, and else the first save."""
        _check(L.lib.ckpt_prepare(self._handle(), whole("blob_space", blob_space, 0, (1 << 63) - 1)))

    def _bindings(self, writable: bool):
        """And what keeps their memory until they are not looked at any more."""
        n = len(self._tensors)
        out = (L.Binding * max(1, n))()
        tensors = list(self._tensors)
        keep: List[Any] = [out, tensors]
        others: Sequence[int] = range(n)  # than those that the table has filled in
        if self._table is not None:
            others = self._table.fill(tensors, out, writable, keep)
        collects = len(others) >= _MANY and gc.isenabled()
        try:
            if collects:
                gc.disable()
            views = [self._binding(i, tensors[i], writable, out, keep) for i in others]
        finally:
            if collects:
                gc.enable()
        if writable:
            self._check_writable(out, others, views)
        return out, n, keep

    def _binding(self, i: int, tensor: Any, writable: bool, out: Any, keep: List[Any]) -> View:
        declared = self._declared[i]
        try:
            v = _view(declared.name, tensor)
            declared.check(v, writable)
        except (TypeError, ValueError) as e:
            raise CkptError(L.EINVAL, str(e)) from e
        keep.append(v.owner)
        strides = None
        if v.strides is not None:
            strides = (L.i64 * len(v.strides))(*v.strides)
            keep.append(strides)
        out[i] = L.Binding(v.ptr, v.device, v.dtype, len(v.shape), v.nbytes, strides)
        return v

    def _check_writable(self, out: Any, others: Sequence[int], views: Sequence[View]) -> None:
        at = first_read_only(views)
        found = [] if at is None else [others[at]]
        at = self._table.first_read_only(out) if self._table is not None else None
        if at is not None:
            found.append(at)
        if found:
            raise CkptError(L.EINVAL, f"'{self._declared[min(found)].name}' cannot be loaded: its memory is "
                            "read-only, as that of a file that is mapped to be read; bind a tensor that "
                            "can be written to")

    # ---- Saving ----

    def _save_args(self, step: int, blobs: Optional[Mapping[str, Any]], wait_credit: bool,
                   timeout: Optional[float]) -> Callable[[], Tuple]:
        """Looks at what is given, and makes what looks at the tensors."""
        ms = _ms(timeout)
        blobs = {} if blobs is None else blobs
        if not isinstance(blobs, Mapping):
            raise TypeError(f"blobs is a {type(blobs).__name__}: give bytes by name, a dict")
        kept = [(L.text("a blob's name", name), _blob(name, data)) for name, data in blobs.items()]

        def args():
            bindings, n, keep = self._bindings(False)
            array = (L.Blob * max(1, len(kept)))()
            for i, (name, data) in enumerate(kept):
                array[i] = L.Blob(name, C.cast(C.c_char_p(data), C.c_void_p), len(data))
            return L.SaveArgs(C.sizeof(L.SaveArgs), step, bindings, n, array, len(kept), ms,
                              L.WAIT_CREDIT if wait_credit else 0), (keep, kept, array)
        return args

    @_exclusive
    def save(self, step: int, blobs: Optional[Mapping[str, Any]] = None, wait_credit: bool = False,
             timeout: Optional[float] = None) -> Save:
        """Copies this rank's tensors and blobs (bytes by name) out; when it returns they may
        change. Without a credit (memory still busy with older saves) the save is skipped, or, with
        wait_credit, waits for one within timeout seconds. A save that fails does not raise unless the
        handle was opened with on_error='raise': look at the result."""
        entered = time.monotonic_ns()
        step = check_step(step)  # once: a tensor that counts steps counts on
        make = self._save_args(step, blobs, wait_credit, timeout)
        save = Save(self, step, "failed")
        self._settle()
        try:
            args, keep = make()
        except CkptError as e:
            return self._failed(save, e)
        result = L.lib.ckpt_save(self._handle(), C.byref(args))
        del keep, args
        if result >= 0 and not result & L.SKIPPED:
            self._call_ns = time.monotonic_ns() - entered
        return self._finish(save, result)

    def saving(self, step: int, blobs: Optional[Mapping[str, Any]] = None,
               wait_credit: bool = False, timeout: Optional[float] = None,
               full_compare: bool = False) -> _Saving:
        """A save that goes on while the block runs: tensors must not change in it. The block's end
        is the fence; a tensor that did change drops the snapshot: samples are compared with
        what was there at begin, with full_compare also every byte with the copy. `with c.saving(step) as s:` - s is the Save. What is copied is what is bound at
        the block's start; its memory is kept until the block's end, whatever is bound in it. Only what
        gives memory back under a tensor that is in use must not be called in it: storage.resize_(),
        ndarray.resize(refcheck=False)."""
        step = check_step(step)
        make = self._save_args(step, blobs, wait_credit, timeout)
        return _Saving(self, step, make, L.FULL_COMPARE if full_compare else 0)

    @_exclusive
    def skip(self, step: int, reason: str = "") -> None:
        """In place of a save that cannot be made: the other ranks' attempt at this step ends now."""
        text = L.text("the reason", reason)[:127].decode("utf-8", "ignore").encode()
        self._settle()
        self._status(_check(L.lib.ckpt_skip(self._handle(), check_step(step), text)))

    # ---- Loading ----

    @_exclusive
    def load(self, step: Optional[int] = None, strict: bool = True,
             timeout: Optional[float] = None, min_trust: str = "latest") -> Optional[Loaded]:
        """Fills the declared tensors from the checkpoint of step (default: the base of the epoch, which
        was the newest when this launch began, the same one on every rank; not what it has saved since:
        to roll back to that name its step), whatever layout it was saved under; every byte is verified. None when
        there was nothing when the launch began; where checkpoints were and none can be restored it
        raises (CKPT_ELOST), and the rank may save what it begins with. strict=False loads what matches and lists the rest in .problems.

        min_trust: "complete" (every copy was read again and matched) or "verified" (and the job went
        on from it healthily) goes back to the newest checkpoint that is, for all ranks; the highest
        that one rank asks for, and CKPT_MIN_TRUST, count."""
        if min_trust not in _TRUST:
            raise ValueError(f"min_trust is one of {', '.join(_TRUST)}, not {min_trust!r}")
        self._settle()
        bindings, n, keep = self._bindings(True)
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
                          "job says why", CkptWarning, stacklevel=_caller())
        return Loaded(out.step, _TIERS.get(out.tier), self._blobs(), out.bytes, out.bytes_read,
                      list(self._problems()), bool(result & L.FELL_BACK))

    def _blobs(self) -> Dict[str, bytes]:
        blobs: Dict[str, bytes] = {}
        b = L.Blob()
        while L.lib.ckpt_blob_at(self._handle(), len(blobs), C.byref(b)) >= 0:
            name = b.name.decode("utf-8", "surrogateescape")
            blobs[name] = C.string_at(b.data, b.bytes) if b.bytes else b""
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
        # float() of a device's tensor waits: before the handle is taken.
        self._run(self._beat_now, check_step(step), None if loss is None else float(loss),
                  None if grad_norm is None else float(grad_norm),
                  None if tokens is None else whole("tokens", int(tokens), 0, (1 << 64) - 1),
                  {name: float(value) for name, value in metrics.items()})

    def _beat_now(self, step: int, loss: Optional[float], grad_norm: Optional[float],
                  tokens: Optional[int], metrics: Dict[str, float]) -> None:
        b = self._beat
        flags, b.step = 0, step
        if loss is not None:
            flags, b.loss = flags | L.BEAT_LOSS, loss
        if grad_norm is not None:
            flags, b.grad_norm = flags | L.BEAT_GRAD_NORM, grad_norm
        if tokens is not None:
            flags, b.tokens = flags | L.BEAT_TOKENS, tokens
        for name, value in metrics.items():
            i = self._metrics.get(name)
            if i is None:
                i = _check(L.lib.ckpt_metric(self._handle(), L.text("a metric's name", name)))
                self._metrics[name] = i
            flags |= L.BEAT_METRIC << i
            b.metrics[i] = value
        b.flags = flags
        _check(L.lib.ckpt_beat(self._handle(), C.byref(b)))

    def phase(self, name: str, expected: Optional[float] = None, what: str = "") -> _Phase:
        """`with c.phase("evaluate", expected=1800):` - a part of a step ("data", "sync": in a
        collective, "optimize") or a long phase in which no step is expected ("evaluate", "compile",
        "idle", "other"; saves and loads declare theirs themselves). expected: seconds. what: your
        word for it; phases of one word have one history."""
        if name not in L.PHASES:
            raise ValueError(f"a phase is one of {', '.join(L.PHASES)}, not '{name}'")
        return _Phase(self, L.PHASES.index(name), L.text("what", what) if what else None,
                      0 if expected is None else int(min(expected, 1e15) * 1000))

    @_exclusive
    def role(self, role: str) -> None:
        """Ranks that name the same role (a pipeline stage, say) do the same work and are compared
        with each other; without one all ranks are."""
        _check(L.lib.ckpt_role(self._handle(), L.text("a role", role)))

    @_exclusive
    def should_save(self, step: int) -> bool:
        """Whether ckptd asks for a checkpoint at this step or before it. All ranks that ask at the
        same step get the same answer. Until a save or skip of that step or a later one."""
        return bool(_check(L.lib.ckpt_should_save(self._handle(), check_step(step))))

    # ---- Looking ----

    @_exclusive
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

    @_exclusive
    def stored(self, step: Optional[int] = None, timeout: Optional[float] = None
               ) -> Optional[Stored]:
        """Opens the checkpoint of step (default: the one that load() gives; where existing=True
        opened the handle to look only, the newest) for looking at what it holds and reading any part of
        it, whatever this handle declares. None when there is none."""
        s, info = C.c_void_p(), L.Info()
        stored = Stored(self, s, _check, None)  # before: whatever is raised from here on, it is closed
        try:
            result = _check(L.lib.ckpt_stored_open(self._handle(), _step_or_latest(step), _ms(timeout),
                                                   C.byref(s)))
            self._status(result)
            if result & L.NOTHING:
                return None
            _check(L.lib.ckpt_stored_info(s, C.byref(info)))
            stored.info = _info(info)
            return stored
        except BaseException:
            stored._free()
            raise

    @property
    @_exclusive
    def stats(self) -> Dict[str, Any]:
        """Counts since open (saves, skipped, failed, reconnects; skipped_by: skips by reason). Of the
        last save that was skipped: skip_step, skip_reason and, where a rank is why, skip_rank.
        uncommitted: steps that are saved and, because ckptd cannot write the job's log, not committed,
        from step uncommitted_from on. sealed_step, failed_step: the last step
        that was sealed (if saves) and the last whose save failed (if failed). Of the last save that was sealed: its
        bytes (last_bytes), the time it kept the caller in libckpt (last_stall_ns), and in this module
        with it (last_call_ns: the whole of save(), or of the begin and end of saving()'s block)."""
        s = L.Stats(C.sizeof(L.Stats))
        _check(L.lib.ckpt_stats(self._handle(), C.byref(s)))
        stats = {name: getattr(s, name) for name, _ in L.Stats._fields_ if name != "size"}
        words = dict(enumerate(L.SKIP_REASONS))  # a newer library may have more
        stats["skipped_by"] = {words.get(i, str(i)): n for i, n in enumerate(s.skipped_by) if n}
        stats["skip_reason"] = words.get(s.skip_reason, str(s.skip_reason))
        stats["last_call_ns"] = self._call_ns
        return stats

    @_exclusive
    def fileno(self) -> int:
        """For an event loop: poll it for reading, then call pump()."""
        return _check(L.lib.ckpt_fd(self._handle()))

    @_exclusive
    def pump(self) -> None:
        """Reads what ckptd sent; never waits."""
        _check(L.lib.ckpt_pump(self._handle()))


def open(job: Optional[str] = None, rank: Optional[int] = None, world: Optional[int] = None, *,
         run_id: Optional[str] = None, socket: Optional[str] = None, token: Optional[str] = None,
         connect_timeout: Optional[float] = None, timeout: Optional[float] = None,
         existing: bool = False, trains: bool = False, own_state: bool = False,
         on_error: str = "status") -> Checkpointer:
    """Opens job as one rank of world; what is not given comes from the environment (CKPT_JOB, RANK
    and WORLD_SIZE or Slurm's, Open MPI's or PMI's, CKPT_RUN_ID, CKPT_SOCKET, CKPT_TOKEN); where
    nothing says rank and world they are 0 and 1, with a CkptWarning. run_id is equal
    on all ranks of one launch and different for the next. on_error: 'status' (a failed save is a
    result and a warning) or 'raise'. Raises CkptError when ckptd cannot be reached within
    connect_timeout seconds (default: at once, or CKPT_CONNECT_TIMEOUT). existing=True makes no job:
    CkptError (CKPT_ENOTFOUND) where there is none of this name; with trains=True the handle is not
    one that only looks. own_state=True: the state of this rank does not come from load(), so that it
    saves without one though other ranks load."""
    if on_error not in ("status", "raise"):
        raise ValueError("on_error is 'status' or 'raise'")

    def text(what: str, s: Optional[str]) -> Optional[bytes]:
        return None if s is None else L.text(what, s)

    def number(what: str, n: Optional[int]) -> int:
        return L.FROM_ENV if n is None else whole(what, n, -1, (1 << 31) - 1)

    path = None if socket is None else L.text("socket", socket, "surrogateescape")
    options = L.Options(C.sizeof(L.Options), text("run_id", run_id), path, text("token", token),
                        _at_least_1_ms(connect_timeout, "connect_timeout"),
                        _at_least_1_ms(timeout, "timeout"),
                        (L.EXISTING if existing else 0) | (L.TRAINS if trains else 0)
                        | (L.OWN_STATE if own_state else 0), *_many.interrupt())
    handle = C.c_void_p()
    c = Checkpointer(handle, on_error)  # before: whatever is raised from here on, it is closed
    try:
        _check(L.lib.ckpt_open(text("job", job), number("rank", rank), number("world", world),
                               C.byref(options), C.byref(handle)))
        c._rank, c._world = L.lib.ckpt_rank(handle), L.lib.ckpt_world(handle)
        note = L.lib.ckpt_note(handle).decode()
        if note and not existing:
            warnings.warn(note, CkptWarning, stacklevel=_caller())
        return c
    except BaseException:
        c.close()
        raise


def version() -> str:
    """Of libckpt."""
    return L.lib.ckpt_version().decode()
