# SPDX-License-Identifier: Apache-2.0
"""What the tests of the binding share: cases run one after another and told of as scripts/check
counts them, a ckptd of their own, several ranks at a time, ckptctl.

Once it is imported `import ckpt` finds the binding of this tree, and that finds the library in the
build folder that CKPT_BUILD names, unless CKPT_LIBRARY names another; and so with the extension and
CKPT_EXTENSION, "no" being that these are the tests of what goes on without it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "..", "..")
BUILD = os.environ.get("CKPT_BUILD", os.path.join(TOP, "_build"))
CKPTD = os.path.join(BUILD, "ckptd", "ckptd")
CKPTCTL = os.path.join(BUILD, "ckptctl")
LOG_TAIL = 16000  # characters of ckptd's log, said when a case has failed

os.environ.setdefault("CKPT_LIBRARY", os.path.join(BUILD, ".libs", "libckpt.so"))
EXTENSION = os.path.join(BUILD, "python", "ckpt", "_bindings.abi3.so")


def is_extension_built():
    """Whether configure has chosen to compile it: then tests that do without it test another thing."""
    try:
        with open(os.path.join(BUILD, "Makefile")) as f:
            return any(line.startswith("ckptpython_PROGRAMS = python/ckpt/_bindings") for line in f)
    except FileNotFoundError:
        return False


if "CKPT_EXTENSION" not in os.environ and not os.path.exists(EXTENSION) and is_extension_built():
    sys.exit(f"{EXTENSION} is not there, and this build has it: make it with 'make all', or test what goes "
             "on without it with CKPT_EXTENSION=no")
os.environ.setdefault("CKPT_EXTENSION", EXTENSION if os.path.exists(EXTENSION) else "no")
EXTENSION_IS_USED = os.environ["CKPT_EXTENSION"] != "no"
sys.path.insert(0, os.path.join(TOP, "python"))


# ---- Cases


class Skip(Exception):
    """Raised by a case that cannot run here; says why."""


def cases_of(names):
    """The functions test_NAME of a module, and those case_NAME by their names alone, sorted: pass
    globals()."""
    return {n.removeprefix("case_"): f for n, f in sorted(names.items())
            if n.startswith(("test_", "case_"))}


def run_cases(cases, argument, wanted=(), after=lambda: None):
    """Calls each, or those wanted, with the argument and then after(); "ok NAME", "not ok NAME" or
    "skip NAME reason". How many failed; a name that is no case's is one of them."""
    failed = 0
    for name in wanted or cases:
        try:
            cases[name](argument)
            print("ok", name, flush=True)
        except Skip as e:
            print("skip", name, e, flush=True)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # as torch's CheckpointException is
            failed += 1
            traceback.print_exc()
            print("not ok", name, flush=True)
        after()
    return failed


def run_with_ckptd(cases, wanted=(), after=lambda: None, program=CKPTD):
    """Each with a Daemon as its argument, the same one for all. The exit status."""
    with Daemon(program) as d:
        failed = run_cases(cases, d, wanted, after)
        if failed:
            with open(os.path.join(d.dir, "log")) as f:
                sys.stderr.write(f.read()[-LOG_TAIL:])
    return 1 if failed else 0


def raises(kind, call):
    """The exception, which must be of that kind."""
    try:
        got = call()
    except kind as e:
        return e
    raise AssertionError(f"no {kind}, but {got!r}")


# ---- ckptd


class Daemon:
    """`ckptd --user` in a folder of its own, and what is opened goes to it until it is stopped."""

    def __init__(self, program=CKPTD):
        self.program = program
        self.dir = tempfile.mkdtemp(prefix="ckpt-python.")
        self.socket = os.path.join(self.dir, "sock")
        self.data = os.path.join(self.dir, "data")
        os.mkdir(self.data)
        self.before = os.environ.get("CKPT_SOCKET")
        os.environ["CKPT_SOCKET"] = self.socket
        os.environ["CKPT_CONNECT_TIMEOUT"] = "20"
        self.log = open(os.path.join(self.dir, "log"), "w")
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        self.process = subprocess.Popen(
            [self.program, "--user", "--socket", self.socket, "--data", self.data,
             "--set", "detect.kernel=no"],  # other tests break file systems
            stdout=self.log, stderr=self.log)

    def child(self):
        """The daemon itself; the process that was started keeps its memory."""
        pid = self.process.pid
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return int(f.read().split()[0])

    def kill(self):
        """Supervisor and daemon: what was in memory is lost."""
        child = self.child()
        self.process.kill()
        self.process.wait()
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def lose_memory(self):
        self.kill()
        self.start()

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)
        if self.before is None:
            del os.environ["CKPT_SOCKET"]
        else:
            os.environ["CKPT_SOCKET"] = self.before

    def shards_of(self, step, name):
        """The paths of the files of that name of a step."""
        return [os.path.join(at, name) for at, _, files in os.walk(os.path.join(self.data, "jobs"))
                if name in files and f"/{step}." in at]


# ---- Other programs


def ctl(*args, program=CKPTCTL):
    """ckptctl; what it printed: stdout, stderr."""
    r = subprocess.run([program, *map(str, args)], text=True, capture_output=True)
    assert r.returncode == 0, f"ckptctl {' '.join(map(str, args))}: {r.stderr}{r.stdout}"
    return r.stdout, r.stderr


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_ranks(script, world, *args, ok=True, timeout=150):
    """Runs a script of this folder on so many ranks, all of which end well, or all badly if not ok.
    What they printed, rank by rank."""
    env = dict(os.environ, WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
               MASTER_PORT=str(free_port()), OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    ranks = [subprocess.Popen([sys.executable, os.path.join(HERE, script), *map(str, args)],
                              text=True, env=dict(env, RANK=str(r)), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) for r in range(world)]
    try:
        out = ["".join(p.communicate(timeout=timeout)) for p in ranks]
    finally:
        for p in ranks:
            if p.poll() is None:
                p.kill()
                p.wait()
    assert all((p.returncode == 0) == ok for p in ranks), "\n".join(out)
    return out
