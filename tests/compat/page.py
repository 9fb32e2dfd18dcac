"""`docs/compatibility.md`: for each release what remains of `tests.compat.differences`.

    python -m tests.compat.page

writes the part of the installed release anew; the others stay.
"""

from __future__ import annotations

import re
from pathlib import Path

from gluon_core._triton import VERSION
from tests.compat import sides
from tests.compat.accepted import section
from tests.compat.differences import DIFFERENCES, Difference

__all__ = ["PAGE", "part", "row", "written"]

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
RELEASE = ".".join(map(str, VERSION[:2]))
_HEAD = """\
# Compatibility with Triton's own Gluon

A kernel that Triton's own Gluon takes and hardware runs is to run here with its import lines changed. What follows is all that
is known to differ: where our tracer refuses what theirs compiles, or makes another module of it. Each row is a program in `tests/compat/differences.py`
or `units.py`, run through both on that release; random programs are compared besides, and what none of the rows explains fails the test. Every public op
stands in a family of them, and `python -m tests.compat.sweep` runs families in full, over many processes. What theirs
traces while its compile fails or aborts is refused at the op, under its line; of that the rows name the kinds that are met most.

Written by `python -m tests.compat.page` on each release; do not edit.
"""


def row(difference: Difference) -> str:
    """The row of a difference on the installed release; empty where there is none."""
    if not difference.source:  # what the release has no name for
        return ""
    found = sides.verdict(difference.source)
    if found.kind not in difference.kinds and not difference.everywhere:
        return ""
    theirs = "compiles it" if found.kind == "refused" else "traces it, and its compile fails"
    if found.kind == "differs":
        theirs = "makes another module"
    elif difference.everywhere:  # what it reads beyond a list is one thing or another
        theirs = "takes it"
    elif found.compiled is not None and found.compiled.how == "abort":
        theirs = "traces it, and its compile aborts"
    return f"| {difference.title} | {theirs} | {difference.reason}: {difference.why} |"


def part() -> str:
    """The part of the installed release."""
    sides.warm()
    lines = [
        f"## Triton {RELEASE}",
        "",
        "| what ours refuses, or does otherwise | upstream | why |",
    ]
    rows = filter(None, map(row, DIFFERENCES))
    return "\n".join([*lines, "| --- | --- | --- |", *rows]) + "\n"


def written() -> str:
    """The part of the installed release as the page has it; empty if it has none."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    found = re.search(rf"^## Triton {re.escape(RELEASE)}\n.*?(?=^## |\Z)", text, re.M | re.S)
    return found.group(0).rstrip("\n") + "\n" if found else ""


def main() -> None:
    title, _, rest = part().partition("\n")
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    parts = dict(re.findall(r"^(## Triton [\d.]+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    parts[title] = rest
    body = "\n".join(f"{name}\n{parts[name].rstrip()}\n" for name in sorted(parts))
    PAGE.write_text(f"{_HEAD}\n{body}\n{section()}", encoding="utf-8")


if __name__ == "__main__":
    main()
