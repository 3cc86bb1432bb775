#!/usr/bin/env bash
# Jobs that go wrong: faults_test.sh LAUNCH FAULT_PROGRAM [long].
# Whatever happens to one rank, all ranks end in time, those that can
# say why blame the right rank and call, the job fails, and no process is left. The same faults between threads of one process,
# at every collective: faulty_communicator_test.cc.
# "long": the same faults at other ranks and calls, too, and a rank that comes after the deadline.
set -u
launch=$1 program=$2
is_long() { [ "$size" = long ]; }
size=${3:-short}
. tests/tools/checks.sh
culprit=- with=()
export DTENSOR_TIMEOUT=3 OMP_NUM_THREADS=1

run() {  # run COMMAND...: as a job of 4 ranks; leaves $code and $took. The last word marks all of its processes for `gone`.
  local begin=$SECONDS
  timeout -k 5 60 "$launch" -n 4 --grace 6 --timeout 40 -- "$@" "$work/mark" >"$work/out" 2>&1
  code=$?
  took=$((SECONDS - begin))
}
in_time() { [ "$took" -le "$1" ]; }
fails() { [ "$code" != 0 ] && [ "$code" != 124 ]; }
gone() { ! pgrep -f -- "$work/mark" >/dev/null; }
only_say() {  # only_say PATTERN: some rank's error has PATTERN, and no rank has another error
  local errors
  errors=$(grep -E -- '^\[rank [0-9]+\] .*error: ' "$work/out")
  [ -n "$errors" ] && ! grep -qvE -- "$1" <<< "$errors"
}
all_say() {  # all_say PATTERN RANKS...: each rank's error has PATTERN
  local pattern=$1
  shift
  for rank in "$@"; do grep -E -- "^\[rank $rank\] .*error: .*" "$work/out" | grep -qE -- "$pattern" || return 1; done
}
all_fine() { [ "$code" = 0 ] && [ "$(grep -c '^\[rank [0-3]\] fine$' "$work/out")" = 4 ]; }
ended() {  # ended NAME SECONDS
  check "$1: the job fails" fails
  check "$1: in time" in_time "$2"
  # But for the rank that goes wrong, which may believe that it got what it made up.
  check "$1: no rank has a wrong result" lacks "^\[rank [^$culprit]\] WRONG RESULT"
  check "$1: no process is left" gone
}
# Jobs mostly wait, so that some run beside each other; each has a folder of its own, and its checks are counted at the end.
at_once=3 begun=0
beside() {  # beside CHECKS...: runs a function that checks a job
  while [ "$(jobs -rp | wc -l)" -ge $at_once ]; do wait -n; done
  local folder=$work/beside_$((++begun))
  mkdir "$folder"
  (
    work=$folder out=$folder/out err=$folder/err passed=0 failed=0
    "$@"
    echo "$passed $failed" > "$folder/counts"
  ) > "$folder/said" 2>&1 &
}
count_beside() {
  local folder counts
  wait
  for ((i = 1; i <= begun; ++i)); do
    folder=$work/beside_$i
    cat "$folder/said"
    read -r -a counts < "$folder/counts" || counts=(0 1)
    passed=$((passed + counts[0])) failed=$((failed + counts[1]))
  done
}
# fault "NAME [RANK [CALL [STEPS]]]" SECONDS PATTERN RANKS...: these ranks' errors have PATTERN
fault() {
  local words=($1 1) name=$1 seconds=$2 pattern=$3
  culprit=${words[1]}
  shift 3
  run "${with[@]}" "$program" $name $(for ((i = $(wc -w <<<"$name"); i < 4; ++i)); do echo "${defaults[i]}"; done)
  check "$name: the fault fires" prints "^\[rank $culprit\] fault fires: ${words[0]}"
  check "$name: ranks $* blame rank $culprit" all_say "rank $culprit failed: $pattern" "$@"
  ended "$name" "$seconds"
}
defaults=('' 1 5 8)

run "$program" none 1 5 8
check "without a fault all is fine" all_fine
run "$program" late 1 5 8
check "late: the fault fires" prints '^\[rank 1\] fault fires: late'
check "a rank that is slow within the deadline is none" all_fine

differ='ranks do not make the same calls over tp: '
for level in info detail; do
  export DTENSOR_DEBUG=$level
  beside fault shape 15 "$differ.*rank 1 is about to make call 5: all_reduce .*f32\[8\].*rank 2 .*f32\[4\]" 0 1 2 3
  beside fault dtype 15 "$differ.*rank 1 is about to make call 5: all_reduce .*i32\[4\].*rank 2 .*: f32\[4\]" 0 1 2 3
  beside fault collective 15 "$differ.*rank 0 is about to make call 5: all_reduce.*rank 1 is about to make call 5: all_gather" 0 1 2 3
  beside fault missing 15 "$differ.*rank 0 is about to make call 5: all_reduce.*rank 1 is about to make call 5: all_gather" 0 1 2 3
  is_long || continue
  beside fault "shape 2 7" 15 "$differ.*rank 2 is about to make call 7: reduce_scatter .*f32\[16\]" 0 1 2 3
  beside fault "dtype 0 6" 15 "$differ.*rank 0 is about to make call 6: all_gather .*i32\[2\]" 0 1 2 3
  beside fault "collective 3 8" 15 "$differ.*rank 3 is about to make call 8: all_reduce" 0 1 2 3
