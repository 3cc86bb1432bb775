#!/usr/bin/env bash
# Jobs that go wrong: faults_test.sh LAUNCH FAULT_PROGRAM.
# Whatever happens to one rank, all ranks end in time, those that can
# say why blame the right rank and call, the job fails, and no process is left. The same faults between threads of one process,
# at every collective: faulty_communicator_test.cc.
# The short form has three ranks, and each fault once. The long one has four, the same faults at other ranks and calls, at
# both levels of DTENSOR_DEBUG, and stores that open_store_test.cc has in one process.
set -u
launch=$1 program=$2
. tests/tools/checks.sh
culprit=- with=() ranks=3
! is_long || ranks=4
export DTENSOR_TIMEOUT=3 OMP_NUM_THREADS=1

run_once() {  # run_once COMMAND...: as a job; leaves $code and $took. The last word marks all of its processes for `gone`.
  local begin fired
  begin=$(date +%s)
  timeout -k 5 60 "$launch" -n $ranks --grace 6 --timeout 40 -- "$@" "$work/mark" >"$work/out" 2>&1
  code=$?
  # From the fault to the end: on a loaded machine the start of the ranks takes as long as everything that follows.
  fired=$(sed -nE 's/^\[rank [0-9]+\] fault fires: .*, at ([0-9]+)$/\1/p' "$work/out" | tail -n 1)
  took=$(($(date +%s) - ${fired:-$begin}))
}
# On a loaded machine the ranks may not all have started within DTENSOR_TIMEOUT. That is no fault of what is tested, so the job
# is run again then, at most twice: what keeps ranks from meeting would do so every time.
missed='did not come within'
run() {
  for _ in 1 2 3; do
    run_once "$@"
    prints "$missed" || return
  done
}
in_time() { [ "$took" -le "$1" ]; }
fails() { [ "$code" != 0 ] && [ "$code" != 124 ]; }
gone() { ! pgrep -f -- "$work/mark" >/dev/null; }
only_say() {  # only_say PATTERN: some rank's error has PATTERN, and no rank has another error
  local errors
  errors=$(grep -E -- '^\[rank [0-9]+\] .*error: ' "$work/out")
  [ -n "$errors" ] && ! grep -qvE -- "$1" <<< "$errors"
}
all() { seq 0 $((ranks - 1)); }
others() { all | grep -vx "$culprit"; }
all_say() {  # all_say PATTERN RANKS...: each rank's error has PATTERN
  local pattern=$1
  shift
  for rank in "$@"; do grep -E -- "^\[rank $rank\] .*error: .*" "$work/out" | grep -qE -- "$pattern" || return 1; done
}
all_fine() { [ "$code" = 0 ] && [ "$(grep -c '^\[rank [0-3]\] fine$' "$work/out")" = $ranks ]; }
ended() {  # ended NAME SECONDS
  check "$1: the job fails" fails
  check "$1: in time" in_time "$2"
  # But for the rank that goes wrong, which may believe that it got what it made up.
  check "$1: no rank has a wrong result" lacks "^\[rank [^$culprit]\] WRONG RESULT"
  check "$1: no process is left" gone
}
# fault "NAME [RANK [CALL [STEPS]]]" SECONDS PATTERN [RANKS...]: the errors of these ranks, or of all but the faulty, have PATTERN
fault() {
  local words=($1 1) name=$1 seconds=$2 pattern=$3
  culprit=${words[1]}
  shift 3
  [ $# != 0 ] || set -- $(others)
  run "${with[@]}" "$program" $name $(for ((i = $(wc -w <<<"$name"); i < 4; ++i)); do echo "${defaults[i]}"; done)
  check "$name: the fault fires" prints "^\[rank $culprit\] fault fires: ${words[0]}"
  check "$name: ranks $* blame rank $culprit" all_say "rank $culprit failed: $pattern" "$@"
  ended "$name" "$seconds"
}
defaults=('' 1 5 8)

without_fault() {
  culprit=-
  run "$program" "$1" 1 5 8
  [ $1 = none ] || check "late: the fault fires" prints '^\[rank 1\] fault fires: late'
  check "$1: all is fine" all_fine
}
beside without_fault late  # which is slow within the deadline
! is_long || beside without_fault none

differ='ranks do not make the same calls over tp: '
for level in info detail; do
  export DTENSOR_DEBUG=$level
  if is_long || [ $level = info ]; then
    beside fault shape 15 "$differ.*rank 1 is about to make call 5: all_reduce .*f32\[8\].*rank 2 .*f32\[4\]" $(all)
    beside fault missing 15 "$differ.*rank 0 is about to make call 5: all_reduce.*rank 1 is about to make call 5: all_gather" $(all)
  fi
  if is_long || [ $level = detail ]; then
    beside fault dtype 15 "$differ.*rank 1 is about to make call 5: all_reduce .*i32\[4\].*rank 2 .*: f32\[4\]" $(all)
    beside fault collective 15 "$differ.*rank 0 is about to make call 5: all_reduce.*rank 1 is about to make call 5: all_gather" $(all)
  fi
  is_long || continue
  beside fault "shape 2 7" 15 "$differ.*rank 2 is about to make call 7: reduce_scatter .*f32\[16\]" $(all)
  beside fault "dtype 0 6" 15 "$differ.*rank 0 is about to make call 6: all_gather .*i32\[2\]" $(all)
  beside fault "collective 3 8" 15 "$differ.*rank 3 is about to make call 8: all_reduce" $(all)
done

export DTENSOR_DEBUG=
beside fault stuck 20 'it did not reach call 5: all_reduce.*its last one there was call 4: all_to_all'
throws() {
  fault throw 15 'an exception ended its program'
  check "throw: rank 1 says what it threw" all_say 'the disk is full' 1
}
beside throws
beside fault terminate 15 'the disk is full'
beside fault stop 20 'its process [0-9]+ is stopped'
beside fault exit 15 'its process [0-9]+ is gone'
beside fault leave 15 'it has left: .*while rank . waited in call 5: all_reduce'
barrier="monitored_barrier 1 of ranks 0-$((ranks - 1))"
beside fault barrier_kill 15 "its process [0-9]+ is gone.*waited in $barrier"
if is_long; then
  beside fault "missing 1 8" 15 'it has left: .*while rank . waited in call 8: all_to_all'
  beside fault slow 20 'it did not reach call 5: all_reduce' $(all)
  beside fault kill 15 'its process [0-9]+ is gone'
  beside fault "kill 0 3" 15 'its process [0-9]+ is gone.*waited in call 3: reduce_scatter'
fi

# Before the ranks have made their first call: while they connect, and where their meshes are not the same.
short_ranks=$ranks ranks=4  # as the program has it: they make a mesh of 2 x 2, and one group of 0,1,2,3
DTENSOR_TIMEOUT=60 beside fault connect_kill 30 'its process [0-9]+ is gone.*waited in the making of the group tp of ranks 0,1,2,3'
! is_long || DTENSOR_TIMEOUT=60 beside fault "connect_kill 0" 30 'its process [0-9]+ is gone.*waited in the making of the group tp'
beside fault connect_stop 30 'its process [0-9]+ is stopped'
! is_long || beside fault "connect_stop 3" 30 'its process [0-9]+ is stopped'
for other in shape name; do
  what=$([ $other = shape ] && echo 'of mesh\(dp=2, tp=2\)' || echo 'dp of ranks 0,1,2,3 of mesh\(dp=4\)')
  tp='tp of ranks 0,1,2,3 of mesh\(tp=4\)'
  DTENSOR_TIMEOUT=60 beside fault mesh_$other 30 "ranks do not have the same mesh: (rank 0 makes the group $tp, while rank 1 makes the group .*$what|rank 1 makes the group .*$what, while rank [23] makes the group $tp)" $(all)
  ! is_long || DTENSOR_TIMEOUT=60 beside fault "mesh_$other 0" 30 "ranks do not have the same mesh: rank 0 makes the group .*$what, while rank [1-3] makes the group $tp" $(all)
done
ranks=$short_ranks

# The place where the ranks meet is frozen, removed or locked in the middle of a job.
for ((port = 20000 + RANDOM % 10000; ; ++port)); do (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break; done
unset_store=(env -u DTENSOR_STORE MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port")
fault_at() {  # fault_at "VARIABLES..." "NAME..." SECONDS PATTERN: as fault, with other variables
  local words=$1
  shift
  with=($words)
  fault "$@"
  with=()
}
frozen_store() {  # one after the other, as the port is the same
  fault_at "${unset_store[*]}" "stop 0" 35 'its process [0-9]+ is stopped'
  fault_at "${unset_store[*]}" "barrier_stop 0" 35 "its process [0-9]+ is stopped.*waited in $barrier"
  fault_at "${unset_store[*]}" "kill 0" 20 'its process [0-9]+ is gone'
}
beside frozen_store
spoiled() {  # spoiled HOW FAULT: the store's file is removed or locked
  local how=$1
  culprit=1
  case $2 in
    stop)
      fault_at "env FAULT_STORE=$how" "stop 1" 35 'its process [0-9]+ is stopped'
      check "$how and stop: the store is spoiled" prints "^\[rank 1\] done: the store's file: $how"
      ;;
    slow)  # without the store the missing rank is not found, but all end
      run env "FAULT_STORE=$how" "$program" slow 1 5 8
      check "$how and slow: the fault fires" prints '^\[rank 1\] fault fires: slow'
      check "$how and slow: the others say which call" all_say 'call 5: all_reduce' $(others)
      ended "$how and slow" 35
      ;;
    late)
      run env "FAULT_STORE=$how" "$program" late 1 5 8
      check "$how: the store is spoiled" prints "^\[rank 1\] done: the store's file: $how"
      check "$how: a job that needs it no more ends well" all_fine
      check "$how: in time" in_time 30
      ;;
  esac
}
beside spoiled remove stop
beside spoiled lock slow
beside spoiled lock late
if is_long; then
  beside spoiled remove slow
  beside spoiled remove late
  beside spoiled lock stop
