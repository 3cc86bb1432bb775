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
  # A shell's background jobs ignore SIGINT and SIGQUIT.
  env --default-signal=INT,QUIT "$launch" "$@" > "$work/out" 2> "$work/err" &
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
echo "for no rank" > "$work/in"
run -n 2 -- sh -c 'cat; echo "stdin has ended"' < "$work/in"
check "ranks have no input" test "$(sort "$work/out" | tr '\n' ,)" = "[rank 0] stdin has ended,[rank 1] stdin has ended,"
run -n 1 -- bash -c 'yes | head -1'
check "SIGPIPE is as usual" test ! -s "$work/err"

run -n 2 -- sh -c 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $OMP_NUM_THREADS"; echo "$DTENSOR_STORE"'
threads=$(($(nproc) / 2))
check "the variables of a rank" prints "\[rank 1\] 1 2 1 2 $((threads > 0 ? threads : 1))"
check "a store in a private folder" prints "\[rank 0\] file://$TMPDIR/dtensor-launch-[A-Za-z0-9]{6}/store_0"
check "one store for all" test "$(grep -o 'file://.*' "$work/out" | sort -u | wc -l)" = 1
OMP_NUM_THREADS=7 RANK=9 MASTER_ADDR=a MASTER_PORT=1 TORCHELASTIC_RUN_ID=b TORCHELASTIC_ERROR_FILE=c OTHER=d \
  run -n 1 -- sh -c 'echo "$RANK-$MASTER_ADDR$MASTER_PORT$TORCHELASTIC_RUN_ID$TORCHELASTIC_ERROR_FILE-$OTHER-$OMP_NUM_THREADS"'
check "what was set outside" prints '\[rank 0\] 0--d-7'
run -n 1 -- sh -c 'stat -c %a "$(dirname "${DTENSOR_STORE#file://}")"'
check "the folder is private to the user" prints '\[rank 0\] 700'
mkdir "$work/home"
printf '#!/bin/sh\nbasename "$PWD"\n' > "$work/home/program"
chmod +x "$work/home/program"
BUILD_WORKING_DIRECTORY=$work/home run -n 1 -- ./program
check "a path is where bazel run was called" prints '\[rank 0\] home'

# How it ends.

run -n 3 --grace 0.2 -- sh -c '[ $RANK != 2 ] || exit 3; sleep 100'
check "the code of a rank that fails" exits_with 3
check "is reported" says 'launch: rank 2 exited with code 3; ranks 0, 1 were stopped'
check "and stops the others" faster_than 15000
run -n 3 --grace 19 -- sh -c 'case $RANK in 1) exit 4;; 2) sleep 0.5; echo "rank 1 is gone" >&2; exit 5;; esac; sleep 0.2'
check "the first to fail counts" exits_with 4
check "the first to fail is named" says 'launch: rank 1 exited with code 4'
check "the others may say why they end" says '\[rank 2\] rank 1 is gone'
check "and are waited for no longer than they need" faster_than 15000
run -n 2 --grace 0.2 -- sh -c '[ $RANK = 1 ] || sleep 100; kill -9 $$'
check "killed: the code" exits_with 137
check "killed: the report" says 'launch: rank 1 was killed by signal 9 \(Killed\); rank 0 was stopped'
run -n 2 --grace 0.1 -- bash -c '[ $RANK = 0 ] && exit 1; trap "" TERM; for ((;;)); do sleep 0.1; done'
check "a rank that ignores SIGTERM is killed" exits_with 1
check "soon" faster_than 15000
run -n 2 --grace 0.1 -- sh -c '[ $RANK = 0 ] && exit 1; kill -STOP $$'
check "a stopped rank is killed" faster_than 15000
run -n 3 -- sh -c '[ $RANK = 0 ] || sleep 0.7; echo "done $RANK"'
check "a rank may end early" exits_with 0
check "without stopping others" prints '\[rank 2\] done 2'

