#!/usr/bin/env python3
"""Makes a Catch2 source out of the code blocks of Markdown files, so that the documentation is compiled, run and compared.

A fenced block counts by its info string:

  ```cpp               a function body of its own
  ```cpp continues     goes on where the page's previous block stopped: its variables are visible
  ```cpp top           code of namespace scope, visible to all later blocks of the page
  ```cpp throws        a body that must throw; variables of the blocks before it are visible
  ```cpp PATH          the same text as that file of the repository
  ```text              directly below a cpp block: exactly what it prints, where a line "..." stands for any number of lines;
                       or the message it throws, with lines broken anywhere. Elsewhere it is only text.

A block with main() is a whole program, put into a namespace of its own. #include lines move to the top of the file; every
block sees `using namespace dtensor`. Blocks of other languages are not run, but every //label in a ```sh block or in
`code` must be a target, and every relative link must lead to a file, and to a heading if it names one. Test cases quoted after
their test, as in `plan_test`, "the cheapest route", must be in a source of tests/; the beginning of the name will do.

  doc_blocks.py --out FILE.cc PAGE...     the source
  doc_blocks.py --check PAGE...           whether labels and links lead anywhere
  doc_blocks.py --output-of PATH PAGE     what the page says that this file's program prints
"""

import argparse
import functools
import os
import re
import sys

FENCE = re.compile(r"^( *)(`{3,})\s*(.*?)\s*$")
LABEL = re.compile(r"(?<![\w:/.@])//([\w./-]*)(:[\w./-]+)?")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
TEST_CASES = re.compile(r'_test(?:`|\.cc\))[^|"\n]*?((?:"[^"\n]+"(?:, )?)+)')
INCLUDE = re.compile(r"^\s*#include\s+[<\"].*[>\"]\s*(//.*)?$")


class Block:
    def __init__(self, page, line, info):
        self.page, self.line = page, line  # line: of the first line of code
        words = info.split(None, 1)
        self.language = words[0] if words else ""
        self.kind = words[1] if len(words) > 1 else ""
        self.lines = []
        self.adjacent = False  # only blank lines between the block before and this one
        self.output = None     # cpp: the text it must print

    @property
    def text(self):
        return "\n".join(self.lines)

    def is_program(self):
        return any(re.match(r"int main\(", l) for l in self.lines)


def read(page):
    """The page's blocks, and its other lines as (number, text)."""
    blocks, prose, block, blank_only = [], [], None, False
    with open(page, encoding="utf-8") as f:
        for number, line in enumerate(f.read().splitlines(), 1):
            fence = FENCE.match(line)
            if block is None and fence:
                block = Block(page, number + 1, fence.group(3))
                block.adjacent, indent, ticks = blank_only, len(fence.group(1)), fence.group(2)
            elif block is None:
                prose.append((number, line))
                blank_only = blank_only and not line.strip()
            elif fence and fence.group(2) == ticks and not fence.group(3):
                blocks.append(block)
                block, blank_only = None, True
            else:
                block.lines.append(line[indent:] if not line[:indent].strip() else line)
    if block is not None:
        sys.exit(f"{page}:{block.line}: the block does not end")
    for before, after in zip(blocks, blocks[1:]):
        if before.language == "cpp" and after.language == "text" and after.adjacent:
            before.output = after.text
    return blocks, prose


def heading_anchor(heading):
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return text.replace(" ", "-")


def anchors(page):
    _, prose = read(page)
    return {heading_anchor(l.lstrip("#")) for _, l in prose if re.match(r"#+ ", l)}


def check_label(root, package, name):
    folder = os.path.join(root, package)
    build = os.path.join(folder, "BUILD.bazel")
    if not os.path.isfile(build):
        return False
    with open(build, encoding="utf-8") as f:
        text = f.read()
    # By name, or from a file by a glob.
    return f'name = "{name}"' in text or any(os.path.isfile(os.path.join(folder, name + e)) for e in (".cc", ".py"))


@functools.cache
def test_sources(root):
    texts = []
    for folder, _, files in os.walk(os.path.join(root, "tests")):
        for name in files:
            if name.endswith(".cc"):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    texts.append(f.read())
    return "\n".join(texts)


def problems(page, root):
    """Labels without a target, links that lead nowhere, test cases that do not exist."""
    blocks, prose = read(page)
    wrong = []

    def check_labels(number, text):
        for package, name in LABEL.findall(text):
            found = (os.path.isdir(os.path.join(root, package[:-3])) if package.endswith("...") else
                     check_label(root, package, name[1:] or package.rpartition("/")[2]))
            if not found:
                wrong.append(f"{page}:{number}: no target //{package}{name}")

    for b in blocks:
        if b.language == "sh":
            for i, l in enumerate(b.lines):
                check_labels(b.line + i, re.sub(r"\s#.*", "", l))
    for number, line in prose:
        for code in re.findall(r"`([^`]+)`", line):
            if code.startswith(("//", "./bazelw")):
                check_labels(number, code)
        for cases in TEST_CASES.findall(line):
            for case in re.findall(r'"([^"]+)"', cases):
                if f'("{case}' not in test_sources(root):
                    wrong.append(f"{page}:{number}: there is no test case \"{case}\"")
        for target in LINK.findall(line):
            path, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            other = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if not os.path.exists(os.path.join(root, other)):
                wrong.append(f"{page}:{number}: no file {other}")
            elif anchor and other.endswith(".md") and anchor not in anchors(os.path.join(root, other)):
                wrong.append(f"{page}:{number}: {other} has no heading #{anchor}")
    return wrong


