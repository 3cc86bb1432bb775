#!/usr/bin/env bash
# install.sh LIBRARY... ARGUMENTS: see install.py. Run by Bazel, which says where the source tree is.
exec python3 tools/install/install.py --libraries "$@"