run -n 3 --timeout 5 -- sh -c '[ $RANK = 1 ] || sleep 100'
check "timeout: the code" exits_with 124
check "timeout: the report" says_only 'launch: ranks 0, 2 were still running after 5 s'
check "timeout: soon" faster_than 15000
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
background -n 2 -- bash -c '[ $RANK = 0 ] || exec sleep 15; sleep 301 & echo $! >> '"$work"'/pids'
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
background -n 3 -- bash -c 'echo $$ >> '"$work"'/pids; exec sleep 6'
await pids_written 3
check "no socket is opened" test "$(sockets < /dev/null)" = "$(ls -l /proc/$$/fd | grep -c socket:)"
finish

begin=$(now)
"$launch" -n 2 -- yes 2> "$work/err" | head -1 > "$work/out"
code=${PIPESTATUS[0]} took=$(($(now) - begin))
check "a reader that stops ends the job" exits_with 141
check "soon" faster_than 15000

# A reader that stalls.

mkfifo "$work/pipe"
for to in out err both; do
  rm -f "$work/pids"
  sleep 60 3< "$work/pipe" & # has the pipe open, and reads nothing
  reader=$!
  begin=$(now)
  case $to in
    out) timeout -s KILL 20 "$launch" -n 2 --timeout 1.5 -- bash -c 'echo $$ >> '"$work"'/pids; yes' > "$work/pipe" 2> "$work/err" ;;
    err) timeout -s KILL 20 "$launch" -n 2 --timeout 1.5 -- bash -c 'echo $$ >> '"$work"'/pids; yes >&2' > "$work/out" 2> "$work/pipe" ;;
    both) timeout -s KILL 20 "$launch" -n 2 --timeout 1.5 -- bash -c 'echo $$ >> '"$work"'/pids; yes' > "$work/pipe" 2>&1 ;;
  esac
  code=$? took=$(($(now) - begin))
  kill $reader
  wait $reader 2> /dev/null
  check "a stalled reader of $to: the timeout holds" exits_with 124
  check "a stalled reader of $to: soon" faster_than 15000
  check "a stalled reader of $to: the ranks are gone" all_gone
  [ $to != out ] || check "a stalled reader of out: the report" says_only 'launch: ranks 0, 1 were still running after 1.5 s'
done
sleep 60 3< "$work/pipe" &
reader=$!
begin=$(now)
timeout -s KILL 20 "$launch" -n 2 --timeout 1.5 -- sh -c 'head -c 60000 /dev/zero' > "$work/pipe" 2> "$work/err"
code=$? took=$(($(now) - begin))
check "a stalled reader of ranks that have ended" exits_with 124
check "a stalled reader of ranks that have ended: soon" faster_than 15000
kill $reader
wait $reader 2> /dev/null
stalls() { # stalls COMMAND...: the same without a timeout, as a background job
  rm -f "$work/pids"
  sleep 60 3< "$work/pipe" &
  reader=$!
  env --default-signal=INT,QUIT "$launch" -n 2 -- bash -c 'echo $$ >> '"$work/pids; $1" > "$work/pipe" 2> "$work/err" &
  job=$!
  await pids_written 2
  sleep 0.5
  inner=$(cat "/proc/$job/task/$job/children")
}
stalls 'exec yes'
begin=$(now)
kill -TERM $job
finish
kill $reader
check "a stalled reader, no timeout: one SIGTERM is enough" exits_with 143
check "a stalled reader, no timeout: soon after it" faster_than 15000
stalls 'exec yes'
kill -KILL $job
await eval '! alive $inner'
check "a stalled reader, no timeout: nothing is left when the launcher is killed" eval '! alive $inner'
finish
kill $reader
stalls 'exec head -c 60000 /dev/zero'
kill -INT $job
finish
kill $reader
check "SIGINT while the output of a good job is written is no timeout" exits_with 130

