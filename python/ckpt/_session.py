# SPDX-License-Identifier: Apache-2.0
"""A process's one handle on a job, shared by all that the adapters make of it.

ckptd knows a rank by its process, and a handle declares its state once: writers, readers and file
systems of one process therefore use one handle, one at a time (`lock`), and open it anew, all ranks
together, when what is to be saved has changed. Each life of the handles has a generation, which is
part of the run id: whoever comes with the new one leaves the old epoch.

Rank, world and run id come from torch.distributed where that is initialised (the run id is agreed on
through its store, once for each job), else from the environment, as ckpt.open() has it.
"""

import os
import sys
import threading
import uuid
from typing import Any, Dict, List, Optional, Sequence, Tuple
from urllib.parse import unquote

from . import COMMITTED, DURABLE, Checkpointer, CkptError, check_step
from . import open as _open

CONNECT_TIMEOUT = 60.0  # seconds: others of the launch may still be leaving
_NOT_FOUND = -1014
BLOB_ROOM = 4 << 20     # bytes, at least

_sessions: Dict[Tuple, "Session"] = {}
_sessions_lock = threading.Lock()


def parse(url: str) -> Tuple[str, Optional[int], str]:
    """'ckpt://run7/100/file' or 'run7/100/file': job, step or None, the rest."""
    text = str(url)
    if text.startswith("ckpt://"):
        text = text[len("ckpt://"):]
    parts = [p for p in text.split("/") if p]
    if not parts:
        raise ValueError(f"'{url}' names no job: ckpt://JOB/STEP")
    job = unquote(parts[0])
    if len(parts) == 1:
        return job, None, ""
    if not (parts[1].isascii() and parts[1].isdigit()):
        raise ValueError(f"'{url}': '{parts[1]}' is no step; it is ckpt://JOB/STEP, the step a number")
    return job, check_step(int(parts[1])), "/".join(parts[2:])


