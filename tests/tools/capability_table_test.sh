#!/usr/bin/env bash
# The table of backends in docs/worlds.md is the one in the code.
set -uo pipefail
program=$1
. tests/tools/checks.sh
run() { "$program" "$@" >"$work/out" 2>"$work/err"; }

run --check docs/worlds.md
check "the page has the table" test $? = 0
sed 's/^| int16 | as int32/| int16 | native/' docs/worlds.md >"$work/page"
check "the row is there" test "$(diff docs/worlds.md "$work/page" | wc -l)" = 4
run --check "$work/page"
check "another entry is noticed" test $? = 1
check "and the cure named" prints 'bazelw run //tools:capability_table -- --write'
sed '/end of the table of backends/d' docs/worlds.md >"$work/page"
check "a page without the markers" refuses 'lacks the line before the table' --check "$work/page"

finish
