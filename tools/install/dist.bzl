"""dist: the folder of archives that tools/install/dist.py makes."""

def _impl(ctx):
    out = ctx.actions.declare_directory(ctx.label.name)
    headers = [
        header
        for header in ctx.attr.headers[CcInfo].compilation_context.headers.to_list()
        if not header.owner.workspace_name
    ]
    ctx.actions.run_shell(
        outputs = [out],
        inputs = headers + ctx.files.srcs + ctx.files.libraries + [ctx.file.script],
        arguments = [ctx.file.script.path, "--root", ".", "--out", out.path, "--libraries"] +
                    [library.path for library in ctx.files.libraries],
        command = 'python3 -B "$@"',
        mnemonic = "Dist",
        progress_message = "Making the archives of %s" % ctx.label,
    )
    return [DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out]))]

dist = rule(
    implementation = _impl,
    attrs = {
        "headers": attr.label(mandatory = True, providers = [CcInfo]),
        "libraries": attr.label_list(mandatory = True, allow_files = True),
        "script": attr.label(mandatory = True, allow_single_file = True),
        "srcs": attr.label_list(allow_files = True),
    },
)
