#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One rank in Python, for ckpt-bench's python.save.200k: the state of its C trainer, in as many tensors.

    python_save.py JOB numpy|torch save|load TENSORS BYTES     (CKPT_SOCKET, CKPT_LIBRARY, CKPT_EXTENSION)

It says "ready" when it has declared and prepared, or declared and loaded, which prepares too, and how many
nanoseconds each took; or "without WHAT" where that cannot be imported. Then it
saves the step of each line that it reads, and answers how many nanoseconds save() took for its caller,
and how many of them libckpt.
"""

import importlib
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))


def tensors_of(kind, count, size):
    """float32, one behind the other in one block; what division leaves goes to the last. And their first
    elements."""
    library = importlib.import_module(kind)
    block = library.ones(size // 4, dtype=library.float32)
    each = size // count // 4
    tensors = [block[i * each:(i + 1) * each] for i in range(count - 1)]
    return tensors + [block[(count - 1) * each:]], block[::each]


def main():
    job, kind, what, count, size = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
    try:
        tensors, firsts = tensors_of(kind, count, size)
    except ImportError:
        print("without", kind, flush=True)
        return
    import ckpt
    with ckpt.open(job, 0, 1, run_id=what, connect_timeout=20, on_error="raise") as c:
        begin = time.monotonic_ns()
        for i, t in enumerate(tensors):
            c.declare("model.0.block.%d.weight" % i, t, trained=True)
        declared = time.monotonic_ns()
        if what == "save":
            c.prepare(0)
        elif c.load() is None:
            raise RuntimeError(f"job '{job}' has no checkpoint to load")
        print("ready", declared - begin, time.monotonic_ns() - declared, flush=True)
        for line in sys.stdin:
            firsts += 1  # no two steps are equal
            begin = time.monotonic_ns()
            save = c.save(int(line), wait_credit=True)
            took = time.monotonic_ns() - begin
            save.wait(ckpt.COMMITTED)
            print(took, c.stats["last_stall_ns"], flush=True)


main()
