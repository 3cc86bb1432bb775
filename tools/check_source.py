#!/usr/bin/env python3
"""Checks how the source tree is built: python3 tools/check_source.py [--format] [ROOT]

  direction   a folder includes those before it alone (LAYERS), and none includes another folder's internal/; PROGRAMS
              include public headers alone, which are not those in the rooms of ROOMED. Tests may include anything.
  order       a room includes only rooms above it in the tables of ROOM_ORDER
  cycles      within a folder, neither files (x.h and x.cc count as one) nor the rooms of ROOMED include in a circle
  namespace   a header of the library that programs do not get (tools/install/install.py) declares nothing in namespace
              dtensor itself, but in dtensor::internal or another namespace within it
  names       types and constants of anonymous namespaces have other names in each .cc of a package, which are compiled
              together (unity.bzl)
  size        no file is longer than MAX_FILE_LINES, and no function than MAX_FUNCTION_LINES
  threads     nothing calls at::parallel_for, which starts no threads in sources that clang compiled; parallel_for() does
  root        no more than MAX_FOLDERS folders at the top
  words       comments and string literals of sources (test names and error texts among them), scripts, and the pages
              and files of PROSE contain none of BANNED_WORDS; comments of headers outside internal/ have no "Internal",
              which their namespace says
  concepts    the table of CONCEPTS has at most MAX_CONCEPTS, and names each header of dtensor/dispatch/
  --format    clang-format-14 would change nothing; skipped, saying so, where that is not installed

Prints a line per fault; exits 1 if there is one.
"""

import collections
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "install"))
import install  # pylint: disable=wrong-import-position

# From the bottom up.
LAYERS = ["placement", "comm", "mesh", "plan", "observe", "processes", "propagation", "dtensor", "ops", "checkpoint",
          "sharded", "python"]
# Their subfolders are rooms: one idea each.
ROOMED = ["plan", "dtensor", "ops"]
PROGRAMS = ["benchmarks", "examples", "tools"]
# What programs include is above all.
UMBRELLA = "dtensor/dtensor.h"
MAX_FOLDERS = 18
ROOM_ORDER = "docs/design.md"
CONCEPTS = ("docs/design.md", "## The concepts of `dispatch()`")
MAX_CONCEPTS = 20
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
ANONYMOUS = re.compile(r"^namespace \{$(.*?)^\}  // namespace$", re.M | re.S)
# Forward declarations of public types are the exception.
OUTER = re.compile(r"^namespace dtensor \{$(.*?)^\}  // namespace dtensor$", re.M | re.S)
INNER = re.compile(r"^namespace \w+ \{$.*?^\}  // namespace \w+$", re.M | re.S)
FORWARD = re.compile(r"(?:class|struct|enum class) \w+;")
NAME = re.compile(r"^(?:(?:struct|class|union|enum(?: class)?) (\w+)|(?:static |constexpr |const )[^=;(]*?\b(k[A-Z]\w*))", re.M)
CLANG_FORMAT = "clang-format-14"
# A comment or test name with one of these lacks a subject, or has a metaphor where there is a term.
BANNED_WORDS = ["nobody", "somebody", "whoever", "strayed", "at home", "given away", "anew", "is told", "who asks",
                "who comes"]
BANNED = re.compile(r"\b(?:" + "|".join(word.replace(" ", r"\s+") for word in BANNED_WORDS) + r")\b", re.I)
INTERNAL = re.compile(r"//.*\bInternal\b")
PROSE = ["BUILD.bazel", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "docs"]
SOURCES = (".h", ".cc", ".cu")
SCRIPTS = (".py", ".sh", ".bzl", "BUILD.bazel")
# These name the words.
WITH_BANNED_WORDS = ["tools/check_source.py", "tests/tools/source_test.sh"]
# Of the library and programs. Longer ones hold more than one idea.
MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 60
# Raw strings first: quotes and slashes within them begin nothing. Then strings, characters, and both kinds of comments.
TEXT = re.compile(r'R"(?P<mark>[^()\s]*)\((?:.*?)\)(?P=mark)"|"(?:[^"\\\n]|\\.)*"|(?<![0-9a-zA-Z])\'(?:[^\'\\\n]|\\.)+\''
                  r'|//[^\n]*|/\*.*?\*/', re.S)


def sources(root, folders, endings=SOURCES):
    for folder in folders:
        for where, inner, files in os.walk(os.path.join(root, folder)):
            inner[:] = sorted(d for d in inner if not d.startswith("."))
            for name in sorted(files):
                if name.endswith(endings):
                    yield os.path.relpath(os.path.join(where, name), root)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return f.read()


def folder_of(path):
    return path.split("/")[0]


