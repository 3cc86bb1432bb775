"""Runs the Python blocks of docs/python.md, one after the other, and compares what they print with the text below them."""

import contextlib
import io
import re
import sys
import traceback
import warnings

warnings.filterwarnings("ignore", message=".*NumPy.*")
sys.path.insert(0, "python")

PAGE = "docs/python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\s*^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)

passed = failed = 0
names = {}
with open(PAGE, encoding="utf-8") as f:
    text = f.read()
for block in BLOCK.finditer(text):
    line = text[: block.start()].count("\n") + 2
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * (line - 1) + block[1], PAGE, "exec"), names)
        same = block[2] is None or out.getvalue() == block[2]
    except Exception:
        traceback.print_exc()
        same = False
    passed, failed = passed + same, failed + (not same)
    if not same:
        print(f"{PAGE}:{line}: expected:\n{block[2]}got:\n{out.getvalue()}")
print(f"[dtensor] {passed} passed, {failed} failed")
sys.exit(failed > 0 or passed == 0)
