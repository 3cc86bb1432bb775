"""rules_python's names for Bazel's native Python rules, so that no download is needed: Bazel 7's own BUILD files load them."""

py_binary = getattr(native, "py_binary", None)
py_library = getattr(native, "py_library", None)
py_test = getattr(native, "py_test", None)
