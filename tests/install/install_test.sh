#!/usr/bin/env bash
# install_test.sh INSTALL LIBRARY SHARDED_LIBRARY DIST LIBTORCH_LIB:
# what //:install writes and //:dist packs is enough for programs built by CMake,
# by g++ and by Bazel in another workspace, with the lines of docs/install.md. In the short form each program is compiled once, by CMake, with a precompiled header:
# g++ links what CMake compiled, and Bazel only loads and analyses.
set -uo pipefail
install=("$1" "$2" "$3") dist=$4 torch_lib=$5
. tests/tools/checks.sh
run() { "$@" > "$work/out" 2> "$work/err"; }
fails() { ! run "$@"; }
torch=$(dirname "$torch_lib")
release=$(sed -n 's/^ *"\([0-9]*[.][0-9]*\).*/\1/p' "$torch/include/torch/headeronly/version.h")
consumer=$PWD/tests/install/consumer/consumer.cc

check "installs" run "${install[@]}" --prefix "$work/installed"
check "says what and where" prints "^dtensor 0[.].* for LibTorch $release: .* headers, .* are in $work/installed$"
# All that follows uses the archive, in another place than what it was made from: nothing in it may know where it was.
check "the archive unpacks" run tar -xzf "$dist"/dtensor-*-libtorch-"$release".tar.gz -C "$work"
mv "$work"/dtensor-0.*-libtorch-"$release" "$work/prefix"
check "it has what is installed" run diff -r "$work/installed" "$work/prefix"
same_each_time() {  # nothing in it says when, by whom or in which order it was made
  local archive
  archive=$(echo "$dist"/dtensor-*-libtorch-"$release".tar.gz)
  tar -tzf "$archive" > "$out" && LC_ALL=C sort -c "$out" && [ "$(od -An -tu4 -j4 -N4 "$archive" | tr -d ' ')" = 0 ] &&
    [ "$(TZ=UTC tar --numeric-owner --full-time -tvzf "$archive" | awk '{ print $2, $4, $5 }' | sort -u)" = "0/0 1970-01-01 00:00:00" ]
}
check "its bytes are the same each time" same_each_time
prefix=$work/prefix include=$work/prefix/include/dtensor

lacks_in_headers() { ! grep -rnE "$1" "$include" > "$work/out"; }
check "the public headers need no Abseil" lacks_in_headers 'absl/|absl::'
check "nothing internal is public" lacks_in_headers '#include "[^"]*/internal/'
check "no other folder's headers" [ -z "$(find "$include" -name '*internal*' -o -name '*_test*')" ]
check "nothing but headers" [ -z "$(find "$include" -type f ! -name '*.h')" ]
# These two are for people who change the library: what they include need not be installed.
pages_for_users() { ls README.md docs/*.md | grep -vx -e docs/design.md -e docs/testing.md; }
includes_installed_headers() {  # of PAGE..., or headers of the models in examples/, which pages name as such
  local page header missing=
  while IFS=: read -r page header; do
    [ -f "$include/$header" ] || [[ $header == examples/models/* ]] || missing+="$page includes $header, which is not installed"$'\n'
  done < <(grep -H '^ *#include "' "$@" | sed 's/#include "\([^"]*\)".*/\1/; s/: */:/')
  printf %s "$missing" > "$work/out"
  [ -z "$missing" ]
}
check "there are pages for users" [ "$(pages_for_users | wc -l)" -ge 10 ]
check "what they include is installed" includes_installed_headers $(pages_for_users)
check "no half written files" [ -z "$(find "$work/installed" -name '.part.*')" ]

