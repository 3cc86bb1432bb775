#!/usr/bin/env python3
"""Installs the library for programs that are built outside of this tree: ./bazelw run //:install -- --prefix PREFIX

  PREFIX/include/dtensor/                     the public headers, and no others
  PREFIX/lib/libdtensor.so
  PREFIX/lib/cmake/dtensor/*.cmake            find_package(dtensor), after find_package(Torch)
  PREFIX/lib/pkgconfig/dtensor.pc             pkg-config dtensor
  PREFIX/share/dtensor/bazel/                 a repository for Bazel's local_repository()

Existing files of these names are replaced, each at once.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

# Public are these and what they include.
ROOTS = [
    "dtensor/dtensor.h",
    "checkpoint/hugging_face.h",
    "dtensor/distributed_module.h",
    "dtensor/verify_rule.h",
    "mesh/memory_meter.h",
    "observe/flight_recorder.h",
    "plan/plan_many.h",
    "plan/redistribute_planner.h",
    "processes/launch/launch_env.h",
    "processes/monitored_barrier.h",
    "propagation/factor_rule.h",
    "propagation/propagate.h",
    "propagation/rule_registry.h",
    "sharded/sharded.h",
]
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)

CONFIG = """# find_package(dtensor): the target dtensor::dtensor. Needs LibTorch {torch}.
include(CMakeFindDependencyMacro)
if(NOT TARGET torch)
  find_dependency(Torch)
endif()
get_filename_component(_dtensor_prefix "${{CMAKE_CURRENT_LIST_DIR}}/../../.." ABSOLUTE)
if(NOT TARGET dtensor::dtensor)
  add_library(dtensor::dtensor SHARED IMPORTED)
  set_target_properties(dtensor::dtensor PROPERTIES
    IMPORTED_LOCATION "${{_dtensor_prefix}}/lib/libdtensor.so"
    IMPORTED_NO_SONAME TRUE
    INTERFACE_INCLUDE_DIRECTORIES "${{_dtensor_prefix}}/include/dtensor"
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_LINK_LIBRARIES torch)
endif()
unset(_dtensor_prefix)
"""

CONFIG_VERSION = """set(PACKAGE_VERSION "{version}")
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  string(REGEX MATCH "^[0-9]+[.][0-9]+" _dtensor_release "${{PACKAGE_VERSION}}")
  string(REGEX MATCH "^[0-9]+[.][0-9]+" _dtensor_wanted "${{PACKAGE_FIND_VERSION}}")
  string(COMPARE EQUAL "${{_dtensor_wanted}}" "${{_dtensor_release}}" PACKAGE_VERSION_COMPATIBLE)
  if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
  if(NOT PACKAGE_FIND_VERSION)
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
  endif()
endif()
"""

PKG_CONFIG = """prefix=${{pcfiledir}}/../..
Name: dtensor
Description: Distributed tensors for LibTorch {torch}
Version: {version}
Cflags: -std=c++20 -I${{prefix}}/include/dtensor
Libs: -L${{prefix}}/lib -ldtensor
"""

# PREFIX/share/dtensor/bazel. For Bazel 4.2 to 7.
BAZEL = {
    "WORKSPACE": 'workspace(name = "dtensor_bazel")\n',
    "BUILD.bazel": 'exports_files(["dtensor.BUILD"])\n',
    "dtensor.BUILD": """# The folder that dtensor was installed to.
cc_library(
    name = "dtensor",
    srcs = ["lib/libdtensor.so"],
    hdrs = glob(["include/dtensor/**/*.h"]),
    includes = ["include/dtensor"],
    visibility = ["//visibility:public"],
    deps = ["@libtorch"],
)
""",
    "dtensor.bzl": """_LIBTORCH = \"\"\"
cc_library(
    name = "libtorch",
    hdrs = ["include"],  # the folder is one input: there are 9,400 headers
    includes = ["include", "include/torch/csrc/api/include"],
    linkopts = ["-L%s/lib", "-Wl,-rpath,%s/lib", "-ltorch_cpu", "-lc10"],
    visibility = ["//visibility:public"],
)
\"\"\"

