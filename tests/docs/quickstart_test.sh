#!/usr/bin/env bash
# The program prints what README.md says it prints.
set -uo pipefail
expected=$(python3 tools/doc_blocks.py --output-of examples/quickstart.cc README.md) &&
  actual=$(examples/quickstart) && diff <(echo "$expected") <(echo "$actual")
status=$?
[ $status = 0 ] && echo "[dtensor] 1 passed, 0 failed" || echo "[dtensor] 0 passed, 1 failed"
exit $status