terminal() { # terminal READS ARGUMENTS...: with a terminal for the outputs, read if READS is 1; its code
  timeout -s KILL 20 python3 -c 'import os, pty, subprocess, sys, threading
main, side = pty.openpty()
job = subprocess.Popen(sys.argv[2:], stdout=side, stderr=side)
os.close(side)
def copy():
    try:
        while data := os.read(main, 4096): os.write(1, data)
    except OSError: pass  # the other end is closed
reader = threading.Thread(target=copy)
if sys.argv[1] == "1": reader.start()
code = job.wait()
if sys.argv[1] == "1": reader.join()
sys.exit(code)' "$1" "$launch" "${@:2}"
}
begin=$(now)
terminal 0 -n 2 --timeout 1.5 -- yes words
code=$? took=$(($(now) - begin))
check "a terminal without a reader: the timeout holds" exits_with 124
check "a terminal without a reader: soon" faster_than 15000
terminal 1 -n 2 -- seq 3000 > "$work/out" 2> "$work/err"
code=$?
check "a terminal: the code" exits_with 0
check "a terminal gets every line" test "$(grep -cE '^\[rank [01]\] [0-9]+.$' "$work/out")" = 6000

begin=$(now)
"$launch" -n 2 -- bash -c 'for ((i = 0; i < 3000; ++i)); do echo "$RANK $RANK $RANK $RANK $RANK $RANK $RANK $RANK"; done' 2> "$work/err" |
  (sleep 1 && cat) > "$work/out"
code=${PIPESTATUS[0]} took=$(($(now) - begin))
check "a slow reader gets every line" test "$(grep -cxE '\[rank ([01])\]( \1){8}' "$work/out")" = 6000
check "a slow reader is no failure" exits_with 0

# The place where the ranks meet is removed whatever happens.

meet='echo met > "${DTENSOR_STORE#file://}"; echo $$ >> '"$work"'/pids; '
run -n 2 -- sh -c "$meet"
check "no store is left after a good end" nothing_left
run -n 2 --grace 0.1 -- sh -c "$meet"'[ $RANK = 0 ] || exit 1; sleep 100'
check "no store is left after a failure" nothing_left
run -n 2 --grace 0.1 -- sh -c "$meet"'[ $RANK = 0 ] || kill -9 $$; sleep 100'
check "no store is left after a rank was killed" nothing_left
run -n 2 --timeout 0.5 -- bash -c "$meet"'trap "" TERM; for ((;;)); do sleep 0.1; done'
check "no store is left after a timeout" nothing_left
run -n 2 --grace 0.1 --max-restarts 2 -- sh -c "$meet"'exit 1'
check "no store is left after restarts" nothing_left
for signal in INT TERM HUP QUIT; do
  rm -f "$work/pids"
  background -n 2 --max-restarts 2 -- bash -c "$meet"'exec sleep 100'
  await pids_written 2
  kill -$signal $job
  finish
  check "no store is left after SIG$signal" nothing_left
  check "no rank is left after SIG$signal" all_gone
done
run -n 2 -- "$work/nothing"
check "no store is left where there is no program" nothing_left

# Starting again.

count='echo "count $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS at ${DTENSOR_STORE##*/}"; '
run -n 2 -- sh -c "$count"
check "the first attempt has number 0" prints '\[rank 1\] count 0 of 0 at store_0'
run -n 3 --grace 0.1 --max-restarts 3 -- sh -c "$count$meet"'[ $RANK != 2 ] || [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 3; '\
'[ $TORCHELASTIC_RESTART_COUNT = 2 ] || sleep 100'
check "restarts: the code is that of the last attempt" exits_with 0
for k in 0 1 2; do check "restarts: all ranks begin again, rank $k" prints "\[rank $k, attempt 2\] count 2 of 3 at store_2"; done
check "restarts: three attempts" test "$(grep -c ' count ' "$work/out")" = 9
check "restarts: each is reported" says 'launch: attempt 1: rank 2 exited with code 3; ranks 0, 1 were stopped; restart 2 of 3'
check "restarts: and nothing else" test "$(wc -l < "$work/err")" = 2
check "restarts: no store is left" nothing_left
run -n 2 --grace 0.1 --max-restarts=2 -- sh -c '[ $RANK = 0 ] || exit $((10 + TORCHELASTIC_RESTART_COUNT)); sleep 100'
check "every attempt fails: the code of the last one" exits_with 12
check "every attempt fails: the last report" says 'launch: attempt 2: rank 1 exited with code 12; rank 0 was stopped'
rm -f "$work/pids"
run -n 2 --grace 0.1 --max-restarts 1 -- bash -c "$descend"'; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || { [ $RANK = 1 ] && sleep 0.5 && exit 1; sleep 100; }
  while read -r pid; do ! kill -0 $pid || echo "left: $pid"; done < <(head -6 '"$work"'/pids)'
