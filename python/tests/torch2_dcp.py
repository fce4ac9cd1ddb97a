#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DCP folders and torch.save() files of a real torch 2, through ckptctl and back, bit for bit.

    torch2_dcp.py [FOLDER]      ckptctl in PATH; FOLDER is made, and stays (default: a temporary one)

Saves with torch.distributed.checkpoint, imports with ckptctl, exports, loads with torch, compares;
in one process, and on 2 gloo ranks with DTensors, loaded again on 1 and 4. Prints "ok NAME" for each
that holds, "skip NAME why" for what this torch does not have, and exits 1 if one does not hold.
Not part of `make check`: Debian has no torch 2.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

import harness
from harness import Skip, free_port, run_cases

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16",
          "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
          "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
VALUES = {"epoch": 3, "lr": 0.1, "name": "run", "none": None, "raw": b"\x00\xff", "betas": (0.9, 0.99)}


def ctl(*args):
    return harness.ctl(*args, program="ckptctl")[0]


def pattern(name, shape, dtype):
    """Every byte of it follows from its name."""
    t = torch.empty(shape, dtype=dtype)
    n = t.numel() * t.element_size()
    g = torch.Generator().manual_seed(sum(map(ord, name)) + n)
    raw = torch.randint(0, 256, (n,), dtype=torch.uint8, generator=g)
    if dtype == torch.bool:
        raw &= 1
    return raw.view(dtype).reshape(shape) if t.dim() and n else (raw.view(dtype)[0].clone() if n else t)


def bits(t):
    t = t.detach().cpu().contiguous().clone()
    return bytes(t.reshape(-1).view(torch.uint8).tolist()) if t.numel() else b""


def same(a, b, what):
    assert a.dtype == b.dtype and a.shape == b.shape, (what, a.dtype, b.dtype, a.shape, b.shape)
    assert bits(a) == bits(b), what


def tensors():
    out = {f"every.{d}": pattern(d, (7, 5), getattr(torch, d)) for d in DTYPES if hasattr(torch, d)}
    out.update({
        "scalar": pattern("scalar", (), torch.float32), "empty": torch.empty(0, 3),
        "large": pattern("large", (300, 1000), torch.float32),
        "transposed": pattern("transposed", (33, 17), torch.float64).t(),
        "view": pattern("view", (40, 10), torch.int64)[3:9],
        "columns": pattern("columns", (40, 10), torch.int64)[:, 2:5],
    })
    return out


def nested():
    t = tensors()
    return {"model": {k: v for k, v in t.items()}, **VALUES,
            "optim": {"state": {"w": {"exp_avg": pattern("m", (4, 4), torch.float32), "step": 7}},
                      "param_groups": [{"lr": 0.1, "params": ["w"]}]}}


def zeros(value):
    if isinstance(value, torch.Tensor):
        n = value.numel() * value.element_size()
        raw = torch.zeros(n, dtype=torch.uint8)
        return raw.view(value.dtype).reshape(value.shape) if n else torch.empty_like(value)
    if isinstance(value, dict):
        return {k: zeros(v) for k, v in value.items()}
    if isinstance(value, list):
        return [zeros(v) for v in value]
    return value


def compare(a, b, what=""):
    if isinstance(b, torch.Tensor):
        same(a, b, what)
    elif isinstance(b, dict):
        assert set(a) == set(b), (what, set(a) ^ set(b))
        for k in b:
            compare(a[k], b[k], f"{what}.{k}")
    elif isinstance(b, (list, tuple)):
        assert len(a) == len(b), what
        for i, v in enumerate(b):
            compare(a[i], v, f"{what}.{i}")
    else:
        assert a == b, (what, a, b)


# ---- One process

def single(folder):
    state = nested()
    dcp.save(state, checkpoint_id=f"{folder}/saved", no_dist=True)
    ctl("import", f"{folder}/saved", "--as", "single", "--data", f"{folder}/data", "--step", 5)
    ctl("diff", f"{folder}/saved", f"{folder}/data:single@5")
    ctl("export", "single", "--data", f"{folder}/data", "--format", "dcp", "--output", f"{folder}/back")
    loaded = zeros(state)
    dcp.load(loaded, checkpoint_id=f"{folder}/back", no_dist=True)
    compare(loaded, state)


