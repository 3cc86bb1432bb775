"""reader_target: one fuzz target, as a test and as a program of libFuzzer."""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_test")
load("//tools/precompiled:precompiled.bzl", "precompiled")

def of_reader(alone, otherwise = ["//:dtensor"]):
    """The deps of a target whose reader stands among other sources of the library.

    Args:
      alone: with --config=fuzz: a library of the reader's sources alone, so that it is compiled in minutes.
      otherwise: what has the reader in all other builds.
    """
    return select({
        "//tests/readers:fuzz": [alone],
        "//conditions:default": otherwise,
    })

def reader_target(name, deps, srcs = []):
    """Makes of NAME_fuzz.cc:

      * NAME_test, with any compiler: every file of corpus/NAME goes through the target once.
      * NAME_fuzz, with --config=fuzz alone: the program that makes files of its own.

    Args:
      name: of the reader.
      deps: the reader, as a library of as few sources as it takes: all of them are compiled with the sanitizers.
      srcs: headers besides.
    """
    sources = ["%s_fuzz.cc" % name, "reader_fuzz.h"] + srcs
    corpus = native.glob(["corpus/%s/**" % name])
    cc_test(
        name = name + "_test",
        size = "small",
        timeout = "moderate",
        srcs = sources,
        args = ["$(location %s)" % f for f in corpus],
        copts = precompiled("tests_libtorch"),
        data = corpus,
        linkstatic = True,
        deps = deps + [":run_corpus", "//tools/precompiled:tests_libtorch"],
    )
    cc_binary(
        name = name + "_fuzz",
        testonly = True,
        srcs = sources,
        linkopts = ["-fsanitize=fuzzer"],
        linkstatic = True,
        tags = ["manual"],  # clang's
        deps = deps,
    )
