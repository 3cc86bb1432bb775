"""Processes that torchrun has started save a checkpoint; fewer of them, and one without torchrun, load it.

In the long form more of them save, and as many and one load, too.
"""

import os
import subprocess
import sys
import tempfile

PROGRAM = os.path.abspath("tests/checkpoint/torchrun_program")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone", "--local-addr", "127.0.0.1",
            "--nproc_per_node"]


def job(processes, *arguments):
    launcher = TORCHRUN + [str(processes)] if processes else []
    return subprocess.run(launcher + [PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=120)


LONG = "DTENSOR_LONG_TESTS" in os.environ
RANKS = 4 if LONG else 3
passed = 0


def check(what, ok, ended):
    global passed
    if not ok:
        sys.exit(f"{what}:\n{ended.stdout}\n[dtensor] {passed} passed, 1 failed, 0 skipped")
    passed += 1


with tempfile.TemporaryDirectory() as base:
    folder = os.path.join(base, "checkpoint")
    ended = job(RANKS, "save", folder)
    check("several processes save", ended.returncode == 0, ended)
    check("each rank wrote a file", sum("-rank-" in name for name in os.listdir(folder)) == RANKS, ended)
    for processes in (4, 3, 1, 0) if LONG else (2, 0):
        ended = job(processes, "load", folder)
        check(f"{processes or 'none'} of torchrun's load", ended.returncode == 0, ended)
    before = sorted(os.listdir(folder))
    ended = job(RANKS, "save", folder, "2")
    check("a rank that saves something else", ended.returncode != 0 and "rank 2 saves other tensors" in ended.stdout,
          ended)
    check("the checkpoint before is left", sorted(os.listdir(folder)) == before, ended)
    ended = job(2 if LONG else 0, "load", folder)
    check("and loads", ended.returncode == 0, ended)

print(f"[dtensor] {passed} passed, 0 failed, 0 skipped")
