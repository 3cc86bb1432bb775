#!/usr/bin/env bash
# A job that runs is asked: attach_test.sh LAUNCH FAULT_PROGRAM FLIGHT. Whatever a rank is stuck in, all that can answer do,
# and the rank for which the others wait is marked. The short form has three ranks, the long one four.
set -u
launch=$1 program=$2 flight=$3
. tests/tools/checks.sh
export DTENSOR_TIMEOUT=60 OMP_NUM_THREADS=1
job= ranks=3
! is_long || ranks=4
last=$((ranks - 1))

run() { "$flight" "$@" >"$work/out" 2>"$work/err"; }
start() {  # start VARIABLES... -- FAULT RANK CALL STEPS: a job in the background, whose fault has fired
  local variables=()
  while [ "$1" != -- ]; do variables+=("$1"); shift; done
  shift
  rm -f "$work/job"
  "$launch" -n $ranks --timeout 120 -- env "${variables[@]}" "$program" "$@" "$work/mark" >"$work/job" 2>&1 &
  job=$!
  for ((i = 0; i < 600; ++i)); do
    if [ "$1" = none ]; then
      run --attach "$job"
      prints 'call [0-9]+: ' && return
    fi
    grep -qs "fault fires" "$work/job" && return
    sleep 0.05
  done
  echo "the fault did not fire:"; cat "$work/job"
}
asks() {  # asks CODE MARKED CONDITION...: what the job's ranks say; asked again, for 20 s, until it is so
  local wanted=$1 odd=$2 code i
  shift 2
  for ((i = 0; i < 40; ++i)); do
    run --attach "$job"
    code=$?
    [ $code = "$wanted" ] && marked "$odd" && "$@" && return
    sleep 0.5
  done
  echo "exit code $code"
  false
}
marked() { [ "$(grep -E '^> ' "$work/out" | awk '{print $2}' | tr '\n' ' ')" = "$1" ]; }
waits() {  # waits RANK: all but this one
  for rank in $(seq 0 $last | grep -vx "$1"); do
    grep -qE "^  +$rank +[0-9]+ .*waits for [0-9.]+ s in call 5: all_reduce over tp.*f32\[4\]\(P\(sum\)\) -> \(R\) @ mesh\(tp=$ranks\)" "$work/out" || return 1
  done
}
stop() { kill -KILL "$job" 2>/dev/null; wait "$job" 2>/dev/null; for ((i = 0; i < 100; ++i)); do pgrep -f "$work/mark" >/dev/null || return; sleep 0.05; done; }

start -- sleep 1 5 8
check "a rank that sleeps: exit code" asks 1 '1 ' waits 1
check "a rank that sleeps: it is marked" marked '1 '
check "a rank that sleeps: the others wait" waits 1
check "a rank that sleeps: it is in no collective" prints '^> +1 +[0-9]+ +sleeping +[0-9]+ MiB +in no collective for [0-9.]+ s; its last was call 4: all_to_all over tp'
check "a rank that sleeps: the same blame as of dumps" prints '^First divergence: rank 1 has not reached call 5 over group 0-[23] \(tp\), all_reduce'
rank1=$(awk '$1 == ">" && $2 == 1 {print $3}' "$work/out")
run --attach "$rank1"
check "any rank's process will do" prints '^> +1 .*in no collective'
check "also for the others of the job" waits 1
run --attach 1
check "and whatever started it" prints '^> +1 .*in no collective'
check "no such process" refuses "^flight: --attach 999999999: no rank of a job is in this process or below it; this user has here: .*a job of $ranks ranks in processes [0-9]+(,[0-9]+){$last}" --attach 999999999
check "no process" refuses '^flight: --attach train: give the number of a process' --attach train
check "dumps as well" refuses '/none: cannot be read' --attach "$job" "$work/none"
stop
check "a job that has ended" refuses '^flight: --attach [0-9]+: no rank of a job is in this process or below it' --attach "$job"

start -- busy 2 5 8
check "a rank that computes: exit code" asks 1 '2 ' waits 2
check "a rank that computes: it is marked" marked '2 '
check "a rank that computes: it runs" prints '^> +2 +[0-9]+ +running .*in no collective for [0-9.]+ s; its last was call 4: all_to_all'
check "a rank that computes: the others wait" waits 2
stop

# The rank that serves the place where they meet.
for ((port = 20000 + RANDOM % 10000; ; ++port)); do (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break; done
start -u DTENSOR_STORE MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" -- stop 0 5 8
check "rank 0 is stopped: exit code" asks 1 '0 ' waits 0
check "rank 0 is stopped: it is marked" marked '0 '
check "rank 0 is stopped: it is said" prints '^> +0 +[0-9]+ +stopped +[0-9]+ MiB +does not answer: its process [0-9]+ is stopped \(SIGSTOP, or a debugger\)'
check "rank 0 is stopped: the others answer" waits 0
check "rank 0 is stopped: at the end" prints '^Rank 0 does not answer: its process [0-9]+ is stopped'
stop

start DTENSOR_FLIGHT_RECORDER=0 -- stop $last 5 8
check "without a recorder: exit code" asks 1 "$last " waits $last
check "without a recorder: it is marked" marked "$last "
check "without a recorder: the others say where they wait" waits $last
stop

start -- none 0 0 100000000
check "a job that runs well: exit code" asks 0 '' prints "^  +$last "
check "a job that runs well: no rank is marked" marked ''
check "a job that runs well: all answer" prints "^  +$last +[0-9]+ +(running|sleeping) .*(waits for|in no collective|begins)"
check "a job that runs well: it goes on" kill -0 "$job"
stop
finish