def dtensor_repositories(prefix, libtorch):
    \"\"\"Makes @dtensor, the library for `deps`, and @libtorch, which it brings. Compile with -std=c++20.

    Args:
      prefix: the folder that dtensor was installed to.
      libtorch: the folder of an unpacked LibTorch {torch}, the one that holds include/ and lib/.
    \"\"\"
    native.new_local_repository(
        name = "dtensor",
        build_file = "@dtensor_bazel//:dtensor.BUILD",
        path = prefix,
    )
    native.new_local_repository(
        name = "libtorch",
        build_file_content = _LIBTORCH % (libtorch, libtorch),
        path = libtorch,
    )
""",
}


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


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


def put(target, write):
    """Makes `target` with write(path), by a rename, so that nobody sees half of it."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    handle, part = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".part.")
    os.close(handle)
    try:
        write(part)
        os.chmod(part, 0o755 if target.endswith(".so") else 0o644)
        os.replace(part, target)
    except BaseException:
        os.unlink(part)
        raise


def put_text(target, text):
    def write(path):
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)

    put(target, write)


def put_library(library, target):
    """A copy that looks for LibTorch where the program has it, and not where it was when this one was linked."""
    with open(library, "rb") as f:
        data = f.read()
    dynamic = subprocess.run(["readelf", "-dW", library], capture_output=True, check=True, text=True).stdout
    for path in re.findall(r"\((?:RUNPATH|RPATH)\)[^\[]*\[([^\]]*)\]", dynamic):
        old = path.encode() + b"\0"
        if len(path) < len("$ORIGIN") or data.count(old) != 1:
            sys.exit(f"install: {library}: cannot change its run path {path}")
        data = data.replace(old, b"$ORIGIN".ljust(len(old), b"\0"))

    def write(path):
        with open(path, "wb") as f:
            f.write(data)

    put(target, write)


def install(root, library, prefix):
    names = {
        "version": one(r'"(\d+\.\d+\.\d+)"', os.path.join(root, "dtensor/version.cc")),
        "torch": one(r"torch==(\d+\.\d+)", os.path.join(root, "third_party/libtorch/wheels.txt")),
    }
    headers = public_headers(root)
    for header in headers:
        put(os.path.join(prefix, "include/dtensor", header),
            lambda path, source=os.path.join(root, header): shutil.copyfile(source, path))
    put_library(library, os.path.join(prefix, "lib/libdtensor.so"))
    put_text(os.path.join(prefix, "lib/cmake/dtensor/dtensorConfig.cmake"), CONFIG.format(**names))
    put_text(os.path.join(prefix, "lib/cmake/dtensor/dtensorConfigVersion.cmake"), CONFIG_VERSION.format(**names))
    put_text(os.path.join(prefix, "lib/pkgconfig/dtensor.pc"), PKG_CONFIG.format(**names))
    for name, text in BAZEL.items():
        put_text(os.path.join(prefix, "share/dtensor/bazel", name), text.replace("{torch}", names["torch"]))
    print(f"dtensor {names['version']}: {len(headers)} headers, lib/libdtensor.so, a CMake package, a pkg-config file and "
          f"a repository for Bazel are in {prefix}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefix", required=True, help="the folder to install to; made where it is missing")
    parser.add_argument("--library", required=True, help=argparse.SUPPRESS)
    options = parser.parse_args()
    here = os.path.dirname(os.path.realpath(__file__))
    root = os.environ.get("BUILD_WORKSPACE_DIRECTORY") or os.path.join(here, "../..")
    prefix = os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd()), os.path.expanduser(options.prefix))
    try:
        install(root, options.library, os.path.normpath(prefix))
    except OSError as error:
        sys.exit(f"install: {error.filename or prefix}: {error.strerror}. Give a --prefix that can be written to.")


if __name__ == "__main__":
    main()
