#!/usr/bin/env python3
"""Measures calls on this library's distributed tensors next to the same calls on those of PyTorch's DTensor.

    torch_dtensor.py SITE LIBRARY [--json FILE]

SITE is the folder from which Python imports torch, LIBRARY is libdtensor.so. Python calls both, in one process and by turns, on
a mesh of one rank; tensors are of 10 x 10, so that the time is the overhead. PyTorch's process group is its fake one.
"""

import argparse
import statistics
import sys
import time
import warnings

from rows import Rows

WORKLOAD = "calls next to PyTorch's DTensor"
PAIRS = 60


def times_of(call, repetitions):
    """Microseconds of a call."""
    begin = time.perf_counter()
    for _ in range(repetitions):
        call()
    return (time.perf_counter() - begin) / repetitions * 1e6


def compare(rows, workload, ours, theirs, at_least):
    """`at_least`: how many times as fast ours has to be; None: no gate."""
    times_of(ours, 20), times_of(theirs, 20)
    repetitions = max(1, int(2000 / times_of(theirs, 5)))
    report(rows, workload, [(times_of(ours, repetitions), times_of(theirs, repetitions)) for _ in range(PAIRS + 5)][5:], at_least)


def report(rows, workload, pairs, at_least):
    ratio = statistics.median(theirs / ours for ours, theirs in pairs)
    rows.add(workload, ratio if at_least else 1 / ratio, f"at least {at_least}" if at_least else "", not at_least or ratio >= at_least,
             peer="PyTorch's DTensor", unit="us", theirs=statistics.median(t for _, t in pairs),
             ours=statistics.median(o for o, _ in pairs))


def measure(rows, torch, ours_of, theirs_of):
    """The functions make a distributed tensor of a plain one, replicated or sharded by rows."""
    sides = [(make(torch.rand(10, 10)), make(torch.zeros(10, 10)), make(torch.rand(10, 10))) for make in (ours_of, theirs_of)]

    def both(workload, function, at_least=None):
        (a, b, c), (x, y, z) = sides
        compare(rows, workload, lambda: function(a, b, c), lambda: function(x, y, z), at_least)

    with torch.no_grad():
        both("add, called by Python", lambda a, b, _: torch.add(a, b), 15)
        both("add_, called by Python", lambda a, b, _: a.add_(b), 15)
        both("mm, called by Python", lambda a, _, c: torch.mm(a, c), 15)
        both("view, called by Python", lambda a, b, c: a.view(-1, 2, 5))
        both("detach, called by Python", lambda a, b, c: a.detach())

        pairs = []
        for i in range(300):
            plain = torch.zeros(11 + i, 10)
            a, x = ours_of(plain), theirs_of(plain)
            pairs.append((times_of(lambda a=a: torch.add(a, a), 1), times_of(lambda x=x: torch.add(x, x), 1)))
        report(rows, "add of a new size, called by Python", pairs[20:], 50)

    def chain(x, _, w):
        for _ in range(5):
            x = torch.mul(torch.sigmoid(torch.add(torch.mul(x, w), w)), 2)
        return x

    def step(x, grad, w):
        w.grad = None
        chain(x, None, w).backward(grad)

    for _, _, w in sides:
        w.requires_grad_()
    both("20 operators, forward, called by Python", chain)
    both("20 operators, forward and backward, called by Python", step, 10)


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
