#!/usr/bin/env bash
# source_test.sh CHECK_SOURCE: the tree has no fault, trees with faults are reported; statements about the project agree.
set -uo pipefail
check=$(readlink -f "$1")
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

fail() { echo "FAILED: $1" >&2; exit 1; }

python3 "$check" --format || fail "the source tree has the faults above"
python3 "$(dirname "$check")/tables/api_page.py" --check || fail "the list of the public headers is stale"

# plant PATH LINE...: a file of the small tree. says TEXT: the check finds that, and nothing else is wrong before it.
plant() { mkdir -p "$tree/$(dirname "$1")" && printf '%s\n' "${@:2}" > "$tree/$1"; }
says() {
  output=$(python3 "$check" "$tree") && fail "no fault found: expected '$1'"
  [[ $output == *"$1"* ]] || fail "expected '$1', got: $output"
}
plant mesh/world.h '#pragma once'
plant mesh/world.cc '#include "mesh/world.h"' '#include "comm/group.h"'
plant comm/group.h '#pragma once'
plant comm/internal/ring.h '#pragma once'
python3 "$check" "$tree" > /dev/null || fail "a fault where there is none"

plant comm/group.cc '#include "mesh/world.h"'
says "comm/group.cc: includes mesh/world.h, of a folder above comm/"
plant comm/group.cc '#include "comm/group.h"'
plant mesh/world.cc '#include "comm/internal/ring.h"'
says "mesh/world.cc: includes comm/internal/ring.h, which is internal to comm/"
plant mesh/world.cc '#include "mesh/mesh.h"'
plant mesh/mesh.h '#include "mesh/world.h"'
says "include one another in a circle: mesh/mesh, mesh/world"
plant mesh/world.cc '#include "dtensor/dtensor.h"'
says "includes dtensor/dtensor.h, which is for programs"
plant mesh/world.cc ''
plant ops/views/slice.cc '#include "ops/halo/plan.h"'
plant ops/halo/plan.h '#pragma once'
plant ops/halo/exchange.cc '#include "ops/views/cat.h"'
plant ops/views/cat.h '#pragma once'
says "include one another in a circle: ops/halo/, ops/views/"
plant ops/halo/exchange.cc ''
plant examples/train.cc '#include "ops/halo/plan.h"'
says "examples/train.cc: includes ops/halo/plan.h, which is not for programs"
plant examples/train.cc '#include "examples/model.h"'
plant examples/model.h '#include "examples/train.h"'
plant examples/train.h '#pragma once'
says "include one another in a circle: examples/model, examples/train"
rm -r "$tree/ops" "$tree/examples"
plant mesh/mesh.h '#pragma once'
plant mesh/mesh.h 'namespace dtensor {' 'class World;' 'struct MeshCall {' '  int ranks;' '};' '}  // namespace dtensor'
says "mesh/mesh.h: programs do not get it, but it declares in namespace dtensor"
plant mesh/mesh.h 'namespace dtensor {' 'class World;  // world.h' '}  // namespace dtensor' 'namespace dtensor::internal {' \
  'struct MeshCall {' '  int ranks;' '};' '}  // namespace dtensor::internal'
