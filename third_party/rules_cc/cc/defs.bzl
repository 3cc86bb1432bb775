"""rules_cc's names for Bazel's native C++ rules, so that no download is needed.

A later Bazel drops some of them from `native`; getattr keeps this file loading there.
"""

cc_binary = getattr(native, "cc_binary", None)
cc_import = getattr(native, "cc_import", None)
cc_library = getattr(native, "cc_library", None)
cc_proto_library = getattr(native, "cc_proto_library", None)
cc_test = getattr(native, "cc_test", None)
cc_toolchain = getattr(native, "cc_toolchain", None)
cc_toolchain_suite = getattr(native, "cc_toolchain_suite", None)
objc_library = getattr(native, "objc_library", None)
