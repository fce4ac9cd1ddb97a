#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What people would use instead of ckptd, on the same kind of state: 1 GiB of fp32.

    rivals.py save|load FOLDER

Saves, all in one process:

  torch.save          to a file, flush, fsync of it and of its folder: the trainer waits for all
  DCP                 torch.distributed's checkpoint of torch 1.13 (FileSystemWriter, files synced),
                      sharded tensors, one rank under gloo, and fsync of the folder
  staging + thread    a copy into a buffer that is used again, then torch.save of it by a thread:
                      what later torch versions call async_save

Each is done once to warm up and then RUNS times; medians are printed: how long the trainer is kept,
and how long it takes until the bytes are on stable storage.

Loads: torch.load by 4 processes at once, 256 MiB each, from files in the page cache (warm) and from
files that it has dropped (cold). The time is from the first begin to the last end; that of starting
Python and importing torch is no part of it.

It is for reading beside ckptd's figures. Nothing is measured, and that is said, where torch is
missing.
"""

import multiprocessing
import os
import runpy
import shutil
import statistics
import sys
import threading
import time

RUNS = 3
RANKS = 4
STATE_BYTES = 1 << 30
BLOCK = (1024, 1024, 3 << 20, 3072, 1 << 20, 1024, 1024, 1024, 4 << 20, 4096, 4 << 20, 1024)


def make_state(torch, size=STATE_BYTES):
    """The tensors of ckpt-bench's own state, by name."""
    state, left, i = {}, size // 4, 0
    while left:
        n = min(left, BLOCK[i % len(BLOCK)])
        state["model.block.%d.weight" % i] = torch.randn(n)
        left -= n
        i += 1
    return state


def fsync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def save_file(torch, state, folder):
    path = os.path.join(folder, "state.pt")
    with open(path + ".tmp", "wb") as f:
        torch.save(state, f)
        f.flush()
        os.fsync(f.fileno())
    os.rename(path + ".tmp", path)
    fsync(folder)


def rival_save(torch, state, folder):
    """Returns a function that saves and gives (stall, durable) in seconds."""

    def run():
        begin = time.monotonic()
        save_file(torch, state, folder)
        took = time.monotonic() - begin
        return took, took

    return run


def rival_staging(torch, state, folder):
    staging = {name: torch.empty_like(t).zero_() for name, t in state.items()}

    def run():
        begin = time.monotonic()
        for name, t in state.items():
            staging[name].copy_(t)
        writer = threading.Thread(target=save_file, args=(torch, staging, folder))
        writer.start()
        stall = time.monotonic() - begin
        writer.join()
        return stall, time.monotonic() - begin

    return run


def rival_dcp(torch, state, folder):
    import torch.distributed as dist

    # The file alone: the package wants libckpt.
    dcp = runpy.run_path(os.path.join(os.path.dirname(__file__), "..", "python", "ckpt",
                                      "torch113.py"))["patch"]()
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=0, world_size=1,
                                init_method="file://" + os.path.join(folder, "rendezvous"))
    sharded = {}
    for name, t in state.items():
        st = sharded_tensor.empty(ChunkShardingSpec(dim=0, placements=["rank:0/cpu"]), t.numel())
        st.local_shards()[0].tensor.copy_(t)
        sharded[name] = st
    target = os.path.join(folder, "dcp")

    def run():
        shutil.rmtree(target, ignore_errors=True)
        begin = time.monotonic()
        dcp.save_state_dict(sharded, dcp.FileSystemWriter(target))
        fsync(target)
        took = time.monotonic() - begin
        return took, took

    return run


def measure(torch, name, make, state, folder):
    os.makedirs(folder)
    try:
        run = make(torch, state, folder)
        run()
        times = [run() for _ in range(RUNS)]
    except Exception as e:  # noqa: BLE001: whatever it is, the other rivals are still of interest
        print("  %-28s not measured: %s: %s" % (name, type(e).__name__, str(e).split("\n")[0]))
        return
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    stall = statistics.median(t[0] for t in times)
    durable = statistics.median(t[1] for t in times)
    print("  %-28s stall %.3f s, durable after %.3f s (%.2f GiB/s), median of %d" %
          (name, stall, durable, STATE_BYTES / (1 << 30) / durable, RUNS))
    sys.stdout.flush()


def load_rank(folder, rank, ready, begin, times):
    """One process: loads when all are ready, as often as the parent says."""
    import torch
    torch.set_num_threads(1)
    while True:
        ready.release()
        begin[rank].acquire()
        start = time.monotonic()
        state = torch.load(os.path.join(folder, "rank-%d" % rank, "state.pt"))
        times.put((start, time.monotonic()))
        del state


def drop(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def load_once(ready, begin, times):
    for _ in range(RANKS):
        ready.acquire()
    for b in begin:
        b.release()
    all_times = [times.get() for _ in range(RANKS)]
    return max(t[1] for t in all_times) - min(t[0] for t in all_times)


def measure_loads(torch, folder):
    paths = []
    for rank in range(RANKS):
        own = os.path.join(folder, "rank-%d" % rank)
        os.makedirs(own)
        save_file(torch, make_state(torch, STATE_BYTES // RANKS), own)
        paths.append(os.path.join(own, "state.pt"))
    ctx = multiprocessing.get_context("spawn")
    ready, begin = ctx.Semaphore(0), [ctx.Semaphore(0) for _ in range(RANKS)]
    times = ctx.Queue()
    ranks = [ctx.Process(target=load_rank, args=(folder, r, ready, begin, times), daemon=True)
             for r in range(RANKS)]
    for p in ranks:
        p.start()
    for cold in (False, True):
        took = []
        for _ in range(1 + RUNS):
            for path in paths if cold else ():
                drop(path)
            took.append(load_once(ready, begin, times))
        print("  torch.load, %d x %d MiB, %s  %.3f s, median of %d" %
              (RANKS, STATE_BYTES // RANKS >> 20, "cold" if cold else "warm",
               statistics.median(took[1:]), RUNS))
        sys.stdout.flush()
    for p in ranks:
        p.terminate()
        p.join()


def measure_saves(torch, folder):
    state = make_state(torch)
    for name, make in (("torch.save + fsync", rival_save),
                       ("DCP of torch 1.13", rival_dcp),
                       ("reused staging + a thread", rival_staging)):
        measure(torch, name, make, state, os.path.join(folder, name.split()[0]))


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("save", "load"):
        sys.exit(__doc__.split("\n\n")[1].strip())
    try:
        import torch
    except ImportError as e:
        print("  rivals are not measured: %s" % e)
        return
    folder = os.path.join(os.path.abspath(sys.argv[2]), "rivals")
    os.makedirs(folder)
    print("  rivals, torch %s, the same state in the same folder:" % torch.__version__)
    if sys.argv[1] == "save":
        measure_saves(torch, folder)
    else:
        measure_loads(torch, folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
