#!/usr/bin/env bash
# call_history_test.sh LAUNCH CALL_HISTORY_PROGRAM: a rank that makes a call too many or too few in a loop of equal calls. No
# rank ends with 0, and all name the rank that differs. The short form has three ranks, the long one four, and more of them and of the
# levels of DTENSOR_DEBUG.
set -uo pipefail
launch=$1 program=$2
. tests/tools/checks.sh
export DTENSOR_TIMEOUT=20 OMP_NUM_THREADS=1
ranks=3
! is_long || ranks=4
last=$((ranks - 1))

run() {  # run HOW [RANK [HOLDER]]: as a job; leaves $code
  timeout -k 5 100 "$launch" -n $ranks --grace 30 --timeout 80 -- bash -c '"$@"; s=$?; echo "status $s at $(date +%s)"; exit $s' \
    bash "$program" "$@" >"$out" 2>&1
  code=$?
}
all_end_with() { [ "$(grep -cE "^\[rank [0-3]\] status $1 at" "$out")" = $ranks ]; }
all_say() { [ "$(grep -E -- "error: .*$1" "$out" | cut -d']' -f1 | sort -u | wc -l)" = $ranks ]; }
ended_at() { sed -n "s/^\[rank $1\] status .* at //p" "$out"; }
# fails NAME PATTERN HOW...: each of the ranks ends with 1, and has an error with PATTERN
fails() {
  local name=$1 pattern=$2
  shift 2
  run "$@"
  check "$name: all ranks end with 1" all_end_with 1
  check "$name: all ranks say why" all_say "$pattern"
}

alike() {
  run alike
  check "alike: all ranks end with 0" all_end_with 0
  check "alike: no rank says anything" lacks 'error:'
  check "alike: all have the right values" test "$(grep -c 'all right$' "$out")" = $ranks
}
beside alike

call="all_reduce over tp for aten::sin, argument self: f64\[3\]\(P\(sum\)\) -> \(R\) @ mesh\(tp=$ranks\), [0-9]+ B"
forgets() {  # forgets RANK: its third call is made again where the others make their fourth
  local name="forgets $1, $DTENSOR_DEBUG"
  fails "$name" "rank $1 failed: ranks do not make the same calls over tp: .*rank $1 is about to make call 4: $call, of a tensor that call 3 moved before; |rank $1 failed: ranks do not make the same calls over tp: .*rank $1 .* call 4: .*moved before$" forgets $1
  check "$name: no rank goes on" lacks 'all right|wrong values'
}
DTENSOR_DEBUG=info beside forgets 0
DTENSOR_DEBUG=detail beside forgets 2
if is_long; then
  DTENSOR_DEBUG=info beside forgets 2
  DTENSOR_DEBUG=detail beside forgets 0
fi
for level in $(! is_long || echo info detail) off; do
  DTENSOR_DEBUG=$level beside fails "extra, $level" "rank 0 failed: it has made a call too many: it waits in call 9: $call, and ranks [1-3,]+ have left without that call; rank [1-3] has left, and its last call there was call 8: $call" extra
done
export DTENSOR_DEBUG=info
beside fails "extra by rank $last, leaked" "rank $last failed: it has made a call too many: it waits in call 9: $call" extra $last leaked
beside fails "fewer" "rank 2 failed: it has left: its program ended its use of the job, while rank [013] waited in call 8: $call, and its last call there was call 7: $call" fewer 2
killed() {
  run killed $last
  check "killed: the others end with 1" test "$(grep -cE "^\[rank [0-$((last - 1))]\] status 1 at" "$out")" = $last
  check "killed: they say so" test "$(grep -cE "^\[rank [0-$((last - 1))]\] .*error: .*rank $last failed: its process [0-9]+ is gone" "$out")" = $last
}
beside killed
catches() {
  run catches
  check "catches: a rank whose program has got the error ends as it likes" prints '^\[rank 0\] status 0 at'
  check "catches: those that have not do not end with 0" test "$(grep -cE '^\[rank [1-3]\] status 1 at' "$out")" = $last
}
beside catches
late() {
  DTENSOR_TIMEOUT=6 run late 1
  check "late: all ranks end with 0" all_end_with 0
  check "late: the others do not wait for ever" test "$(ended_at 0)" -lt "$(ended_at 1)"
}
beside late
count_beside
finish
