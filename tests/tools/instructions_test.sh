#!/usr/bin/env bash
# Calls on distributed tensors, and five redistributions planned and dispatched for 256 ranks, take no more instructions than
# benchmarks/instructions.py allows.
set -uo pipefail
script=$1
shift
. tests/tools/checks.sh

if ! command -v valgrind >/dev/null; then
  echo "SKIPPED: there is no valgrind"
  skipped=1
  finish
  exit
fi
python3 "$script" --no-worse "$@" >"$out" 2>"$err"
check "no call takes more instructions than allowed" test $? = 0
cat "$out"
check "twelve operators, 20 together and the redistributions were counted" test "$(grep -c 'instructions | ok$' "$out")" = 14

finish
