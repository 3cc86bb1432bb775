# For tests of programs; source it. The last line must be `finish`.
passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check() {  # check NAME CONDITION...
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
    sed 's/^/  | /' "$work/out" "$work/err" | tail -60
  fi
}
prints() { grep -qE -- "$1" "$work/out"; }  # the last `run`
lacks() { ! prints "$1"; }
refuses() {  # refuses PATTERN ARGS...: exit code 2, nothing on stdout, one line on stderr with PATTERN
  local pattern=$1
  shift
  run "$@"
  [ $? = 2 ] && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" = 1 ] && grep -qE -- "$pattern" "$work/err"
}
finish() {
  echo "[dtensor] $passed passed, $failed failed, ${skipped:-0} skipped"
  [ "$failed" = 0 ]
}
