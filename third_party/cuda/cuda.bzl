"""@cuda: the CUDA 13 toolkit if this machine has one, else empty targets under the same names.

DTENSOR_CUDA=0 in the environment (`--config=cpu`) hides an installed toolkit.
"""

CUDA_ENV = ["CUDA_HOME", "CUDA_PATH", "DTENSOR_CUDA"]

def cuda_home(ctx):
    """The toolkit's folder, or None. LibTorch 2.11 to 2.15 are built for CUDA 13, so no other release will do."""
    env = ctx.os.environ
    if env.get("DTENSOR_CUDA", "") == "0":
        return None
    for home in [env.get("CUDA_HOME", ""), env.get("CUDA_PATH", ""), "/usr/local/cuda"]:
        if home and ctx.path(home + "/bin/nvcc").exists and ctx.path(home + "/include/cuda_runtime.h").exists:
            if "release 13." in ctx.execute([home + "/bin/nvcc", "--version"]).stdout:
                return home
    return None

_NONE = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(name = "headers")

cc_library(name = "cudart")

cc_library(name = "nccl")
"""

_TOOLKIT = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# The whole directory is one input.
cc_library(
    name = "headers",
    hdrs = ["include"],
    defines = ["DTENSOR_HAVE_CUDA=1"],
    includes = ["include"],
)

cc_library(
    name = "cudart",
    linkopts = ["-L{lib}", "-Wl,--push-state,--as-needed", "-lcudart", "-Wl,--pop-state", "-Wl,-rpath,{lib}"],
    deps = [":headers"],
)

cc_library(
    name = "nccl",
    linkopts = {nccl},
    deps = [":headers"],
)
"""

def _impl(ctx):
    home = cuda_home(ctx)
    ctx.file("WORKSPACE", 'workspace(name = "cuda")\n')
    ctx.file("defs.bzl", "HAVE_CUDA = %s\nCUDA_HOME = %s\n" % (home != None, repr(home or "")))
    if not home:
        ctx.file("BUILD.bazel", _NONE)
        return
    lib = home + "/lib64"
    ctx.symlink(home + "/include", "include")
    has_nccl = ctx.path(home + "/include/nccl.h").exists or ctx.path("/usr/include/nccl.h").exists
    ctx.file("BUILD.bazel", _TOOLKIT.format(
        lib = lib,
        nccl = repr(["-L" + lib, "-lnccl", "-Wl,-rpath," + lib] if has_nccl else []),
    ))

cuda_configure = repository_rule(
    implementation = _impl,
    environ = CUDA_ENV,
    local = True,
)
