#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The demonstration: one training job, uninterrupted and then killed in three ways.

    a  one rank SIGKILLed in the middle of a step, the job restarted
    b  ckptd SIGKILLed (under its supervisor) while snapshots exist only in memory, then the
       trainers; the job restarted
    c  everything SIGKILLed, memory and page cache dropped; restart from disk

It takes some minutes, and says how far it is. Prints what each cost, and whether every loss after
resuming equals the uninterrupted run's bit for bit. Exits 1 if one does not.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", default=os.path.join(TOP, "_build"))
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--every", type=int, default=4)
    p.add_argument("--keep", action="store_true", help="keep the folder with data and logs")
    return p.parse_args()


class Demo:
    def __init__(self, args):
        self.args = args
        self.dir = tempfile.mkdtemp(prefix="ckpt-demo.", dir=os.getcwd())
        self.socket = os.path.join(self.dir, "sock")
        self.data = os.path.join(self.dir, "data")
        os.mkdir(self.data)
        self.log = os.path.join(self.dir, "losses.jsonl")
        self.pids = os.path.join(self.dir, "pids")
        self.daemon = None
        self.job = None
        self.rows = []
        self.begun = time.monotonic()
        self.env = dict(os.environ, CKPT_SOCKET=self.socket,
                        CKPT_LIBRARY=os.path.join(args.build, ".libs", "libckpt.so"),
                        CKPT_CONNECT_TIMEOUT="30")
        extension = os.path.join(args.build, "python", "ckpt", "_bindings.abi3.so")
        if os.path.exists(extension):  # else a build without it, which is slower with many tensors
            self.env.setdefault("CKPT_EXTENSION", extension)

    # ---- Processes ----

    def start_ckptd(self, persist_every):
        out = open(os.path.join(self.dir, "ckptd.log"), "a")
        self.daemon = subprocess.Popen(
            [os.path.join(self.args.build, "ckptd", "ckptd"), "--user", "--socket", self.socket,
             "--data", self.data, "--set", f"checkpoint.persist_every={persist_every}"],
            stdout=out, stderr=out)
        self.wait_for(lambda: os.path.exists(self.socket), 30, "ckptd's socket")

    def children(self, pid):
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return [int(c) for c in f.read().split()]

    def kill_all_ckptd(self):
        for pid in [self.daemon.pid, *self.children(self.daemon.pid)]:
            self.kill(pid)
        self.daemon.wait()

    def train(self, *extra):
        command = ["/usr/bin/python3", os.path.join(TOP, "examples", "train_lm.py"), "--ranks",
                   str(self.args.ranks), "--steps", str(self.args.steps), "--every",
                   str(self.args.every), "--job", "demo", "--log", self.log, "--pids", self.pids,
                   *extra]
        if os.path.exists(self.pids):
            os.unlink(self.pids)
        out = open(os.path.join(self.dir, "train.log"), "a")
        self.job = subprocess.Popen(command, env=self.env, stdout=out, stderr=out)

    def ranks(self):
        self.wait_for(lambda: os.path.exists(self.pids), 60, "the ranks' process ids")
        with open(self.pids) as f:
            return [int(line) for line in f]

    def kill(self, pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def kill_job(self):
        for pid in self.ranks():
            self.kill(pid)
        self.job_over()

    def job_over(self):
        self.job.wait()
        self.job = None  # it was meant to end

    # ---- What the log says ----

    def entries(self):
        with open(self.log) as f:
            return [json.loads(line) for line in f if line.endswith("\n")]

    def wait_for(self, condition, seconds, what):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise SystemExit(f"demo: {what} did not come within {seconds} s; see {self.dir}")
            if self.job is not None and self.job.poll() not in (None, 0):
                self.tail("train.log")
                raise SystemExit(f"demo: the job ended with status {self.job.returncode}")
            time.sleep(0.02)

    def tail(self, name):
        with open(os.path.join(self.dir, name)) as f:
            sys.stderr.write("".join(f.readlines()[-15:]))

    def last_step(self):
        steps = [e["step"] for e in self.entries() if "step" in e]
        return steps[-1] if steps else -1

    def wait_step(self, step):
        self.wait_for(lambda: os.path.exists(self.log) and self.last_step() >= step, 180,
                      f"step {step}")

    def status(self):
        out = subprocess.run([os.path.join(self.args.build, "ckptctl"), "--socket", self.socket,
                              "status", "--json"], capture_output=True, text=True)
        return json.loads(out.stdout)["jobs"] if out.returncode == 0 else []

    def wait_disk(self, tier, step):
        def there():
            for job in self.status():
                for c in job["checkpoints"]:
                    if c["step"] >= step and c["state"] == "committed":
                        return True if tier == "memory" else c["disk"] == "durable"
            return False
        self.wait_for(there, 60, f"step {step} in {tier}")

    # ---- The acts ----

    def resume(self, what, killed_at, last):
        """Starts the job again and notes what the interruption cost."""
        before = len(self.entries())
        self.train()
        self.wait_for(lambda: any("step" in e for e in self.entries()[before:]), 120,
                      "the first step after resuming")
        start = next(e for e in self.entries()[before:] if "start" in e)
        first = next(e for e in self.entries()[before:] if "step" in e)
        self.rows.append([what, start.get("tier") or "nothing", last + 1 - start["start"],
                          first["time"] - killed_at, start.get("load_s", 0.0)])

    def act(self, step, what, kill, after=lambda: None):
        self.progress(f"to be killed at step {step}: {what}")
        self.wait_step(step)
        after()
        last = self.last_step()
        killed_at = time.time()
        kill()
        self.resume(what, killed_at, last)

    def kill_one_rank(self):
        self.kill(self.ranks()[-1])
        self.job_over()

    def kill_ckptd_then_ranks(self):
        child = self.children(self.daemon.pid)[0]
        self.kill(child)
        self.wait_for(lambda: self.children(self.daemon.pid) not in ([], [child]), 30,
                      "ckptd's restart")
        self.kill_job()

    def kill_everything(self):
        self.kill_all_ckptd()
        self.kill_job()
        os.sync()
        try:
            with open("/proc/sys/vm/drop_caches", "w") as f:
                f.write("3\n")
        except OSError:
            pass  # not root: the files are read with O_DIRECT all the same
        self.start_ckptd(1)

    def baseline(self):
        self.train("--no-ckpt")
        self.job.wait()
        losses = {e["step"]: e["hex"] for e in self.entries() if "step" in e}
        os.unlink(self.log)
        if len(losses) != self.args.steps:
            self.tail("train.log")
            raise SystemExit("demo: the uninterrupted run did not finish")
        return losses

    def progress(self, what):
        print(f"{time.monotonic() - self.begun:6.0f} s  {what}", flush=True)

    def run(self):
        every, steps = self.args.every, self.args.steps
        print("this takes some minutes, mostly training on the CPU", flush=True)
        print(f"training {steps} steps on {self.args.ranks} ranks without interruption ...",
              flush=True)
        want = self.baseline()
        print("again, saving every", every, "steps, with three interruptions ...", flush=True)
        # Nothing goes to disk at first: (b) must find its snapshots in memory alone.
        self.start_ckptd(1000000)
        self.train()
        self.act(steps // 4 + 1, "a  one rank, in the middle of a step", self.kill_one_rank,
                 lambda: self.wait_disk("memory", every))
        self.act(steps // 2 + 1, "b  ckptd, then all ranks; snapshots only in memory",
                 self.kill_ckptd_then_ranks)
        # From here on disk as well.
        self.progress("ckptd is started again, to write to disk too")
        self.wait_step(steps // 2 + every + 1)
        self.kill_job()
        self.daemon.terminate()
        self.daemon.wait()
        self.start_ckptd(1)
        self.train()
        self.act(3 * steps // 4 + 1, "c  everything; memory and page cache dropped",
                 self.kill_everything, lambda: self.wait_disk("disk", every))
        self.progress("the rest of the steps")
        self.job.wait()
        return self.report(want)

    def report(self, want):
        got, wrong = {}, 0
        for e in self.entries():
            if "step" not in e:
                continue
            wrong += e["hex"] != want[e["step"]]
            got[e["step"]] = e["hex"]
        stalls = [e["stall_s"] for e in self.entries() if "stall_s" in e]
        saved = [e["saved"] for e in self.entries() if "saved" in e]
        print(f"\n{'killed':<52}{'restored from':>14}{'steps lost':>12}{'to resume':>11}{'load':>9}")
        for what, tier, lost, seconds, load in self.rows:
            print(f"{what:<52}{tier:>14}{lost:>12}{seconds:>9.1f} s{load * 1e3:>6.0f} ms")
        print("to resume: from the kill to the first new step: the ranks start, which is most of it, "
              "load,\nand train that step; for c ckptd starts too, and finds its files with no page "
              "of them in memory")
        parameters = next(e["parameters"] for e in self.entries() if "start" in e)
        print(f"\n{parameters / 1e6:.1f} M parameters; {saved.count('sealed')} saves, "
              f"{len(saved) - saved.count('sealed')} skipped; stall per save (rank 0): median "
              f"{sorted(stalls)[len(stalls) // 2] * 1e3:.2f} ms, worst {max(stalls) * 1e3:.2f} ms")
        complete = sorted(got) == list(range(self.args.steps))
        tiers = [row[1] for row in self.rows] == ["memory", "memory", "disk"]
        good = wrong == 0 and complete and tiers and self.job.returncode == 0
        print(f"losses of all {len(got)} steps equal the uninterrupted run's bit for bit: "
              f"{'yes' if wrong == 0 and complete else 'NO'}")
        if not tiers:
            print("NOT restored from memory, memory, disk as expected")
        return 0 if good else 1

    def clean(self):
        if self.job is not None and self.job.poll() is None:
            self.job.terminate()
            self.job.wait()
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.terminate()
            self.daemon.wait()
        if self.args.keep:
            print("kept", self.dir)
        else:
            shutil.rmtree(self.dir, ignore_errors=True)


def main():
    demo = Demo(arguments())
    try:
        return demo.run()
    finally:
        demo.clean()


if __name__ == "__main__":
    sys.exit(main())
