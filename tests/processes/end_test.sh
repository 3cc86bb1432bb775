#!/usr/bin/env bash
# end_test.sh LAUNCH END_PROGRAM: a rank that ends, whatever is under way there and whoever has the world, ends with the
# status that was asked for, in time, and the others learn of it.
set -uo pipefail
launch=$1 program=$2
passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export DTENSOR_TIMEOUT=30 OMP_NUM_THREADS=1

check() { # check NAME COMMAND...: about the job in $out
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
    sed 's/^/  | /' "$out" | cut -c1-300 | tail -20
  fi
}
prints() { grep -qE -- "$1" "$out"; }
lacks() { ! prints "$1"; }
job() { # job HOW PENDING HOLDER: in the background; its output and how long it took go to files
  local name="$1 $2 $3" begin=$SECONDS
  timeout -k 5 100 "$launch" -n 3 --grace 20 --timeout 80 -- bash -c '"$@"; s=$?; echo "status $s"; exit $s' \
    bash "$program" "$1" "$2" "$3" "$work/checkpoint $name" > "$work/$name" 2>&1
  echo "took $((SECONDS - begin))" >> "$work/$name"
}
all=()
for pending in nothing async late checkpoint slow_checkpoint thread; do
  for how in return exit quick_exit throw; do all+=("$how $pending main"); done
  [ $pending = thread ] || all+=("return $pending static" "exit $pending early" "return $pending leaked")
done
at_once=4
for ((i = 0; i < ${#all[@]}; ++i)); do
  while [ "$(jobs -rp | wc -l)" -ge $at_once ]; do wait -n; done
  job ${all[i]} &
done
wait

for name in "${all[@]}"; do
  out=$work/$name
  read -r how pending holder <<< "$name"
  check "$name: rank 1 ends there" prints "^\[rank 1\] (ends: $how, $pending|terminate called)"
  status=7
  [ $how = throw ] && status=134
  check "$name: the status that was asked for" prints "^\[rank 1\] status $status$"
  [ $how = throw ] || check "$name: what is to be done at exit is done" prints '^\[rank 1\] exit handlers run'
  check "$name: in time" test "$(sed -n 's/^took //p' "$out")" -lt 20
  case "$how $pending" in
    throw*) reason='the disk is full' ;;
    *async | *thread) reason='its program ended with work pending: call [0-9]+: all_reduce' ;;
    *) reason='it has left' ;;
  esac
  for rank in 0 2; do
    check "$name: rank $rank blames rank 1" prints "^\[rank $rank\] error: .*rank 1 failed: $reason"
    check "$name: rank $rank ends well" prints "^\[rank $rank\] status 1$"
    [ "$pending $how" = late\ throw ] || [ $pending != late ] ||
      check "$name: rank $rank gets what was begun" prints "^\[rank $rank\] has rank 1's part"
  done
  check "$name: nobody goes on" lacks ' fine$'
done
echo "[dtensor] $passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
