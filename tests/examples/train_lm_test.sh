#!/usr/bin/env bash
# The main job: what train_lm prints for good input, and how it refuses bad input.
set -uo pipefail
program=$1
. tests/tools/checks.sh

run() { "$program" "$@" >"$work/out" 2>"$work/err"; }
difference_below() {  # the "largest difference" line against a bound
  awk -v bound="$1" '/largest difference/ { for (i = 1; i < NF; ++i) if ($i == "difference") { found = 1; exit !($(i + 1) < bound) } } END { if (!found) exit 1 }' "$work/out"
}
refuses() {  # refuses PATTERN ARGS...: exit code 2, one line on stderr with PATTERN
  local pattern=$1
  shift
  run "$@"
  [ $? = 2 ] && [ "$(wc -l <"$work/err")" = 1 ] && grep -qE -- "$pattern" "$work/err"
}

seq 1 400 | sed 's/$/ bottles of beer on the wall, take one down and pass it around./' >"$work/text"
: >"$work/empty"

run --text "$work/text" --steps 6 --double --sample 20 --svg "$work/layout.svg"
check "runs on (dp=2, tp=2)" test $? = 0
check "losses of one device, to 1e-9" difference_below 1e-9
check "no misses after step 2" prints '; 0 misses after step 2'
check "prints the communication by kind" prints '^  all_reduce +[0-9]+ calls'
check "prints the communication by cause" prints 'gradients of parameters \(backward\) +[0-9]+'
check "parameters take less than on one device" awk '/^Parameters:/ { ok = $2 + 0 < $6 + 0 } END { exit !ok }' "$work/out"
check "draws the layouts" grep -q '<svg' "$work/layout.svg"
check "generates text" prints '^Sample:'

run --text "$work/text" --steps 4 --double --vocab word --mesh a=3 --width 30 --heads 3 --batch 3 --sample 0
check "an odd mesh, words" difference_below 1e-9
run --text "$work/text" --steps 4 --double --mesh dp=3,tp=2,cp=2 --batch 4 --sample 0
check "three mesh dims, a batch that does not divide" difference_below 1e-9
run --text "$work/text" --steps 4 --sample 0
check "float32" difference_below 1e-4
run --steps 2 --sample 0
check "by default the documentation" test $? = 0

check "unknown flag" refuses 'unknown flag --stpes' --stpes 3
check "mesh of 0" refuses "'dp=0'" --mesh dp=0
check "mesh without sizes" refuses "'tp'" --mesh tp
check "missing file" refuses 'no such file' --text "$work/nothing"
check "empty text" refuses 'is empty' --text "$work/empty"
check "too short a text" refuses 'too few' --text "$work/text" --context 1000000
check "steps of 0" refuses '--steps 0' --steps 0
check "steps that are no number" refuses '--steps many' --steps many
check "heads that do not divide" refuses 'must divide' --heads 5 --text "$work/text"
check "an unknown device" refuses 'not a device' --device gpu7

finish
