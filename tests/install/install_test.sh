#!/usr/bin/env bash
# install_test.sh INSTALL LIBRARY LIBTORCH_LIB: what //:install writes is enough for programs built by CMake,
# by g++ and by Bazel in another workspace.
set -uo pipefail
install=("$1" "$2") torch_lib=$3
. tests/tools/checks.sh
run() { "$@" > "$work/out" 2> "$work/err"; }
fails() { ! run "$@"; }
torch=$(dirname "$torch_lib")
consumer=$PWD/tests/install/consumer

check "installs" run "${install[@]}" --prefix "$work/first"
check "says what and where" prints "^dtensor 0[.].* headers, .* are in $work/first$"
mv "$work/first" "$work/prefix" # nothing in it may know where it was
include=$work/prefix/include/dtensor

lacks_in_headers() { ! grep -rnE "$1" "$include" > "$work/out"; }
check "the public headers need no Abseil" lacks_in_headers 'absl/|absl::'
check "nothing internal is public" lacks_in_headers '#include "[^"]*/internal/'
check "no other folder's headers" [ -z "$(find "$include" -name '*internal*' -o -name '*_test*')" ]
check "nothing but headers" [ -z "$(find "$include" -type f ! -name '*.h')" ]
# These two are for people who change the library: what they include need not be installed.
pages_for_users() { ls README.md docs/*.md | grep -vx -e docs/design.md -e docs/testing.md; }
includes_installed_headers() {  # of PAGE...
  local page header missing=
  while IFS=: read -r page header; do
    [ -f "$include/$header" ] || missing+="$page includes $header, which is not installed"$'\n'
  done < <(grep -H '^ *#include "' "$@" | sed 's/#include "\([^"]*\)".*/\1/; s/: */:/')
  printf %s "$missing" > "$work/out"
  [ -z "$missing" ]
}
check "there are pages for users" [ "$(pages_for_users | wc -l)" -ge 10 ]
check "what they include is installed" includes_installed_headers $(pages_for_users)
check "no half written files" [ -z "$(find "$work/prefix" -name '.part.*')" ]

# LibTorch's own CMake package wants all of LibTorch and CUDA to be installed; where it is not there, what it says of this one.
torch_package=$torch/share/cmake/Torch
if [ ! -e "$torch_package/TorchConfig.cmake" ]; then
  torch_package=$work/torch
  mkdir -p "$torch_package"
  cat > "$torch_package/TorchConfig.cmake" << END
add_library(torch INTERFACE IMPORTED)
set_target_properties(torch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "$torch/include;$torch/include/torch/csrc/api/include"
  INTERFACE_LINK_LIBRARIES "$torch_lib/libtorch_cpu.so;$torch_lib/libc10.so")
END
fi
refuses_release() {
  mkdir -p "$work/later"
  sed 's/dtensor 0.1/dtensor 9.9/' "$consumer/CMakeLists.txt" > "$work/later/CMakeLists.txt"
  fails cmake -S "$work/later" -B "$work/later/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DTorch_DIR="$torch_package" &&
    grep -q 'requested version "9.9"' "$work/err"
}
if command -v cmake > /dev/null; then
  check "CMake configures" run cmake -S "$consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
    -DTorch_DIR="$torch_package" -DCMAKE_CXX_FLAGS=-O0
  check "CMake builds" run cmake --build "$work/build"
  check "what CMake built runs" run "$work/build/consumer"
  check "and shards" prints '^S\(0\)R 0[.].* equal$'
  check "another release is refused" refuses_release
else
  echo "skipped: there is no cmake"
fi

# As docs/install.md has it.
by_hand() {
  run g++ -O0 "$consumer/consumer.cc" -o "$work/by_hand" $(PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig pkg-config --cflags --libs dtensor) \
    -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" -L"$torch_lib" -ltorch_cpu -lc10 \
    -Wl,-rpath,"$work/prefix/lib",-rpath,"$torch_lib"
}
if command -v pkg-config > /dev/null; then
  check "g++ builds with pkg-config" by_hand
  check "what g++ built runs" run "$work/by_hand"
  check "and shards, too" prints '^S\(0\)R 0[.].* equal$'
else
  echo "skipped: there is no pkg-config"
fi

# docs/install.md's own files: a block of its section on Bazel begins with the file's name.
from_page() {  # from_page FILE
  awk -v name="# $1" '/^## /{ here = $0 == "## Bazel" } /^```/{ inside = here && !inside; first = 1; writes = 0; next }
    inside && first { writes = $0 == name; first = 0 } inside && writes' docs/install.md |
    sed "s#/home/me/dtensor#$work/prefix#; s#/path/to/libtorch#$torch#" > "$work/workspace/$1"
  [ -s "$work/workspace/$1" ]
}
# The test needs no network: what Bazel would download for itself is what this tree has of it, or Debian.
with_bazel() {
  local tree name options=()
  tree=$(dirname "$(dirname "$(readlink -f docs/install.md)")")
  for name in rules_cc="$tree/third_party/rules_cc" remote_coverage_tools="$tree/third_party/coverage_tools" \
    rules_java=/usr/share/bazel/rules/java rules_proto=/usr/share/bazel/rules/proto \
    platforms=/usr/share/bazel/tools/platforms bazel_skylib=/usr/share/bazel/tools/skylib; do
    [ ! -d "${name#*=}" ] || options+=(--override_repository="$name")
  done
  (cd "$work/workspace" && run bazel --batch --nohome_rc --output_user_root="$work/bazel" build //:train --copt=-O0 \
    --spawn_strategy=local --jobs=2 "${options[@]}")
}
if command -v bazel > /dev/null; then
  mkdir "$work/workspace"
  cp "$consumer/consumer.cc" "$work/workspace/train.cc"
  for file in WORKSPACE BUILD.bazel .bazelrc; do check "docs/install.md has a $file" from_page $file; done
  check "Bazel builds in another workspace" with_bazel
  check "what Bazel built runs" run "$work/workspace/bazel-bin/train"
  check "and shards as the others" prints '^S\(0\)R 0[.].* equal$'
else
  echo "skipped: there is no bazel"
fi

touch "$work/file"
check "a prefix that cannot be" fails "${install[@]}" --prefix "$work/file/below"
check "says which" grep -q "install: $work/file.*Give a --prefix" "$work/err"
check "a prefix is needed" fails "${install[@]}"
finish
