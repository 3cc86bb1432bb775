#!/usr/bin/env python3
"""Makes docs/api.md, the list of what programs may call, out of the public headers.

  python3 tools/tables/api_page.py --write    writes the page
  python3 tools/tables/api_page.py --check    exits 1, saying so, if the page is not what this would write
"""

import argparse
import os
import re
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(__file__)), "../.."))
PAGE = "docs/api.md"
sys.path.insert(0, os.path.join(ROOT, "tools/install"))
import install  # pylint: disable=wrong-import-position

# Headers that only include others.
UMBRELLAS = ["dtensor/dtensor.h", "sharded/sharded.h"]
# In the order of the page.
FOLDERS = {
    "dtensor": "Distributed tensors and modules",
    "mesh": "Worlds and meshes",
    "placement": "Placements",
    "plan": "Layouts and redistribution plans",
    "propagation": "Rules of operators and their decisions",
    "observe": "Observing communication",
    "checkpoint": "Checkpoints and files",
    "processes": "Processes",
    "sharded": "The ShardedTensor family (`namespace dtensor::sharded`)",
}
TYPE = re.compile(r"^(?:class|struct|enum class|enum) (\w+)[^;]*$")
ALIAS = re.compile(r"^using (\w+) =")
CONSTANT = re.compile(r"^(?:inline )?constexpr [^=(]* (k\w+) ?[={]")
INTERNAL = re.compile(r"^namespace internal \{$.*?^\}  // namespace internal$", re.M | re.S)
FUNCTION = re.compile(r"^(?!namespace|using|class|struct|enum|template|friend|static_assert|return|constexpr k)"
                      r"[\w:<>,&*\[\] ]*?[\w>&*\]] ?[&*]?\b(\w+)\((?!\*)")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def headers():
    """Those that a program includes by name, or gets from an umbrella, by folder."""
    found = [header for root in install.ROOTS
             for header in (install.INCLUDE.findall(read(root)) if root in UMBRELLAS else [root])]
    return {folder: sorted({h for h in found if h.split("/")[0] == folder}) for folder in FOLDERS}


def purpose(text):
    """The first paragraph of the comment that a header begins with."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("//") or line.strip() == "//":
            break
        lines.append(line[2:].strip())
    return " ".join(lines)


def declared(text):
    """Names at namespace scope that are the user's, in the order of the header."""
    names = []
    for line in INTERNAL.sub("", text).splitlines():
        if line[:1] in (" ", "/", "#", "}", ""):
            continue
        for pattern in (TYPE, ALIAS, CONSTANT, FUNCTION):
            match = pattern.match(line)
            if match and not re.search(r"\boperator\b", line.split("(")[0]):
                names.append(match.group(1) + ("()" if pattern is FUNCTION else ""))
                break
    return list(dict.fromkeys(names))


def page():
    out = ["# What programs call", "",
           "All public headers with the names that they declare, and an index of these names. The headers themselves are the",
           "reference: shapes, units, errors and examples stand there. `dtensor/dtensor.h` includes most of them; those marked with * are",
           "included by themselves, and `sharded/sharded.h` includes the last group. The page is made by `tools/tables/api_page.py`.", ""]
    index = {}
    for folder, files in headers().items():
        out += [f"## {FOLDERS[folder]}", ""]
        for header in files:
            names = declared(read(header))
            for name in names:
                index.setdefault(name, []).append(header)
            star = "*" if header in install.ROOTS else ""
            out += [f"[`{header}`](../{header}){star}: {purpose(read(header))}", "",
                    ", ".join(f"`{name}`" for name in names) or "(includes others alone)", ""]
    out += ["## Index", "", "| name | header |", "| --- | --- |"]
    for name in sorted(index, key=lambda n: (n.lower(), n)):
        out.append(f"| `{name}` | {', '.join(f'[`{h}`](../{h})' for h in sorted(set(index[name])))} |")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true")
    mode.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = page()
    if arguments.write:
        with open(os.path.join(ROOT, PAGE), "w", encoding="utf-8") as f:
            f.write(text)
    elif not os.path.exists(os.path.join(ROOT, PAGE)) or read(PAGE) != text:
        sys.exit(f"{PAGE} is not what the public headers declare; run python3 tools/tables/api_page.py --write")


if __name__ == "__main__":
    main()
