#!/usr/bin/env bash
# tests/readers/fuzz.sh MINUTES [READER...]: runs the fuzz targets, or those of some readers, for so long each, JOBS (2) of
# them at a time, and prints what they did. Inputs that end a process are left in OUT (a fresh folder under /tmp); the exit
# code is 1 if there are any. BAZEL is the command to build with, "" to run what was built before.
#
#   tests/readers/fuzz.sh 10
#   tests/readers/fuzz.sh 1 zip_file pickle_machine
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
minutes=${1:?"tests/readers/fuzz.sh MINUTES [READER...]"}
shift
readers=("$@")
[ ${#readers[@]} != 0 ] || for source in tests/readers/*_fuzz.cc; do readers+=("$(basename "$source" _fuzz.cc)"); done
out=${OUT:-$(mktemp -d -t dtensor-fuzz.XXXXXX)}
bazel=${BAZEL-./bazelw}
[ -z "$bazel" ] || $bazel build --config=fuzz $(printf '//tests/readers:%s_fuzz ' "${readers[@]}")

# One reader: inputs of at most 64 KiB, for which no reader needs 20 s, 64 MiB at once, or 2 GiB in all.
run() {
  local reader=$1 folder=$out/$1
  mkdir -p "$folder/corpus"
  # As .bazelrc has them for tests.
  ASAN_OPTIONS=detect_leaks=1:protect_shadow_gap=0 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1 \
    "bazel-bin/tests/readers/${reader}_fuzz" -max_total_time=$((minutes * 60)) -max_len=65536 -timeout=20 -rss_limit_mb=2048 \
    -malloc_limit_mb=64 -print_final_stats=1 -artifact_prefix="$folder/" "$folder/corpus" "tests/readers/corpus/$reader" \
    > "$folder/log" 2>&1 || echo "exit code $?" > "$folder/failed"
  awk -v reader="$reader" '
    / cov: / { for (i = 1; i < NF; ++i) if ($i == "cov:") cov = $(i + 1) }
    /INITED/ { first = cov }
    /number_of_executed_units/ { runs = $2 }
    /^(SUMMARY|does not hold)/ { found = $0 }
    END { if (!runs) found = "did not run, see its log"; printf "%-20s %10d runs  cov %5d, %5d at first  %s\n", reader, runs, cov, first, found == "" ? "clean" : found }
  ' "$folder/log"
}
export -f run
export out minutes
printf '%s\n' "${readers[@]}" | xargs -P "${JOBS:-2}" -I{} bash -c 'run {}'
found=$(find "$out" -maxdepth 2 -type f ! -name log ! -name 'slow-unit-*')
[ -z "$found" ] || { echo "found, see the log beside each:"; echo "$found"; exit 1; }
