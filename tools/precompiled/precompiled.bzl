"""precompiled_header: LibTorch's headers, parsed once instead of in every source.

They take most of the time of a compilation: 4 to 6 s in each of some 500 sources. The compiler reads the parsed form in a
fraction of that:

    cc_library(name = "...", copts = precompiled("library"), deps = ["//tools/precompiled:library"], ...)

It is the compiler's own form: clang looks for HEADER.pch, g++ for HEADER.gch. With another compiler, or
--define=precompiled=off, the header is empty; sources include what they use all the same.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def precompiled(name):
    """The copts of what is compiled with //tools/precompiled:name, which is to be among its deps."""

    # From the root of the tree: clang does not look for the parsed form in its list of folders.
    return ["-include", "$(BINDIR)/tools/precompiled/%s.pch.h" % name, "-Winvalid-pch"]

# g++ warns of #pragma once in a header that it precompiles. It takes no parsed form for the making of another: it parses what the
# header includes of its base.
_GCC = struct(suffix = ".gch", flags = ["-w"], takes_base = False)

# Templates that the headers use are instantiated once, too. Not the times of files: a sandbox has links to them.
_CLANG = struct(
    suffix = ".pch",
    flags = ["-fpch-instantiate-templates", "-Xclang", "-fno-pch-timestamp"],
    takes_base = True,
)

# By Bazel's name for the compiler that it found.
_FORMS = {"clang": _CLANG, "compiler": _GCC, "gcc": _GCC}

def _precompiled_header_impl(ctx):
    header = ctx.actions.declare_file(ctx.label.name + ".pch.h")
    toolchain = find_cpp_toolchain(ctx)
    deps = ctx.attr.deps + ([ctx.attr.base] if ctx.attr.base else [])
    included = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in deps])
    context = included.compilation_context
    outputs = [header]
    form = _FORMS.get(toolchain.compiler)
    if not form or ctx.var.get("precompiled") == "off":
        ctx.actions.write(header, "")
    else:
        ctx.actions.symlink(output = header, target_file = ctx.file.header)
        precompiled = ctx.actions.declare_file(header.basename + form.suffix)
        outputs.append(precompiled)
        features = cc_common.configure_features(
            ctx = ctx,
            cc_toolchain = toolchain,
            requested_features = ctx.features,
            unsupported_features = ctx.disabled_features,
        )
        base_flags = []
        if ctx.attr.base and form.takes_base:
            base_flags = ["-include", [f.path for f in ctx.attr.base[DefaultInfo].files.to_list() if f.extension == "h"][0]]
        flags = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = cc_common.create_compile_variables(
                feature_configuration = features,
                cc_toolchain = toolchain,
                include_directories = context.includes,
                quote_include_directories = depset(["."], transitive = [context.quote_includes]),
                system_include_directories = context.system_includes,
                preprocessor_defines = context.defines,
                user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts,
                use_pic = True,
            ),
        )
        ctx.actions.run(
            executable = toolchain.compiler_executable,
            arguments = flags + form.flags + base_flags +
                        ["-x", "c++-header", "-c", ctx.file.header.path, "-o", precompiled.path],
            env = cc_common.get_environment_variables(
                feature_configuration = features,
                action_name = CPP_COMPILE_ACTION_NAME,
                variables = cc_common.empty_variables(),
            ),
            inputs = depset([ctx.file.header], transitive = [context.headers, toolchain.all_files]),
            outputs = [precompiled],
            mnemonic = "CppPrecompile",
            progress_message = "Precompiling %s" % ctx.file.header.short_path,
            # clang writes down the absolute paths of what it read, and looks for it there later.
            execution_requirements = {"no-sandbox": "1"},
        )
    return [
        DefaultInfo(files = depset(outputs)),
        cc_common.merge_cc_infos(cc_infos = [
            included,
            CcInfo(compilation_context = cc_common.create_compilation_context(headers = depset(outputs + [ctx.file.header]))),
        ]),
    ]

precompiled_header = rule(
    doc = "Compiles `header`. It includes nothing that changes often, as a change recompiles all sources compiled with it.",
    implementation = _precompiled_header_impl,
    attrs = {
        "header": attr.label(allow_single_file = [".h"], mandatory = True),
        "base": attr.label(
            doc = "Another precompiled header, whose header this one includes: clang parses only what comes on top of it.",
            providers = [CcInfo],
        ),
        "deps": attr.label_list(providers = [CcInfo]),
        # As the sources have them: g++ passes over what was compiled for other flags, and warns.
        "copts": attr.string_list(),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
