#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Records what ckptd's failure detector is told of a real job under real faults: labelled traces
(doc/trace-format.md) for detect/replay/recorded/, where detect/replay/test_recorded.sh judges what
the detector makes of them.

    scripts/record_traces.py [--out FOLDER] [NAME...]      root, for cgroups and network namespaces

Each is a run of examples/train_lm.py with four ranks, of steps of a quarter of a second, and one
fault (clean: none, but everything that is mistaken for one):

    clean      saves, evaluations that take as long as thirty steps, a restart
    killed     SIGKILL; the launcher ends the other ranks
    deadlock   a rank waits for a lock that nobody gives back, the others in their collective
    stop       SIGSTOP
    hog        processes that compute, pinned beside a rank; on two cores what they slow most is
               collectives, in which nobody is told from the others
    throttle   a rank's cgroup may use a part of a core only (version 1, cpu.cfs_quota_us)
    disk       a rank reads its texts from a disk that is slow for it (blkio.throttle)
    link       each rank in a network namespace of its own; what one sends goes at half speed (tbf).
               The trace has the ranks on nodes of their own, and transfers between these, which
               are measured beside the training
    nan        NaN in a parameter
    flip       a bit of a parameter is another
    xid        Xid 79, by a FIFO in place of /dev/kmsg