# What docs/install.md has: the block of a section that begins with a line, changed by sed's $edit.
edit=
from_page() {  # from_page SECTION BEGIN
  awk -v section="## $1" -v begin="$2" '/^## /{ here = $0 == section } /^```/{ inside = here && !inside; first = 1; writes = 0; next }
    inside && first { writes = index($0, begin) == 1; first = 0 } inside && writes' docs/install.md |
    sed "s#/home/me/dtensor#$prefix#; s#\$HOME/dtensor#$prefix#g; s#~/dtensor#$prefix#g; s#/path/to/libtorch#$torch#; $edit"
}
folder() {  # folder NAME: with the program as train.cc
  mkdir -p "$work/$1" && cp "$consumer" "$work/$1/train.cc"
}
file_from_page() {  # file_from_page FOLDER SECTION FILE
  from_page "$2" "# $3" > "$work/$1/$3"
  [ -s "$work/$1/$3" ]
}
does_as_page_says() {  # does_as_page_says FOLDER SECTION BEGIN [LIBTORCH]
  local lines torch=${4:-$torch}
  lines=$(from_page "$2" "$3")
  [ -n "$lines" ] && (cd "$work/$1" && CXXFLAGS=-O0 run bash -euc "$lines")
}
# A LibTorch of another release.
other=$work/other
mkdir -p "$other/lib" "$other/include/torch/headeronly"
touch "$other/lib/libtorch_cpu.so" "$other/lib/libc10.so"
sed 's/"[0-9.]*"/"2.14.3"/' "$torch/include/torch/headeronly/version.h" > "$other/include/torch/headeronly/version.h"

refuses_by_cmake() {  # refuses_by_cmake REASON LIBTORCH
  ! is_long || rm -rf "$work/cmake/build"  # otherwise it knows the compiler already
  ! does_as_page_says cmake CMake "# with LIBTORCH" "$2" && tr -s ' \n' ' ' < "$work/err" | grep -q -- "$1"
}
if command -v cmake > /dev/null; then
  is_long || ! command -v clang++ > /dev/null || export CXX=clang++ # takes half of the time of what CMake takes by itself
  folder cmake
  check "docs/install.md has a CMakeLists.txt" file_from_page cmake CMake CMakeLists.txt
  check "CMake refuses another LibTorch" refuses_by_cmake "built with LibTorch $release, and this is LibTorch 2.14.3" "$other"
  check "CMake says that there is none" refuses_by_cmake "there is no /nowhere/include/.*: LIBTORCH must be" /nowhere
  sed -i.right 's/dtensor 0[.][0-9]*/dtensor 9.9/' "$work/cmake/CMakeLists.txt"
  check "CMake refuses another release" refuses_by_cmake 'requested version "9.9"' "$torch"
  mv "$work/cmake/CMakeLists.txt.right" "$work/cmake/CMakeLists.txt"
  rm -rf "$work/cmake/build"
  cp "$(dirname "$consumer")/sharded.cc" "$work/cmake/"
  printf '%s\n' 'add_executable(sharded sharded.cc)' 'target_link_libraries(sharded dtensor::sharded)' >> "$work/cmake/CMakeLists.txt"
  # Three quarters of a program's compilation are LibTorch's headers.
  is_long || printf '%s\n' 'target_precompile_headers(train PRIVATE <torch/nn/modules/linear.h> <dtensor/dtensor.h>)' \
    'target_precompile_headers(sharded REUSE_FROM train)' >> "$work/cmake/CMakeLists.txt"
  check "CMake builds with LIBTORCH" does_as_page_says cmake CMake "# with LIBTORCH"
  check "what CMake built runs" run "$work/cmake/build/train"
  check "and shards" prints "^S\(0\)R 0[.].* $release[.].* equal$"
  check "a program with ShardedTensor runs" run "$work/cmake/build/sharded"
  check "and splits" prints "^\[2, 2\] equal$"
  # LibTorch's own CMake package, which the one that bazelw fetches is without.
  if [ -e "$torch/share/cmake/Torch/TorchConfig.cmake" ]; then
    rm -rf "$work/cmake/build"
    export LDFLAGS="-Wl,-rpath-link,$(dirname "$torch")/nvidia/nccl/lib" # of which a toolkit may have an older one
    check "CMake builds with LibTorch's own package" does_as_page_says cmake CMake "# with find_package(Torch)"
    check "and that runs, too" run "$work/cmake/build/train"
    unset LDFLAGS
  else
    echo "skipped: this LibTorch has no CMake package of its own"
  fi
  unset CXX