check "restarts: what the attempt before started is gone" test "$(grep -c 'left:' "$work/out")" = 0
check "restarts: it had been there" test "$(wc -l < "$work/pids")" = 12
run -n 1 --timeout 1 --grace 0.1 --max-restarts 1000 -- sh -c 'sleep 0.3; exit 1'
check "the timeout is of all attempts together" exits_with 124
check "soon after that" faster_than 15000
run -n 2 --timeout 6 --grace 15 --max-restarts 2 -- sh -c '[ $RANK$TORCHELASTIC_RESTART_COUNT != 00 ] || { sleep 0.5; exit 1; }; sleep 1000'
check "the timeout holds when it passes after a failure" exits_with 124
check "the timeout after a failure: both are reported" says_only \
  'launch: attempt 0: rank 0 exited with code 1; rank 1 was still running after 6 s'
check "the timeout after a failure: soon" faster_than 15000
run -n 1 --timeout 10 --max-restarts 1 -- sh -c '[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 124'
check "a rank's own code 124 is no timeout" exits_with 0
rm -f "$work/pids"
background -n 2 --max-restarts 5 -- bash -c 'echo $$ >> '"$work"'/pids; exec sleep 100'
await pids_written 2
kill -TERM $job
finish
check "a job that a signal ends is not restarted" exits_with 143
check "a job that a signal ends: one attempt" test "$(wc -l < "$work/pids")" = 2
run -n 2 --max-restarts 3 -- "$work/nothing"
check "no such program is no reason to try again" says_only "launch: (attempt 0: )?cannot run $work/nothing: No such file or directory"

# Logs.

run -n 2 --grace 0.1 --max-restarts 1 --log-dir "$work/logs/new" -- sh -c 'echo "out $RANK"; printf err >&2; echo "$TORCHELASTIC_ERROR_FILE"; exit $((1 - TORCHELASTIC_RESTART_COUNT))'
for attempt in 0 1; do
  for k in 0 1; do
    at=$work/logs/new/attempt_$attempt/$k
    check "the log of $at" test "$(cat "$at/stdout.log")" = "out $k"$'\n'"$at/error.json"
    check "of its errors, too" test "$(cat "$at/stderr.log")" = err
  done
done
check "what is logged is also shown" prints '\[rank 1, attempt 1\] out 1'
(sleep 1 && cat) < "$work/pipe" > "$work/err" &
timeout -s KILL 20 "$launch" -n 1 --max-restarts 1 --log-dir "$work/logs/second" -- \
  sh -c 'head -c 200000 /dev/zero >&2; mkdir -p '"$work"'/logs/second/attempt_1/0; exit 3' 2> "$work/pipe"
code=$?
wait $!
check "no logs in a later attempt: the code" exits_with 1
check "no logs in a later attempt: what the ranks said before arrives" test "$(tr -cd '\0' < "$work/err" | wc -c)" = 200000
check "no logs in a later attempt: the report" grep -qaE '^launch: attempt 1: cannot make the folder .*: File exists' "$work/err"
run -n 2 --log-dir "$work/logs/new" -- true
check "older logs are kept" exits_with 1
check "older logs: the reason" says "launch: cannot make the folder $work/logs/new/attempt_0/0 for logs: File exists"
cd "$work" && run -n 1 --log-dir=here -- sh -c 'echo x'
check "a log in the user's folder" test "$(cat "$work/here/attempt_0/0/stdout.log")" = x
cd "$OLDPWD" || exit 1
run -n 1 --log-dir /proc/none -- true
check "a folder that cannot be made" says 'launch: cannot make the folder /proc/none/attempt_0/0 for logs: .*'

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
refuses '--max-restarts -1: expected a number of restarts from 0 to 1000000' -n 1 --max-restarts -1 -- true
refuses '--max-restarts many: .*' -n 1 --max-restarts many -- true
refuses '--max-restarts needs a value' -n 1 --max-restarts
refuses '--log-dir is empty: expected a folder' -n 1 --log-dir= -- true
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
