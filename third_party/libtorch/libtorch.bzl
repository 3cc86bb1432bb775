"""@libtorch: LibTorch 2.11 to 2.15 from $LIBTORCH, else 2.15 from torch's wheel, fetched once into the user's cache.

  @libtorch//:headers     headers only
  @libtorch//:torch       libtorch_cpu and libc10
  @libtorch//:torch_cuda  adds libtorch_cuda where there is a CUDA toolkit (for targets that need it: it loads slowly)
  @libtorch//:nccl        NCCL, likewise
  @libtorch//:defs.bzl    HAVE_TORCH_CUDA; PYTHON_SITE, the folder from which Python imports torch, or "";
                          LIBTORCH_LIB, the folder of the libraries
"""

load("//third_party/cuda:cuda.bzl", "CUDA_ENV", "cuda_home")

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# The include directory is one input: 9,400 globbed headers in every compile action would be slower.
cc_library(
    name = "headers",
    hdrs = ["include"],
    defines = ["AT_PER_OPERATOR_HEADERS", "USE_DISTRIBUTED"],
    includes = ["include", "include/torch/csrc/api/include"],
)

cc_library(
    name = "torch",
    linkopts = {torch},
    deps = [":headers"],
)

cc_library(
    name = "torch_cuda",
    linkopts = {torch_cuda},
    deps = [":torch", "@cuda//:headers"],
)

cc_library(
    name = "nccl",
    hdrs = {nccl_hdrs},
    includes = {nccl_hdrs},
    linkopts = {nccl},
    deps = [{nccl_dep}],
)
"""

def _home(ctx, cuda):
    home = ctx.os.environ.get("LIBTORCH", "")
    fetch = ctx.path(Label("//third_party/libtorch:fetch.sh"))
    for file in ["unpack.py", "wheels.txt"]:  # watched: an edit runs the rule again
        ctx.path(Label("//third_party/libtorch:" + file))
    if home:
        if not home.startswith("/"):
            fail("LIBTORCH=%s is not an absolute path" % home)
        if not ctx.path(home).exists:
            fail("LIBTORCH: there is no %s" % home)
        return home
    env = ctx.os.environ
    cache = env.get("DTENSOR_CACHE", "")
    if not cache:
        cache = (env.get("XDG_CACHE_HOME", "") or env["HOME"] + "/.cache") + "/dtensor"
    ctx.report_progress("LibTorch")
    done = ctx.execute(["bash", fetch, cache, cuda or "none"], timeout = 7200, quiet = False)
    if done.return_code:
        fail("LibTorch could not be fetched (see above). Set LIBTORCH to the folder of an unpacked LibTorch 2.11 " +
             "to 2.15, the one that holds include/ and lib/, to build without a download.")
    return done.stdout.strip().split("\n")[-1] + "/torch"

def _check_release(ctx, home):
    """The same releases as dtensor/libtorch_version.h."""
    header = home + "/include/torch/headeronly/version.h"
    if not ctx.path(header).exists:
        fail("LIBTORCH: %s holds a release before LibTorch 2.11; this library builds with 2.11 to 2.15" % home)
    numbers = {}
    for line in ctx.read(header).split("\n"):
        words = line.split(" ")
        if len(words) == 3 and words[0] == "#define" and words[1].startswith("TORCH_VERSION_M"):
            numbers[words[1][len("TORCH_VERSION_"):]] = int(words[2])
    if numbers["MAJOR"] != 2 or numbers["MINOR"] < 11 or numbers["MINOR"] > 15:
        fail("LIBTORCH: %s holds LibTorch %d.%d; this library builds with LibTorch 2.11 to 2.15" %
             (home, numbers["MAJOR"], numbers["MINOR"]))

def _impl(ctx):
    cuda = cuda_home(ctx)
    home = str(ctx.path(_home(ctx, cuda)).realpath)
    for d in ["include", "lib"]:
        if not ctx.path(home + "/" + d).exists:
            fail("LIBTORCH: there is no %s/%s" % (home, d))
    _check_release(ctx, home)
    ctx.symlink(home + "/include", "include")
    site = str(ctx.path(home).dirname)
    lib = home + "/lib"
    nvidia = site + "/nvidia"

    have_cuda = cuda != None and ctx.path(lib + "/libtorch_cuda.so").exists
    python = ctx.path(home + "/__init__.py").exists and ctx.path(lib + "/libtorch_python.so").exists
    ctx.file("WORKSPACE", 'workspace(name = "libtorch")\n')
    ctx.file("defs.bzl", "HAVE_TORCH_CUDA = %s\nPYTHON_SITE = %s\nLIBTORCH_LIB = %s\n" % (
        have_cuda,
        repr(site if python else ""),
        repr(lib),
    ))

    # rpath-link: where the linker, not the loader, finds what torch's libraries need in turn.
    torch = ["-L" + lib, "-Wl,-rpath," + lib, "-ltorch_cpu", "-lc10"]
    torch += [
        "-Wl,-rpath-link,%s/%s/lib" % (nvidia, d)
        for d in ["cu13", "cudnn", "nccl", "cusparselt", "nvshmem"]
        if ctx.path("%s/%s/lib" % (nvidia, d)).exists
    ]
    nccl_lib = nvidia + "/nccl/lib"
    nccl_wheel = have_cuda and ctx.path(nvidia + "/nccl/include").exists
    if nccl_wheel:
        ctx.symlink(nvidia + "/nccl/include", "nccl_include")
    ctx.file("BUILD.bazel", _BUILD.format(
        torch = repr(torch),
        torch_cuda = repr(["-Wl,--no-as-needed", "-ltorch_cuda", "-lc10_cuda"] if have_cuda else []),
        nccl_hdrs = repr(["nccl_include"] if nccl_wheel else []),
        nccl = repr(["-L" + nccl_lib, "-l:libnccl.so.2", "-Wl,-rpath," + nccl_lib] if nccl_wheel else []),
        nccl_dep = repr("@cuda//:headers" if nccl_wheel else "@cuda//:nccl"),
    ))

libtorch_configure = repository_rule(
    implementation = _impl,
    environ = ["LIBTORCH", "DTENSOR_CACHE", "XDG_CACHE_HOME", "HOME"] + CUDA_ENV,
)
