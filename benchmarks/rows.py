"""Rows of the table of //benchmarks:all in Python, with the fields that gates.h gives them."""

import json

MISSED = 3  # the exit code of a benchmark that missed a gate


class Rows:
    """Prints a line for each row, writes it to the file at `path` (None: none), and remembers whether one missed its gate."""

    def __init__(self, path):
        self._file = open(path, "w", encoding="utf-8") if path else None  # pylint: disable=consider-using-with
        self._missed = False

    def add(self, workload, ratio, gate="", good=True, peer="", unit="", theirs=None, ours=None):
        """`gate` in words: "at most 1.7"; "": none. `good`: whether it holds."""
        verdict = "no gate" if not gate else "ok" if good else "missed"
        self._missed = self._missed or verdict == "missed"
        self._write({"workload": workload, "peer": peer, "unit": unit, "theirs": theirs, "ours": ours, "limit": None,
                     "ratio": ratio, "gate": gate, "verdict": verdict})

    def at_least(self, workload, ours, theirs, gate, **names):
        """Times: theirs is to be at least `gate` times ours. `names`: as of add()."""
        ratio = theirs / ours
        self.add(workload, ratio, f"at least {gate}", ratio >= gate, theirs=theirs, ours=ours, **names)

    def skip(self, workload, why):
        self._write({"workload": workload, "peer": "", "unit": "", "theirs": None, "ours": None, "limit": None, "ratio": None,
                     "gate": "", "verdict": f"skipped: {why}"})

    def exit_code(self):
        """As of Gates::close()."""
        return MISSED if self._missed else 0

    def _write(self, row):
        print(line_of(row), flush=True)
        if self._file:
            print(json.dumps(row), file=self._file, flush=True)


COLUMNS = ["workload", "peer", "ours", "limit", "ratio", "gate", "verdict"]


def cells(row):
    """A row's texts, one per column."""

    def figure(value, unit):
        if value is None:
            return ""
        return (f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}") + (f" {unit}" if unit else "")

    theirs = figure(row["theirs"], row["unit"])
    peer = f"{row['peer']}: {theirs}" if theirs else row["peer"]
    return [row["workload"], peer, figure(row["ours"], row["unit"]), figure(row["limit"], row["unit"]), figure(row["ratio"], ""),
            row["gate"], row["verdict"]]


def line_of(row):
    return " | ".join(cells(row))
