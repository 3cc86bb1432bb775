#!/usr/bin/env bash
# //benchmarks:all: the rows of the benchmarks become one table; it fails if a gate is missed, or a benchmark fails.
set -uo pipefail
all=$1
. tests/tools/checks.sh

# fake NAME COMMANDS: makes a benchmark, which finds the file for its rows in $json.
fake() {
  printf '#!/usr/bin/env bash\nflags=${*%%%% --json *} json=${*: -1}\n%s\n' "$2" >"$work/$1"
  chmod +x "$work/$1"
}
# row WORKLOAD VERDICT: the command that writes a row.
row() {
  printf "echo '%s' >>\"\$json\"" "{\"workload\": \"$1\", \"peer\": \"by hand\", \"unit\": \"us\", \"theirs\": 2, \"ours\": 3, \
\"limit\": null, \"ratio\": 1.5, \"gate\": \"at most 1.7\", \"verdict\": \"$2\"}"
}
run() {
  python3 "$all" "$@" >"$out" 2>"$err"
  code=$?
}

fake holds "$(row add ok); echo '{\"cut off' >>\"\$json\""
run "$work/holds"
check "a benchmark whose gates hold ends with 0" test $code = 0
check "its row is a line of the table" prints '^\| add +\| by hand: 2 us +\| 3 us +\| +\| 1\.5 +\| at most 1\.7 \| ok +\|'
check "it has a line of progress" prints 'holds \.\.\. [0-9.]+ s, 1 rows, 0 missed'

fake misses "$(row mm missed); exit 3"
run "$work/misses" "$work/holds"
check "a missed gate ends with 1" test $code = 1
check "the table shows it" prints '^\| mm .*\| missed +\|'
check "the benchmark after it runs" prints '^\| add .*\| ok +\|'

fake crashes "$(row view ok); echo the last words; kill -SEGV \$\$"
fake throws "$(row view missed); exit 1"
fake silent ""
run "$work/crashes" "$work/throws" "$work/silent" "$work/none"
check "benchmarks that fail end with 1" test $code = 1
check "a benchmark that a signal ends is a failure" prints '^\| crashes .*\| failed: exit code -11 +\|'
check "the row that it wrote before is there" prints '^\| view .*\| ok +\|'
check "so is what it printed last" prints '^the last words'
check "exit code 1 is an error, not a missed gate" prints '^\| throws .*\| failed: exit code 1 +\|'
check "a benchmark without rows is a failure" prints '^\| silent .*\| failed: no rows +\|'
check "a benchmark that is not there is a failure" prints '^\| none .*\| failed: .*No such file'

fake hangs "sleep 60 & echo \$! >$work/child; wait"
run --seconds 0.3 "$work/hangs"
check "a benchmark that takes too long is a failure" prints '^\| hangs .*\| failed: took longer than 0\.3 s +\|'
ended() { ! kill -0 "$(cat "$work/child")" 2>/dev/null || [ "$(ps -o stat= -p "$(cat "$work/child")")" = Z ]; }
check "the processes that it started end" ended

fake skips "$(row "cuda \$flags" "skipped: there is no GPU")"
run --json "$work/rows.json" "$work/skips --steps 7" "$work/holds"
check "a benchmark that cannot run here is no failure" test $code = 0
check "the table says why" prints '^\| cuda .*\| skipped: there is no GPU +\|'
check "--json has the rows" test "$(grep -cE '"verdict": "(skipped: there is no GPU|ok)"' "$work/rows.json")" = 2

finish
