"""cuda_library: .cu files through nvcc, .cc files through the C++ compiler, together one cc_library.

Where @cuda found no toolkit it is an empty cc_library that still offers its headers, so labels stay valid.
"""

load("@cuda//:defs.bzl", "CUDA_HOME", "HAVE_CUDA")
load("@rules_cc//cc:defs.bzl", "cc_library")

def _nvcc_objects_impl(ctx):
    flags = ["-std=c++20", "-O3", "-lineinfo", "--expt-relaxed-constexpr", "-Xcompiler=-fPIC,-Wall", "-I."]
    for arch in ctx.attr.archs:
        flags.append("-gencode=arch=compute_%s,code=%s" % (arch.split("_")[1], arch))
    headers = []
    for dep in ctx.attr.deps:
        cc = dep[CcInfo].compilation_context
        headers.append(cc.headers)
        for path in cc.system_includes.to_list() + cc.includes.to_list():
            flags += ["-isystem", path]
        for path in cc.quote_includes.to_list():
            flags += ["-I", path]
        flags += ["-D" + define for define in cc.defines.to_list()]
    objects = []
    for src in ctx.files.srcs:
        obj = ctx.actions.declare_file("_nvcc/%s/%s.pic.o" % (ctx.label.name, src.basename))
        ctx.actions.run(
            executable = CUDA_HOME + "/bin/nvcc",
            arguments = flags + ctx.attr.nvccopts + ["-c", src.path, "-o", obj.path],
            inputs = depset([src] + ctx.files.hdrs, transitive = headers),
            outputs = [obj],
            mnemonic = "NvccCompile",
            progress_message = "Compiling CUDA %s" % src.short_path,
            use_default_shell_env = True,
        )
        objects.append(obj)
    return [DefaultInfo(files = depset(objects))]

_nvcc_objects = rule(
    implementation = _nvcc_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "archs": attr.string_list(),
        "nvccopts": attr.string_list(),
    },
)

# Machine code for A100, H100 and B200, and PTX for what comes later.
ARCHS = ["sm_80", "sm_90", "sm_100", "compute_90"]

def cuda_library(name, srcs = [], hdrs = [], deps = [], cuda_deps = [], archs = ARCHS, nvccopts = [], **kwargs):
    """A cc_library with CUDA sources.

    Args:
      name: of the cc_library.
      srcs: .cu files (raw pointers and cudaStream_t; torch's headers cost nvcc 13 s a file) and .cc files.
      hdrs: headers, seen by both compilers.
      deps: C++ libraries, for the .cc files and the targets that depend on this.
      cuda_deps: C++ libraries whose headers the .cu files include.
      archs: sm_NN for machine code, compute_NN for PTX.
      nvccopts: more flags for nvcc.
      **kwargs: go to cc_library.
    """
    cu = [src for src in srcs if src.endswith(".cu")]
    cc = [src for src in srcs if not src.endswith(".cu")]
    if HAVE_CUDA and cu:
        _nvcc_objects(
            name = name + "_nvcc",
            srcs = cu,
            hdrs = hdrs,
            deps = cuda_deps + ["@cuda//:headers"],
            archs = archs,
            nvccopts = nvccopts,
        )
        cc = cc + [name + "_nvcc"]
    cc_library(
        name = name,
        srcs = cc if HAVE_CUDA else [],
        hdrs = hdrs,
        deps = deps + cuda_deps + ["@cuda//:cudart"],
        **kwargs
    )
