#!/usr/bin/env bash
# python_test.sh SITE SCRIPT: runs SCRIPT with torch importable from SITE and DTENSOR_LIBRARY set to libdtensor.so.
# SCRIPT prints the closing line "[dtensor] N passed, N failed, N skipped" itself.
set -euo pipefail
site=$1 script=$2
skip() { echo "SKIPPED: $*"; echo "[dtensor] 0 passed, 0 failed, 1 skipped"; exit 0; }
[ "$site" != none ] || skip "the LibTorch in use has no Python half (it is fetched where a CUDA toolkit is installed)"
python=python3
for extension in "$site"/torch/_C.cpython-3*.so; do
  version=${extension##*cpython-3} version=${version%%-*}
  python=python3.$version
done
command -v "$python" > /dev/null || skip "torch was built for $python, which is not installed"
export DTENSOR_LIBRARY=$PWD/libdtensor.so
# Python may write bytecode beside torch's sources: to compile those again in every process takes as long as all else of an import.
exec env -u PYTHONDONTWRITEBYTECODE PYTHONPATH="$site" PYTHONNOUSERSITE=1 "$python" "$script"