plant mesh/memory_meter.h 'namespace dtensor {' 'class MemoryMeter {};' '}  // namespace dtensor'
python3 "$check" "$tree" > /dev/null || fail "a fault in a header that programs get, or of dtensor::internal"
plant mesh/mesh.h '#pragma once'
plant mesh/world.cc 'namespace {' 'struct Call {};' 'constexpr int64_t kMost = 3;' '}  // namespace'
plant mesh/mesh.cc 'namespace {' 'constexpr double kMost = 3;' '}  // namespace'
says "mesh/mesh.cc and mesh/world.cc: both have a kMost in an anonymous namespace"
plant mesh/mesh.cc 'namespace {' 'struct Call {' '}  // namespace'
says "mesh/mesh.cc and mesh/world.cc: both have a Call in an anonymous namespace"
plant mesh/mesh.cc 'namespace {' 'struct Plan {' '}  // namespace'
plant mesh/world.cc ''
plant mesh/world.cc '// Not at::parallel_for(0, n, 1, f).' 'at::parallel_for(0, n, 1, f);'
says "mesh/world.cc:2: at::parallel_for runs on one thread"
plant mesh/world.cc ''
plant mesh/mesh.h '// The ranks' "// that nobody owns."
says "mesh/mesh.h:2: 'nobody' is one of BANNED_WORDS"
plant mesh/mesh.h 'bool nobody = true;' "char quote = '\"'; // whole words: anew_, canew" 'int strayed = 1'"'"'000;'
plant tests/mesh_test.cc '' 'TEST_CASE("a mesh is at  Home")'
says "tests/mesh_test.cc:2: 'at Home' is one of BANNED_WORDS"
rm -r "$tree/tests"
python3 "$check" "$tree" > /dev/null || fail "an identifier is taken for a word"
plant mesh/mesh.h '#pragma once' '// Steps of a plan. Internal to the planner.'
says "mesh/mesh.h:2: its namespace says that it is internal"
plant mesh/internal/steps.h '// Internal.'
plant mesh/mesh.h '#pragma once' '// InternalError is thrown; internal/ has the rest.'
python3 "$check" "$tree" > /dev/null || fail "another word is taken for Internal"
plant mesh/world.cc $(seq 351 | sed 's/.*/;/')
says "mesh/world.cc: has 351 lines, more than 350"
plant mesh/world.cc 'int sum(int a,' '        int b) {' $(seq 58 | sed 's/.*/;/') '}'
says "mesh/world.cc:1: a function of 61 lines, more than 60"
plant mesh/world.cc 'struct World {' $(seq 70 | sed 's/.*/;/') '};' 'int sum() {' $(seq 58 | sed 's/.*/;/') '}'
python3 "$check" "$tree" > /dev/null || fail "a fault in a function of 60 lines"
plant mesh/world.cc ''
plant docs/design.md 'A tensor that nobody reads.'
says "docs/design.md:1: 'nobody' is one of BANNED_WORDS"
plant dtensor/dispatch/op_info.h ''
heading=('## The concepts of `dispatch()`' '' '| concept | where |' '| --- | --- |')
plant docs/design.md "${heading[@]}" '| writes, unlike `op_info.h` | none |' '' '## Choices' '| choice | `op_info.h` |'
says "dtensor/dispatch/op_info.h: belongs to no concept of docs/design.md"
plant docs/design.md "${heading[@]}" '| facts | `op_info.h`, `call_writes.h`, [`plan.h`](../plan/plan.h) |'
says "docs/design.md: there is no call_writes.h in dtensor/dispatch/"
mapfile -t rows < <(seq 21 | sed 's/.*/| concept & | `op_info.h` |/')
plant docs/design.md "${heading[@]}" "${rows[@]}"
says "docs/design.md: 21 concepts, more than 20"
rows=('| subfolder of [`dtensor/`](../dtensor) | idea |' '| --- | --- |' '| [`tensor/`](../dtensor/tensor) | one |')
plant docs/design.md "${rows[@]}" '' "${heading[@]}" '| facts | `op_info.h` |'
says "dtensor/dispatch/op_info.h: dtensor/dispatch/ is not in the table of subfolders of docs/design.md"
plant docs/design.md "${rows[@]}" '| [`dispatch/`](../dtensor/dispatch) | two |' '' "${heading[@]}" '| facts | `op_info.h` |'
python3 "$check" "$tree" > /dev/null || fail "a fault in tables that name the header and its room"
plant dtensor/tensor/view.cc '#include "dtensor/dispatch/op_info.h"'
says "dtensor/tensor/view.cc: includes dtensor/dispatch/op_info.h, of a room below dtensor/tensor/ in docs/design.md"
rm -r "$tree/docs" "$tree/dtensor"
plant CHANGELOG.md '## 1' 'The caller is told.'
says "CHANGELOG.md:2: 'is told' is one of BANNED_WORDS"
rm "$tree/CHANGELOG.md"
plant tools/gpu/run.sh 'set -e' '# The rank who asks waits.'
says "tools/gpu/run.sh:2: 'who asks' is one of BANNED_WORDS"
rm -r "$tree/tools"
plant third_party/mpi/BUILD.bazel '# The rank who comes last waits.'
says "third_party/mpi/BUILD.bazel:1: 'who comes' is one of BANNED_WORDS"
rm -r "$tree/third_party"
for n in $(seq 18); do mkdir -p "$tree/folder$n"; done
says "20 folders at the root"

# What people read first says the version that the library says; hooks and the workflow name what is there.
root=$(dirname "$(dirname "$check")")
version=$(sed -n 's/.*version() { return "\(.*\)"; }.*/\1/p' "$root/dtensor/version.cc")
[ "$version" = "$(sed -n 's/^## //p' "$root/CHANGELOG.md" | head -1)" ] || fail "CHANGELOG.md does not begin with version $version"
grep -q "dtensor-$version-libtorch-" "$root/docs/install.md" || fail "docs/install.md names an archive of another version than $version"
grep -q "^| ${version%.*} | yes |" "$root/SECURITY.md" || fail "SECURITY.md does not say that ${version%.*} gets fixes"
named=$(grep -oE '(tools|\.ci)/[a-z_/.]*[a-z]' "$root/.pre-commit-config.yaml" "$root/.github/workflows/ci.yml" | cut -d: -f2)
[ "$(wc -w <<< "$named")" -ge 5 ] || fail "hooks and workflow name: $named"
for file in $named; do [ -f "$root/$file" ] || fail "there is no $file, which hooks or the workflow name"; done

subject() { python3 "$root/tools/check_subject.py" <(printf "$1") 2>&1; }
[ -z "$(subject "Keep padding rows\n\nWhy.\n# a comment")" ] || fail "a good message is refused"
for message in "" "$(printf 'x%.0s' {1..73})" "It ends." "One\ntwo"; do
  [[ $(subject "$message") == "commit message: "* ]] || fail "not refused: $message"
done
echo "[dtensor] 1 passed, 0 failed, 0 skipped"
