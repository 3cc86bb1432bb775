#!/usr/bin/env bash
# end_test.sh LAUNCH END_PROGRAM: a rank that ends, whatever calls are under way and whatever holds the world, ends with the
# status that was asked for, in time, and the others learn of it. The short form has two ranks, and each way to end, each kind of call
# and each holder of the world; the long one three, and each with each.
set -uo pipefail
launch=$1 program=$2
. tests/tools/checks.sh
export DTENSOR_TIMEOUT=30 OMP_NUM_THREADS=1
ranks=2
! is_long || ranks=3

seconds() { # seconds RANK: from where it ends to its status
  local begin end
  begin=$(sed -n "s/^\[rank $1\] ends: .* at //p" "$out")
  end=$(sed -n "s/^\[rank $1\] status .* at //p" "$out")
  echo $((${end:-1000} - ${begin:-0}))
}
job() { # job HOW PENDING HOLDER [RANK]: in the background; its output goes to a file
  local name=$* place=()
  # RANK 0 serves the store, and must not end while the others use it.
  [ -z "${4-}" ] || place=(-u DTENSOR_STORE MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" "END_RANK=$4")
  timeout -k 5 100 "$launch" -n $ranks --grace 20 --timeout 80 -- env "${place[@]}" bash -c '"$@"; s=$?; echo "status $s at $(date +%s)"; exit $s' \
    bash "$program" "$1" "$2" "$3" "$work/checkpoint $name" > "$work/$name" 2>&1
}
all=("return async main" "exit async early" "throw async main" "return late static" "quick_exit late main" "exit checkpoint main"
  "return checkpoint leaked" "throw slow_checkpoint main" "return thread main" "exit nothing main" "return nothing main 0"
  "exit async early 0")
! is_long || all=()
for pending in nothing async late checkpoint slow_checkpoint thread; do
  is_long || break
  for how in return exit quick_exit throw; do all+=("$how $pending main"); done
  [ $pending = thread ] || all+=("return $pending static" "exit $pending early" "return $pending leaked")
done
for pending in nothing async late; do
  ! is_long || all+=("return $pending main 0" "exit $pending main 0" "exit $pending early 0")
done
port=$((20000 + RANDOM % 10000)) at_once=4
for ((i = 0; i < ${#all[@]}; ++i, ++port)); do
  while (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null; do port=$((port + 1)); done
  while [ "$(jobs -rp | wc -l)" -ge $at_once ]; do wait -n; done
  job ${all[i]} &
done
wait

for name in "${all[@]}"; do
  out=$work/$name
  read -r how pending holder rank <<< "$name"
  rank=${rank:-1}
  check "$name: the rank ends there" prints "^\[rank $rank\] (ends: $how, $pending|terminate called)"
  status=7
  [ $how = throw ] && status=134
  check "$name: the status that was asked for" prints "^\[rank $rank\] status $status at "
  [ $how = throw ] || check "$name: what is to be done at exit is done" prints "^\[rank $rank\] exit handlers run"
  check "$name: in time" test "$(seconds $rank)" -lt 15 # five of them for what is under way
  case "$how $pending" in
    throw*) reason='the disk is full' ;;
    *async | *thread) reason='its program ended with work pending: call [0-9]+: all_reduce' ;;
    *) reason='it has left' ;;
  esac
  for ((other = 0; other < ranks; ++other)); do
    [ $other != $rank ] || continue
    check "$name: rank $other blames rank $rank" prints "^\[rank $other\] error: .*rank $rank failed: $reason"
    check "$name: rank $other ends well" prints "^\[rank $other\] status 1 at "
    [ "$pending $how" = late\ throw ] || [ $pending != late ] ||
      check "$name: rank $other gets what was begun" prints "^\[rank $other\] has its part"
  done
  check "$name: no rank goes on" lacks ' fine$'
done

# Between a world and its end a process keeps the file at which the ranks met.
for how in return quick_exit; do
  out=$work/ended_$how
  timeout 60 "$launch" -n 3 -- env "DTENSOR_STORE=file://$work/store_$how" "$program" $how nothing none > "$out" 2>&1
  check "$how after the world's end: the job ends well" test $? = 0
  check "$how after the world's end: the file at which the ranks met is gone" test ! -e "$work/store_$how"
  out=$work/kept_$how
  timeout 60 "$launch" -n 3 -- "$program" $how nothing tensor > "$out" 2>&1
  check "$how with a global tensor: the job ends well" test $? = 0
  check "$how with a global tensor: no rank reports a failure" lacks 'the job has failed'
done
finish
