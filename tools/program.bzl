"""dtensor_program: a program of the library."""

load("@rules_cc//cc:defs.bzl", "cc_binary")
load("//tools/precompiled:precompiled.bzl", "precompiled")

def dtensor_program(name, srcs, headers = "models", deps = [], **kwargs):
    """A cc_binary that links the library.

    Args:
      name: of the program.
      srcs: sources and private headers.
      headers: which of //tools/precompiled it is compiled with: "models" where sources include torch/nn.h or torch/torch.h,
        "library" where they do not; for programs of tests "nn" and "tests".
      deps: besides the library.
      **kwargs: go to cc_binary.
    """
    cc_binary(
        name = name,
        srcs = srcs,
        copts = precompiled(headers),
        deps = ["//:dtensor", "//tools/precompiled:" + headers] + deps,
        **kwargs
    )
