#!/usr/bin/env bash
# launch_test.sh LAUNCH: what tools/launch passes on, how it ends, and that it leaves nothing behind.
set -uo pipefail
launch=$PWD/$1
[ "${1:0:1}" != / ] || launch=$1
passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tmp"
export TMPDIR=$work/tmp # where launch makes its folder
unset OMP_NUM_THREADS BUILD_WORKING_DIRECTORY

check() { # check NAME COMMAND...
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name (code $code, $took ms)"
    for f in out err; do [ ! -f "$work/$f" ] || sed "s/^/  $f | /" "$work/$f" | cut -c1-200 | tail -20; done
  fi
}
code=0 took=0
now() { date +%s%3N; }
run() { # run ARGUMENTS...: out, err, code and took; 20 s at most
  local begin
  begin=$(now)
  timeout -s KILL 20 "$launch" "$@" > "$work/out" 2> "$work/err"
  code=$?
  took=$(($(now) - begin))
}
background() { # the same, going on while the test does something; `finish` waits
  # A shell's background jobs ignore SIGINT.
  env --default-signal=INT "$launch" "$@" > "$work/out" 2> "$work/err" &
  job=$!
  begin=$(now)
}
finish() {
  await eval '! alive $job' || kill -KILL $job
  wait $job 2> /dev/null
  code=$?
  took=$(($(now) - begin))
}
await() { # await COMMAND...: until it succeeds, 10 s at most
  for _ in $(seq 200); do
    "$@" && return
    sleep 0.05
  done
  return 1
}
exits_with() { [ "$code" = "$1" ]; }
prints() { grep -qxE -- "$1" "$work/out"; }
says() { grep -qxE -- "$1" "$work/err"; }
says_only() { [ "$(wc -l < "$work/err")" = 1 ] && says "$1"; }
faster_than() { [ "$took" -lt "$1" ]; }
slower_than() { [ "$took" -ge "$1" ]; }
nothing_left() { [ -z "$(ls -A "$TMPDIR")" ]; }
alive() { [ -e "/proc/$1/stat" ] && ! grep -q ') [ZX]' "/proc/$1/stat" 2> /dev/null; }
all_gone() { # of the pids that ranks wrote to the file
  local pid
  [ -s "$work/pids" ] || return 1
  while read -r pid; do ! alive "$pid" || return 1; done < "$work/pids"
}
pids_written() { [ "$(cat "$work/pids" 2> /dev/null | wc -l)" -ge "$1" ]; }

# What is passed on.

run -n 3 -- sh -c 'echo "out of $RANK"; echo "err of $RANK" >&2; printf "no newline"; printf "nor here" >&2'
check "code 0" exits_with 0
for k in 0 1 2; do
  check "output of rank $k" prints "\[rank $k\] out of $k"
  check "errors of rank $k" says "\[rank $k\] err of $k"
  check "a last line without newline, of rank $k" prints "\[rank $k\] no newline"
  check "the same on stderr, of rank $k" says "\[rank $k\] nor here"
done
check "no other lines" test "$(cat "$work/out" "$work/err" | wc -l)" = 12

run -n 4 -- bash -c 'for ((i = 0; i < 300; ++i)); do printf "%s" "$RANK$RANK$RANK"; printf "%s\n" "$RANK$RANK$RANK"; done'
check "lines are not mixed" test "$(grep -cxE '\[rank ([0-3])\] \1{6}' "$work/out")" = 1200
check "and none is lost or cut" test "$(wc -l < "$work/out")" = 1200
run -n 2 -- sh -c 'printf begun; sleep 0.3; echo " ended"'
check "a line waits for its end" test "$(grep -c 'begun ended' "$work/out")" = 2
run -n 2 -- bash -c 'head -c 500000 /dev/zero | tr "\0" "$RANK"; echo'
check "a long line is one line" test "$(awk '{ print length }' "$work/out" | tr '\n' ' ')" = "500009 500009 "
run -n 2 -- bash -c 'head -c 3000000 /dev/zero | tr "\0" "$RANK"; echo'
check "a longer one arrives whole" test "$(sed 's/^\[rank .\] //' "$work/out" | tr -d '\n' | wc -c)" = 6000000
echo "for nobody" > "$work/in"
run -n 2 -- sh -c 'cat; echo "stdin has ended"' < "$work/in"
check "ranks have no input" test "$(sort "$work/out" | tr '\n' ,)" = "[rank 0] stdin has ended,[rank 1] stdin has ended,"
run -n 1 -- bash -c 'yes | head -1'
check "SIGPIPE is as usual" test ! -s "$work/err"

