#!/usr/bin/env python3
"""Counts the instructions of calls with valgrind: unlike times, they are nearly the same on every run and machine.

    instructions.py [--no-worse] [--json FILE] PROGRAM

PROGRAM has a flag --count, with which it makes calls by count_instructions() of measure.h, which prints their names. A gate
is the goal for a call; with --no-worse, for tests, it is what the call took when this was last edited, and a little more.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile

from rows import Rows

# Where there is "plain NAME", too, these are the instructions beyond those; (goal, a tenth above the most that was seen).
LIMITS = {
    "five redistributions": (150_000, 160_000),
    "add": (4_000, 3_400),
    "add_": (4_000, 1_500),
    # 1,645 to 3,390 on one machine, and plain LibTorch's own 15,686 to 16,645, by the environment of the process and what
    # else is in the program: more than a tenth is left for others.
    "mul by a number": (4_000, 4_600),
    "mm of 8 x 8": (4_000, 3_100),
    "view": (4_000, 3_300),
    "detach": (4_000, 2_300),
    "t": (4_000, 2_000),
    "relu": (4_000, 3_100),
    "sum": (4_000, 3_150),
    "embedding": (4_000, 3_050),
    "reshape": (4_000, 4_000),
    # Decided as four operators: t, view, mm, _unsafe_view.
    "linear with gradients": (16_000, 17_200),
    # 74,932. With malloc's fast bins up to 24,200 more were seen in some programs.
    "20 operators, forward": (80_000, 85_000),
}


def count(program):
    """Names of calls and their instructions. Error (RuntimeError): the program fails, or valgrind does not find the calls."""
    with tempfile.TemporaryDirectory() as folder:
        # Counts within counted_call() alone, and writes a file whenever the function around it ends. On x86_64 the program
        # itself starts the counting (start_counting() of measure.cc), so that loading LibTorch takes less time.
        late = ["--instr-atstart=no"] if platform.machine() == "x86_64" else []
        result = subprocess.run(
            ["valgrind", "--tool=callgrind", "--toggle-collect=*counted_call*", "--dump-after=*reported_call*", *late,
             f"--callgrind-out-file={folder}/counts", program, "--count"],
            # malloc() joins free memory now and then, within whatever call comes next, but not without its fast bins.
            env={**os.environ, "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", "") + ":glibc.malloc.mxfast=0"},
            text=True, capture_output=True, check=False)
        if result.returncode:
            raise RuntimeError(f"{program} --count ended with {result.returncode}: {result.stderr[-2000:]}")
        counts = []
        for name in result.stdout.splitlines():
            path = f"{folder}/counts.{len(counts) + 1}"
            if not os.path.exists(path):
                raise RuntimeError(f"{program} --count: valgrind counted {len(counts)} calls of {result.stdout.split()}")
            with open(path, encoding="utf-8") as f:
                counts.append((name, int(re.search(r"^totals: (\d+)", f.read(), re.M).group(1))))
        return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-worse", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("program")
    arguments = parser.parse_args()
    rows = Rows(arguments.json)
    if not shutil.which("valgrind"):
        rows.skip("instructions", "there is no valgrind")
        return rows.exit_code()
    plain = {}
    for name, instructions in count(arguments.program):
        if name.startswith("plain "):
            plain[name[len("plain "):]] = instructions
            continue
        base = plain.get(name)
        most = LIMITS[name][1 if arguments.no_worse else 0] + (base or 0)
        rows.add(f"instructions of {name}", instructions / base if base else None,
                 f"at most {most} instructions", 0 < instructions <= most, peer="plain LibTorch" if base else "",
                 unit="instructions", theirs=base, ours=instructions)
    return rows.exit_code()


if __name__ == "__main__":
    sys.exit(main())
