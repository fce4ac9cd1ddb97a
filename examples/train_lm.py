#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A small transformer language model whose training survives anything: tutorial for `ckpt`.

It learns bytes of the licence texts in /usr/share/common-licenses (package base-files, on every
Debian system), on 1 to 8 processes with gloo. Each rank moves its own part of every parameter, with
Adam's moments of that part alone; the random state and the data cursor are blobs. What a rank saves
is up to --shard; what was saved loads on any other number of ranks and with any other --shard:

    zero1  parameters whole, moments as flat ranges of each parameter
    fsdp   parameters as flat ranges too
    rows   parameters and moments as boxes: some of the rows, dimension 0

Every --every steps, and when ckptd asks for it, the state is saved while the next forward and backward
pass run. Each step is told to ckptd's failure detector, with the time that was waited, and so is each
evaluation. The same seed gives the same losses bit for bit, with and without interruption. --fault
does to a tensor what a failing GPU would, or has a rank wait for ever: for whoever wants to see
what is found of it.

    ckptd --user &
    examples/train_lm.py --ranks 2 --steps 60 --every 5 --job demo
    examples/train_lm.py --ranks 2 --steps 60 --every 5 --job demo    # again, after any accident
    examples/train_lm.py --ranks 3 --steps 90 --job demo --shard fsdp

