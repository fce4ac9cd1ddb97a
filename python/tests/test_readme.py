#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The README's examples do what the README says. Needs numpy.

Prints "ok NAME" or "not ok NAME" for each case; exits 1 if one failed. CKPT_BUILD names the build
folder."""

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time

from harness import BUILD, CKPTCTL, EXTENSION_IS_USED, TOP, cases_of, ctl, run_with_ckptd

STEPS = 500


def program(name):
    """The text of the file that the README makes with `cat >NAME`."""
    with open(os.path.join(TOP, "README.md")) as f:
        found = re.search(rf"    cat >{re.escape(name)} <<'EOF'\n(.*?)\n    EOF\n", f.read(), re.S)
    return textwrap.dedent(found[1])


def listed(job):
    return json.loads(ctl("--json", "list", job)[0])["jobs"][0]["checkpoints"]


def test_killed_and_run_again(_):
    """first.py: killed at work it goes on from a step that it saved, and its last step is on disk when
    it ends."""
    env = dict(os.environ, PYTHONPATH=os.path.join(TOP, "python"))
    with tempfile.NamedTemporaryFile("w", suffix=".py") as f:
        f.write(program("first.py"))
        f.flush()
        first = subprocess.Popen([sys.executable, f.name], env=env)
        deadline = time.monotonic() + 60
        while not any(c["step"] > 20 for c in jobs_of("run7")):
            assert time.monotonic() < deadline and first.poll() is None, "it saves nothing"
            time.sleep(0.05)
        first.kill()
        first.wait()
        second = subprocess.run([sys.executable, f.name], env=env, text=True, capture_output=True)
    assert second.returncode == 0, second.stderr
    base = int(re.search(r"going on from (\d+)", second.stdout)[1])
    assert base > 20 and f"trained to {STEPS}.0" in second.stdout, second.stdout
    assert "on disk: True" in second.stdout, second.stdout
    last = listed("run7")[0]
    assert last["step"] == STEPS - 1 and last["disk"] == "durable", last


def test_uninstalled(_):
    """What the README exports in the build folder is enough, and all that this build has is used."""
    with open(os.path.join(TOP, "README.md")) as f:
        line = re.search(r"`(export PATH=\$PWD/ckptd[^`]*)`", f.read())[1]
    code = "import ckpt; print(ckpt._lib.lib._name, ckpt._many.table())"
    env = {k: v for k, v in os.environ.items() if k not in ("CKPT_LIBRARY", "CKPT_EXTENSION")}
    env["TOP"] = os.path.abspath(TOP)  # wherever the build folder is
    said = subprocess.run(["sh", "-c", f'{line}; export PYTHONPATH="$TOP/python"; ckptd --version; '
                           f"exec /usr/bin/python3 -c '{code}'"], cwd=BUILD, env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    assert "ckptd " in said, said
    if EXTENSION_IS_USED:
        assert f"{os.path.realpath(BUILD)}/.libs/libckpt.so" in said and "Table object" in said, said
    else:
        assert "CKPT_EXTENSION names" in said or "None" in said, said


def jobs_of(job):
    """What is listed of a job that may not be there yet."""
    r = subprocess.run([CKPTCTL, "--json", "list", job], text=True, capture_output=True)
    return json.loads(r.stdout)["jobs"][0]["checkpoints"] if r.returncode == 0 else []


if __name__ == "__main__":
    sys.exit(run_with_ckptd(cases_of(globals()), sys.argv[1:]))
