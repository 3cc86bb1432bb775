#!/usr/bin/env bash
# Exit codes of tools/flight, and one line per problem; what it prints is tested in flight_report_test.
set -uo pipefail
program=$1
. tests/tools/checks.sh
run() { "$program" "$@" >"$work/out" 2>"$work/err"; }
code() {  # code N ARGS...
  local expected=$1
  shift
  run "$@"
  [ $? = "$expected" ]
}
dump() {  # dump RANK COLLECTIVE...
  local rank=$1 n=0 entries=""
  shift
  for collective in "$@"; do
    n=$((n + 1))
    entries+="${entries:+,}{'pg_id': 0, 'process_group': ['0,1', 'tp'], 'collective_seq_id': $n, 'time_created_ns': $n,
      'state': 'completed', 'retired': true, 'collective': '$collective', 'mesh_dims': 'tp', 'tensor': '', 'dtype': 'Float',
      'bytes': 8, 'cause': {'op': 'aten::mm', 'argument': '', 'module_path': '', 'implicit': true}}"
  done
  tr "'" '"' >"$work/dump_$rank" <<<"{'version': '2.10', 'rank': $rank, 'entries': [$entries],
    'pg_config': {'0,1': {'desc': 'tp', 'ranks': '[0, 1]'}}}"
}

dump 0 all_gather all_reduce barrier
dump 1 all_gather all_reduce barrier
check "ranks that agree" code 0 "$work/dump_0" "$work/dump_1"
check "say so" prints '^No divergence'
check "all calls" prints '^  1  completed: 0,1'
check "the last calls" code 0 --last 2 "$work/dump_0" "$work/dump_1"
check "and not those before" lacks '^  1  completed: 0,1'
check "the last calls, with =" code 0 "$work/dump_0" "$work/dump_1" --last=1
check "are fewer" lacks '^  2  completed: 0,1'
check "help" code 0 --help
check "prints the usage" prints 'DUMP\.\.\.'
dump 1 all_gather all_to_all
check "ranks that part" code 1 "$work/dump_0" "$work/dump_1"
check "where they do" prints '^First divergence: rank 0 made all_reduce .* as call 2 over group 0,1 \(tp\)\.$'

check "nothing" refuses '^flight: give the dumps of the ranks'
check "no such file" refuses '^flight: .*/none: cannot be read: No such file' "$work/none"
check "unknown flag" refuses '^flight: unknown flag --lost; there are --last N and --attach PID' --lost
check "bad number of calls" refuses '^flight: --last 0: give a number of calls' --last 0 "$work/dump_0"
check "one rank twice" refuses '^flight: .*dump_0 and .*dump_0 are both of rank 0' "$work/dump_0" "$work/dump_0"
echo '{"version": "2.10"}' >"$work/poor"
run "$work/poor" "$work/dump_0" "$work/none" --lost
check "every problem has a line" test $? = 2 -a "$(wc -l <"$work/err")" = 3
check "each with its file" grep -q "poor: does not say its rank" "$work/err"
finish
