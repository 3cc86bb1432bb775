#!/usr/bin/env bash
# Jobs that go wrong: faults_test.sh LAUNCH FAULT_PROGRAM. Whatever happens to one rank, all ranks end in time, those that can say
# why blame the right rank and call, the job fails, and no process is left.
set -u
launch=$1 program=$2
passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export DTENSOR_TIMEOUT=3 OMP_NUM_THREADS=1

check() {  # check NAME CONDITION...
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
    sed 's/^/  | /' "$work/out" | tail -40
  fi
}
run() {  # run FAULT SECONDS: leaves the exit code in $code
  local begin=$SECONDS
  timeout -k 5 60 "$launch" -n 4 --grace 6 --timeout 40 -- "$program" "$1" >"$work/out" 2>&1
  code=$?
  took=$((SECONDS - begin))
  limit=$2
}
prints() { grep -qE -- "$1" "$work/out"; }
lacks() { ! prints "$1"; }
in_time() { [ "$took" -le "$limit" ]; }
fails() { [ "$code" != 0 ] && [ "$code" != 124 ]; }
gone() { ! pgrep -x "$(basename "$program")" >/dev/null; }
all_blame() {  # all_blame PATTERN RANKS...: each rank's error has PATTERN
  local pattern=$1
  shift
  for rank in "$@"; do grep -E -- "^\[rank $rank\] .*error: .*" "$work/out" | grep -qE -- "$pattern" || return 1; done
}
# fault NAME SECONDS PATTERN RANKS...
fault() {
  local name=$1 seconds=$2 pattern=$3
  shift 3
  run "$name" "$seconds"
  check "$name: the fault fires" prints "^\[rank 1\] fault fires: $name"
  check "$name: the job fails" fails
  check "$name: in time" in_time
  check "$name: ranks $* blame rank 1" all_blame "$pattern" "$@"
  check "$name: nobody has a wrong sum" lacks "WRONG SUM"
  check "$name: no process is left" gone
}

run none 20
check "without a fault all is fine" [ "$code" = 0 ]
check "all ranks say so" [ "$(grep -c '^\[rank [0-3]\] fine$' "$work/out")" = 4 ]

export DTENSOR_DEBUG=detail
fault shape 15 'rank 1 failed: ranks do not make the same calls over tp: .*rank 1 is about to make call 4: all_reduce .*f32\[8\].*rank 2 .*f32\[4\]' 0 1 2 3
fault dtype 15 'rank 1 failed: .*i32\[4\]' 0 1 2 3
fault collective 15 'rank 1 failed: .*rank 0 is about to make call 4: all_reduce.*rank 1 is about to make call 4: all_gather' 0 1 2 3
export DTENSOR_DEBUG=info
fault missing 20 'rank 1 failed: it has not come to call 4: all_reduce.*its last one there was call 3' 0 2 3
fault slow 20 'rank 1 failed: it has not come to call 4' 0 1 2 3
fault throw 15 'rank 1 failed: an exception ended its program' 0 2 3
fault uncaught 15 'rank 1 failed: the disk is full' 0 2 3
fault sigkill 15 'rank 1 failed: its process [0-9]+ is gone' 0 2 3
fault sigstop 20 'rank 1 failed: its process [0-9]+ is stopped' 0 2 3
fault exit 15 'rank 1 failed: its process [0-9]+ is gone' 0 2 3
fault leave 15 'rank 1 failed: it has left' 0 2 3

echo "[dtensor] $passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