else
  echo "skipped: there is no cmake"
fi

one_line_at_load() {  # a program's LibTorch is another one
  g++ -shared -fPIC -x c++ - -o "$work/other.so" <<< 'extern "C" unsigned long aoti_torch_abi_version() { return 2ul << 56 | 14ul << 48; }'
  LD_PRELOAD=$work/other.so run "$work/by_hand/train"
  [ $? = 1 ] && [ ! -s "$out" ] && [ "$(cat "$err")" = "$(sed -n "/^dtensor .* needs LibTorch/s/LibTorch 2.15/LibTorch $release/p" docs/install.md)" ]
}
libraries_of_its_own() {  # libraries_of_its_own PROGRAM
  run ldd "$work/by_hand/$1"
  prints "libabsl_.* => $prefix/lib/" && ! grep libabsl_ "$out" | grep -v " => $prefix/lib/"
}
# In the short form, where there is a CMake. If that failed, this fails, too: it would compile for another minute.
links_what_cmake_compiled() { ! is_long && command -v cmake > /dev/null; }
object_of_cmake() {  # object_of_cmake NAME: as train.o
  cp "$work/cmake/build/CMakeFiles/$1.dir/$1.cc.o" "$work/by_hand/train.o"
}
if command -v pkg-config > /dev/null; then
  folder by_hand
  if links_what_cmake_compiled; then
    check "CMake left what it compiled" object_of_cmake train
    # What the flags of compilation are for: headers of all three folders, and C++20.
    printf '%s\n' '#include <c10/macros/Macros.h>' '#include <torch/arg.h>' '#include "dtensor/version.h"' \
      'static_assert(__cplusplus >= 202002L);' 'const char* version_of_headers() { return dtensor::version(); }' > "$work/by_hand/flags.cc"
    edit='s/train[.]cc/train.o flags.cc/'
  fi
  check "g++ builds with pkg-config" does_as_page_says by_hand g++ libtorch=
  edit=
  check "what g++ built runs" run "$work/by_hand/train"
  check "and shards, too" prints "^S\(0\)R 0[.].* $release[.].* equal$"
  check "it needs no Abseil of the system" libraries_of_its_own train
  check "nor ShardedTensor" lacks libdtensor_sharded
  mv "$work/by_hand/train" "$work/by_hand/plain"
  edit='s/--libs dtensor/--libs dtensor_sharded/'
  if links_what_cmake_compiled; then
    check "CMake left the program with ShardedTensor" object_of_cmake sharded
    edit+='; s/train[.]cc/train.o/'
  else
    cp "$(dirname "$consumer")/sharded.cc" "$work/by_hand/train.cc"
  fi
  check "g++ builds a program with ShardedTensor" does_as_page_says by_hand g++ libtorch=
  edit=
  check "which runs" run "$work/by_hand/train"
  check "and splits, too" prints "^\[2, 2\] equal$"
  check "it needs no Abseil of the system either" libraries_of_its_own train
  mv "$work/by_hand/plain" "$work/by_hand/train"
  check "it refuses another LibTorch" one_line_at_load
  check "pkg-config knows LibTorch" run env PKG_CONFIG_PATH="$prefix/lib/pkgconfig" pkg-config --variable=libtorch_version dtensor
  check "as it is" prints "^$release[.]"
else
  echo "skipped: there is no pkg-config"
fi

