# For tests of programs; source it. The last line must be `finish`. What the last program said is in $out and $err, and $code is its
# exit code, where a test keeps that.
passed=0 failed=0
work=$(mktemp -d)
out=$work/out err=$work/err
trap 'rm -rf "$work"' EXIT
is_long() { [ -n "${DTENSOR_LONG_TESTS+set}" ]; }  # --config=long (docs/testing.md)

check() {  # check NAME CONDITION...
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name${code:+ (code $code)}${took:+, $took s}"
    for said in "$out" "$err"; do [ ! -f "$said" ] || sed 's/^/  | /' "$said"; done | cut -c1-300 | tail -60
  fi
}
prints() { grep -qE -- "$1" "$out"; }
lacks() { ! prints "$1"; }
refuses() {  # refuses PATTERN ARGS...: exit code 2, nothing on stdout, one line on stderr with PATTERN
  local pattern=$1
  shift
  run "$@"
  [ $? = 2 ] && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" = 1 ] && grep -qE -- "$pattern" "$work/err"
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
  begun=0
}
finish() {
  echo "[dtensor] $passed passed, $failed failed, ${skipped:-0} skipped"
  [ "$failed" = 0 ]
}