done

export DTENSOR_DEBUG=
beside fault "missing 1 8" 15 'it has left: .*while rank . waited in call 8: all_to_all' 0 2 3
beside fault stuck 20 'it did not reach call 5: all_reduce.*its last one there was call 4: all_to_all' 0 2 3
! is_long || beside fault slow 20 'it did not reach call 5: all_reduce' 0 1 2 3
throws() {
  fault throw 15 'an exception ended its program' 0 2 3
  check "throw: rank 1 says what it threw" all_say 'the disk is full' 1
}
beside throws
beside fault terminate 15 'the disk is full' 0 2 3
beside fault kill 15 'its process [0-9]+ is gone' 0 2 3
! is_long || beside fault "kill 0 3" 15 'its process [0-9]+ is gone.*waited in call 3: reduce_scatter' 1 2 3
beside fault stop 20 'its process [0-9]+ is stopped' 0 2 3
beside fault exit 15 'its process [0-9]+ is gone' 0 2 3
beside fault leave 15 'it has left' 0 2 3
beside fault barrier_kill 15 'its process [0-9]+ is gone.*waited in monitored_barrier 1 of ranks 0-3' 0 2 3

# Before the ranks have made their first call: while they connect, and where their meshes are not the same.
DTENSOR_TIMEOUT=60 beside fault connect_kill 30 'its process [0-9]+ is gone.*waited in the making of the group tp of ranks 0,1,2,3' 0 2 3
! is_long || DTENSOR_TIMEOUT=60 beside fault "connect_kill 0" 30 'its process [0-9]+ is gone.*waited in the making of the group tp' 1 2 3
beside fault connect_stop 20 'its process [0-9]+ is stopped' 0 2 3
! is_long || beside fault "connect_stop 3" 20 'its process [0-9]+ is stopped' 0 1 2
for other in shape name; do
  what=$([ $other = shape ] && echo 'of mesh\(dp=2, tp=2\)' || echo 'dp of ranks 0,1,2,3 of mesh\(dp=4\)')
  tp='tp of ranks 0,1,2,3 of mesh\(tp=4\)'
  DTENSOR_TIMEOUT=60 beside fault mesh_$other 30 "ranks do not have the same mesh: (rank 0 makes the group $tp, while rank 1 makes the group .*$what|rank 1 makes the group .*$what, while rank [23] makes the group $tp)" 0 1 2 3
  ! is_long || DTENSOR_TIMEOUT=60 beside fault "mesh_$other 0" 30 "ranks do not have the same mesh: rank 0 makes the group .*$what, while rank [1-3] makes the group $tp" 0 1 2 3
done

