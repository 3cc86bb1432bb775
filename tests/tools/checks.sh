# For tests of programs; source it. The last line must be `finish`. What the last program said is in $out and $err, and $code is its
# exit code, where a test keeps that.
passed=0 failed=0
work=$(mktemp -d)
out=$work/out err=$work/err
trap 'rm -rf "$work"' EXIT

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
finish() {
  echo "[dtensor] $passed passed, $failed failed, ${skipped:-0} skipped"
  [ "$failed" = 0 ]
}