def to_torch_save(folder):
    """dcp_to_torch_save of an export: planner_data leads everything back to its place."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    dcp_to_torch_save(f"{folder}/back", f"{folder}/back.pt")
    compare(torch.load(f"{folder}/back.pt", weights_only=False), nested())


def torch_save(folder):
    state = nested()
    state["tied"] = state["model"]["large"]
    state["parameter"] = torch.nn.Parameter(torch.arange(5.))
    torch.save(state, f"{folder}/state.pt")
    ctl("import", f"{folder}/state.pt", "--as", "state", "--data", f"{folder}/data")
    ctl("export", "state", "--data", f"{folder}/data", "--format", "dcp", "--output", f"{folder}/state")
    loaded = zeros(state)
    dcp.load(loaded, checkpoint_id=f"{folder}/state", no_dist=True)
    compare(loaded, state)


def torch_save_without_crc(folder):
    options = getattr(torch.serialization, "set_crc32_options", None)
    if not options:
        raise Skip("this torch has no set_crc32_options")
    options(False)
    try:
        torch.save({"x": pattern("x", (100, 100), torch.float32)}, f"{folder}/nocrc.pt")
    finally:
        options(True)
    ctl("import", f"{folder}/nocrc.pt", "--as", "nocrc", "--data", f"{folder}/data")
    ctl("diff", f"{folder}/nocrc.pt", f"{folder}/data:nocrc")


def refused(folder):
    """What cannot be read is refused in words: an object of a class that torch does not write."""
    torch.save({"x": torch.ones(2), "y": Stranger()}, f"{folder}/stranger.pt")
    done = subprocess.run(["ckptctl", "import", f"{folder}/stranger.pt", "--as", "no", "--data",
                           f"{folder}/data"], capture_output=True, text=True)
    assert done.returncode != 0 and "Stranger" in done.stderr, done.stderr


class Stranger:
    pass


# ---- Several ranks

def distributed(ranks):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (ranks,))
    full = {"rows": pattern("rows", (7, 6), torch.float32), "columns": pattern("columns", (6, 9), torch.bfloat16),
            "few": pattern("few", (1, 8), torch.float32), "all": pattern("all", (5,), torch.int64)}
    where = {"rows": Shard(0), "columns": Shard(1), "few": Shard(0), "all": Replicate()}
    return full, {k: distribute_tensor(t.clone(), mesh, [where[k]]) for k, t in full.items()}


def on_rank(rank, ranks, port, folder, save):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    full, state = distributed(ranks)
    state["plain"] = full["plain"] = pattern("plain", (3, 3), torch.float64)
    state["step"] = 11
    if save:
        dcp.save(state, checkpoint_id=folder)
    else:
        for t in state.values():
            if isinstance(t, torch.Tensor):
                (t.to_local() if hasattr(t, "to_local") else t).zero_()
        full["plain"] = pattern("plain", (3, 3), torch.float64)
        state["step"] = 0
        dcp.load(state, checkpoint_id=folder)
        for name, t in full.items():
            got = state[name]
            same(got.full_tensor() if hasattr(got, "full_tensor") else got, t, name)
        assert state["step"] == 11
    dist.barrier()
    dist.destroy_process_group()


def spawn(ranks, folder, save):
    mp.spawn(on_rank, (ranks, free_port(), folder, save), nprocs=ranks)


def dtensors(folder):
    spawn(2, f"{folder}/two", True)
    ctl("import", f"{folder}/two", "--as", "two", "--data", f"{folder}/data")
    ctl("diff", f"{folder}/two", f"{folder}/data:two")
    ctl("export", "two", "--data", f"{folder}/data", "--format", "dcp", "--output", f"{folder}/two-back")
    for ranks in (1, 2, 4):
        spawn(ranks, f"{folder}/two-back", False)


def dtensors_in_a_layout(folder):
    """Imported in a layout of 3 ranks: the folder that comes out has a file for each of them."""
    ctl("import", f"{folder}/two", "--as", "three", "--data", f"{folder}/data", "--to", "fsdp2=3")
    out = json.loads(ctl("export", "three", "--data", f"{folder}/data", "--format", "dcp", "--output",
                         f"{folder}/three", "--json"))
    assert len(out["files"]) == 4, out["files"]
    spawn(2, f"{folder}/three", False)


TESTS = [single, to_torch_save, torch_save, torch_save_without_crc, refused, dtensors,
         dtensors_in_a_layout]


def main():
    if int(torch.__version__.split(".")[0]) < 2:
        print(f"skip all: torch {torch.__version__} is no torch 2")
        return 77
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    print(f"torch {torch.__version__}, {folder}", flush=True)
    bad = run_cases({test.__name__: test for test in TESTS}, folder)
    if len(sys.argv) < 2 and not bad:
        shutil.rmtree(folder)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
