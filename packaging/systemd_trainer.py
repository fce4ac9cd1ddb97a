#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""systemd_trainer.py STEP - loads the newest checkpoint of the job "kept", says which step that was
and where it lay, saves STEP, says so and trains on until it is killed.

The bytes of a step follow from its number alone; a load that brings others is an error."""

import signal
import sys

import ckpt
import numpy


def bytes_of(step):
    return numpy.random.default_rng(step).integers(0, 256, 3_000_001, dtype="uint8")


step = int(sys.argv[1])
state = numpy.zeros(3_000_001, "uint8")
with ckpt.open("kept", 0, 1, on_error="raise", connect_timeout=20) as c:
    c.declare("state", state)
    got = c.load()
    if got:
        assert (state == bytes_of(got.step)).all(), f"step {got.step} came back with other bytes"
        assert got.blobs == {"number": str(got.step).encode()}, got.blobs
    print("loaded", got.step if got else "nothing", "from", got.tier if got else "nowhere", flush=True)
    state[:] = bytes_of(step)
    save = c.save(step, blobs={"number": str(step).encode()}, wait_credit=True)
    assert save.wait(timeout=20), save
    print("saved", step, flush=True)
    signal.pause()
