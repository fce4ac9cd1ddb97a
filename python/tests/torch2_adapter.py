#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt.torch and ckpt:// under torch >= 2, on a machine that has torch and, in a folder, ckptd, libckpt.so
and the shared libraries they need; with CUDA where there is a device.

    PATH=FOLDER:$PATH LD_LIBRARY_PATH=FOLDER CKPT_LIBRARY=FOLDER/libckpt.so \\
        python3 python/tests/torch2_adapter.py [CASE...]

Starts `ckptd --user` in a folder of its own. Prints "ok NAME", "not ok NAME" or "skip NAME reason" for
each case; exits 1 if one failed."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from harness import Skip, cases_of, raises, run_ranks, run_with_ckptd

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
CUDA = torch.cuda.is_available()


def ranks(world, case, *args):
    run_ranks("torch2_adapter.py", world, "--rank", case, *args, timeout=240)


# ---- State ----

def state(device, step):
    g = torch.Generator().manual_seed(step)
    big = torch.randn(64, 96, generator=g).to(device)
    s = {"model": {"w": torch.randn(257, 33, generator=g).to(device), "view": big.t()[3:50:2, 1:],
                   "bf16": torch.randn(1000, generator=g).to(torch.bfloat16).to(device),
                   "scalar": torch.tensor(float(step), device=device),
                   "empty": torch.empty(0, 4, device=device)},
         "optim": {"state": [{"exp_avg": torch.randn(31, generator=g).to(device), "step": step}],
                   "lr": 0.125 * step, "betas": (0.9, 0.95), "name": "adam"}, "step": step}
    if hasattr(torch, "float8_e4m3fn"):
        s["model"]["f8"] = torch.arange(64, dtype=torch.uint8).to(device).view(torch.float8_e4m3fn)
    return s


def blank(value):
    if isinstance(value, torch.Tensor):
        if value.dim() == 2 and not value.is_contiguous():
            return torch.zeros(value.shape[1], value.shape[0], dtype=value.dtype,
                               device=value.device).t()
        return torch.zeros_like(value.view(torch.uint8)).view(value.dtype) \
            if value.element_size() == 1 else torch.zeros_like(value)
    if isinstance(value, dict):
        return {k: blank(v) for k, v in value.items()}
    if isinstance(value, list):
        return [blank(v) for v in value]
    return type(value)() if isinstance(value, (int, float, str, tuple)) else value


def same(a, b, where=""):
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape and a.device == b.device, where
        x, y = a.contiguous(), b.contiguous()
        if x.element_size() == 1:
            x, y = x.view(torch.uint8), y.view(torch.uint8)
        assert torch.equal(x, y), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for k in a:
            same(a[k], b[k], f"{where}.{k}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{where}.{i}")
    else:
        assert a == b, (where, a, b)


def round_trip(device, job, daemon):
    import ckpt.torch as ck
    w = ck.Writer(job, durable=True)
    for step in (1, 2):
        dcp.save(state(device, step), checkpoint_id=f"ckpt://{job}/{step}", storage_writer=w)
    into = blank(state(device, 2))
    dcp.load(into, checkpoint_id=f"ckpt://{job}/2", storage_reader=ck.Reader(job))
    same(state(device, 2), into)
    ck.close_all()
    daemon.lose_memory()
    into = blank(state(device, 2))
    reader = ck.Reader(job)
    dcp.load(into, storage_reader=reader)
    same(state(device, 2), into)
    assert reader.loaded_step == 2
    ck.close_all()


# ---- Cases of one process ----

def case_cpu(d):
    round_trip("cpu", "cpu", d)


def case_cuda(d):
    if not CUDA:
        raise Skip("no CUDA device")
    round_trip("cuda", "cuda", d)


def case_cpu_to_cuda(d):
    if not CUDA:
        raise Skip("no CUDA device")
    import ckpt.torch as ck
    dcp.save(state("cpu", 3), checkpoint_id="ckpt://move/3", storage_writer=ck.Writer())
    into = blank(state("cuda", 3))
    dcp.load(into, checkpoint_id="ckpt://move/3", storage_reader=ck.Reader())
    same(state("cuda", 3), into)
    ck.close_all()