fi

# Where the ranks meet.
store() {  # store NAME SECONDS VARIABLES...: a job of ranks that have these instead of the launcher's store
  local name=$1 seconds=$2
  culprit=-
  shift 2
  run_once env -u DTENSOR_STORE "$@" "$program" none 1 5 8
  ended "$name" "$seconds"
}
ports() {
  local listener port
  "$program" listen >"$work/port" &
  listener=$!
  for ((i = 0; i < 200; ++i)); do [ -s "$work/port" ] || sleep 0.05; done
  port=$(cat "$work/port")
  store "a port in use" 12 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port"
  check "a port in use: another program has it" kill -0 "$listener"
  check "a port in use: rank 0 says so" all_say "tcp://127.0.0.1:$port \(from MASTER_ADDR and MASTER_PORT\): rank 0 cannot listen there: Address already in use. .*MASTER_PORT" 0
  check "a port in use: the others, too" all_say "found something at the store tcp://127.0.0.1:$port .*that does not answer as a store does" $(all | tail -n +2)
  kill "$listener"
  wait "$listener" 2>/dev/null
  # The listener's port is free now. One rank has another; if a third comes late, too, the job shows nothing about it.
  local other=$((port == 65535 ? port - 1 : port + 1)) missed='of . ranks, ranks .* did not come within'
  run env -u DTENSOR_STORE MASTER_ADDR=127.0.0.1 \
    bash -c 'MASTER_PORT=$((RANK == 1 ? $1 : $2)) exec "${@:3}"' bash "$other" "$port" "$program" none 1 5 8
  ended "one rank has another port" 15
  culprit=1
  check "one rank has another port: it says so" all_say "no answer to rank 1 at the store tcp://127.0.0.1:$other .*Rank 0 listens there" 1
  check "one rank has another port: the others miss it" all_say "of $ranks ranks, rank 1 did not come within 3 s" $(others)
}
beside ports
left_file() {
  # This job must meet the first time.
  DTENSOR_TIMEOUT=60 fault_at "env DTENSOR_STORE=file://$work/old" kill 15 'its process [0-9]+ is gone'
  check "a file left from another job: there is one" [ -s "$work/old" ]
  store "a file left from another job" 12 "DTENSOR_STORE=file://$work/old"
  check "a file left from another job: all say so" all_say 'has been at the store .* before: .*the file is left from an earlier run: remove it' $(all)
}
beside left_file
bad_store() {  # bad_store NAME PATTERN VARIABLES...: all ranks say so
  store "$1" 12 "${@:3}"
  check "$1: all say so" all_say "$2" $(all)
}
diary() {
  echo 'a diary' >"$work/diary"
  bad_store "a file that is no store" 'is no store: the file holds something else' "DTENSOR_STORE=file://$work/diary"
  check "a file that is no store: it is as it was" [ "$(cat "$work/diary")" = 'a diary' ]
}
if is_long; then
  beside bad_store "a host that does not exist" "there is no host 'nowhere.invalid'" MASTER_ADDR=nowhere.invalid MASTER_PORT=29500
  beside bad_store "a port that is none" "MASTER_PORT is '29x'.*a port" MASTER_ADDR=127.0.0.1 MASTER_PORT=29x
  beside bad_store "no form of a store" "DTENSOR_STORE is '127.0.0.1:29500': .*expected file:///PATH or tcp://HOST:PORT" DTENSOR_STORE=127.0.0.1:29500
  beside bad_store "a file in no folder" 'cannot be opened: No such file or directory' "DTENSOR_STORE=file://$work/no/store"
  beside diary