Times in a trace begin at 0; what came behind the fault's end, when the job was killed, is cut off.
"""

import argparse
import datetime
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
RANKS, VICTIM = 4, 2
MODEL = ["--width", "256", "--layers", "0", "--context", "64", "--batch", "48", "--device-ms", "80"]
CGROUPS = "/sys/fs/cgroup"
TEXTS = "/usr/share/common-licenses"
LINK_MBIT, TRANSFER_BYTES, TRANSFER_EVERY_S, PORT = 200, 1 << 20, 4, 7007


def wait_for(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"record: {what} did not come within {seconds} s")
        time.sleep(0.01)


class Run:
    """A ckptd that records, and the job that it watches."""

    def __init__(self, args, *settings):
        self.args = args
        self.dir = tempfile.mkdtemp(prefix="ckpt-record.")
        self.record = self.path("record")
        self.labels, self.pairs, self.until = [], [], None
        self.names = []  # lines for what nobody named
        self.spread = False  # each rank is a node of its own
        self.job = None
        self.env = dict(os.environ, CKPT_SOCKET=self.path("sock"), CKPT_CONNECT_TIMEOUT="30",
                        CKPT_LIBRARY=os.path.join(args.build, ".libs", "libckpt.so"))
        command = [os.path.join(args.build, "ckptd", "ckptd"), "--user", "--socket",
                   self.path("sock"), "--data", self.path("data")]
        for s in (f"detect.record={self.record}", "detect.net=no", "detect.interval=5s",
                  *(settings or ("detect.kernel=no",))):
            command += ["--set", s]
        self.log = open(self.path("log"), "w")
        self.ckptd = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        wait_for(lambda: "ready" in self.said(), 30, "ckptd")

    def path(self, name):
        return os.path.join(self.dir, name)

    def said(self):
        with open(self.path("log")) as f:
            return f.read()

    def train(self, *more, env=None, prefix=()):
        """One rank's process where env says so, else the launcher of all."""
        command = [*prefix, "/usr/bin/python3", os.path.join(TOP, "examples", "train_lm.py"),
                   "--job", "lm", "--steps", "100000", "--every", "20", *MODEL, *more]
        if env is None:
            command += ["--ranks", str(RANKS), "--pids", self.path("pids")]
        out = open(self.path("train.log"), "a")
        return subprocess.Popen(command, env=dict(self.env, **(env or {})), stdout=out, stderr=out)

    def begin(self, *more):
        if os.path.exists(self.path("pids")):
            os.unlink(self.path("pids"))
        self.job = self.train(*more)
        wait_for(lambda: os.path.exists(self.path("pids")), 60, "the ranks")

    def pid(self, rank=VICTIM):
        with open(self.path("pids")) as f:
            return int(f.read().split()[rank])

    def lasts(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.job is not None and self.job.poll() is not None:
                with open(self.path("train.log")) as f:
                    raise SystemExit("record: the job ended: " + f.read()[-2000:])
            time.sleep(0.05)

    def trained(self, step):
        """One in whose turn a save is: the rank tells of no others."""
        wait_for(lambda: f"step {step}," in open(self.path("train.log")).read(), 120,
                 f"step {step}")

    def label(self, began, what, words, lasts=None):
        """lasts: None until the trace's end."""
        self.labels.append((began, what, words, lasts))

    def end(self):
        """Nothing of what comes from now on is in the trace."""
        self.until = time.monotonic()
        time.sleep(0.5)  # beats are looked at a few times a second
        if self.job is not None and self.job.poll() is None:
            for pid in [self.pid(r) for r in range(RANKS)] + [self.job.pid]:
                kill(pid)
            self.job.wait()
        self.ckptd.terminate()
        self.ckptd.wait()

    # ---- The trace

    def lines(self):
        with open(self.record) as f:
            assert f.readline() == "ckpt-trace 1\n"
            for line in f:
                at, rest = line.rstrip("\n").split(" ", 1)
                yield at, rest
        yield from self.pairs

    def trim(self, at, zero):
        return f"{at - zero:.6f}".rstrip("0").rstrip(".") or "0"

    def text(self):
        """Sorted, from 0 on, without the names of this machine."""
        records = [(float(at), rest) for at, rest in self.lines() if float(at) <= self.until]
        zero = min(at for at, _ in records)
        last = max(at for at, _ in records)
        out = [(zero, words) for words in ("mode job=1 declares=1", *self.names)]
        for i, (began, what, words, lasts) in enumerate(self.labels):
            until = self.trim(last if lasts is None else lasts, zero)
            if what:
                words = f'id={i + 1} what="{what}" {words} until={until}'
            out.append((began, ("fault " if what else "also ") + words))
        if self.spread:
            out += [(zero, f'name node={i} text="n{i}"') for i in range(RANKS)]
        for at, rest in records:
            if rest.startswith("name node=0 text="):
                rest = 'name node=0 text="n0"'
                if self.spread:
                    continue
            rest = re.sub(r" since=([0-9.]+)",
                          lambda m: " since=" + self.trim(max(zero, float(m[1])), zero), rest)
            rank = re.search(r" job=1 rank=(\d+)", rest)
            if self.spread and rank:
                rest = rest.replace("node=0", f"node={rank[1]}", 1)
            out.append((at, rest))
        out.sort(key=lambda r: r[0])  # labels and what came first at a time stay first
        return "ckpt-trace 1\n" + "".join(f"{self.trim(at, zero)} {r}\n" for at, r in out)

    def keep(self, name):
        path = os.path.join(self.args.out, name + ".trace.zst")
        plain = self.path(name + ".trace")
        with open(plain, "w") as f:
            f.write(self.text())
        subprocess.run(["zstd", "-19", "-q", "-f", plain, "-o", path], check=True)
        print(f"{path}: {os.path.getsize(path)} bytes; while it was recorded:")
        began = min((at for at, *_ in self.labels), default=self.until)
        wall = began + time.time() - time.monotonic()
        for line in self.said().splitlines():
            if " alarm, " in line or " no longer " in line:
                said = datetime.datetime.fromisoformat(line.split()[0].replace("Z", "+00:00"))
                print(f"    {said.timestamp() - wall:.2f} s after the fault began: {line}")
        if self.args.keep:
            print(f"    {self.dir}")
        else:
            shutil.rmtree(self.dir)

    def step_began(self, step, rank):
        """When the rank had finished the one before."""
        words = f"beat node=0 job=1 rank={rank} step={step - 1} "
        for at, rest in self.lines():
            if rest.startswith(words):
                return float(at)
        raise SystemExit(f"record: rank {rank} did not come to step {step}")


def kill(pid, how=signal.SIGKILL):
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        pass


def on_rank(classes, rank=VICTIM):
    return f"class={classes} subject=rank node=0 job=1 rank={rank}"


# ---- The runs


def clean(args):
    run = Run(args)
    evaluate = ("--evaluate", "60", "80")
    run.begin(*evaluate)
    run.lasts(60)
    run.job.terminate()  # as a scheduler does; the launcher hands it on
    run.job.wait()
    time.sleep(5)
    run.begin(*evaluate)
    run.lasts(50)
    run.end()
    return run


def stop(args):
    run = Run(args)
    run.begin()
    run.trained(60)
    run.lasts(2)  # some steps later, in none of which is a save
    began = time.monotonic()
    os.kill(run.pid(), signal.SIGSTOP)
    run.lasts(10)
    os.kill(run.pid(), signal.SIGCONT)
    run.label(began, "process-stopped", on_rank("hung"), time.monotonic())
    run.lasts(8)
    run.end()
    return run


def killed(args):
    run = Run(args)
    run.begin()
    run.trained(60)
    run.lasts(2)  # some steps later, in none of which is a save
    began = time.monotonic()
    os.kill(run.pid(), signal.SIGKILL)
    run.job.wait()
    run.label(began, "process-killed", on_rank("dead"))
    time.sleep(3)
    run.end()
    return run


def deadlock(args):
    run = Run(args)
    step = 85  # in which nothing is saved
    run.begin("--fault", f"deadlock@{step}:{VICTIM}")
    run.trained(80)
    run.lasts(12)
    run.end()
    run.label(run.step_began(step, VICTIM), "deadlock", on_rank("hung"))
    return run


def slowed(run, begin, end):
    """Some windows of steps (detect/straggler.h) before, and enough while it lasts."""
    run.lasts(35)
    began = time.monotonic()
    begin()
    run.lasts(75)
    end()
    run.label(began, "straggler-rank", on_rank("slow"), time.monotonic())
    run.end()
    return run


def pin(pid, core):
    subprocess.run(["taskset", "-acp", core, str(pid)], check=True, stdout=subprocess.DEVNULL)


def hog(args):
    run, hogs = Run(args), []
    run.begin("--device-ms", "20", "--batch", "160")
    for rank in range(RANKS):  # as trainers are; what comes beside one rank slows no other
        pin(run.pid(rank), "1" if rank == VICTIM else "0")

    def begin():
        for _ in range(3):
            hogs.append(subprocess.Popen(["taskset", "-c", "1", sys.executable, "-c",
                                          "while True: pass"]))

    def end():
        for h in hogs:
            h.kill()
            h.wait()
    return slowed(run, begin, end)


class Cgroup:
    """One of version 1, of its own, for one rank."""

    def __init__(self, run, controller, rank):
        self.pid = run.pid(rank)
        with open(f"/proc/{self.pid}/cgroup") as f:
            was = next(path.strip().lstrip("/") for _, what, path in
                       (line.split(":", 2) for line in f) if controller in what.split(","))
        self.before = os.path.join(CGROUPS, controller, was)
        self.dir = os.path.join(CGROUPS, controller, f"ckpt-record-{os.getpid()}-{rank}")
        os.mkdir(self.dir)
        self.write("cgroup.procs", str(self.pid))

    def write(self, name, text, folder=None):
        with open(os.path.join(folder or self.dir, name), "w") as f:
            f.write(text)

    def close(self):
        if os.path.exists(f"/proc/{self.pid}"):
            self.write("cgroup.procs", str(self.pid), self.before)
        os.rmdir(self.dir)


def throttle(args):
    run = Run(args)
    run.begin()
    groups = [Cgroup(run, "cpu", rank) for rank in range(RANKS)]  # as containers are
    groups[VICTIM].write("cpu.cfs_period_us", "20000")

    def end():
        groups[VICTIM].write("cpu.cfs_quota_us", "-1")
        for group in groups:
            group.close()
    return slowed(run, lambda: groups[VICTIM].write("cpu.cfs_quota_us", "2000"), end)


def disk(args):
    run = Run(args)
    with open(run.path("texts"), "wb") as f:
        for name in sorted(os.listdir(TEXTS)):
            path = os.path.join(TEXTS, name)
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as g:
                    f.write(g.read())
        f.flush()
        os.fsync(f.fileno())
    run.begin("--data", run.path("texts"))
    group = Cgroup(run, "blkio", VICTIM)
    device = os.stat(run.dir).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"

    def limit(reads):
        group.write("blkio.throttle.read_iops_device", f"{name} {reads}")

    def end():
        limit(0)
        group.close()
    return slowed(run, lambda: limit(400), end)


def struck(args, kind, words, what, also):
    run = Run(args)
    step = {"flip": 80, "nan": 85}[kind]  # one that is saved, and one that is not
    run.begin("--fault", f"{kind}@{step}:{VICTIM}")
    run.trained(100)
    run.lasts(2)
    run.end()
    run.label(run.step_began(step, VICTIM), what, words)
    for more in also:
        run.label(run.step_began(step, VICTIM), None, more)
    return run


def nan(args):
    # From the next step on it is everywhere, and tensors of nothing else repeat in checkpoints.
    return struck(args, "nan", on_rank("diverging"), "nan",
                  ["id=1 class=diverging,corrupting subject=job job=1"])


def flip(args):
    return struck(args, "flip", on_rank("corrupting"), "replicas-differ", [])


def xid(args):
    fifo = os.path.join(tempfile.mkdtemp(prefix="ckpt-record."), "kmsg")
    os.mkfifo(fifo)
    run = Run(args, f"detect.kmsg={fifo}")
    run.begin()
    run.lasts(12)
    fd = os.open(fifo, os.O_WRONLY)
    # Somebody who only says so, as user space does, and then the kernel.
    os.write(fd, b"12,1,100,-;NVRM: Xid (PCI:0000:9a:00): 79, GPU has fallen off the bus.\n")
    run.lasts(3)
    began = time.monotonic()
    os.write(fd, b"4,2,101,-;NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, "
                 b"GPU has fallen off the bus.\n")
    run.lasts(5)
    run.end()
    os.close(fd)
    shutil.rmtree(os.path.dirname(fifo))
    run.names.append('name node=0 device=9 role=g text="0000:9b:00"')  # NVML would have told it
    run.label(began, "xid-fatal", "class=dead,hung,corrupting,unstable,failing code=79 "
              "subject=gpu node=0 device=9")
    return run


# ---- Ranks on a network


def sh(line):
    subprocess.run(line.split(), check=True)


class Network:
    """A namespace for each rank, and one with a bridge between them."""

    def __init__(self):
        self.bridge = f"ckpt-rec-{os.getpid()}-b"
        self.spaces = [f"ckpt-rec-{os.getpid()}-{i}" for i in range(RANKS)]
        sh(f"ip netns add {self.bridge}")
        sh(f"ip -n {self.bridge} link add br0 type bridge")
        sh(f"ip -n {self.bridge} link set br0 up")
        for i, space in enumerate(self.spaces):
            sh(f"ip netns add {space}")
            sh(f"ip -n {space} link add eth0 type veth peer name p{i} netns {self.bridge}")
            sh(f"ip -n {self.bridge} link set p{i} master br0 up")
            sh(f"ip -n {space} addr add {self.address(i)}/24 dev eth0")
            sh(f"ip -n {space} link set lo up")
            sh(f"ip -n {space} link set eth0 up")
            self.limit(i, LINK_MBIT)

    def address(self, i):
        return f"10.99.0.{i + 1}"

    def limit(self, i, mbit):
        """What it sends."""
        sh(f"ip netns exec {self.spaces[i]} tc qdisc replace dev eth0 root tbf rate {mbit}mbit "
           "burst 128kb latency 200ms")

    def close(self):
        for space in [*self.spaces, self.bridge]:
            sh(f"ip netns del {space}")


# In each namespace: takes what others send, and sends to the others in turn; tells how long it was.
PROBE = r"""
import socket, sys, threading, time
me, addresses, port, size, every = eval(sys.argv[1])
server = socket.create_server((addresses[me], port))
def take(s):
    while s.recv_into(buffer := bytearray(4)) == 4:
        left = int.from_bytes(buffer, "little")
        while left > 0:
            left -= len(s.recv(min(left, 1 << 18)))
        s.sendall(b"!")
def serve():
    while True:
        s, _ = server.accept()
        threading.Thread(target=take, args=(s,), daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
others = [i for i in range(len(addresses)) if i != me]
def way(i):
    while True:
        try:
            return socket.create_connection((addresses[i], port))
        except OSError:
            time.sleep(0.2)  # it has not begun
ways = {i: way(i) for i in others}
time.sleep(every * me / len(addresses))  # not all at once
turn = 0
while True:
    to = others[turn % len(others)]
    turn += 1
    began = time.monotonic()
    ways[to].sendall(size.to_bytes(4, "little") + bytes(size))
    ways[to].recv(1)
    now = time.monotonic()
    print(f"{now:.6f} pair node={me} peer={to} bytes={size} took={now - began:.6f}", flush=True)
    time.sleep(max(0, every - (now - began)))
"""


def listen(run, process):
    for line in process.stdout:
        at, rest = line.rstrip("\n").split(" ", 1)
        run.pairs.append((at, rest))


def link(args):
    run = Run(args)
    run.spread = True
    network, processes = Network(), []
    try:
        addresses = [network.address(i) for i in range(RANKS)]
        for i, space in enumerate(network.spaces):
            inside = ["ip", "netns", "exec", space]
            told = repr((i, addresses, PORT, TRANSFER_BYTES, TRANSFER_EVERY_S))
            p = subprocess.Popen([*inside, sys.executable, "-c", PROBE, told], text=True,
                                 stdout=subprocess.PIPE)
            threading.Thread(target=listen, args=(run, p), daemon=True).start()
            processes += [p, run.train("--device-ms", "400", prefix=inside, env={
                "RANK": str(i), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": addresses[0],
                "MASTER_PORT": "7008", "GLOO_SOCKET_IFNAME": "eth0", "CKPT_RUN_ID": "1"})]
        def lasts(seconds):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                if any(p.poll() is not None for p in processes):
                    raise SystemExit("record: a process ended; see " + run.dir)
                time.sleep(0.5)
        lasts(70)
        began = time.monotonic()
        network.limit(VICTIM, LINK_MBIT // 2)
        lasts(225)
        run.label(began, "link-sender", f"class=slow subject=link node={VICTIM} factor=2")
        run.end()
    finally:
        for p in processes:
            p.kill()
            p.wait()
        network.close()
    return run


RUNS = {f.__name__: f for f in (clean, killed, deadlock, stop, hog, throttle, disk, link, nan, flip,
                                xid)}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", default=os.path.join(TOP, "_build"))
    p.add_argument("--out", default=os.path.join(TOP, "detect", "replay", "recorded"))
    p.add_argument("--keep", action="store_true", help="keep the folders with logs")
    p.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RUNS))
    args = p.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for name in args.names or RUNS:
        RUNS[name](args).keep(name)


if __name__ == "__main__":
    main()
