#!/usr/bin/env bash
# call_history_test.sh LAUNCH CALL_HISTORY_PROGRAM: a rank that makes a call too many or too few in a loop of equal calls. No
# rank ends with 0, and all name the rank that differs.
set -uo pipefail
launch=$1 program=$2
. tests/tools/checks.sh
export DTENSOR_TIMEOUT=20 OMP_NUM_THREADS=1

run() {  # run HOW [RANK [HOLDER]]: as a job of 4 ranks; leaves $code
  timeout -k 5 100 "$launch" -n 4 --grace 30 --timeout 80 -- bash -c '"$@"; s=$?; echo "status $s at $(date +%s)"; exit $s' \
    bash "$program" "$@" >"$out" 2>&1
  code=$?
}
all_end_with() { [ "$(grep -cE "^\[rank [0-3]\] status $1 at" "$out")" = 4 ]; }
all_say() { [ "$(grep -E -- "error: .*$1" "$out" | cut -d']' -f1 | sort -u | wc -l)" = 4 ]; }
ended_at() { sed -n "s/^\[rank $1\] status .* at //p" "$out"; }
# fails NAME PATTERN HOW...: each of the four ranks ends with 1, and has an error with PATTERN
fails() {
  local name=$1 pattern=$2
  shift 2
  run "$@"
  check "$name: all ranks end with 1" all_end_with 1
  check "$name: all ranks say why" all_say "$pattern"
}

run alike
check "alike: all ranks end with 0" all_end_with 0
check "alike: no rank says anything" lacks 'error:'
check "alike: all have the right values" test "$(grep -c 'all right$' "$out")" = 4

call='all_reduce over tp for aten::sin, argument self: f64\[3\]\(P\(sum\)\) -> \(R\) @ mesh\(tp=4\), 36 B'
for level in info detail; do
  export DTENSOR_DEBUG=$level
  # The third call is made again where the others make their fourth.
  for rank in 0 2; do
    fails "forgets $rank, $level" "rank $rank failed: ranks do not make the same calls over tp: .*rank $rank is about to make call 4: $call, of a tensor that call 3 moved before; |rank $rank failed: ranks do not make the same calls over tp: .*rank $rank .* call 4: .*moved before$" forgets $rank
    check "forgets $rank, $level: no rank goes on" lacks 'all right|wrong values'
  done
done
for level in info detail off; do
  export DTENSOR_DEBUG=$level
  fails "extra, $level" "rank 0 failed: it has made a call too many: it waits in call 9: $call, and ranks [1-3,]+ have left without that call; rank [1-3] has left, and its last call there was call 8: $call" extra
done
export DTENSOR_DEBUG=info
fails "extra by rank 3, leaked" "rank 3 failed: it has made a call too many: it waits in call 9: $call" extra 3 leaked
fails "fewer" "rank 2 failed: it has left: its program ended its use of the job, while rank [013] waited in call 8: $call, and its last call there was call 7: $call" fewer 2
run killed 3
check "killed: the others end with 1" test "$(grep -cE '^\[rank [0-2]\] status 1 at' "$out")" = 3
check "killed: they say so" test "$(grep -cE '^\[rank [0-2]\] .*error: .*rank 3 failed: its process [0-9]+ is gone' "$out")" = 3
run catches
check "catches: a rank whose program has got the error ends as it likes" prints '^\[rank 0\] status 0 at'
check "catches: those that have not do not end with 0" test "$(grep -cE '^\[rank [1-3]\] status 1 at' "$out")" = 3
DTENSOR_TIMEOUT=6 run late 1
check "late: all ranks end with 0" all_end_with 0
check "late: the others do not wait for ever" test "$(ended_at 0)" -lt "$(ended_at 1)"
finish