def distributed() -> Any:
    """torch.distributed if this process uses it; torch is never imported for it."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist


def _store(dist: Any) -> Any:
    return dist.distributed_c10d._get_default_store()


def _agreed_run_id(dist: Any, name: str) -> str:
    """The first of the ranks to ask draws it."""
    store, key = _store(dist), f"ckpt/run-id/{name}"
    if store.add(key + "/asked", 1) == 1:
        store.set(key, "dist-" + uuid.uuid4().hex[:16])
    return store.get(key).decode()


class Session:
    """Not made directly: session(). All methods need `lock` to be held."""

    def __init__(self, job: str, options: Dict[str, Any]):
        self.job = job
        self.lock = threading.RLock()
        self.generation = 0
        self.plans: Any = None       # the coordinator's: of all ranks
        self.declared: Any = None    # what the handle has declared; None: nothing yet, False: a part
        self.room = 0                # bytes of blobs in each save
        self.again = False           # the next save needs a new generation
        self._options = dict(options)
        self._handle: Optional[Checkpointer] = None
        self._looks = False          # the handle has no rank
        self._run_id: Optional[str] = self._options.pop("run_id", None)
        self._group = self._options.pop("process_group", None)
        self.rank, self.world = self._who()

    def _who(self) -> Tuple[Optional[int], Optional[int]]:
        rank, world = self._options.pop("rank", None), self._options.pop("world", None)
        dist = distributed()
        if rank is not None or world is not None or dist is None:
            return rank, world
        rank, world = dist.get_rank(self._group), dist.get_world_size(self._group)
        if world > 1 and self._run_id is None:
            self._run_id = os.environ.get("CKPT_RUN_ID") or _agreed_run_id(dist, self.job)
        return rank, world

    @property
    def is_open(self) -> bool:
        return self._handle is not None

    @property
    def handle(self) -> Checkpointer:
        return self._open()

    def existing(self, trains: bool = False) -> Checkpointer:
        """A handle that only looks and takes no rank, if there is none yet, or that may train later. Where
        there is no such job none is made: FileNotFoundError."""
        try:
            return self._open(existing=True, trains=trains)
        except CkptError as e:
            if self._handle is None and e.code == _NOT_FOUND:
                raise FileNotFoundError(f"ckpt://{self.job}: {e}") from None
            raise

    def _open(self, existing: bool = False, trains: bool = False) -> Checkpointer:
        looks = existing and not trains
        if self._looks and not looks:
            self.close()
        if self._handle is None:  # own_state: what is loaded through an adapter is read by parts
            run_id = self._run_id
            if run_id is not None and self.generation:
                run_id = f"{run_id}.{self.generation}"
            options = dict(self._options)
            if "CKPT_CONNECT_TIMEOUT" not in os.environ:
                options.setdefault("connect_timeout", CONNECT_TIMEOUT)
            rank, world = self.rank, self.world
            if looks and rank is None and world is None:
                rank, world = 0, 1  # it takes none, whatever the environment says
            self._handle = _open(self.job, rank, world, run_id=run_id, on_error="raise",
                                 existing=existing, trains=trains, own_state=True, **options)
            self._looks = looks
            if not looks:
                self.rank, self.world = self._handle.rank, self._handle.world
        return self._handle

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
        self._handle = self.declared = None
        self._looks = False
        self.room = 0

    def new_generation(self, generation: int) -> None:
        """Leaves the old life of the job's handles for this one."""
        self.close()
        self.generation, self.again = generation, False

    def declare(self, tensors: Sequence[Tuple[str, Any, Sequence[int], Sequence[int]]],
                room: int) -> None:
        """(name, tensor, global shape, offset) each, and room for so many bytes of blobs. Where that
        was declared already the tensors are bound anew, else the handle is opened anew: at once where
        this is the only rank, and by all ranks together at the next save where it is not."""
        key = tuple((name, str(t.dtype), tuple(t.shape), tuple(size), tuple(offset))
                    for name, t, size, offset in tensors)
        if self.declared is not None and (self.declared != key or room > self.room):
            if self.handle.world > 1:
                self.again = True
                raise CkptError(-1009, f"job '{self.job}', rank {self.rank}: what is no tensor has grown "
                                f"to {room} bytes, and there is room for {self.room}; the next save "
                                "makes more" if self.declared == key else
                                f"job '{self.job}', rank {self.rank}: what is saved has changed, and "
                                "the other ranks do not know; the next save takes it up")
            self.new_generation(self.generation + 1)
        handle = self.handle
        if self.declared is None:
            # If it fails: a handle cannot take back what it has declared, another one is needed.
            self.declared, again, self.again = False, self.again, True
            for name, tensor, size, offset in tensors:
                handle.declare(name, tensor, size, offset)
            self.room = max(BLOB_ROOM, 2 * room)
            handle.prepare(self.room)
            self.declared, self.again = key, again
        else:
            handle._rebind([t for _, t, _, _ in tensors])

    def save(self, step: int, blobs: Dict[str, bytes], timeout: Optional[float]) -> None:
        """Seals this rank's part or raises."""
        if sum(len(b) for b in blobs.values()) > self.room:
            self.again = True
        save = self.handle.save(step, blobs, wait_credit=True, timeout=timeout)
        if not save:
            raise CkptError(-1013, save.reason)

    def unbind(self) -> None:
        """Lets go of the tensors."""
        if self._handle is not None:
            self._handle._rebind([None] * len(self._handle._tensors))

    def wait(self, step: int, durable: bool, timeout: Optional[float]) -> None:
        """Until it is COMMITTED, or DURABLE; raises when that will not be."""
        if not self.handle._run(self.handle._wait, step, DURABLE if durable else COMMITTED, timeout):
            raise CkptError(-1005, f"step {step} of job '{self.job}' was overtaken by a newer checkpoint")


def session(job: str, **options: Any) -> Session:
    """This process's session of the job: the same one for the same socket, rank and token."""
    options = {k: v for k, v in options.items() if v is not None}
    socket = options.get("socket") or os.environ.get("CKPT_SOCKET", "")
    key = (os.getpid(), job, socket, options.get("rank"), options.get("world"),
           id(options.get("process_group")) if "process_group" in options else None)
    with _sessions_lock:
        s = _sessions.get(key)
        if s is None:
            s = _sessions[key] = Session(job, options)
        return s


def close_all() -> None:
    """Ends this process's sessions: what was saved lives on in ckptd. The next use opens anew."""
    with _sessions_lock:
        mine: List[Session] = [s for k, s in _sessions.items() if k[0] == os.getpid()]
        _sessions.clear()
    for s in mine:
        with s.lock:
            s.close()
