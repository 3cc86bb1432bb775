#!/usr/bin/env bash
# sharded_embeddings_test.sh PROGRAM LAUNCH: the example in one process and in four learns what one device does.
set -uo pipefail
program=$PWD/$1 launch=$PWD/$2
. tests/tools/checks.sh
export OMP_NUM_THREADS=1 DTENSOR_TIMEOUT=60

run() { "$program" "$@" >"$work/out" 2>"$work/err"; }
job() { timeout -k 5 120 "$launch" -n 4 --timeout 110 -- "$program" "$@" >"$work/raw" 2>"$work/err"; code=$?; sed -E 's/^\[rank 0\] ?//' "$work/raw" >"$work/out"; return $code; }
learns() {  # the last loss is below the first, and differs from one device's by rounding alone
  awk '/ steps on / { gsub(",|;", ""); first = last = -1; for (i = 1; i < NF; ++i) { if ($i == "loss") first = $(i + 1); if ($i == "then") last = $(i + 1); if ($i == "difference") d = $(i + 1) } found = 1 } END { exit !(found && last < first && d < 1e-12) }' "$work/out"
}

run --steps 15
check "in one process" test $? = 0
check "losses of one device" learns
check "bags 0 and 1 by rows" prints 'bags.bag_1.weight: \[13, 8\] of \[50, 8\]'
check "bags 2 to 9 by columns" prints 'bags.bag_9.weight: \[50, 2\] of \[50, 8\]'
check "one all_gather of ids, one exchange a direction" prints '^3 collectives, .*all_gather 1, all_to_all 2'
grep ' steps on ' "$work/out" | sed 's/ on [^:]*:/:/' >"$work/one"
job --steps 15
check "in four processes" test $? = 0
check "losses of one device, in a job" learns
check "the same losses as in one process" test "$(grep ' steps on ' "$work/out" | sed 's/ on [^:]*:/:/')" = "$(cat "$work/one")"
run --ranks 3 --steps 2 --batch 5
check "three ranks, which divide nothing" test $? = 0
run --ranks 1 --steps 2
check "one rank" test $? = 0
check "steps of 0" refuses '--steps 0: must be at least 1' --steps 0
check "an unknown flag" refuses 'unknown flag --stpes' --stpes 3

finish
