#!/usr/bin/env python3
"""Runs what pack.py packed, on a machine with a GPU and PyTorch, and prints a table of the results.

  python3 run.py [--only REGEX] [--seconds N] [--logs DIR] [--sanitizer]

Benchmarks run one after the other, then tests beside each other. --seconds: how long each of the random parts takes. --sanitizer:
the tests of kernels under compute-sanitizer instead. Exit code: 1 if anything failed.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
OP_TESTS = ["elementwise", "embedding", "factories_and_lists", "images_and_grids", "layers", "matrices", "results", "rows_by_index"]
# A kernel that meets a wrong index makes the GPU unusable for its process.
NO_WRONG_INDICES = '~"*rejected*"~"*outside*"~"*out of range*"~"*index errors*"'


def environment():
    import torch  # where the machine's is

    lib = os.path.join(os.path.dirname(torch.__file__), "lib")
    env = dict(os.environ, OMP_NUM_THREADS="1", DTENSOR_TIMEOUT="60")
    env["LD_LIBRARY_PATH"] = ":".join([HERE, lib, env.get("LD_LIBRARY_PATH", "")])
    # Most programs are not linked with it, since loading it takes long where there is no GPU.
    env["LD_PRELOAD"] = os.path.join(lib, "libtorch_cuda.so")
    print("[dtensor] PyTorch %s, %s" % (torch.__version__, torch.cuda.get_device_name()), flush=True)
    return env


# A job: its name, the commands that it consists of, and variables.
def benchmarks():
    kernels = [(name, [[name, "--device=cuda:0"]], {}) for name in ["embedding", "cross_entropy"]]
    return kernels + [("gpu", [["gpu"]], {}), ("prediction", [["prediction", "--device=cuda:0"]], {})]


def tests(seconds):
    jobs = [(name, [[name]], {}) for name in ["cuda_test", "training_test", "nccl_test", "sharded_test"]]
    for name in OP_TESTS:
        jobs.append(("ops:" + name, [[name + "_test", NO_WRONG_INDICES]], {"DTENSOR_TEST_DEVICE": "cuda:0"}))
    fuzz = ["fuzz", "--device=cuda:0", "--open=open_findings_on_gpus.txt", "--shrink_seconds=5", "--seconds=%d" % seconds]
    for seed in range(101, 105):
        jobs.append(("fuzz:%d" % seed, [fuzz + ["--seed=%d" % seed]], {}))
    rules = ["verify_rules", "--device=cuda:0", "--known=known_findings_on_gpus.txt", "--brief"]
    for letters in ["_", "a", "b", "c", "d", "ef", "gh", "ijkl", "m", "n", "op", "qr", "s", "t", "uvwxyz"]:
        jobs.append(("rules:" + letters, [rules + ["--op=aten::" + letter] for letter in letters], {}))
    return jobs


def run(job, env, prefix, logs, limit):
    name, commands, variables = job
    path = os.path.join(logs, name.replace(":", "_") + ".log")
    begin, code = time.time(), 0
    with open(path, "w") as log:
        for argv in commands:
            command = prefix + [os.path.join(HERE, argv[0])] + argv[1:]
            left = max(1, limit - (time.time() - begin))
            try:
                code |= subprocess.run(command, env=dict(env, **variables), cwd=HERE, stdout=log, stderr=log, timeout=left).returncode
            except subprocess.TimeoutExpired:
                log.write("\n[dtensor] ended after %d s\n" % limit)
                code |= 124
    return name, code, time.time() - begin, path


def summary(path):
    text = open(path, errors="replace").read()
    lines = [line for line in text.splitlines() if line.strip()]
    closing = [line for line in lines if re.search(r"^\[dtensor\]|programs,|samples in|ERROR SUMMARY", line)]
    return closing[-1].replace("[dtensor] ", "") if closing else (lines[-1][:100] if lines else "no output")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--limit", type=int, default=240, help="seconds that a program may take")
    parser.add_argument("--logs", default="logs")
    parser.add_argument("--sanitizer", action="store_true")
    options = parser.parse_args()
    os.makedirs(options.logs, exist_ok=True)
    logs = os.path.abspath(options.logs)
    env = environment()

    def chosen(jobs):
        return [job for job in jobs if re.search(options.only, job[0])]

    results = []
    prefix = ["compute-sanitizer", "--error-exitcode=9"] if options.sanitizer else []
    if not options.sanitizer:
        for job in chosen(benchmarks()):
            results.append(run(job, env, prefix, logs, options.limit))
            print(open(results[-1][3]).read(), flush=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = chosen(tests(options.seconds))
        if options.sanitizer:
            jobs = [job for job in jobs if job[0] in ("cuda_test", "training_test")]
        results += pool.map(lambda job: run(job, env, prefix, logs, options.limit), jobs)
    for name, code, seconds, path in results:
        print("%-24s %-7s %5.0f s  %s" % (name, "ok" if code == 0 else "rc %d" % code, seconds, summary(path)))
    return 1 if any(code for _, code, _, _ in results) else 0


if __name__ == "__main__":
    sys.exit(main())
