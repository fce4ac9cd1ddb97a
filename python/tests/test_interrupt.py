#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a signal handler of Python raises ends a call that waits, against a real ckptd. Needs numpy.

Each case has a child that waits in one call for much longer than the case allows, sends it SIGINT, and
looks at what the child can do afterwards. Prints "ok NAME" or "not ok NAME" for each; exits 1 if one
failed."""

import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np

from harness import EXTENSION_IS_USED, Skip, cases_of, run_with_ckptd

import ckpt

LONG = 30    # seconds that the calls would wait
SOON = 2     # seconds: what ends a call that was interrupted
SETTLE = 0.5  # seconds for a child to be deep in its call
HERE = os.path.abspath(__file__)


# ---- The children


def say(*words):
    print(*words, flush=True)


def hear(word):
    assert sys.stdin.readline().strip() == word


def interrupted_in(call, kind=KeyboardInterrupt):
    say("waits")
    try:
        got = call()
    except kind:
        say("interrupted")
    else:
        say("returned", repr(got))
        sys.exit(3)


def open_rank(job, rank=0, world=1, **options):
    c = ckpt.open(job, rank, world, run_id="one", **options)
    c.declare("w", np.arange(1000, dtype=np.float32) + rank, global_shape=(1000 * world,),
              offset=(1000 * rank,))
    return c


def child_save(job):
    with open_rank(job, 0, 2) as c:
        interrupted_in(lambda: c.save(1, wait_credit=True, timeout=LONG))
        assert c.stats["skipped"] == 1, c.stats
        hear("go")
        s = c.save(2, wait_credit=True, timeout=LONG)
        assert s and s.wait(ckpt.COMMITTED, LONG), s
        say("saved")


def child_first_save_raises_its_own(job):
    class Stop(Exception):
        pass

    def handler(number, frame):
        raise Stop
    signal.signal(signal.SIGINT, handler)
    with open_rank(job, 0, 2, on_error="raise") as c:
        interrupted_in(lambda: c.save(1, timeout=LONG), Stop)


def child_handler_returns(job):
    seen = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(time.monotonic()))
    with open_rank(job, 0, 2) as c:
        start = time.monotonic()
        say("waits")
        s = c.save(1, wait_credit=True, timeout=3)
        now = time.monotonic()
        assert s.status == "skipped" and now - start >= 3, (s, now - start)
        assert len(seen) == 1 and now - seen[0] > 1, seen  # it ran while the call waited
        say("interrupted")


def child_signal_on_another_thread(job):
    """Nothing wakes the call that waits: it asks by itself."""
    when = []

    def kill():
        when.append(time.monotonic())
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    with open_rank(job, 0, 2) as c:
        timer = threading.Timer(SETTLE, kill)
        timer.start()
        interrupted_in(lambda: c.save(1, wait_credit=True, timeout=LONG))
        assert time.monotonic() - when[0] < SOON
        timer.join()


def child_open(job):
    interrupted_in(lambda: ckpt.open(job, 0, 1, socket=os.environ["CKPT_SOCKET"] + ".none",
                                     connect_timeout=LONG))
    open_rank(job).close()
    say("opened")


def child_other(job):
    """Rank 1, which saves only when it is asked to."""
    with open_rank(job, 1, 2) as c:
        c.prepare()
        say("there")
        step = int(sys.stdin.readline())
        assert c.save(step, wait_credit=True, timeout=LONG)


def child_wait(job):
    with open_rank(job, 0, 2) as c:
        s = c.save(1, wait_credit=True, timeout=LONG)
        assert s
        interrupted_in(lambda: s.wait(ckpt.DURABLE, LONG))
        hear("go")
        assert s.wait(ckpt.DURABLE, LONG)
        say("durable")


def child_load(job):
    with open_rank(job, timeout=LONG) as c:
        assert c.save(1, wait_credit=True).wait(ckpt.COMMITTED)
        say("there")
        hear("go")
        interrupted_in(lambda: c.load(1, timeout=LONG))
        hear("go")
        assert c.load(1).step == 1
        assert c.save(2, wait_credit=True, timeout=LONG).wait(ckpt.COMMITTED)
        say("saved")


def child_prepare(job):
    with open_rank(job, timeout=LONG) as c:
        say("there")
        hear("go")
        interrupted_in(c.prepare)
        hear("go")
        c.prepare()
        assert c.save(1, wait_credit=True, timeout=LONG)
        say("saved")


def child_leaves(job):
    """What ends the program is the exception: leaving the block waits for no more than the goodbye."""
    say("waits")
    with open_rank(job, 0, 2) as c:
        c.save(1, wait_credit=True, timeout=LONG)


# ---- The cases


class Child:
    def __init__(self, what, job):
        self.process = subprocess.Popen([sys.executable, HERE, "child", what, job], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def hear(self, word):
        said = self.process.stdout.readline().strip()
        assert said == word, f"{said!r}, not {word!r}"

    def say(self, word):
        print(word, file=self.process.stdin, flush=True)

    def interrupt(self):
        """Once it is in its call; returns when."""
        self.hear("waits")
        time.sleep(SETTLE)
        start = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        return start

    def is_interrupted(self):
        start = self.interrupt()
        self.hear("interrupted")
        took = time.monotonic() - start
        assert took < SOON, f"{took:.2f} s"

    def ends(self, status=0):
        assert self.process.wait(LONG) == status, self.process.returncode


def test_save_that_waits_for_a_rank(d):
    with Child("save", "int-save") as a:
        a.is_interrupted()
        with Child("other", "int-save") as b:
            b.hear("there")
            b.say(2)
            a.say("go")
            a.hear("saved")
            b.ends()
        a.ends()


def test_first_save_and_another_exception(d):
    with Child("first_save_raises_its_own", "int-first") as a:
        a.is_interrupted()
        a.ends()


def test_signal_on_another_thread(d):
    with Child("signal_on_another_thread", "int-thread") as a:
        a.hear("waits")
        a.hear("interrupted")
        a.ends()


def test_handler_that_returns_ends_nothing(d):
    with Child("handler_returns", "int-returns") as a:
        a.interrupt()
        a.hear("interrupted")
        a.ends()


def test_open_without_ckptd(d):
    with Child("open", "int-open") as a:
        a.is_interrupted()
        a.hear("opened")
        a.ends()


def test_wait(d):
    with Child("other", "int-wait") as b, Child("wait", "int-wait") as a:
        b.hear("there")
        a.is_interrupted()
        b.say(1)
        a.say("go")
        a.hear("durable")
        b.ends()
        a.ends()


def while_it_is_stopped(d, a):
    """The child's call is interrupted while ckptd says nothing."""
    a.hear("there")
    ckptd = d.child()
    os.kill(ckptd, signal.SIGSTOP)
    try:
        a.say("go")
        a.is_interrupted()
    finally:
        os.kill(ckptd, signal.SIGCONT)
    a.say("go")
    a.hear("saved")
    a.ends()


def test_load(d):
    with Child("load", "int-load") as a:
        while_it_is_stopped(d, a)


def test_prepare(d):
    with Child("prepare", "int-prepare") as a:
        while_it_is_stopped(d, a)


def test_the_block_is_left_soon(d):
    with Child("leaves", "int-leaves") as a:
        start = a.interrupt()
        assert a.process.wait(LONG) != 0
        assert time.monotonic() - start < SOON


def main():
    if len(sys.argv) > 2 and sys.argv[1] == "child":
        warnings.simplefilter("ignore", ckpt.CkptWarning)
        return globals()["child_" + sys.argv[2]](sys.argv[3])
    return run_with_ckptd(cases_of(globals()) if EXTENSION_IS_USED else without_extension(), sys.argv[1:])


def without_extension():
    def skip(d):
        raise Skip("the extension is not built: signals wait for the call to return")
    return dict.fromkeys(cases_of(globals()), skip)


if __name__ == "__main__":
    sys.exit(main())
