#!/usr/bin/env bash
# The table of operators in docs/tables/operators.md is what the registry has.
set -uo pipefail
program=$1
. tests/tools/checks.sh
run() { "$program" "$@" >"$work/out" 2>"$work/err"; }

run --check docs/tables/operators.md
check "the page has the table" test $? = 0
sed 's|^\(.*`aten::mm`.*\)ops/matrix/matmul.cc\](|\1ops/linear.cc](|' docs/tables/operators.md >"$work/page"
check "the row is there" test "$(diff docs/tables/operators.md "$work/page" | wc -l)" = 4
run --check "$work/page"
check "another file is noticed" test $? = 1
check "and the cure named" prints 'bazelw run //tools:operator_table -- --write'

finish
