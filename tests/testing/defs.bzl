"""Test rules."""

load("@libtorch//:defs.bzl", "PYTHON_SITE")
load("@rules_cc//cc:defs.bzl", "cc_test")
load("//tools:program.bzl", "dtensor_program")
load("//tools:unity.bzl", "compiled_together")
load("//tools/precompiled:precompiled.bzl", "precompiled")

# How long a test may take: ten times what it takes alone on two cores, since others may run beside it. A test that takes up to
# 30 s alone is "small", up to 90 s "medium", and longer ones are "large". Bazel's words for 300, 900 and 3600 s:
_TIMEOUTS = {"small": "moderate", "medium": "long", "large": "eternal"}

# What a test that starts others allows them: a little less, so that it can still say who did not end.
_CHILDREN_SECONDS = {"small": 280, "medium": 880, "large": 3580}

def dtensor_script_test(name, size = "small", **kwargs):
    """A shell script as a test; `size` as the other rules have it."""
    native.sh_test(name = name, size = size, timeout = _TIMEOUTS[size], **kwargs)

def dtensor_test(name, srcs, deps = [], size = "small", copts = [], headers = "tests", together = False, **kwargs):
    """A Catch2 test of the library; no target at all while `srcs` is empty, so that it can be a glob.

    Args:
      name: of the test.
      srcs: sources and private headers.
      deps: besides the library, Catch2 and RapidCheck.
      size: how long it takes alone, see _TIMEOUTS.
      copts: besides those of .bazelrc.
      headers: which of //tools/precompiled it is compiled with; "nn" where most sources include torch/nn.h.
      together: several sources are compiled at a time (//tools:unity.bzl).
      **kwargs: go to cc_test.
    """
    if not srcs:
        return
    if together:
        units = compiled_together(name = name, srcs = srcs, testonly = True)
        srcs = units.srcs
        deps = units.deps + deps
        copts = units.copts + copts
    cc_test(
        name = name,
        size = size,
        timeout = _TIMEOUTS[size],
        srcs = srcs,
        copts = precompiled(headers) + copts,
        deps = ["//:dtensor", "//tests/testing:catch_main", "//tools/precompiled:" + headers] + deps,
        **kwargs
    )

def dtensor_tests_by_theme(themes, rest, exclude = [], **kwargs):
    """One dtensor_test per theme, whose sources are compiled together.

    Args:
      themes: the name of each test, and its sources.
      rest: the test of all sources of the package, called *_test.cc, that are in no theme.
      exclude: sources of other tests.
      **kwargs: go to every dtensor_test.
    """
    listed = [src for srcs in themes.values() for src in srcs]
    for name, srcs in themes.items() + [(rest, native.glob(["*_test.cc"], exclude = exclude + listed))]:
        dtensor_test(name = name, srcs = srcs + native.glob(["*.h"]), together = True, **kwargs)

def dtensor_process_test(name, srcs = [], ranks = 4, program = None, deps = [], size = "small", env = {}, headers = "tests", together = False, **kwargs):
    """A Catch2 test whose every case runs in several processes at once, one rank each, started by //tools:launch.

    World::from_env() is the world of all of them. Cases run in the same order everywhere; a case that fails on one rank only
    fails the test, too. Rank 0 prints the closing line.

    Args:
      name: of the test; name_program is the program.
      srcs: sources and private headers.
      ranks: how many processes; of several numbers, each has a test of its own: "split_test" and [2, 4] give split_2_test and
        split_4_test of one program.
      program: instead of `srcs`, a Catch2 program that is there already, such as the test of one process.
      deps: besides the library, Catch2 and RapidCheck.
      size: how long it takes alone, see _TIMEOUTS.
      headers: as of dtensor_test.
      together: as of dtensor_test.
      env: variables; waits have a deadline of 20 s unless DTENSOR_TIMEOUT is there.
      **kwargs: go to the test.
    """
    if not program:
        program = ":%s_program" % name
        dtensor_program(
            name = name + "_program",
            testonly = True,
            headers = headers,
            together = together,
            srcs = srcs,
            deps = ["//tests/testing:catch_main"] + deps,
        )
    several = type(ranks) == type([])
    for n in ranks if several else [ranks]:
        dtensor_script_test(
            name = "%s_%d_test" % (name[:-len("_test")], n) if several else name,
            size = size,
            srcs = ["//tools/launch"],
            args = ["-n", str(n), "--timeout", str(_CHILDREN_SECONDS[size]), "--", "$(location %s)" % program],
            data = [program],
            env = dict({"DTENSOR_TIMEOUT": "20"}, **env),
            **kwargs
        )

def dtensor_python_test(name, src, data = [], size = "small", **kwargs):
    """Runs a Python script beside torch; skips, saying so, where LibTorch came without its Python half.

    The script finds the library's path in the environment variable DTENSOR_LIBRARY, and prints the closing line
    "[dtensor] N passed, N failed, N skipped" itself.
    """
    dtensor_script_test(
        name = name,
        size = size,
        srcs = ["//tests/testing:python_test.sh"],
        args = [PYTHON_SITE or "none", "$(location %s)" % src],
        data = [src, "//:libdtensor.so"] + data,
        tags = ["uninstrumented"],
        **kwargs
    )