def direction_faults(includes):
    faults = []
    for path, targets in includes.items():
        for target in targets:
            here, there = folder_of(path), folder_of(target)
            if there not in LAYERS or there == here:
                continue
            inner = target.split("/")[1:-1]
            if here in PROGRAMS:
                if "internal" in inner or (there in ROOMED and inner):
                    faults.append(f"{path}: includes {target}, which is not for programs")
                continue
            if LAYERS.index(there) > LAYERS.index(here) and path != UMBRELLA:
                faults.append(f"{path}: includes {target}, of a folder above {here}/")
            if "internal" in inner:
                faults.append(f"{path}: includes {target}, which is internal to {there}/")
            if target == UMBRELLA:
                faults.append(f"{path}: includes {UMBRELLA}, which is for programs")
    return faults


def unit_of(path):
    return os.path.splitext(path)[0]


def room_of(path):
    """The room that a file is in, if it is in one."""
    parts = path.split("/")
    return "/".join(parts[:2]) + "/" if parts[0] in ROOMED and len(parts) > 2 else None


def cycle_faults(includes, part_of):
    """Parts of the tree that include one another: strongly connected ones, by Tarjan's algorithm."""
    graph = collections.defaultdict(set)
    for path, targets in includes.items():
        here = part_of(path)
        for target in targets:
            there = part_of(target)
            if path != UMBRELLA and folder_of(target) in LAYERS + PROGRAMS and here and there and here != there:
                graph[here].add(there)
    index, low, stack, faults = {}, {}, [], []

    def visit(unit):
        index[unit] = low[unit] = len(index)
        stack.append(unit)
        for other in sorted(graph[unit]):
            if other not in index:
                visit(other)
                low[unit] = min(low[unit], low[other])
            elif other in stack:
                low[unit] = min(low[unit], index[other])
        if low[unit] == index[unit]:
            component = []
            while not component or component[-1] != unit:
                component.append(stack.pop())
            if len(component) > 1:
                faults.append("include one another in a circle: " + ", ".join(sorted(component)))

    sys.setrecursionlimit(10000)
    for unit in sorted(graph):
        if unit not in index:
            visit(unit)
    return faults


def order_faults(root, includes):
    if not os.path.exists(os.path.join(root, ROOM_ORDER)):
        return []
    page, faults = read(root, ROOM_ORDER), []
    for top in ROOMED:
        table = page.partition(f"| subfolder of [`{top}/`]")[2].partition("\n\n")[0]
        order = [f"{top}/{name}/" for name in re.findall(r"\[`\w+/`\]\(\.\./" + top + r"/(\w+)\)", table)]
        for path, targets in includes.items():
            here = room_of(path)
            if path.split("/")[0] != top or here is None:
                continue
            if here not in order:
                faults.append(f"{path}: {here} is not in the table of subfolders of {ROOM_ORDER}")
                continue
            faults += [f"{path}: includes {target}, of a room below {here} in {ROOM_ORDER}" for target in targets
                       if room_of(target) in order and order.index(room_of(target)) > order.index(here)]
    return faults


def namespace_faults(root, includes):
    public, to_do = set(), list(install.ROOTS)
    while to_do:
        header = to_do.pop()
        if header not in public:
            public.add(header)
            to_do += includes.get(header, [])
    faults = []
    for path in includes:
        if not path.endswith(".h") or folder_of(path) not in LAYERS or path in public:
            continue
        for body in OUTER.findall(read(root, path)):
            rest = [line for line in INNER.sub("", body).splitlines() if line and not line.startswith("//")]
            if not all(FORWARD.match(line) for line in rest):
                faults.append(f"{path}: programs do not get it, but it declares in namespace dtensor; use dtensor::internal")
    return faults


def package_of(root, path):
    folder = os.path.dirname(path)
    while folder and not os.path.exists(os.path.join(root, folder, "BUILD.bazel")):
        folder = os.path.dirname(folder)
    return folder


def name_faults(root, paths):
    where = collections.defaultdict(list)
    for path in paths:
        if path.endswith(".cc"):
            inside = "\n".join(ANONYMOUS.findall(read(root, path)))
            for name in {kind or constant for kind, constant in NAME.findall(inside)}:
                where[package_of(root, path), name].append(path)
    return [f"{' and '.join(found)}: both have a {name} in an anonymous namespace, and are compiled together; rename one"
            for (_, name), found in sorted(where.items()) if len(found) > 1]


def pages(root, names):
    for name in names:
        if os.path.isdir(os.path.join(root, name)):
            for where, _, files in os.walk(os.path.join(root, name)):
                yield from (os.path.relpath(os.path.join(where, f), root) for f in sorted(files) if f.endswith(".md"))
        elif os.path.exists(os.path.join(root, name)):
            yield name


def worded_files(root):
    folders = LAYERS + PROGRAMS + ["tests"]
    scripts = sources(root, [*folders, "third_party"], SCRIPTS)
    return [*sources(root, folders), *(path for path in scripts if path not in WITH_BANNED_WORDS), *pages(root, PROSE)]


