#!/usr/bin/env bash
# fetch.sh CACHE CUDA_HOME|none: makes sure LibTorch is in CACHE; the last line printed is its folder, which holds
#   torch/{include,lib}  LibTorch     nvidia/*/lib  the CUDA libraries it needs
#   with a CUDA_HOME also the Python half of torch and what it imports: the folder can be a PYTHONPATH entry.
# CACHE is outside Bazel's output base, so `bazel clean --expunge` never downloads again. The folder appears by one
# rename when it is whole, and its name carries a hash of what is in it.
set -euo pipefail
cache=$1 cuda=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=2.15.0
layout=1 # raise when what is unpacked changes

# toolkit_has SONAME[:SYMBOL]
toolkit_has() {
  local library=$cuda/lib64/${1%%:*}
  [ -e "$library" ] && { [[ $1 != *:* ]] || grep -qF -- "${1#*:}" "$library"; }
}

requirements= megabytes=0
while read -r set soname mb requirement; do
  case $set in
    base) ;;
    cuda) [ "$cuda" != none ] && ! toolkit_has "$soname" || continue ;;
    python) [ "$cuda" != none ] || continue ;;
    *) continue ;;
  esac
  requirements+=$requirement$'\n' megabytes=$((megabytes + mb))
done < "$here/wheels.txt"

key=$(printf '%s\n' "$layout" "$cuda" "$requirements" | sha256sum | cut -c1-12)
out=$cache/libtorch-$version-$key
if [ -d "$out" ]; then echo "$out"; exit 0; fi

mkdir -p "$cache"
exec 9> "$cache/.lock"
flock 9 # another workspace may be fetching the same
if [ -d "$out" ]; then echo "$out"; exit 0; fi
rm -rf "$cache"/.fetch.* # left by a killed run
tmp=$(mktemp -d "$cache/.fetch.XXXXXX")
progress_pid=
cleanup() {
  [ -z "$progress_pid" ] || kill "$progress_pid" 2> /dev/null || true
  rm -rf "$tmp"
}
trap cleanup EXIT
mkdir "$tmp/download" "$tmp/wheels" "$tmp/site"
printf '%s' "$requirements" > "$tmp/requirements.txt"

say() { echo "[dtensor] $*" >&2; }
say "downloading LibTorch $version, about $megabytes MB, once, into $out"
progress() {
  local seconds=0
  while sleep 5; do
    seconds=$((seconds + 5))
    say "LibTorch: $(du -sm "$tmp/download" | cut -f1) of about $megabytes MB after $seconds s"
  done
}
progress 9>&- > /dev/null &
progress_pid=$!

# Wheels are tagged with the manylinux release they need; Debian 12 (glibc 2.36) satisfies all of these.
platforms=()
for tag in _2_28 _2_27 _2_25 _2_18 _2_17 _2_12 2014 2010; do platforms+=(--platform "manylinux${tag}_x86_64"); done
TMPDIR=$tmp/download python3 -m pip download --quiet --disable-pip-version-check --no-input --no-cache-dir --no-deps \
  --retries 5 --timeout 60 --require-hashes --only-binary=:all: "${platforms[@]}" --implementation cp \
  --python-version 311 --abi cp311 --abi none --dest "$tmp/wheels" --requirement "$tmp/requirements.txt" >&2 9>&-
kill "$progress_pid"
progress_pid=
say "unpacking LibTorch"
kind=cpu
[ "$cuda" = none ] || kind=full
python3 "$here/unpack.py" "$tmp/wheels" "$tmp/site" "$kind" >&2
if [ "$cuda" != none ]; then
  # torch's libraries look for CUDA's in $ORIGIN/../../nvidia/*/lib: let the toolkit's stand there.
  mkdir -p "$tmp/site/nvidia/cu13/lib"
  for lib in "$cuda"/lib64/*.so.*; do
    link=$tmp/site/nvidia/cu13/lib/${lib##*/}
    [ -e "$link" ] || ln -s "$lib" "$link"
  done
fi
mv -T "$tmp/site" "$out"
echo "$out"
