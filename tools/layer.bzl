"""dtensor_layer: the two targets of a source folder.

`headers` is what other folders may depend on. The library itself goes into //:libdtensor.so (of sharded/ into //:libdtensor_sharded.so) and nowhere else: its
static registrations must run once, so only the root package sees it.
"""

load("@rules_cc//cc:defs.bzl", "cc_library")
load("//tools:unity.bzl", "unity")
load("//tools/precompiled:precompiled.bzl", "precompiled")

def dtensor_layer(name, header_deps = [], deps = [], exclude = [], sees_tensors = False, visibility = ["//:__pkg__"]):
    """Makes `headers` of the folder's *.h and the library `name` of its *.cc, subfolders without a BUILD file included.

    Args:
      name: the library; the folder's name.
      header_deps: what the headers include (the `headers` of the folders below).
      deps: what only the .cc files include.
      exclude: headers that other targets have.
      visibility: of the library.
      sees_tensors: most sources include LibTorch's tensors, so that they compile faster with its headers precompiled.
    """
    cc_library(
        name = "headers",
        hdrs = native.glob(["**/*.h"], exclude = exclude),
        visibility = ["//:__subpackages__"],
        deps = header_deps,
    )
    units = unity(name = name, srcs = native.glob(["**/*.cc"]))
    cc_library(
        name = name,
        srcs = units.srcs,
        copts = units.copts + (precompiled("library") if sees_tensors else []),
        linkstatic = True,
        visibility = visibility,
        deps = units.deps + [":headers"] + deps + (["//tools/precompiled:library"] if sees_tensors else []),
        alwayslink = True,
    )
