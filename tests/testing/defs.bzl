"""Test rules."""

load("@libtorch//:defs.bzl", "PYTHON_SITE")
load("@rules_cc//cc:defs.bzl", "cc_test")

def dtensor_test(name, srcs, deps = [], size = "small", **kwargs):
    """A Catch2 test of the library; no target at all while `srcs` is empty, so that it can be a glob.

    Args:
      name: of the test.
      srcs: sources and private headers.
      deps: besides the library, Catch2 and RapidCheck.
      size: as for cc_test.
      **kwargs: go to cc_test.
    """
    if not srcs:
        return
    cc_test(
        name = name,
        size = size,
        srcs = srcs,
        deps = ["//:dtensor", "//tests/testing:catch_main"] + deps,
        **kwargs
    )

def dtensor_tests(srcs, **kwargs):
    """One dtensor_test per file, named after it."""
    for src in srcs:
        dtensor_test(name = src.rpartition(".")[0], srcs = [src], **kwargs)

def dtensor_python_test(name, src, data = [], size = "small", **kwargs):
    """Runs a Python script beside torch; skips, saying so, where LibTorch came without its Python half.

    The script finds the library's path in the environment variable DTENSOR_LIBRARY, and prints the closing line
    "[dtensor] N passed, N failed, N skipped" itself.
    """
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//tests/testing:python_test.sh"],
        args = [PYTHON_SITE or "none", "$(location %s)" % src],
        data = [src, "//:libdtensor.so"] + data,
        tags = ["python"],
        **kwargs
    )
