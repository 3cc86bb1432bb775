#!/usr/bin/env python3
"""Measures what calls on distributed tensors cost beyond those on plain ones, for this library and PyTorch's DTensor.

    torch_dtensor.py SITE LIBRARY [--json FILE]

SITE is the folder from which Python imports torch, LIBRARY is libdtensor.so. Python calls all three by turns, in one process, on
a mesh of one rank and tensors of 10 x 10. An overhead is the time of a call without that of the same call on plain tensors;
PyTorch's process group is its fake one.
"""

import argparse
import statistics
import sys
import time
import warnings

from rows import Rows

WORKLOAD = "overhead of calls next to PyTorch's DTensor"
PAIRS = 60
LEAST = 0.01  # us: a smaller overhead cannot be distinguished from noise


def times_of(call, repetitions):
    """Microseconds of a call."""
    begin = time.perf_counter()
    for _ in range(repetitions):
        call()
    return (time.perf_counter() - begin) / repetitions * 1e6


def compare(rows, workload, calls, at_least):
    """`calls`: on plain tensors, on ours and on PyTorch's. `at_least`: how many times our overhead theirs has to be."""
    for call in calls:
        times_of(call, 20)
    repetitions = max(1, int(2000 / times_of(calls[-1], 5)))
    turns = [[times_of(call, repetitions) for call in calls] for _ in range(PAIRS + 5)][5:]
    ours = statistics.median(ours - plain for plain, ours, _ in turns)
    theirs = statistics.median(theirs - plain for plain, _, theirs in turns)
    report(rows, f"overhead of {workload}, called by Python", max(ours, LEAST), theirs, at_least)


def report(rows, workload, ours, theirs, at_least):
    rows.at_least(workload, ours, theirs, at_least, peer="PyTorch's DTensor", unit="us")


def compare_new_sizes(rows, torch, ours_of, theirs_of):
    """Of calls on sizes that are new, whole times."""
    times = []
    for i in range(300):
        plain = torch.zeros(11 + i, 10)
        a, x = ours_of(plain), theirs_of(plain)
        times.append((times_of(lambda a=a: torch.add(a, a), 1), times_of(lambda x=x: torch.add(x, x), 1)))
    ours, theirs = (statistics.median(side) for side in zip(*times[20:]))
    report(rows, "add of a new size, called by Python", ours, theirs, 50)


def measure(rows, torch, ours_of, theirs_of):
    """The functions make a distributed tensor of a plain one, replicated or sharded by rows."""
    makers = (lambda t: t.clone(), ours_of, theirs_of)
    sides = [(make(torch.rand(10, 10)), make(torch.zeros(10, 10)), make(torch.rand(10, 10))) for make in makers]

    def overhead(workload, function, at_least=12):
        compare(rows, workload, [lambda side=side: function(*side) for side in sides], at_least)

    with torch.no_grad():
        overhead("add", lambda a, b, _: torch.add(a, b))
        overhead("add_", lambda a, b, _: a.add_(b))
        overhead("mm", lambda a, _, c: torch.mm(a, c))
        overhead("view", lambda a, b, c: a.view(-1, 2, 5))
        overhead("relu", lambda a, b, c: torch.relu(a))
        overhead("detach", lambda a, b, c: a.detach())
        overhead("sum", lambda a, b, c: a.sum())
        overhead("mul by a number", lambda a, b, c: a * 2)
        compare_new_sizes(rows, torch, ours_of, theirs_of)

    def chain(x, _, w):
        for _ in range(5):
            x = torch.mul(torch.sigmoid(torch.add(torch.mul(x, w), w)), 2)
        return x

    def step(x, grad, w):
        w.grad = None
        chain(x, None, w).backward(grad)

    for _, _, w in sides:
        w.requires_grad_()
    overhead("20 operators, forward", chain)
    overhead("20 operators, forward and backward", step)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("site")
    parser.add_argument("library")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rows = Rows(arguments.json)
    sys.path.insert(0, arguments.site)
    warnings.filterwarnings("ignore")  # that there is no NumPy
    try:
        import torch  # pylint: disable=import-outside-toplevel
        import torch.distributed as dist
        from torch.distributed.tensor import DTensor, Shard
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError as error:
        rows.skip(WORKLOAD, f"Python cannot import torch from {arguments.site}: {error}")
        return rows.exit_code()
    torch.set_num_threads(1)
    torch.ops.load_library(arguments.library)
    mesh = torch.ops.dtensor.init_local_mesh([1], ["x"])
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    their_mesh = dist.init_device_mesh("cpu", (1,))
    measure(rows, torch, lambda t: torch.ops.dtensor.distribute(t.clone(), mesh, "S(0)"),
            lambda t: DTensor.from_local(t.clone(), their_mesh, [Shard(0)]))
    dist.destroy_process_group()
    return rows.exit_code()


if __name__ == "__main__":
    sys.exit(main())
