#!/usr/bin/env bash
# early_end_test.sh LAUNCH PROGRAM: the server of the store stays until the last rank needs it no more, and no longer.
set -uo pipefail
launch=$1 program=$2
passed=0 failed=0
export OMP_NUM_THREADS=1 DTENSOR_TIMEOUT=60
port=$((20000 + RANDOM % 10000))
while (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null; do port=$((port + 1)); done

check() { # check NAME COMMAND...
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name (code $code, $took s)"
    printf '%s\n' "$output" | sed 's/^/  | /' | grep -v 'frame #' | tail -20
  fi
}
begin=$SECONDS
output=$(timeout -k 5 50 "$launch" -n 3 --timeout 40 -- \
  env -u DTENSOR_STORE MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$program" 2>&1)
code=$? took=$((SECONDS - begin))
check "ends well" test $code = 0
check "rank 1 has its sum" grep -qx '\[rank 1\] sum 2' <<< "$output"
check "rank 2 has its sum" grep -qx '\[rank 2\] sum 2' <<< "$output"
check "in time" test $took -lt 30 # when it has started, it would wait for 30 s
echo "[dtensor] $passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