run -n 2 -- sh -c 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $OMP_NUM_THREADS"; echo "$DTENSOR_STORE"'
threads=$(($(nproc) / 2))
check "the variables of a rank" prints "\[rank 1\] 1 2 1 2 $((threads > 0 ? threads : 1))"
check "a store in a private folder" prints "\[rank 0\] file://$TMPDIR/dtensor-launch-[A-Za-z0-9]{6}/store"
check "one store for all" test "$(grep -o 'file://.*' "$work/out" | sort -u | wc -l)" = 1
OMP_NUM_THREADS=7 RANK=9 MASTER_ADDR=a MASTER_PORT=1 TORCHELASTIC_RUN_ID=b TORCHELASTIC_ERROR_FILE=c OTHER=d \
  run -n 1 -- sh -c 'echo "$RANK-$MASTER_ADDR$MASTER_PORT$TORCHELASTIC_RUN_ID$TORCHELASTIC_ERROR_FILE-$OTHER-$OMP_NUM_THREADS"'
check "what was set outside" prints '\[rank 0\] 0--d-7'
run -n 1 -- sh -c 'stat -c %a "$(dirname "${DTENSOR_STORE#file://}")"'
check "the folder is nobody else's" prints '\[rank 0\] 700'
mkdir "$work/home"
printf '#!/bin/sh\nbasename "$PWD"\n' > "$work/home/program"
chmod +x "$work/home/program"
BUILD_WORKING_DIRECTORY=$work/home run -n 1 -- ./program
check "a path is where bazel run was called" prints '\[rank 0\] home'

# How it ends.

run -n 3 --grace 0.2 -- sh -c '[ $RANK != 2 ] || exit 3; sleep 100'
check "the code of a rank that fails" exits_with 3
check "is reported" says 'launch: rank 2 exited with code 3; ranks 0, 1 were stopped'
check "and stops the others" faster_than 5000
run -n 3 --grace 5 -- sh -c 'case $RANK in 1) exit 4;; 2) sleep 0.5; echo "rank 1 is gone" >&2; exit 5;; esac; sleep 0.2'
check "the first to fail counts" exits_with 4
check "the first to fail is named" says 'launch: rank 1 exited with code 4'
check "the others may say why they end" says '\[rank 2\] rank 1 is gone'
check "and are waited for no longer than they need" faster_than 4000
run -n 2 --grace 0.2 -- sh -c '[ $RANK = 1 ] || sleep 100; kill -9 $$'
check "killed: the code" exits_with 137
check "killed: the report" says 'launch: rank 1 was killed by signal 9 \(Killed\); rank 0 was stopped'
run -n 2 --grace 0.1 -- bash -c '[ $RANK = 0 ] && exit 1; trap "" TERM; for ((;;)); do sleep 0.1; done'
check "a rank that ignores SIGTERM is killed" exits_with 1
check "soon" faster_than 6000
run -n 2 --grace 0.1 -- sh -c '[ $RANK = 0 ] && exit 1; kill -STOP $$'
check "a stopped rank is killed" faster_than 6000
run -n 3 -- sh -c '[ $RANK = 0 ] || sleep 0.7; echo "done $RANK"'
check "a rank may end early" exits_with 0
check "without stopping others" prints '\[rank 2\] done 2'

run -n 3 --timeout 0.5 -- sh -c '[ $RANK = 1 ] || sleep 100'
check "timeout: the code" exits_with 124
check "timeout: the report" says_only 'launch: ranks 0, 2 were still running after 0.5 s'
check "timeout: soon" faster_than 5000
run -n 1 --timeout 10 -- true
check "no timeout when all is well" exits_with 0

for signal in TERM:143 INT:130 HUP:129; do
  rm -f "$work/pids"
  background -n 2 --grace 0.3 -- bash -c 'echo $$ >> '"$work"'/pids; exec sleep 100'
  await pids_written 2
  kill -"${signal%:*}" $job
  finish
  check "SIG${signal%:*} is passed on" exits_with "${signal#*:}"
  check "and ends the ranks" all_gone
