#!/usr/bin/env bash
# benchmarks/redistribute: the figures that need no clock hold.
set -uo pipefail
program=$1
. tests/tools/checks.sh
run() { "$program" "$@" >"$work/out" 2>"$work/err"; }

run --quick --json "$work/rows"
check "all figures hold" test $? = 0
check "says so" prints '^All figures hold'
check "asserts six of them" test "$(grep -c '^\[ok\]' "$work/out")" = 6
check "and writes six rows for the table of the benchmarks" test "$(grep -c '"verdict":"ok"' "$work/rows")" = 6
check "an unknown flag" refuses 'unknown flag --quik' --quik

finish
