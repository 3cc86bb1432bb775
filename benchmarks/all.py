#!/usr/bin/env python3
"""Runs benchmarks and prints one table of their figures.

    ./bazelw run //benchmarks:all
    ./bazelw run //benchmarks:all -- --json FILE    # the rows as a JSON list, too

Each COMMAND is a benchmark with its flags; BUILD.bazel has those of the suite. It gets --json FILE, to which it writes a row per
figure. A benchmark that crashes, writes no row or takes longer than --seconds is a row, too. The exit code is 1 if a gate is missed
or a benchmark fails.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from rows import COLUMNS, MISSED, cells


def read_rows(path):
    """What the benchmark wrote until it ended; its last line may be cut off."""
    rows = []
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            for line in f:
                try:
                    rows.append(json.loads(line))
                except json.JSONDecodeError:
                    break
    return rows


def wait_for(words, output, seconds):
    """Runs a program; its exit code. The processes that it started end with it."""
    with subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, start_new_session=True) as process:
        try:
            return process.wait(seconds)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def failed(name, why):
    return {"workload": name, "peer": "", "unit": "", "theirs": None, "ours": None, "limit": None, "ratio": None, "gate": "",
            "verdict": f"failed: {why}"}


def run(command, seconds):
    """The rows of a benchmark, and what it printed."""
    words = shlex.split(command)
    name = " ".join([os.path.basename(words[0]), *words[1:]])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows")
        with open(os.path.join(folder, "output"), "w+", encoding="utf-8", errors="replace") as output:
            try:
                code = wait_for([*words, "--json", path], output, seconds)
                why = {0: None, MISSED: None}.get(code, f"exit code {code}")
            except subprocess.TimeoutExpired:
                why = f"took longer than {seconds:g} s"
            except OSError as error:
                why = str(error)
            output.seek(0)
            text = output.read()
        rows = read_rows(path)
    if not why and not rows:
        why = "no rows"
    return rows + ([failed(name, why)] if why else []), text


def print_table(rows):
    lines = [COLUMNS, ["---"] * len(COLUMNS), *map(cells, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    for line in lines:
        print("| " + " | ".join(text.ljust(width) for text, width in zip(line, widths)) + " |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", help="file for the rows, as a JSON list")
    parser.add_argument("--seconds", type=float, default=240, help="that a benchmark may take")
    parser.add_argument("commands", nargs="+", metavar="COMMAND")
    arguments = parser.parse_args()
    path = arguments.json and os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", ""), arguments.json)
    if path:
        open(path, "w", encoding="utf-8").close()  # now, as the benchmarks take minutes
    rows = []
    for command in arguments.commands:
        print(f"{command} ...", end=" ", flush=True)
        begin = time.monotonic()
        found, text = run(command, arguments.seconds)
        rows += found
        missed = sum(row["verdict"] == "missed" for row in found)
        failures = [row["verdict"] for row in found if row["verdict"].startswith("failed")]
        print(f"{time.monotonic() - begin:.1f} s, {len(found)} rows, {missed} missed", flush=True)
        if failures:
            print(f"{failures[0]}; it printed last:\n{text[-2000:]}", flush=True)
    print()
    print_table(rows)
    if path:
        with open(path, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)
    bad = sum(row["verdict"] == "missed" or row["verdict"].startswith("failed") for row in rows)
    print(f"\n{len(rows)} rows, {bad} of which miss their gate or failed.")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
