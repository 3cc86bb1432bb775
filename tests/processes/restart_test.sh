#!/usr/bin/env bash
# restart_test.sh LAUNCH RESTART_PROGRAM: a job of which a rank dies goes on from its last checkpoint, and learns what one
# does that nothing happened to. The short form has two ranks, the long one three.
set -uo pipefail
launch=$1 program=$2
. tests/tools/checks.sh
export DTENSOR_TIMEOUT=30 OMP_NUM_THREADS=1
ranks=2
! is_long || ranks=3

run() { # run OPTIONS... -- ARGUMENTS...
  local options=()
  while [ "$1" != -- ]; do
    options+=("$1")
    shift
  done
  shift
  timeout -k 5 100 "$launch" -n $ranks --timeout 80 --grace 10 "${options[@]}" -- "$program" "$@" > "$work/out" 2>&1
  code=$?
}
count() { grep -cE -- "$1" "$work/out"; }
result() { sed -n 's/.* result \(.*\)/\1/p' "$work/out" | sort -u; }

run -- "$work/whole" 9
check "nothing happens: all is well" test $code = 0
check "nothing happens: all ranks have one result" test "$(result | wc -l)" = 1
expected=$(result)

dies() {
  run --max-restarts 2 --log-dir "$work/logs" -- "$work/killed" 9 6
  check "a rank dies: the job ends well" test $code = 0
  check "a rank dies: in the first attempt" test "$(count '^launch: attempt 0: rank 1 was killed by signal 9 .*; restart 1 of 2$')" = 1
  check "a rank dies: all begin at first" test "$(count '^\[rank [0-2], attempt 0\] begins with step 0$')" = $ranks
  check "a rank dies: all go on after the checkpoint" test "$(count '^\[rank [0-2], attempt 1\] begins with step 4$')" = $ranks
  check "a rank dies: one restart is enough" test "$(count 'attempt 2')" = 0
  check "a rank dies: the others say who" test "$(count '^\[rank [02], attempt 0\] .*rank 1 failed: its process')" -ge 1
  check "a rank dies: the result is the same" test "$(result)" = "$expected"
  check "a rank dies: its end is in no log but the first" test "$(cat "$work"/logs/attempt_1/*/stderr.log | wc -c)" = 0
  check "a rank dies: the reason stands where torchrun would look" grep -q 'rank 1 failed' "$work/logs/attempt_0/0/error.json"
  check "two checkpoints are kept" test "$(ls "$work/killed" | tr '\n' ' ')" = 'step-0000000006 step-0000000008 '
}
by_hand() {  # without restarts
  run -- "$work/by hand" 9 6
  check "no restarts: the job fails" test $code = 137
  run -- "$work/by hand" 9
  check "no restarts: the next run goes on" test "$(count '^\[rank [0-2]\] begins with step 4$')" = $ranks
  check "no restarts: with the same result" test "$(result)" = "$expected"
}
beside dies
beside by_hand
count_beside
finish