It goes on from the newest checkpoint of the job; another training takes another --job.
"""

import argparse
import glob
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

# One thread each: as many processes as cores, and sums in one order. Before numpy and torch load.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

TEXTS = "/usr/share/common-licenses/*"


def fault(text):
    """nan@STEP:RANK, flip@STEP:RANK or deadlock@STEP:RANK"""
    what, at = text.split("@")
    step, rank = (int(number) for number in at.split(":"))
    if what not in ("nan", "flip", "deadlock"):
        raise ValueError(what)
    return what, step, rank


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--ranks", type=int, default=0, help="start this many processes (0: be one)")
    p.add_argument("--job", default="train_lm", help="name of the job")
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--every", type=int, default=5, help="save every so many steps")
    p.add_argument("--min-trust", choices=["latest", "complete", "verified"], default="latest",
                   help="go on from the newest checkpoint that is trusted as much")
    p.add_argument("--shard", choices=["zero1", "fsdp", "rows"], default="zero1",
                   help="what a rank saves")
    p.add_argument("--digest", action="store_true",
                   help="log a digest of all parameters and moments at the start and the end")
    p.add_argument("--no-ckpt", action="store_true", help="train without checkpoints")
    p.add_argument("--log", help="file that gets one JSON object per step of rank 0")
    p.add_argument("--pids", help="file that gets the processes' ids, one a line, in rank order")
    p.add_argument("--width", type=int, default=288)
    p.add_argument("--layers", type=int, default=5)
    p.add_argument("--context", type=int, default=64)
    p.add_argument("--batch", type=int, default=4, help="sequences per rank and step")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--die-at", type=int, default=-1, help="rank 0 kills itself in this step")
    p.add_argument("--evaluate", type=int, nargs=2, default=(0, 0), metavar=("EVERY", "BATCHES"),
                   help="every so many steps, evaluate on so many batches")
    p.add_argument("--device-ms", type=float, default=0,
                   help="wait so long for each batch, as for an accelerator that computes it")
    p.add_argument("--data", help="file of text, of which each batch is read from the disk anew")
    p.add_argument("--fault", type=fault, action="append", default=[], metavar="KIND@STEP:RANK",
                   help="before this step, in this rank: nan, or flip: one bit of a parameter, "
                   "which is found if this step is saved: the next one levels the replicas; or "
                   "deadlock: it waits for ever")
    p.add_argument("--durable", action="store_true", help="wait until the last save is durable")
    return p.parse_args()


# ---- Starting the processes ----


def launch(args):
    """Starts the ranks, ends them all when one fails; the exit status is the worst one."""
    run_id = f"{os.getpid()}-{time.time_ns()}"
    # The library path must hold for the children as well; they are this same file.
    children = []
    port = 20000 + os.getpid() % 20000
    for rank in range(args.ranks):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(args.ranks), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
        env.setdefault("CKPT_RUN_ID", run_id)
        children.append(subprocess.Popen([sys.executable, *sys.argv, "--ranks", "0"], env=env))
    if args.pids:
        with open(args.pids + ".new", "w") as f:
            f.writelines(f"{c.pid}\n" for c in children)
        os.rename(args.pids + ".new", args.pids)

    def stop(signum, frame):
        for c in children:
            c.terminate()

    signal.signal(signal.SIGTERM, stop)
    worst = 0
    alive = list(children)
    while alive:
        for c in list(alive):
            if c.poll() is None:
                continue
            alive.remove(c)
            if c.returncode != 0:
                worst = worst or (c.returncode if c.returncode > 0 else 128 - c.returncode)
                for other in alive:
                    other.kill()
        time.sleep(0.02)
    return worst


# ---- The model ----


def make_model(args):
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.heads = 4

        def forward(self, x, mask):
            n, t, w = x.shape
            q, k, v = (self.qkv(self.norm1(x)).view(n, t, 3, self.heads, w // self.heads)
                       .permute(2, 0, 3, 1, 4))
            a = (q @ k.transpose(-1, -2)) / (w // self.heads) ** 0.5 + mask
            x = x + self.out((a.softmax(-1) @ v).transpose(1, 2).reshape(n, t, w))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    class Model(nn.Module):
        def __init__(self, width, layers, context):
            super().__init__()
            self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
            self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)
            self.register_buffer("mask", torch.full((context, context), -1e9).triu(1),
                                 persistent=False)

        def forward(self, tokens):
            x = self.bytes(tokens) + self.places.weight
            for block in self.blocks:
                x = block(x, self.mask)
            return self.head(self.norm(x))

    torch.manual_seed(args.seed)
    return Model(args.width, args.layers, args.context)


class Adam:
    """Adam (Kingma and Ba, 2015), each rank for its own part of every parameter: rank r has units
    [n * r // world, n * (r + 1) // world) of n, which are elements, or rows for boxes."""

    def __init__(self, parameters, rank, world, rows=False, lr=1e-3):
        import torch
        self.lr, self.rank, self.world, self.rows, self.t = lr, rank, world, rows, 0
        self.parameters = parameters
        self.ranges = [self.range_of(p, rank) for _, p in parameters]
        self.sync = nullcontext  # says that it waits for other ranks
        self.m = [torch.zeros(b - a) for a, b in self.ranges]
        self.v = [torch.zeros(b - a) for a, b in self.ranges]

    def range_of(self, p, rank):
        """Of the parameter's elements, in row-major order."""
        n = len(p) if self.rows else p.numel()
        return tuple(n * r // self.world * (p.numel() // n) for r in (rank, rank + 1))

    def spread(self, p, flat):
        """Each rank's part of flat, of p's elements, goes to all."""
        import torch.distributed as dist
        for owner in range(self.world if self.world > 1 else 0):
            a, b = self.range_of(p, owner)
            piece = flat[a:b].contiguous()
            with self.sync():
                dist.broadcast(piece, owner)
            flat[a:b] = piece

    def step(self):
        import torch.distributed as dist
        self.t += 1
        for (_, p), (a, b), m, v in zip(self.parameters, self.ranges, self.m, self.v):
            g = p.grad.view(-1)
            if self.world > 1:
                with self.sync():
                    dist.all_reduce(g)
                g /= self.world
            g = g[a:b]
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.99).addcmul_(g, g, value=0.01)
            flat = p.data.view(-1)
            flat[a:b] -= self.lr * (m / (1 - 0.9 ** self.t)) / (
                (v / (1 - 0.99 ** self.t)).sqrt() + 1e-8)
            self.spread(p, flat)
            p.grad = None

    def digest(self):
        """Of all parameters and moments, the same on every rank however they are sharded."""
        import torch
        total = hashlib.sha256()
        for (_, p), (a, b), *moments in zip(self.parameters, self.ranges, self.m, self.v):
            total.update(p.data.numpy().tobytes())
            for moment in moments:
                whole = torch.zeros(p.numel())
                whole[a:b] = moment
                self.spread(p, whole)
                total.update(whole.numpy().tobytes())
        return total.hexdigest()


class Text:
    """Sequences of bytes at random places of the licences; the cursor is the generator's state."""

    def __init__(self, args, rank):
        import torch
        files = [f for f in sorted(glob.glob(TEXTS)) if not os.path.islink(f)]
        data = b"".join(open(f, "rb").read() for f in ([args.data] if args.data else files)
                        if os.path.isfile(f))
        if len(data) <= args.context + 1:
            raise SystemExit(f"train_lm: {args.data or TEXTS}: not {args.context + 2} bytes of "
                             "text; name a longer file with --data")
        self.data = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.file = os.open(args.data, os.O_RDONLY) if args.data else None
        self.seed = args.seed * 1000 + rank
        self.generator = torch.Generator().manual_seed(self.seed)
        self.batch, self.context = args.batch, args.context

    def row(self, at):
        import torch
        if self.file is None:
            return self.data[at:at + self.context + 1]
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
        return torch.frombuffer(bytearray(os.pread(self.file, self.context + 1, at)),
                                dtype=torch.uint8)

    def next(self):
        import torch
        at = torch.randint(len(self.data) - self.context - 1, (self.batch,),
                           generator=self.generator)
        rows = torch.stack([self.row(i) for i in at.tolist()]).long()
        return rows[:, :-1], rows[:, 1:]


# ---- Training ----


def declare_part(c, name, part, p, a, b, rows, trained=False):
    """part holds elements [a, b) of what has p's shape: as a flat range, or as a box of rows."""
    if not rows:
        c.declare_flat(name, part, p.shape, a, b, trained=trained)
        return
    row = p.numel() // len(p)
    c.declare(name, part.view((b - a) // row, *p.shape[1:]), p.shape,
              (a // row,) + (0,) * (p.dim() - 1), trained)


def declare(c, parameters, adam, shard):
    """Parameters whole or this rank's part, moments always this rank's part."""
    for i, (name, p) in enumerate(parameters):
        a, b = adam.ranges[i]
        if shard == "zero1":
            c.declare(name, p)
        else:
            declare_part(c, name, p.data.view(-1)[a:b], p, a, b, adam.rows, trained=True)
        declare_part(c, "adam.m." + name, adam.m[i], p, a, b, adam.rows)
        declare_part(c, "adam.v." + name, adam.v[i], p, a, b, adam.rows)


def open_job(args, parameters, adam, text):
    """Returns the handle and the step to go on with."""
    import ckpt
    import torch
    c = ckpt.open(args.job)
    declare(c, parameters, adam, args.shard)
    c.prepare(blob_space=1 << 16)
    started = time.monotonic()
    got = c.load(min_trust=args.min_trust)  # each rank, before its first save
    if got is None:
        return c, 0, None
    adam.t = got.step  # it moves once a step
    if args.shard != "zero1":  # this rank loaded its part of the parameters
        for _, p in parameters:
            adam.spread(p, p.data.view(-1))
    # Tensors come in any cut; blobs are those of the rank with this number. One that was not there
    # when the state was saved has none, and begins its own sequence of texts and random numbers.
    if "data" in got.blobs:
        text.generator.set_state(torch.frombuffer(bytearray(got.blobs["data"]), dtype=torch.uint8))
        torch.set_rng_state(torch.frombuffer(bytearray(got.blobs["rng"]), dtype=torch.uint8))
    return c, got.step, {"resumed": got.step, "tier": got.tier, "load_s":
                         time.monotonic() - started}


def blobs_of(text):
    import torch
    return {"data": text.generator.get_state().numpy().tobytes(),
            "rng": torch.get_rng_state().numpy().tobytes()}


def loss_of(model, tokens, wanted, args):
    import torch
    time.sleep(args.device_ms / 1000)
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), wanted.flatten())


def evaluate(model, text, batches, args):
    """Of texts that are the same every time, whatever training does; the mean loss."""
    import torch
    text.generator.manual_seed(text.seed)
    with torch.no_grad():
        return sum(loss_of(model, *text.next(), args).item() for _ in range(batches)) / batches


def strike(args, step, rank, parameters):
    """The faults of this step; a replica of a parameter is then another than the others'."""
    import torch
    one = parameters[-1][1].data.view(-1)[-1:]
    for what, at, who in args.fault:
        if (at, who) != (step, rank):
            continue
        if what == "nan":
            one.fill_(float("nan"))
        elif what == "deadlock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()  # nobody gives it back, and the others wait in their collective
        else:
            one.view(torch.int32).bitwise_xor_(1 << 22)


def train(args):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    model = make_model(args)
    parameters = list(model.named_parameters())
    adam, text = Adam(parameters, rank, world, args.shard == "rows"), Text(args, rank)
    held_out = Text(args, 999) if args.evaluate[0] else None
    log = open(args.log, "a") if args.log and rank == 0 else None

    def say(**values):
        if log:
            log.write(json.dumps(values) + "\n")
            log.flush()

    def tell(line):
        if rank == 0:
            print(f"{args.job}: {line}", flush=True)

    c, first, resumed = (None, 0, None)
    if not args.no_ckpt:
        c, first, resumed = open_job(args, parameters, adam, text)
    say(start=first, parameters=sum(p.numel() for _, p in parameters), world=world,
        time=time.time(), **(resumed or {}))
    if args.digest:
        say(step=first, digest=adam.digest())
    if resumed:
        tell(f"resumed from step {first} from {resumed['tier']} in {resumed['load_s']:.2f} s")
    elif c is not None:
        tell("there is no checkpoint to resume from: from the beginning")
    if resumed and first >= args.steps:  # what is there must not be saved as an earlier step
        tell(f"step {first} is there and --steps is {args.steps}: nothing is left to do")
        c.close()
        return 0
    if c is not None:  # for ckptd's failure detector: who waits for whom
        sync, data, evaluation = c.phase("sync"), c.phase("data"), c.phase("evaluate")
        adam.sync = lambda: sync
    else:
        data = evaluation = nullcontext()
    tell(f"steps {first} to {args.steps} on {world} rank{'s' if world > 1 else ''}, "
         + (f"a save every {args.every}" if c is not None else "no saves"))
    for step in range(first, args.steps):
        strike(args, step, rank, parameters)
        due = c is not None and step > first and (step % args.every == 0 or c.should_save(step))
        # The state of `step` is final until the optimizer moves it: it is copied meanwhile.
        with c.saving(step, blobs_of(text), wait_credit=True) if due else nullcontext() as s:
            with data:
                tokens, wanted = text.next()
            loss = loss_of(model, tokens, wanted, args)
            loss.backward()
            if step == args.die_at and rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        adam.step()
        if c is not None:
            c.beat(step, loss=loss.item(), tokens=tokens.numel())
        # As hex too: bit for bit, not rounded to decimals.
        say(step=step, loss=loss.item(), hex=loss.item().hex(), time=time.time(),
            **({"saved": s.status, "stall_s": c.stats["last_stall_ns"] / 1e9} if due else {}))
        if step % args.every == 0 or due:
            tell(f"step {step}, loss {loss.item():.4f}"
                 + (f", {s.status}" if due else ""))
        if args.evaluate[0] and (step + 1) % args.evaluate[0] == 0:
            with evaluation:
                evaluated = evaluate(model, held_out, args.evaluate[1], args)
            tell(f"step {step}, evaluated: {evaluated:.4f}")
    if args.digest:
        say(step=args.steps, digest=adam.digest())
    if c:
        import ckpt
        final = c.save(args.steps, blobs=blobs_of(text), wait_credit=True)
        final.wait(ckpt.DURABLE if args.durable else ckpt.COMMITTED)
        tell(f"step {args.steps} is {'durable' if args.durable else 'committed'}")
        c.close()
    tell(f"trained to step {args.steps}")
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()
    return 0


def main():
    args = arguments()
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
    return launch(args) if args.ranks > 0 else train(args)


if __name__ == "__main__":
    sys.exit(main())
