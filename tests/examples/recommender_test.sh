#!/usr/bin/env bash
# recommender_test.sh PROGRAM LAUNCH: a DLRM whose tables a planner has laid out learns what one device does, in one process and
# in four, and communicates what is written by hand.
set -uo pipefail
program=$PWD/$1 launch=$PWD/$2
. tests/tools/checks.sh
export OMP_NUM_THREADS=1 DTENSOR_TIMEOUT=60

run() { "$program" "$@" >"$work/out" 2>"$work/err"; }
job() { timeout -k 5 160 "$launch" -n 4 --timeout 150 -- "$program" "$@" >"$work/raw" 2>"$work/err"; code=$?; sed -E 's/^\[rank 0\] ?//' "$work/raw" >"$work/out"; return $code; }
learns() {  # learns BOUND: losses are those of one device
  awk -v bound="$1" '/largest difference from one device/ { found = 1; ok = $NF < bound } END { exit !(found && ok) }' "$work/out"
}
falls() {
  awk '/ steps on / { gsub(",|;", ""); for (i = 1; i < NF; ++i) { if ($i == "loss") first = $(i + 1); if ($i == "then") last = $(i + 1) } } END { exit !(last < first) }' "$work/out"
}
by_hand() {  # by_hand COUNT COLLECTIVE WHAT: as many as by hand, and as many bytes
  awk -v count="$1" -v collective="$2" -v what="$3" 'index($0, what " ") == 1 { line = $0; sub(what, "", line); n = split(line, w, " "); if (w[1] == count && w[2] == collective && w[n - 2] + 0 == count && w[3] == w[n - 1]) ok = 1 } END { exit !ok }' "$work/out"
}
as_by_hand() {
  check "$1: ids" by_hand 1 all_gather ids
  check "$1: pooled rows" by_hand 1 all_to_all rows
  check "$1: their gradients" by_hand 1 all_to_all "gradients of rows"
  check "$1: one bucket" by_hand 1 all_reduce "gradients of replicated parameters"
  check "$1: nothing else" prints '^besides: 1, the mean of the loss'
  check "$1: every step" prints '^communication of every step: as by hand'
}

run --steps 12
check "in one process" test $? = 0
check "losses of one device" learns 1e-10
for kind in replicated row-wise column-wise 'table-wise on rank'; do
  check "the planner chooses $kind" prints "^tables\..* $kind"
done
check "reasons" prints '^tables.user.weight .*over budget'
check "the budget is kept" prints 'ranks hold .* of a budget of 2500.0 KiB'
as_by_hand "in one process"
grep -e '^tables' -e '^ids' -e '^rows' -e '^gradients' "$work/out" >"$work/one"
job --steps 12
check "in four processes" test $? = 0
check "losses of one device, in a job" learns 1e-10
as_by_hand "in four processes"
grep -e '^tables' -e '^ids' -e '^rows' -e '^gradients' "$work/out" >"$work/four"
check "the same plan and the same bytes as in one process" cmp -s "$work/one" "$work/four"
run --steps 40 --budget 1GiB
check "with room for all" test $? = 0
check "it learns" falls
run --steps 2 --budget 1600KiB --ranks 6 --batch 5
check "six ranks and less room" test $? = 0
run --budget 100KiB
code=$?
check "no room: an error" test $code = 1
check "no room: what would do" grep -q 'no plan was found that keeps bytes_per_rank = 102400 over 4 ranks; one that needs .* with .* ranks' "$work/err"
check "a bad budget" refuses '--budget' --budget plenty
check "a batch of 0" refuses '--batch 0: must be at least 1' --batch 0

finish
