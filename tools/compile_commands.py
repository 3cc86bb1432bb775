#!/usr/bin/env python3
"""Writes compile_commands.json, for clangd and clang-tidy. Arguments go to bazel, e.g. --config=cpu."""

import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def bazel(*args):
    run = subprocess.run(["./bazelw", *args], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    return run.stdout


def without_gcc_alone(arguments):
    """What clang tools would stop at: a flag, and the precompiled header, which is in g++'s own form."""
    kept = [a for a in arguments if a not in ("-fno-canonical-system-headers", "-Winvalid-pch")]
    precompiled = [i for i, a in enumerate(kept) if a.endswith(".pch.h")]
    return [a for i, a in enumerate(kept) if i not in precompiled and i + 1 not in precompiled]


def main():
    options = ["--define=unity=off", *sys.argv[1:]]  # each source by itself, as an editor looks at it
    query = "mnemonic('CppCompile', //...)"
    found = json.loads(bazel("aquery", *options, "--output=jsonproto", "--include_artifacts=false", query))
    execution_root = bazel("info", *options, "execution_root").strip()
    entries = {}
    for action in found.get("actions", []):
        arguments = action["arguments"]
        source = arguments[arguments.index("-c") + 1]
        if source.startswith(("external/", "bazel-out/")) or source in entries:
            continue
        path = os.path.join(ROOT, source)
        arguments = [path if a == source else a for a in without_gcc_alone(arguments)]
        # The execution root holds links to the sources and to external/.
        entries[source] = {"directory": execution_root, "file": path, "arguments": arguments}
    with open(os.path.join(ROOT, "compile_commands.json"), "w") as out:
        json.dump(list(entries.values()), out, indent=1)
    print(f"compile_commands.json: {len(entries)} files")


main()
