#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saves and loads of CUDA tensors through the Python binding, on a machine with a GPU and torch:

    PATH=FOLDER:$PATH LD_LIBRARY_PATH=FOLDER CKPT_LIBRARY=FOLDER/libckpt.so \\
        CKPT_EXTENSION=FOLDER/_bindings.abi3.so python3 python/tests/cuda_save.py [MIB]

FOLDER has ckptd, libckpt.so, the extension and what they need. Contiguous and strided tensors of MIB (default 1024)
together, saved, saved while the device computes, loaded from memory and from disk, bit for bit. Prints
"ok NAME" or "not ok NAME" and figures after '#'; exits 1 if one failed, 77 without a device.

That the copy overlaps: begin has returned and a computation on the device has been seen to be complete
before the fence ends the copy; what each took is printed beside what a whole save takes."""

import sys
import time

import torch

from harness import cases_of, run_with_ckptd

import ckpt

MIB = int(sys.argv[1]) if len(sys.argv) > 1 else 1024


def tensors(seed, mib=MIB):
    """About mib of device memory: large, small, strided by rows and by columns, and odd types."""
    g = torch.Generator(device="cuda").manual_seed(seed)
    rows = max(8, mib * (1 << 20) // 4 // 4096 * 3 // 4)
    big = torch.randn(rows, 4096, generator=g, device="cuda")
    wide = torch.randn(max(8, rows // 8), 4096, generator=g, device="cuda")
    out = {"big": big, "columns": wide[:, 512:3584], "rows": wide[::2],
           "transposed": torch.randn(96, 64, generator=g, device="cuda").t(),
           "bf16": torch.randn(100003, generator=g, device="cuda").to(torch.bfloat16),
           "i64": torch.arange(1000, device="cuda") * seed,
           "scalar": torch.tensor(float(seed), device="cuda"),
           "empty": torch.empty(0, 7, device="cuda")}
    for i in range(200):
        out[f"small{i}"] = torch.full((i + 1,), float(seed * i), device="cuda")
    return out


def blank(state):
    def one(t):
        if t.is_contiguous():
            return torch.zeros_like(t)
        if t.dim() == 2 and t.stride(0) < t.stride(1):
            return torch.zeros(t.shape[1], t.shape[0], dtype=t.dtype, device="cuda").t()
        return torch.zeros(t.shape[0], t.shape[1] + 3, dtype=t.dtype, device="cuda")[:, 2:-1]
    return {k: one(t) for k, t in state.items()}


def same(a, b):
    for k, t in a.items():
        assert torch.equal(t.contiguous().view(torch.uint8) if t.dim() else t,
                           b[k].contiguous().view(torch.uint8) if t.dim() else b[k]), k


def nbytes(state):
    return sum(t.numel() * t.element_size() for t in state.values())


def opened(job, state):
    c = ckpt.open(job, 0, 1)
    for name, t in state.items():
        c.declare(name, t)
    c.prepare()
    return c


def rate(n, seconds):
    return f"{n / seconds / 1e9:.2f} GB/s ({n / (1 << 20):.0f} MiB in {seconds * 1e3:.1f} ms)"


def case_save_and_load(d):
    state = tensors(1)
    with opened("cuda", state) as c:
        for step in (1, 2, 3):  # the first one wakes what later ones have
            torch.cuda.synchronize()
            start = time.perf_counter()
            save = c.save(step, wait_credit=True, timeout=60)
            took = time.perf_counter() - start
            assert save, save
            assert save.wait(ckpt.DURABLE, timeout=120)
        print(f"# save: {rate(nbytes(state), took)}", flush=True)
    into = blank(state)
    with opened("cuda", into) as c:
        c.load()
        for t in into.values():
            t.zero_()
        torch.cuda.synchronize()
        start = time.perf_counter()
        got = c.load()
        torch.cuda.synchronize()
        print(f"# load from {got.tier}: {rate(got.bytes, time.perf_counter() - start)}", flush=True)
        assert got.tier == "memory" and got.step == 3
    same(state, into)
    d.lose_memory()
    into = blank(state)
    with opened("cuda", into) as c:
        start = time.perf_counter()
        got = c.load()
        torch.cuda.synchronize()
        print(f"# load from {got.tier}: {rate(got.bytes, time.perf_counter() - start)}", flush=True)
        assert got.tier == "disk" and got.step == 3
    same(state, into)


def case_overlap(_):
    """Begin returns while the copy goes on; the device computes meanwhile; the fence ends it."""
    state = tensors(2)
    a = torch.randn(4096, 4096, device="cuda")
    with opened("overlap", state) as c:
        assert c.save(1, wait_credit=True, timeout=60).wait(ckpt.COMMITTED, timeout=60)
        torch.cuda.synchronize()
        start = time.perf_counter()
        whole = c.save(2, wait_credit=True, timeout=60)
        whole_took = time.perf_counter() - start
        assert whole.wait(ckpt.COMMITTED, timeout=60)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start = time.perf_counter()
        with c.saving(3, wait_credit=True, timeout=60) as s:
            begin_took = time.perf_counter() - start
            first.record()
            b = a
            for _ in range(4):
                b = torch.nn.functional.normalize(b @ a)
            last.record()
            last.synchronize()
            computed = time.perf_counter() - start
            at_fence = time.perf_counter()
        fence_took = time.perf_counter() - at_fence
        assert s.status == "sealed", s
        print(f"# begin {begin_took * 1e3:.2f} ms, computation {first.elapsed_time(last):.2f} ms "
              f"(done {computed * 1e3:.2f} ms after begin was called), fence {fence_took * 1e3:.2f} ms; "
              f"a whole save {whole_took * 1e3:.2f} ms", flush=True)
        # What was copied before begin returned is not the whole: the fence had to wait for the rest,
        # or the rest went on while the device computed.
        assert begin_took < whole_took, "begin copied everything"
        assert s.wait(ckpt.COMMITTED, timeout=60)
        into = blank(state)
        for name, t in into.items():
            c.bind(name, t)
        c.load(step=3)
        same(state, into)


def case_changed_while_saving(_):
    """What changes between begin and fence drops the snapshot, and the one before stays."""
    import warnings
    state = tensors(3, 64)
    with opened("torn", state) as c, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert c.save(1, wait_credit=True, timeout=60).wait(ckpt.DURABLE, timeout=60)
        with c.saving(2, wait_credit=True, full_compare=True, timeout=60) as s:
            state["big"][3, 5] += 1
            torch.cuda.synchronize()
        assert s.status == "failed" and s.error.code == -1007 and "big" in str(s.error), s
        into = blank(state)  # two of the state's own share their rows: nothing is loaded into both
        for name, t in into.items():
            c.bind(name, t)
        c.load(step=1)
        same(tensors(3, 64), into)


def case_parts(_):
    """Boxes of what is stored, into strided device memory."""
    whole = torch.arange(300 * 128., device="cuda").reshape(300, 128)
    with opened("parts", {"w": whole}) as c:
        assert c.save(1, {"rng": b"abc"}, wait_credit=True, timeout=60).wait(ckpt.COMMITTED)
        into = torch.zeros(50, 400, device="cuda")
        part = into[:, 7:260:4]
        with c.stored(1) as s:
            blobs, _, _ = s.read([ckpt.Want("w", part, (300, 128), (100, 60))], [(0, "rng")])
    assert blobs == {(0, "rng"): b"abc"}
    assert torch.equal(part, whole[100:150, 60:60 + part.shape[1]])
    part.zero_()
    assert not into.any(), "bytes outside the view were written"


def case_looked_at_alike(_):
    """By the extension and by Python, where the tensors are now: on the device, moved away, and back."""
    state = tensors(5, 16)
    with opened("alike", state) as c:
        table = c._table
        assert table is not None, "CKPT_EXTENSION does not name the extension"
        for device in ("cuda", "cpu", "cuda"):
            seen = []
            for t in state.values():
                t.data = t.data.to(device)
            for c._table in (table, None):
                out, n, _ = c._bindings(False)
                seen.append([(b.ptr, b.device, b.dtype, b.ndim, b.bytes) for b in out[:n]])
            c._table = table
            assert seen[0] == seen[1], device
            assert {b[1] for b in seen[0]} == ({-1} if device == "cpu" else {torch.cuda.current_device()})
            left = table.fill(list(c._tensors), (ckpt.L.Binding * n)(), False, [])
            # What was moved away and back has no gaps any more.
            want = [name for name, t in state.items() if not t.is_contiguous()]
            assert [list(state)[i] for i in left] == want or device == "cpu", (left, want)
            assert "transposed" in want


def main():
    if not torch.cuda.is_available():
        print("skip cuda_save no CUDA device")
        return 77
    print(f"# torch {torch.__version__}, {torch.cuda.get_device_name()}, {MIB} MiB", flush=True)
    return run_with_ckptd(cases_of(globals()), program="ckptd")


if __name__ == "__main__":
    sys.exit(main())
