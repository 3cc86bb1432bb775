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
        inputs = headers + ctx.files.srcs + [ctx.file.library, ctx.file.script],
        arguments = [ctx.file.script.path, ctx.file.library.path, out.path],
        command = 'python3 -B "$1" --root . --library "$2" --out "$3"',
        mnemonic = "Dist",
        progress_message = "Making the archives of %s" % ctx.label,
    )
    return [DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out]))]

dist = rule(
    implementation = _impl,
    attrs = {
        "headers": attr.label(mandatory = True, providers = [CcInfo]),
        "library": attr.label(mandatory = True, allow_single_file = True),
        "script": attr.label(mandatory = True, allow_single_file = True),
        "srcs": attr.label_list(allow_files = True),
    },
)
