#!/usr/bin/env python3
"""count_tests.py EVENTS STATUS: the totals of a `bazel test --build_event_json_file=EVENTS` that ended with STATUS.

Adds up the last "[dtensor] N passed, N failed, N skipped" line of every test's log (rank 0's, where //tools:launch ran
several processes), prints the sum as the last line and returns 0 if all passed. A target that did not run, or failed
without a failed case, counts as one failure, and so does whatever else made bazel fail.
"""

import json
import re
import sys
import urllib.parse

LINE = re.compile(r"^(?:\[rank 0\] )?\[dtensor\] (\d+) passed, (\d+) failed(?:, (\d+) skipped)?", re.MULTILINE)


def read_log(outputs):
    for output in outputs:
        uri = urllib.parse.urlparse(output.get("uri", ""))
        if output.get("name") == "test.log" and uri.scheme == "file":
            with open(urllib.parse.unquote(uri.path), errors="replace") as log:
                return log.read()
    return ""


def main():
    tests = set()
    results = {}
    with open(sys.argv[1]) as events:
        for line in events:
            event = json.loads(line)
            kind = event["id"]
            if "targetConfigured" in kind and event.get("configured", {}).get("targetKind", "").endswith("_test rule"):
                tests.add(kind["targetConfigured"]["label"])
            elif "testResult" in kind:
                key = kind["testResult"]
                shard = (key["label"], key.get("run", 0), key.get("shard", 0))
                results.setdefault(shard, {})[key.get("attempt", 0)] = event["testResult"]

    passed = failed = skipped = 0
    problems = [f"{label}: did not run" for label in sorted(tests - {shard[0] for shard in results})]
    for shard, attempts in sorted(results.items()):
        result = attempts[max(attempts)]  # the last attempt decides
        found = LINE.findall(read_log(result.get("testActionOutput", [])))
        p, f, s = (int(n or 0) for n in found[-1]) if found else (0, 0, 0)
        status = result.get("status", "NO_STATUS")
        if status != "PASSED" and not f:
            problems.append(f"{shard[0]}: {status}")
        elif not found:
            problems.append(f"{shard[0]}: no closing line in its log")
        passed, failed, skipped = passed + p, failed + f, skipped + s
    if not failed and not problems and (sys.argv[2] != "0" or not passed):
        problems.append(f"bazel ended with status {sys.argv[2]}" if passed else "no test ran")
    for problem in problems:
        print(problem)
    failed += len(problems)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


sys.exit(main())
