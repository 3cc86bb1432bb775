#!/usr/bin/env bash
# The table in docs/redistribution.md is what the planner does.
set -uo pipefail
program=$1
. tests/tools/checks.sh
run() { "$program" "$@" >"$work/out" 2>"$work/err"; }

run --check docs/redistribution.md
check "the page has the table" test $? = 0
sed 's/| S(0) | S(1) | a2a(W) | N(W-1)\/W² |/| S(0) | S(1) | a2a(W) | N(W-1)\/W |/' docs/redistribution.md >"$work/page"
check "the row is there" test "$(diff docs/redistribution.md "$work/page" | wc -l)" = 4
run --check "$work/page"
check "another formula is noticed" test $? = 1
check "and the cure named" prints 'bazelw run //tools:transition_table -- --write'
sed '/end of the transition table/d' docs/redistribution.md >"$work/page"
check "a page without the markers" refuses 'lacks the line before the table' --check "$work/page"

finish