# The test needs no network: what Bazel would download for itself is what this tree has of it, or Debian.
with_bazel() {
  local tree name bazel_options options=()
  is_long || options=(--nobuild)
  tree=$(dirname "$(dirname "$(readlink -f docs/install.md)")")
  . "$tree/tools/bazel_options.sh"
  for name in rules_cc="$tree/third_party/rules_cc" rules_python="$tree/third_party/rules_python" \
    remote_coverage_tools="$tree/third_party/coverage_tools" \
    rules_java=/usr/share/bazel/rules/java bazel_skylib=/usr/share/bazel/tools/skylib; do
    [ ! -d "${name#*=}" ] || options+=(--override_repository="$name")
  done
  # It runs for seconds only: to optimise Java code for longer runs takes as long as everything else.
  (cd "$work/workspace" && run bazel "${bazel_options[@]}" --batch --nohome_rc --output_user_root="$work/bazel" \
    --host_jvm_args=-XX:TieredStopAtLevel=1 --host_jvm_args=-XX:+UseSerialGC build //:all --copt=-O0 \
    --spawn_strategy=local --jobs=2 "${options[@]}")
}
refuses_by_bazel() {
  sed -i.right "s#$torch#$other#" "$work/workspace/WORKSPACE"
  ! with_bazel && grep -q "dtensor was built with LibTorch $release, and $other holds LibTorch 2.14.3" "$work/err"
  local refused=$?
  mv "$work/workspace/WORKSPACE.right" "$work/workspace/WORKSPACE"
  return $refused
}
# What the source tree itself does with a LIBTORCH that it does not build with; one in the short form.
refuses_to_build() {  # refuses_to_build REASON LIBTORCH
  local tree
  tree=$(dirname "$(dirname "$(readlink -f docs/install.md)")")
  . "$tree/tools/bazel_options.sh"
  ! (cd "$tree" && run env LIBTORCH="$2" bazel "${bazel_options[@]}" --batch --nohome_rc --output_base="$work/refusals" \
    query @libtorch//:all) && grep -q "$1" "$work/err"
}
release_with() {  # release_with VERSION_H: a LibTorch whose version.h has these lines; none: it has no version.h
  rm -rf "$work/release"
  mkdir -p "$work/release/lib" "$work/release/include/torch/headeronly"
  [ $# = 0 ] || printf '%s\n' "$@" > "$work/release/include/torch/headeronly/version.h"
}
refused_releases() {
  local supported="this library builds with LibTorch 2.11 to 2.15"
  release_with "#define TORCH_VERSION_MAJOR 2" "#define TORCH_VERSION_MINOR 16"
  check "the build refuses LibTorch 2.16" refuses_to_build "$work/release holds LibTorch 2.16; $supported" "$work/release"
  is_long || return 0
  release_with "#define TORCH_VERSION_MAJOR 3" "#define TORCH_VERSION_MINOR 11"
  check "and 3.11" refuses_to_build "$work/release holds LibTorch 3.11; $supported" "$work/release"
  release_with
  check "and one before 2.11" refuses_to_build "$work/release holds a release before LibTorch 2.11" "$work/release"
  check "and a relative path" refuses_to_build "LIBTORCH=release is not an absolute path" release
  check "and a folder that is none" refuses_to_build "LIBTORCH: there is no $work/nowhere" "$work/nowhere"
}

if command -v bazel > /dev/null; then
  refused_releases
  folder workspace
  for file in WORKSPACE BUILD.bazel .bazelrc; do check "docs/install.md has a $file" file_from_page workspace Bazel $file; done
  cp "$(dirname "$consumer")/sharded.cc" "$work/workspace/"
  printf '%s\n' 'cc_binary(name = "sharded", srcs = ["sharded.cc"], deps = ["@dtensor//:sharded"])' >> "$work/workspace/BUILD.bazel"
  check "Bazel refuses another LibTorch" refuses_by_bazel
  check "Bazel works in another workspace" with_bazel
  if is_long; then
    check "a program with ShardedTensor runs" run "$work/workspace/bazel-bin/sharded"
    check "and splits by Bazel's library" prints "^\[2, 2\] equal$"
    check "what Bazel built runs" run "$work/workspace/bazel-bin/train"
    check "and shards as the others" prints "^S\(0\)R 0[.].* $release[.].* equal$"
  fi
else
  echo "skipped: there is no bazel"
fi

touch "$work/file"
check "a prefix that cannot be" fails "${install[@]}" --prefix "$work/file/below"
check "says which" grep -q "install: $work/file.*Give a --prefix" "$work/err"
check "a prefix is needed" fails "${install[@]}"
finish