# The place where the ranks meet is frozen, removed or locked in the middle of a job.
for ((port = 20000 + RANDOM % 10000; ; ++port)); do (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break; done
unset_store=(env -u DTENSOR_STORE MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port")
fault_at() {  # fault_at "VARIABLES..." "NAME..." SECONDS PATTERN RANKS...: as fault, with other variables
  local words=$1
  shift
  with=($words)
  fault "$@"
  with=()
}
frozen_store() {  # one after the other, as the port is the same
  fault_at "${unset_store[*]}" "stop 0" 35 'its process [0-9]+ is stopped' 1 2 3
  fault_at "${unset_store[*]}" "barrier_stop 0" 35 'its process [0-9]+ is stopped.*waited in monitored_barrier 1 of ranks 0-3' 1 2 3
  fault_at "${unset_store[*]}" "kill 0" 20 'its process [0-9]+ is gone' 1 2 3
}
beside frozen_store
spoiled() {  # spoiled HOW: the store's file is removed or locked
  local how=$1
  fault_at "env FAULT_STORE=$how" "stop 1" 35 'its process [0-9]+ is stopped' 0 2 3
  check "$how and stop: the store is spoiled" prints "^\[rank 1\] done: the store's file: $how"
  # Without the store the missing rank is not found, but all end.
  run env "FAULT_STORE=$how" "$program" slow 1 5 8
  check "$how and slow: the fault fires" prints '^\[rank 1\] fault fires: slow'
  check "$how and slow: the others say which call" all_say 'call 5: all_reduce' 0 2 3
  ended "$how and slow" 35
  run env "FAULT_STORE=$how" "$program" late 1 5 8
  check "$how: the store is spoiled" prints "^\[rank 1\] done: the store's file: $how"
  check "$how: a job that needs it no more ends well" all_fine
  check "$how: in time" in_time 30
}
beside spoiled remove
beside spoiled lock
count_beside

# Where the ranks meet.
culprit=-
store() {  # store NAME SECONDS VARIABLES...: a job of ranks that have these instead of the launcher's store
  local name=$1 seconds=$2
  shift 2
  run env -u DTENSOR_STORE "$@" "$program" none 1 5 8
  ended "$name" "$seconds"
}
"$program" listen >"$work/port" &
listener=$!
for ((i = 0; i < 200; ++i)); do [ -s "$work/port" ] || sleep 0.05; done
port=$(cat "$work/port")
store "a port in use" 12 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port"
check "a port in use: another program has it" kill -0 "$listener"
check "a port in use: rank 0 says so" all_say "tcp://127.0.0.1:$port \(from MASTER_ADDR and MASTER_PORT\): rank 0 cannot listen there: Address already in use. .*MASTER_PORT" 0
check "a port in use: the others, too" all_say "found something at the store tcp://127.0.0.1:$port .*that does not answer as a store does" 1 2 3
kill "$listener"
wait "$listener" 2>/dev/null
store "a host that does not exist" 12 MASTER_ADDR=nowhere.invalid MASTER_PORT=29500
check "a host that does not exist: all say so" all_say "there is no host 'nowhere.invalid'" 0 1 2 3
store "a port that is none" 12 MASTER_ADDR=127.0.0.1 MASTER_PORT=29x
check "a port that is none: all say so" all_say "MASTER_PORT is '29x'.*a port" 0 1 2 3
store "no form of a store" 12 DTENSOR_STORE=127.0.0.1:29500
check "no form of a store: all say so" all_say "DTENSOR_STORE is '127.0.0.1:29500': .*expected file:///PATH or tcp://HOST:PORT" 0 1 2 3
store "a file in no folder" 12 "DTENSOR_STORE=file://$work/no/store"
check "a file in no folder: all say so" all_say 'cannot be opened: No such file or directory' 0 1 2 3
echo 'a diary' >"$work/diary"
store "a file that is no store" 12 "DTENSOR_STORE=file://$work/diary"
check "a file that is no store: all say so" all_say 'is no store: the file holds something else' 0 1 2 3
check "a file that is no store: it is as it was" [ "$(cat "$work/diary")" = 'a diary' ]
run env "DTENSOR_STORE=file://$work/old" "$program" kill 1 5 8
check "a file left from another job: there is one" [ -s "$work/old" ]
store "a file left from another job" 12 "DTENSOR_STORE=file://$work/old"
check "a file left from another job: all say so" all_say 'has been at the store .* before: .*the file is left from an earlier run: remove it' 0 1 2 3
# The listener's port is free now. One rank has another.
other=$((port == 65535 ? port - 1 : port + 1))
run env -u DTENSOR_STORE MASTER_ADDR=127.0.0.1 \
  bash -c 'MASTER_PORT=$((RANK == 1 ? $1 : $2)) exec "${@:3}"' bash "$other" "$port" "$program" none 1 5 8
ended "one rank has another port" 15
check "one rank has another port: it says so" all_say "no answer to rank 1 at the store tcp://127.0.0.1:$other .*Rank 0 listens there" 1
check "one rank has another port: the others miss it" all_say 'of 4 ranks, rank 1 did not come within 3 s' 0 2 3

# Ranks that were not started alike.
differs() {  # differs NAME ASSIGNMENT PATTERN: rank 1, or as it says, runs with another variable
  DTENSOR_TIMEOUT=10 run bash -c "$2; exec \"\$@\"" bash "$program" none 1 5 8
  ended "$1" 15
  check "$1: at once" lacks 'did not come within|did not reach'
  check "$1: no rank reports anything else" only_say "$3"  # the launcher may stop some before they have said it
}
differs "another world size" '[ $RANK != 1 ] || { export WORLD_SIZE=3; unset LOCAL_WORLD_SIZE; }' 'the number of ranks \(WORLD_SIZE\) is [34] there, and [34] on rank [0-3]'
differs "a larger world size" '[ $RANK != 3 ] || export WORLD_SIZE=5' 'the number of ranks \(WORLD_SIZE\) is [45] there, and [45] on rank [0-3]'
differs "another DTENSOR_DEBUG" '[ $RANK != 2 ] || export DTENSOR_DEBUG=detail' 'DTENSOR_DEBUG is (info|detail) there, and (info|detail) on rank [0-3]'
DTENSOR_TIMEOUT=10 run bash -c '[ $RANK != 3 ] || export RANK=1; exec "$@"' bash "$program" none 1 5 8
ended "a rank twice" 15
check "a rank twice: at once" lacks 'did not come within'
check "a rank twice: all say so" all_say 'a rank 1 has been at the store .* before: two processes have the same rank' 0 1 2 3
# Rank 0 comes when the others have left.
DTENSOR_TIMEOUT=30 run bash -c 'case $RANK in 3) export RANK=1;; 0) sleep 3;; esac; exec "$@"' bash "$program" none 1 5 8
ended "a rank twice, and one late" 15
check "a rank twice, and one late: all say so" all_say 'a rank 1 has been at the store .* before: two processes' 0 1 2 3

finish
