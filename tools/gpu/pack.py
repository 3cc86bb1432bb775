#!/usr/bin/env python3
"""Packs the tests and benchmarks of GPUs for a machine that has GPUs and PyTorch, but no Bazel.

  LIBTORCH=.../torch python3 tools/gpu/pack.py OUT [BAZEL_OPTION...]     # here
  python3 OUT/run.py                                                     # there

LIBTORCH is a folder with the PyTorch that the other machine has (the same release; tools/versions/run fetches one). OUT gets the
programs without symbols, the shared libraries that they need besides PyTorch and CUDA, and run.py.
"""

import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")

# Programs; run.py says how they are run.
PROGRAMS = [
    "benchmarks/cross_entropy",
    "benchmarks/embedding",
    "benchmarks/gpu",
    "benchmarks/prediction",
    "tests/cuda/cuda_test",
    "tests/cuda/nccl_test",
    "tests/cuda/training_test",
    "tests/fuzz/fuzz",
    "tests/fuzz/verify_rules",
    "tests/ops/elementwise_test",
    "tests/ops/embedding_test",
    "tests/ops/factories_and_lists_test",
    "tests/ops/images_and_grids_test",
    "tests/ops/layers_test",
    "tests/ops/matrices_test",
    "tests/ops/results_test",
    "tests/ops/rows_by_index_test",
    "tests/sharded/sharded_test",
]

DATA = ["tools/gpu/run.py", "tests/fuzz/known_findings_on_gpus.txt", "tests/fuzz/open_findings_on_gpus.txt"]


def needed(program):
    """Paths of the shared libraries that the machine does not get from PyTorch, CUDA or its system."""
    for line in subprocess.check_output(["ldd", program], text=True).splitlines():
        path = re.search(r"=> (/\S+)", line)
        if path and ("/bazel-" in path[1] or os.path.basename(path[1]).startswith("libabsl_")):
            yield path[1]


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    out, options = os.path.abspath(sys.argv[1]), sys.argv[2:]
    os.chdir(ROOT)
    targets = ["//" + ":".join(p.rsplit("/", 1)) for p in PROGRAMS]
    subprocess.check_call(["./bazelw", "build"] + options + targets)
    os.makedirs(out, exist_ok=True)
    libraries = set()
    for program in PROGRAMS:
        built = "bazel-bin/" + program
        libraries.update(needed(built))
        subprocess.check_call(["strip", "-o", os.path.join(out, os.path.basename(program)), built])
    for library in sorted(libraries):
        to = os.path.join(out, os.path.basename(library))
        shutil.copy(library, to)
        os.chmod(to, 0o755)
        subprocess.check_call(["strip", "--strip-unneeded", to])
    for data in DATA:
        shutil.copy(data, out)
    size = sum(os.path.getsize(os.path.join(out, f)) for f in os.listdir(out))
    print("[dtensor] %d programs and %d libraries in %s, %.0f MiB" % (len(PROGRAMS), len(libraries), out, size / 2**20))


if __name__ == "__main__":
    main()
