"""dtensor_program: a program of the library."""

load("@rules_cc//cc:defs.bzl", "cc_binary")
load("//tools:unity.bzl", "compiled_together")
load("//tools/precompiled:precompiled.bzl", "precompiled")

def dtensor_program(name, srcs, headers = "models", deps = [], together = False, **kwargs):
    """A cc_binary that links the library.

    Args:
      name: of the program.
      srcs: sources and private headers.
      headers: which of //tools/precompiled it is compiled with: "models" where sources include torch/nn.h or torch/torch.h,
        "library" where they do not; for programs of tests "nn" and "tests".
      deps: besides the library.
      together: several sources are compiled at a time (//tools:unity.bzl).
      **kwargs: go to cc_binary.
    """
    copts = precompiled(headers)
    if together:
        units = compiled_together(name = name, srcs = srcs, testonly = kwargs.get("testonly", False))
        srcs = units.srcs
        deps = units.deps + deps
        copts = copts + units.copts
    cc_binary(
        name = name,
        srcs = srcs,
        copts = copts,
        deps = ["//:dtensor", "//tools/precompiled:" + headers] + deps,
        **kwargs
    )
