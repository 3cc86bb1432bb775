#!/usr/bin/env python3
"""Installs the library for programs that are built outside of this tree: ./bazelw run //:install -- --prefix PREFIX

  PREFIX/include/dtensor/                     the public headers, and no others
  PREFIX/lib/libdtensor.so                    and beside it those libraries of Abseil that it needs
  PREFIX/lib/libdtensor_sharded.so            ShardedTensor
  PREFIX/share/dtensor/python/                dtensor_torch.py
  PREFIX/share/doc/dtensor/                   licences and the changelog
  what stands in tools/install/prefix/        for CMake, pkg-config and Bazel

Existing files of these names are replaced, each at once.
"""

import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile

# Public are these and what they include.
ROOTS = [
    "dtensor/dtensor.h",
    "checkpoint/hugging_face.h",
    "dtensor/advise_module_layouts.h",
    "dtensor/apply_layouts.h",
    "dtensor/distributed_module.h",
    "dtensor/search_module_layouts.h",
    "dtensor/search_module_layouts_options.h",
    "dtensor/verify_rule.h",
    "mesh/memory_meter.h",
    "observe/flight_recorder.h",
    "plan/plan_many.h",
    "plan/redistribution_cost.h",
    "plan/redistribute_planner.h",
    "processes/launch/launch_env.h",
    "processes/monitored_barrier.h",
    "propagation/factor_rule.h",
    "propagation/propagate.h",
    "propagation/rule_registry.h",
    "sharded/sharded.h",
]
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)

# What is copied as it is.
FILES = {
    "LICENSE": "share/doc/dtensor/LICENSE",
    "CHANGELOG.md": "share/doc/dtensor/CHANGELOG.md",
    "python/dtensor_torch.py": "share/dtensor/python/dtensor_torch.py",
}
TEMPLATES = "tools/install/prefix"


def read_bytes(path):
    with open(path, "rb") as f:
        return f.read()


def read(path):
    return read_bytes(path).decode()


def public_headers(root):
    found, to_do = set(), list(ROOTS)
    while to_do:
        header = to_do.pop()
        if header not in found:
            found.add(header)
            to_do += INCLUDE.findall(read(os.path.join(root, header)))
    return sorted(found)


def one(pattern, path):
    match = re.search(pattern, read(path))
    if not match:
        sys.exit(f"install: {path} has no {pattern}")
    return match.group(1)


def put(target, data):
    """Makes `target` by a rename, so that it is never visible incomplete."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    handle, part = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".part.")
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
        os.chmod(part, 0o755 if ".so" in os.path.basename(target) else 0o644)
        os.replace(part, target)
    except BaseException:
        os.unlink(part)
        raise


def relocatable(library):
    """The library's bytes, which look for libraries beside themselves, and for LibTorch where the program has it: not where it
    was when they were linked."""
    data = read_bytes(library)
    dynamic = subprocess.run(["readelf", "-dW", library], capture_output=True, check=True, text=True).stdout
    for path in re.findall(r"\((?:RUNPATH|RPATH)\)[^\[]*\[([^\]]*)\]", dynamic):
        old = path.encode() + b"\0"
        if len(path) < len("$ORIGIN") or data.count(old) != 1:
            sys.exit(f"install: {library}: cannot change its run path {path}")
        data = data.replace(old, b"$ORIGIN".ljust(len(old), b"\0"))
    return data


def bundled(library):
    """What goes beside the library and what licences that: Debian's Abseil, which no other system has in this release."""
    found = subprocess.run(["ldd", library], capture_output=True, check=True, text=True).stdout
    libraries = re.findall(r"(libabsl_\S+) => (/\S+)", found)
    files = {f"lib/{name}": path for name, path in libraries}
    if files:
        # libabsl20220623 in Debian 12, libabsl20220623t64 where time_t has 64 bits on every machine (Ubuntu 24.04, Debian 13).
        package = "libabsl" + libraries[0][0].rpartition(".")[2]
        licences = glob.glob(f"/usr/share/doc/{package}*/copyright")
        if not licences:
            sys.exit(f"install: no /usr/share/doc/{package}*/copyright: the licence of {libraries[0][1]} goes into the archive")
        files["share/doc/dtensor/abseil.copyright"] = licences[0]
        files["share/doc/dtensor/Apache-2.0"] = "/usr/share/common-licenses/Apache-2.0"
    return files


def releases(root, library):
    """What templates and file names have of versions. `library`: libdtensor.so."""
    found = re.search(rb"dtensor built with LibTorch (\d+\.\d+)[.\d]*", read_bytes(library))
    if not found:
        sys.exit(f"install: {library} does not say which LibTorch it was built with")
    return {
        "VERSION": one(r'"(\d+\.\d+\.\d+)"', os.path.join(root, "dtensor/version.cc")),
        "TORCH": found.group(1).decode(),
        "TORCH_FULL": found.group(0).split()[-1].decode(),
    }


def templates(root):
    """(file, where it goes) of each."""
    for folder, _, names in os.walk(os.path.join(root, TEMPLATES)):
        for name in sorted(names):
            source = os.path.join(folder, name)
            yield source, os.path.relpath(source, os.path.join(root, TEMPLATES))[:-len(".in")]


def install(root, libraries, prefix):
    """Returns what releases() says, and how many headers there are. `libraries`: libdtensor.so, then those that need it."""
    names = releases(root, libraries[0])
    headers = public_headers(root)
    copies = {os.path.join(root, header): f"include/dtensor/{header}" for header in headers}
    copies.update({os.path.join(root, source): target for source, target in FILES.items()})
    for library in libraries:
        copies.update({source: target for target, source in bundled(library).items()})
    for source, target in copies.items():
        put(os.path.join(prefix, target), read_bytes(source))
    for library in libraries:
        put(os.path.join(prefix, "lib", os.path.basename(library)), relocatable(library))
    for source, target in templates(root):
        text = re.sub(r"@([A-Z_]+)@", lambda match: names[match.group(1)], read(source))
        put(os.path.join(prefix, target), text.encode())
    return names, len(headers)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefix", required=True, help="the folder to install to; made where it is missing")
    parser.add_argument("--libraries", required=True, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    here = os.path.dirname(os.path.realpath(__file__))
    root = os.environ.get("BUILD_WORKSPACE_DIRECTORY") or os.path.join(here, "../..")
    prefix = os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd()), os.path.expanduser(options.prefix))
    try:
        names, headers = install(root, options.libraries, os.path.normpath(prefix))
    except OSError as error:
        sys.exit(f"install: {error.filename or prefix}: {error.strerror}. Give a --prefix that can be written to.")
    print(f"dtensor {names['VERSION']} for LibTorch {names['TORCH']}: {headers} headers, two libraries, a CMake package, "
          f"pkg-config files, a repository for Bazel and Python's dtensor_torch.py are in {prefix}")


if __name__ == "__main__":
    main()