def word_faults(root, paths):
    faults = []
    for path in paths:
        text = read(root, path)
        parts = [(m.start(), m.group()) for m in TEXT.finditer(text)] if path.endswith(SOURCES) else [(0, text)]
        for start, part in parts:
            for found in BANNED.finditer(part):
                line = text.count("\n", 0, start + found.start()) + 1
                faults.append(f"{path}:{line}: '{' '.join(found.group().split())}' is one of BANNED_WORDS; name the subject, "
                              "or use the term")
    return faults


def internal_faults(root, paths):
    return [f"{path}:{number}: its namespace says that it is internal; leave the word out"
            for path in paths if path.endswith(".h") and "/internal/" not in path
            for number, line in enumerate(read(root, path).splitlines(), 1) if INTERNAL.search(line)]


def size_faults(root, paths):
    faults = []
    for path in paths:
        lines = read(root, path).splitlines()
        if len(lines) > MAX_FILE_LINES:
            faults.append(f"{path}: has {len(lines)} lines, more than {MAX_FILE_LINES}")
        begin = None  # of a function at the outermost level, as clang-format lays it out
        for number, line in enumerate(lines, 1):
            if re.match(r"(?!namespace|struct|class|enum|extern)[\w:~\[].*\(", line):
                begin = number
            if line == "}" and begin is not None:
                if number - begin + 1 > MAX_FUNCTION_LINES:
                    faults.append(f"{path}:{begin}: a function of {number - begin + 1} lines, more than {MAX_FUNCTION_LINES}")
                begin = None
            elif line.startswith("}"):
                begin = None
    return faults


def thread_faults(root, paths):
    return [f"{path}:{number}: at::parallel_for runs on one thread where clang compiles it; use comm/parallel_for.h"
            for path in paths for number, line in enumerate(read(root, path).splitlines(), 1)
            if re.search(r"\bat::parallel_(for|reduce)\b", line.split("//")[0])]


def root_faults(root):
    folders = sorted(d for d in os.listdir(root) if os.path.isdir(os.path.join(root, d)) and not d.startswith(".") and
                     not d.startswith("bazel-"))
    if len(folders) <= MAX_FOLDERS:
        return []
    return [f"{len(folders)} folders at the root, more than {MAX_FOLDERS}: {', '.join(folders)}"]


def concept_faults(root, paths):
    page, heading = CONCEPTS
    if not os.path.exists(os.path.join(root, page)):
        return []
    section = read(root, page).partition(heading + "\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    faults = [f"{page}: {len(rows)} concepts, more than {MAX_CONCEPTS}"] if len(rows) > MAX_CONCEPTS else []
    # Names without a link are headers of dtensor/dispatch/.
    named = {name for row in rows for name in re.findall(r"(?<!\[)`(\w+\.h)`", row.rstrip("| ").rpartition("|")[2])}
    headers = {os.path.basename(path): path for path in paths
               if path.startswith("dtensor/dispatch/") and path.endswith(".h") and path != "dtensor/dispatch/dispatch.h"}
    faults += [f"{path}: belongs to no concept of {page}" for name, path in headers.items() if name not in named]
    return faults + [f"{page}: there is no {name} in dtensor/dispatch/" for name in sorted(named - set(headers))]


def format_faults(root, paths):
    if not shutil.which(CLANG_FORMAT):
        print(f"skipped: there is no {CLANG_FORMAT}")
        return []
    faults = []
    for start in range(0, len(paths), 50):
        result = subprocess.run([CLANG_FORMAT, "--dry-run", *paths[start:start + 50]], cwd=root, text=True,
                                stderr=subprocess.PIPE, check=False)
        found = {line.split(":")[0] for line in result.stderr.splitlines() if "warning:" in line}
        faults += [f"{path}: run {CLANG_FORMAT} -i on it" for path in sorted(found)]
    return faults


def main(arguments):
    formats = "--format" in arguments
    roots = [a for a in arguments if not a.startswith("--")]
    root = os.path.realpath(roots[0] if roots else os.path.join(os.path.dirname(os.path.realpath(__file__)), ".."))
    includes = {path: INCLUDE.findall(read(root, path)) for path in sources(root, LAYERS + PROGRAMS)}
    faults = (direction_faults(includes) + cycle_faults(includes, unit_of) + cycle_faults(includes, room_of) +
              namespace_faults(root, includes) + name_faults(root, sources(root, LAYERS)) + size_faults(root, includes) +
              word_faults(root, worded_files(root)) + internal_faults(root, includes) +
              thread_faults(root, sources(root, LAYERS)) + root_faults(root) + order_faults(root, includes) +
              concept_faults(root, includes))
    if formats:
        faults += format_faults(root, list(sources(root, LAYERS + PROGRAMS + ["tests"])))
    print("\n".join(faults) if faults else f"{len(includes)} files of {len(LAYERS + PROGRAMS)} folders: no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