fi

# Ranks that were not started alike.
differs() {  # differs NAME ASSIGNMENT PATTERN: rank 1, or as it says, runs with another variable
  culprit=-
  DTENSOR_TIMEOUT=10 run bash -c "$2; exec \"\$@\"" bash "$program" none 1 5 8
  ended "$1" 15
  check "$1: at once" lacks 'did not come within|did not reach'
  check "$1: no rank reports anything else" only_say "$3"  # the launcher may stop some before they have said it
}
sizes="the number of ranks \(WORLD_SIZE\) is [2-5] there, and [2-5] on rank [0-3]"
beside differs "another world size" '[ $RANK != 1 ] || { export WORLD_SIZE=$((WORLD_SIZE - 1)); unset LOCAL_WORLD_SIZE; }' "$sizes"
! is_long || beside differs "a larger world size" '[ $RANK != 3 ] || export WORLD_SIZE=5' "$sizes"
beside differs "another DTENSOR_DEBUG" '[ $RANK != 2 ] || export DTENSOR_DEBUG=detail' 'DTENSOR_DEBUG is (info|detail) there, and (info|detail) on rank [0-3]'
twice() {  # twice NAME SECONDS ASSIGNMENTS
  culprit=-
  DTENSOR_TIMEOUT=$2 run bash -c "$3; exec \"\$@\"" bash "$program" none 1 5 8
  ended "$1" 15
  check "$1: at once" lacks 'did not come within'
  check "$1: all say so" all_say 'a rank 1 has been at the store .* before: two processes have the same rank' $(all)
}
# The second time rank 0 comes when the others have left.
! is_long || beside twice "a rank twice" 10 '[ $RANK != 3 ] || export RANK=1'
beside twice "a rank twice, and one late" 30 'case $RANK in 2) export RANK=1;; 0) sleep 3;; esac'
count_beside

finish
