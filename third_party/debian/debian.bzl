"""debian_libraries: libraries of Debian's packages, in /usr.

Their headers are in /usr/include, which the C++ toolchain searches anyway, so a target is its link options. Abseil has other
libraries in each release: those that are here are listed. Where Catch2 has a library, it is version 3.
"""

def _debian_libraries_impl(ctx):
    found = ctx.execute(["sh", "-c", "ls /usr/lib/*-linux-gnu/libabsl_*.so /usr/lib/libCatch2.a /usr/lib/*-linux-gnu/libCatch2.a 2> /dev/null"])
    names = [path.rpartition("/lib")[2].rpartition(".")[0] for path in found.stdout.splitlines()]
    if not any([name.startswith("absl_") for name in names]):
        fail("There is no /usr/lib/*-linux-gnu/libabsl_*.so: apt-get install libabsl-dev")
    ctx.template("BUILD.bazel", ctx.attr._build_file, {
        "%{ABSL}": repr([name for name in names if name.startswith("absl_")]),
        "%{CATCH2}": repr(["-lCatch2"] if "Catch2" in names else []),
    })

debian_libraries = repository_rule(
    implementation = _debian_libraries_impl,
    attrs = {"_build_file": attr.label(default = "//third_party/debian:debian.BUILD")},
    configure = True,
    local = True,
)
