#!/usr/bin/env python3
"""Times redistribution between two processes, by this library and by PyTorch's DTensor, both over Gloo.

    torch_redistribute.py SITE LIBRARY LAUNCH [--json FILE]

SITE is the folder from which Python imports torch, LIBRARY is libdtensor.so, LAUNCH the launcher, with which this program starts
its ranks. Both sides run by turns in the same processes, on the same parts; a figure is the median of rank 0.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

from rows import Rows

WORKLOAD = "redistribution next to PyTorch's DTensor"
RANKS = 2
PAIRS = [("S(0)", "R"), ("S(0)", "S(1)"), ("S(1)", "R"), ("P(sum)", "R"), ("P(sum)", "S(0)")]
SIDES = [256, 1024, 2048]
TURNS = 9


def seconds_of(call, calls):
    """Of `calls` calls, after one that does not count."""
    call()
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def measure(rows, torch, rank, ours, theirs):
    """The functions redistribute a local part: of (part, from, to, n) to a local part."""
    for source, target in PAIRS:
        for n in SIDES:
            part = torch.rand(n // RANKS if source == "S(0)" else n, n // RANKS if source == "S(1)" else n) + rank
            sides = [lambda f=f: f(part, source, target, n) for f in (ours, theirs)]
            torch.testing.assert_close(*[side() for side in sides])
            times = [[], []]
            for _ in range(TURNS):
                for i, side in enumerate(sides):
                    times[i] += seconds_of(side, 10 if n == 256 else 3)
            mine, other = (statistics.median(t) * 1e6 for t in times)
            rows.at_least(f"redistribute() {source} -> {target} of {n} x {n}, {RANKS} processes, called by Python", mine, other, 1,
                          peer="PyTorch's DTensor", unit="us")


class NoRows:
    """Of ranks other than 0."""

    def at_least(self, *_, **__):
        pass


def run_rank(torch, library, store, json_path):
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard  # pylint: disable=import-outside-toplevel

    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.ops.load_library(library)
    dtensor = torch.ops.dtensor
    mesh = dtensor.init_process_mesh([RANKS], ["x"])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    their_mesh = dist.init_device_mesh("cpu", (RANKS,))
    placements = {"R": Replicate(), "S(0)": Shard(0), "S(1)": Shard(1), "P(sum)": Partial()}

    def ours(part, source, target, n):
        x = dtensor.from_local([part], mesh, source, [n, n])
        return dtensor.local_tensors(dtensor.redistribute(x, target))[0]

    def theirs(part, source, target, _):
        result = DTensor.from_local(part, their_mesh, [placements[source]], run_check=False)
        local = result.redistribute(their_mesh, [placements[target]]).to_local()
        return local.wait() if hasattr(local, "wait") else local

    rows = Rows(json_path) if rank == 0 else NoRows()
    with torch.no_grad():
        measure(rows, torch, rank, ours, theirs)
    dist.barrier()
    dist.destroy_process_group()
    return rows.exit_code() if rank == 0 else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("site")
    parser.add_argument("library")
    parser.add_argument("launch")
    parser.add_argument("--json")
    parser.add_argument("--store", help="file in which the ranks meet; for the ranks themselves")
    arguments = parser.parse_args()
    sys.path.insert(0, arguments.site)
    warnings.filterwarnings("ignore")  # that there is no NumPy
    try:
        import torch  # pylint: disable=import-outside-toplevel
        import torch.distributed.tensor  # pylint: disable=import-outside-toplevel,unused-import
    except ImportError as error:
        rows = Rows(arguments.json)
        rows.skip(WORKLOAD, f"Python cannot import torch from {arguments.site}: {error}")
        return rows.exit_code()
    if arguments.store:
        return run_rank(torch, arguments.library, arguments.store, arguments.json)
    with tempfile.TemporaryDirectory() as folder:
        command = [arguments.launch, "-n", str(RANKS), "--timeout", "120", "--", sys.executable, os.path.abspath(__file__),
                   arguments.site, arguments.library, arguments.launch, "--store", os.path.join(folder, "store")]
        # Released memory is used again, as docs/performance.md recommends for a program: otherwise glibc maps and clears it.
        environment = {**os.environ, "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
        return subprocess.run(command + (["--json", arguments.json] if arguments.json else []), env=environment,
                              check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