done
rm -f "$work/pids"
background -n 2 -- bash -c 'trap "echo saved; exit 0" TERM; echo $$ >> '"$work"'/pids; for ((;;)); do sleep 0.1; done'
await pids_written 2
kill -TERM $job
finish
check "a rank may end well on SIGTERM" exits_with 0
check "what it says then arrives" test "$(grep -c saved "$work/out")" = 2
rm -f "$work/pids"
background -n 2 -- bash -c 'trap "" TERM; echo $$ >> '"$work"'/pids; for ((;;)); do sleep 0.1; done'
await pids_written 2
kill -TERM $job
sleep 0.3
check "SIGTERM can be ignored once" alive $job
kill -TERM $job
finish
check "but not twice" exits_with 137
check "and by the ranks alone" says 'launch: rank [01] was killed by signal 9 \(Killed\)'

# That nothing is left.

descend='sleep 301 & echo $! >> '"$work"'/pids; setsid sleep 302 & echo $! >> '"$work"'/pids; echo $$ >> '"$work"'/pids'
rm -f "$work/pids"
run -n 2 -- bash -c "$descend"
check "children of ranks that ended well are gone" all_gone
rm -f "$work/pids"
run -n 2 --grace 0.2 -- bash -c "$descend; [ \$RANK = 0 ] && exit 1; sleep 100"
check "children of ranks that failed are gone" all_gone
rm -f "$work/pids"
run -n 2 --timeout 0.7 -- bash -c "$descend; sleep 100"
check "children after a timeout are gone" all_gone
rm -f "$work/pids"
background -n 2 -- bash -c '[ $RANK = 0 ] || exec sleep 3; sleep 301 & echo $! >> '"$work"'/pids'
await pids_written 1
check "children of a rank that has ended are gone while others go on" await all_gone
check "others do go on" alive $job
finish
for victim in outer inner; do
  rm -f "$work/pids"
  background -n 2 -- bash -c "$descend; exec sleep 100"
  await pids_written 6
  inner=$(cat "/proc/$job/task/$job/children")
  if [ $victim = outer ]; then kill -KILL $job; else kill -KILL $inner; fi
  finish
  check "killed ($victim process): ranks and children are gone" await all_gone
  check "killed ($victim process): the code" exits_with 137
  check "killed ($victim process): the folder is gone" await nothing_left
done

sockets() { # of the launcher, its second process and the ranks
  local pids=$job pid
  for _ in 1 2; do
    for pid in $pids; do pids+=" $(cat "/proc/$pid/task/$pid/children" 2> /dev/null)"; done
  done
  for pid in $pids; do ls -l "/proc/$pid/fd" 2> /dev/null; done | grep -c socket:
}
rm -f "$work/pids"
background -n 3 -- bash -c 'echo $$ >> '"$work"'/pids; exec sleep 2'
await pids_written 3
check "no socket is opened" test "$(sockets < /dev/null)" = "$(ls -l /proc/$$/fd | grep -c socket:)"
finish

begin=$(now)
"$launch" -n 2 -- yes 2> "$work/err" | head -1 > "$work/out"
code=${PIPESTATUS[0]} took=$(($(now) - begin))
check "a reader that stops ends the job" exits_with 141
check "soon" faster_than 6000

# Bad usage.

refuses() { # refuses PATTERN ARGUMENTS...
  local pattern=$1
  shift
  run "$@"
  check "refuses: $*" exits_with 2
  check "and says why: $*" says_only "launch: $pattern; --help tells more"
}
refuses '-n RANKS is missing' -- true
refuses '-n RANKS is missing'
refuses 'no program to run' -n 2
refuses 'no program to run' -n 2 --
refuses '-n needs a value' -n
refuses '-n 0: expected a number of ranks from 1 to 1024' -n 0 -- true
refuses '-n -1: .*' -n -1 -- true
refuses '-n 2x: .*' -n 2x -- true
refuses '-n 1025: .*' -n 1025 -- true
refuses '--timeout 0: expected seconds, such as 30 or 2.5' -n 1 --timeout 0 -- true
refuses '--timeout soon: .*' -n 1 --timeout=soon -- true
refuses '--timeout inf: .*' -n 1 --timeout inf -- true
refuses '--grace -1: .*' -n 1 --grace -1 -- true
refuses 'unknown option --ranks' --ranks 2 -- true
run -n 2 -- "$work/nothing"
check "no such program: the code" exits_with 127
check "no such program: one line" says_only "launch: cannot run $work/nothing: No such file or directory"
run -n 2 -- "$work/tmp"
check "not a program: the code" exits_with 126
run --help
check "help" prints 'usage: launch -n RANKS .*'

check "nothing is left in the folder for temporary files" nothing_left
echo "[dtensor] $passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
