#!/usr/bin/env python3
"""Checks a commit's message: python3 tools/check_subject.py FILE

The first line has 1 to 72 characters and no full stop at its end, and the second is empty. Exits 1 with a line that says which is not so.
"""

import sys


def fault(message):
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if not subject.strip():
        return "there is no first line"
    if len(subject) > 72:
        return f"the first line has {len(subject)} characters; 72 is the most"
    if subject.endswith("."):
        return "the first line ends with a full stop"
    if len(lines) > 1 and lines[1].strip():
        return "the second line is not empty"
    return None


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        found = fault(f.read())
    if found:
        sys.exit(f"commit message: {found}")


if __name__ == "__main__":
    main()
