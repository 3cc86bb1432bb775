#!/usr/bin/env bash
# fork_test.sh LAUNCH FORK_PROGRAM: what a fork's child does in the middle of a job does no harm to it. The long form has more of
# the child's ways to end, each with both holders of the world.
set -uo pipefail
launch=$1 program=$2
. tests/tools/checks.sh
export DTENSOR_TIMEOUT=20 OMP_NUM_THREADS=1

try() { # try NAME STATUS WORDS...: the job ends well, and its child with that status; PATTERN: and the child says it
  local name=$1 status=$2
  shift 2
  rm -f "$work/error"
  timeout -k 5 100 "$launch" -n 3 --timeout 80 -- env "${with[@]}" "TORCHELASTIC_ERROR_FILE=$work/error" "$program" "$@" \
    > "$work/out" 2>&1
  check "$name: the job goes on" test $? = 0
  check "$name: all ranks are fine" test "$(grep -c ' fine$' "$work/out")" = 3
  check "$name: its child" prints "^\[rank 1\] child $status$"
  check "$name: no failure is reported" test ! -e "$work/error"
  [ -z "${PATTERN-}" ] || check "$name: says who owns the job" prints "$PATTERN"
}
owner='process [0-9]+ was forked from process [0-9]+, which is rank 1 of the job'
with=()
beside try "returns from main (static)" 'exited 7' return static
beside try "calls exit (main)" 'exited 7' exit main
if is_long; then
  beside try "returns from main (main)" 'exited 7' return main
  beside try "calls exit (static)" 'exited 7' exit static
  beside try "throws" 'signal 6' throw main
fi
for what in use read join; do
  PATTERN="child says: World.*: $owner" beside try $what 'exited 7' $what main
done
beside try "lets an error leave main" 'signal 6' throw_use static

port=$((20000 + RANDOM % 10000))
while (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null; do port=$((port + 1)); done
with=(-u DTENSOR_STORE MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port")
addresses() {  # one after the other, as the port is the same
  try "returns from main (an address)" 'exited 7' return main
  ! is_long || try "calls exit (an address)" 'exited 7' exit static
}
beside addresses
count_beside
finish
