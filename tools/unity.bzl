"""unity: sources of a folder, compiled several at a time.

Half of the time in which one source compiles goes into what it shares with its neighbours: the headers of this tree, and
LibTorch's inline functions, which are optimised once more for each. So a generated file includes up to 20 of them:

    units = unity(name = "ops", srcs = glob(["*.cc"]))
    cc_library(name = "ops", srcs = units.srcs, deps = units.deps + [...])

Names in anonymous namespaces are therefore different in all sources of a package. --define=unity=off compiles each source by
itself, which is faster for a developer who changes one at a time.
"""

load("@rules_cc//cc:defs.bzl", "cc_library")

# Sources in a unit, at most: of twice as many, the compiler takes hardly less for each, and a change in one takes twice the time.
_UNIT = 20

def _units(name, srcs):
    """Names of units and their sources: all sources by folder and name, in parts of equal size."""
    by_folder = sorted([(src.rpartition("/")[0], src) for src in srcs])
    count = (len(srcs) + _UNIT - 1) // _UNIT
    return [
        ("%s_unit_%d" % (name, i + 1), [src for _, src in by_folder[len(srcs) * i // count:len(srcs) * (i + 1) // count]])
        for i in range(count)
    ]

def _unity_unit_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".cc")
    ctx.actions.write(out, "".join(['#include "%s"\n' % src.short_path for src in ctx.files.srcs]))
    return [DefaultInfo(files = depset([out]))]

_unity_unit = rule(
    doc = "A source that includes others.",
    implementation = _unity_unit_impl,
    attrs = {"srcs": attr.label_list(allow_files = [".cc"])},
)

def unity(name, srcs, testonly = False, visibility = None):
    """Makes the units of `srcs`.

    Args:
      name: of whatever they make up.
      srcs: sources, no headers.
      testonly: as in every rule.
      visibility: of what the units include, for targets of other packages.

    Returns:
      What a target has of them: `srcs`, the units or with --define=unity=off each source; `deps`, what the units include; and
      `copts`.
    """
    units = _units(name, srcs)
    for unit, members in units:
        _unity_unit(name = unit, testonly = testonly, srcs = members)
    cc_library(name = name + "_sources", testonly = testonly, textual_hdrs = srcs, visibility = visibility)
    return struct(
        srcs = select({
            "//tools:unity_off": srcs,
            "//conditions:default": [":" + unit for unit, _ in units],
        }),
        deps = [":%s_sources" % name],
        copts = ["-fmacro-prefix-map=./="],  # __FILE__ is ops/x.cc, not ./ops/x.cc
    )

def compiled_together(name, srcs, testonly = False):
    """unity() of a program's `srcs`, headers among them, which stay in `srcs` as they are."""
    sources = [src for src in srcs if src.endswith(".cc")]
    units = unity(name = name, srcs = sources, testonly = testonly)
    return struct(srcs = units.srcs + [src for src in srcs if src not in sources], deps = units.deps, copts = units.copts)