def quoted(text):
    # In pieces: a compiler need not take a literal of more than 64 KiB, and delimiters are at most 16 characters.
    return 'R"__doc__(' + text + ')__doc__"'


def emit(page, blocks):
    out, includes = [], []
    space = "page_" + re.sub(r"\W", "_", os.path.splitext(page)[0])

    def code(block):
        lines = []
        for l in block.lines:
            if INCLUDE.match(l):
                includes.append(l.strip())
            lines.append("" if INCLUDE.match(l) else l)
        return f'#line {block.line} "{block.page}"\n' + "\n".join(lines)

    chain = []
    for n, b in enumerate(b for b in blocks if b.language == "cpp"):
        name, expected = f"{page}:{b.line}", quoted("" if b.output is None else b.output)
        checked = "true" if b.output is not None else "false"
        if b.kind == "top":
            out.append(f"namespace {space} {{\n{code(b)}\n}}  // namespace {space}")
            continue
        if b.is_program():
            close = max(i for i, l in enumerate(b.lines) if l == "}")
            b.lines[close] = "return 0; }"  # only ::main may do without
            out.append(f"namespace {space}_{n} {{\nusing namespace dtensor;\n{code(b)}\n}}  // namespace {space}_{n}\n"
                       f'TEST_CASE("{name}") {{\n  testing::Output out({expected}, {checked});\n'
                       # Not in a CHECK: around each, Catch2 3 takes std::cout back where Bazel runs the test.
                       f"  const int code = {space}_{n}::main();\n  out.check();\n  CHECK(code == 0);\n}}")
            continue
        if b.kind not in ("continues", "throws"):
            chain = []
        before = "".join(f"{code(c)}\n{{\n" for c in chain)
        body = f"{before}out.begin();\n"
        if b.kind == "throws":
            body += f"out.throws([&] {{\n{code(b)}\n}});\n"
        else:
            body += f"{code(b)}\n"
        body += "out.check();\n" + "}\n" * len(chain)
        out.append(f'namespace {space} {{\nTEST_CASE("{name}") {{\n'
                   f"  testing::Output out({expected}, {checked});\n{body}}}\n}}  // namespace {space}")
        if b.kind != "throws":
            chain.append(b)
    if out:
        out.insert(0, f"namespace {space} {{\nusing namespace dtensor;\n}}")
    return includes, out


def same_as_file(block):
    with open(block.kind, encoding="utf-8") as f:
        return f.read().strip() == block.text.strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--output-of")
    parser.add_argument("pages", nargs="+")
    args = parser.parse_args()
    args.pages = sorted(os.path.normpath(p) for p in args.pages)

    if args.check:
        failed = 0
        for page in args.pages:
            root = os.path.realpath(page)[: -len(page)]  # of the source tree, also where Bazel made links to it
            wrong = problems(page, root)
            failed += bool(wrong)
            print("\n".join(wrong), end="\n" if wrong else "")
        print(f"[dtensor] {len(args.pages) - failed} passed, {failed} failed")
        sys.exit(failed > 0)

    pages = {p: read(p)[0] for p in args.pages}
    if args.output_of:
        found = [b for p in pages for b in pages[p] if b.language == "cpp" and b.kind == args.output_of]
        sys.exit("no such block") if not found or found[0].output is None else print(found[0].output)
        return

    includes, cases = [], []
    for page, blocks in pages.items():
        for b in blocks:
            if b.language != "cpp" or b.kind in ("", "continues", "top", "throws"):
                continue
            if "." not in b.kind:
                sys.exit(f"{page}:{b.line}: unknown kind of block '{b.kind}'")
            same = "true" if same_as_file(b) else "false"
            cases.append(f'TEST_CASE("{page}:{b.line} is {b.kind}") {{\n  CHECK({same});\n}}')
        found, texts = emit(page, blocks)
        includes += found
        cases += texts
    first = ["#include <torch/nn.h>", "#include <torch/optim.h>", "#include <iostream>", '#include "dtensor/dtensor.h"']
    rest = sorted(set(includes) - set(first))
    with open(args.out, "w", encoding="utf-8") as f:
        f.write("// Made by tools/doc_blocks.py from the documentation.\n")
        if not cases:
            return
        f.write("\n".join(first + rest + ['#include "tests/docs/output.h"']) + "\n\n")
        f.write("namespace testing = dtensor::testing;\n\n")
        f.write("\n\n".join(cases) + "\n")


if __name__ == "__main__":
    main()