def async_saves(device, job):
    import ckpt.torch as ck
    w = ck.Writer(job)
    for step in (1, 2, 3):
        s = state(device, step)
        future = dcp.async_save(s, checkpoint_id=f"ckpt://{job}/{step}", storage_writer=w)
        s["model"]["w"].zero_()  # training goes on
        s["model"]["view"].zero_()
        future.result()
        into = blank(state(device, step))
        dcp.load(into, checkpoint_id=f"ckpt://{job}/{step}", storage_reader=ck.Reader())
        same(state(device, step), into)
    w.close()
    ck.close_all()


def case_async_cpu(_):
    async_saves("cpu", "async-cpu")


def case_async_cuda(_):
    if not CUDA:
        raise Skip("no CUDA device")
    async_saves("cuda", "async-cuda")


def case_stager_is_the_writer(_):
    """DCP must take the writer itself as its stager."""
    from torch.distributed.checkpoint.staging import AsyncStager
    from torch.distributed.checkpoint.storage import StorageReader, StorageWriter
    import ckpt.torch as ck
    assert isinstance(ck.Writer("x"), AsyncStager) and isinstance(ck.Writer("x"), StorageWriter)
    assert isinstance(ck.Reader("x"), StorageReader)


def case_module_and_optimizer(_):
    """The state_dict helpers of 2.x, and a strict load that misses a key."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    import ckpt.torch as ck

    def make(seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(17, 9), torch.nn.Linear(9, 3))
        optim = torch.optim.AdamW(model.parameters(), lr=0.01)
        model(torch.randn(4, 17)).sum().backward()
        optim.step()
        return model, optim

    model, optim = make(1)
    m, o = get_state_dict(model, optim)
    dcp.save({"m": m, "o": o}, checkpoint_id="ckpt://module/1", storage_writer=ck.Writer())
    other, other_optim = make(2)
    m2, o2 = get_state_dict(other, other_optim)
    sd = {"m": m2, "o": o2}
    dcp.load(sd, checkpoint_id="ckpt://module/1", storage_reader=ck.Reader())
    set_state_dict(other, other_optim, model_state_dict=sd["m"], optim_state_dict=sd["o"])
    for a, b in zip(model.parameters(), other.parameters()):
        assert torch.equal(a, b)
        assert torch.equal(optim.state[a]["exp_avg"], other_optim.state[b]["exp_avg"])
    # Which is no Exception but a BaseException.
    e = raises(dcp.api.CheckpointException, lambda: dcp.load(
        {"m": dict(m, more=torch.zeros(3))}, checkpoint_id="ckpt://module/1", storage_reader=ck.Reader()))
    assert "more" in str(e), e
    ck.close_all()


def case_plain_checkpoint(_):
    """Saved by ckpt.save(), loaded by DCP."""
    import ckpt
    import ckpt.torch as ck
    w = torch.randn(40, 6)
    with ckpt.open("plain", 0, 1) as c:
        c.declare("w", w)
        assert c.save(1, {"rng": b"abc"}, wait_credit=True).wait(ckpt.COMMITTED)
    into = {"w": torch.zeros(40, 6)}
    dcp.load(into, storage_reader=ck.Reader("plain"))
    assert torch.equal(into["w"], w)
    ck.close_all()


def case_fsspec(d):
    """Only the path changes."""
    try:
        import fsspec
    except ImportError:
        raise Skip("fsspec is not installed") from None
    import ckpt.fsspec
    from ckpt import _session
    for step in (1, 2):
        dcp.save(state("cpu", step), checkpoint_id=f"ckpt://files/{step}")
        into = blank(state("cpu", step))
        dcp.load(into, checkpoint_id=f"ckpt://files/{step}")
        same(state("cpu", step), into)
    fs = fsspec.filesystem("ckpt")
    assert "files/2/.metadata" in fs.find("ckpt://files/2"), fs.find("ckpt://files/2")
    assert isinstance(fs, ckpt.fsspec.CkptFileSystem)
    _session.close_all()


# ---- Cases of several ranks ----

def case_dtensor(d):
    """2 gloo ranks -> 4 -> 1: Shard(0) uneven, Shard(1), Replicate; from memory and disk."""
    ranks(2, "save_dtensor", "dtensor", 5)
    ranks(4, "load_dtensor", "dtensor", 5)
    d.lose_memory()
    ranks(4, "load_dtensor", "dtensor", 5)
    ranks(1, "load_dtensor", "dtensor", 5)


def case_fsdp2_like(d):
    """Parameters and moments Shard(0) over the ranks, saves of changing plans."""
    ranks(3, "fsdp2", "fsdp2")


def case_fsspec_ranks(d):
    try:
        import fsspec  # noqa: F401
    except ImportError:
        raise Skip("fsspec is not installed") from None
    ranks(2, "fsspec_ranks", "files2")


def dtensors(step, fill=True):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (WORLD,))
    g = torch.Generator().manual_seed(step)
    whole = {"row": torch.randn(13, 7, generator=g), "column": torch.randn(5, 10, generator=g),
             "copy": torch.randn(6, generator=g), "fewer": torch.randn(1, 3, generator=g)}
    how = {"row": Shard(0), "column": Shard(1), "copy": Replicate(), "fewer": Shard(0)}
    sd = {k: distribute_tensor(v if fill else torch.zeros_like(v), mesh, [how[k]])
          for k, v in whole.items()}
    sd["rank-free"] = {"n": step if fill else 0}
    return sd, whole


def rank_save_dtensor(job, step):
    import ckpt.torch as ck
    sd, _ = dtensors(int(step))
    dcp.save(sd, checkpoint_id=f"ckpt://{job}/{step}", storage_writer=ck.Writer(durable=True))


def rank_load_dtensor(job, step):
    import ckpt.torch as ck
    sd, whole = dtensors(int(step), fill=False)
    dcp.load(sd, storage_reader=ck.Reader(job))
    for k, v in whole.items():
        assert torch.equal(sd[k].full_tensor(), v), k
    assert sd["rank-free"]["n"] == int(step)


def rank_fsdp2(job):
    import ckpt.torch as ck
    w = ck.Writer(job)
    for step in (1, 2, 3):
        sd, whole = dtensors(step)
        if step == 3:
            sd["late"] = torch.ones(4) * step
        future = dcp.async_save(sd, checkpoint_id=f"ckpt://{job}/{step}", storage_writer=w)
        future.result()
        dist.barrier()
        into, _ = dtensors(step, fill=False)
        dcp.load(into, checkpoint_id=f"ckpt://{job}/{step}", storage_reader=ck.Reader())
        for k, v in whole.items():
            assert torch.equal(into[k].full_tensor(), v), (step, k)


def rank_fsspec_ranks(job):
    import ckpt.fsspec  # noqa: F401
    for step in (1, 2):
        sd, whole = dtensors(step)
        dcp.save(sd, checkpoint_id=f"ckpt://{job}/{step}")
        into, _ = dtensors(step, fill=False)
        dcp.load(into, checkpoint_id=f"ckpt://{job}/{step}")
        for k, v in whole.items():
            assert torch.equal(into[k].full_tensor(), v), (step, k)


def rank_main(case, *args):
    dist.init_process_group("gloo")
    globals()["rank_" + case](*args)
    from ckpt import _session
    dist.barrier()
    _session.close_all()
    dist.destroy_process_group()


def main():
    print(f"# torch {torch.__version__}, python {sys.version.split()[0]}, "
          f"{torch.cuda.get_device_name() if CUDA else 'no CUDA'}", flush=True)
    return run_with_ckptd(cases_of(globals()), sys.argv[1:], program="ckptd")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(*sys.argv[2:])
        sys.exit(0)
    sys.exit(main())
