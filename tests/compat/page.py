"""`docs/compatibility.md`: for each release the rows of `tests.compat.differences`.

    python -m tests.compat.page

writes the part of the installed release anew; the others stay.
"""

from __future__ import annotations

import re
from pathlib import Path

from gluon_core.testing import TRITON_VERSION
from tests.compat import evidence, sides
from tests.compat.accepted import section
from tests.compat.differences import DIFFERENCES, Difference
from tests.compat.sides import Verdict
from tests.frontend import oracle

__all__ = ["PAGE", "part", "row", "written"]

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
RELEASE = ".".join(map(str, TRITON_VERSION[:2]))
_HEAD = """\
# Compatibility with Triton's own Gluon

A kernel that Triton's own Gluon takes and hardware runs also runs here with its import lines changed. The tables list all
known differences: programs that our tracer refuses and theirs compiles, or of which ours makes another module. Each row is a program in
`tests/compat/differences.py` or `units.py`, run through both on that release. Random programs are compared as well, and one that no row
explains fails the test. Every public op appears in a family of them, and `python -m tests.compat.sweep` runs families in full, over many
processes. Programs that theirs traces while its compile fails or aborts are refused at the op, under its line; of those the rows name the
kinds that are met most.

The last column gives the evidence of a row:

- *the compile fails*: Triton's own compiler ends in an error or an abort. The tests run it again on the installed release.
- *measured*: a GPU computes the wrong result, faults, hangs, or refuses the launch. `tests/compat/evidence.json` keeps the date, the GPU, the
  versions, the command and the numbers of each program in `tests/compat/probes.py`; `pytest -m gpu tests/compat/test_evidence.py` repeats them.
- *by the manuals*: upstream compiles it, nobody has measured it, and we read the manuals or the machine code so that it is wrong.
- *otherwise*: both compile it, to different modules.

Where a row ends in `strict=False`, the refusal can be switched off: with `@gluon.jit(strict=False)`, with `strict=False` in a launch,
`kernel.warmup` or `gluon.compile`, or with `GLUON_STRICT=0` in the environment for every kernel without a setting of its own, and for checks of
host code. The kernel then compiles with a `KernelWarning` at the line. The setting is part of a kernel's identity in memory and on disk. The
simulator has no meaning for such ops and reports them as errors all the same; the emulator runs their machine code.

Written by `python -m tests.compat.page` on each release; do not edit.
"""
_LOOSE = "KWARGS = {**KWARGS, 'strict': False}\n"


def row(difference: Difference) -> str:
    """Return the row of a difference on the installed release; empty where there is none.

    Raises:
        AssertionError: nothing shows that the program must be refused, and `strict=False` refuses it, too.
    """
    if not difference.source:  # the release has no name for it
        return ""
    verdict = sides.verdict(difference.source)
    if verdict.kind not in difference.kinds and not difference.everywhere:
        return ""
    theirs = "compiles it" if verdict.kind == "refused" else "traces it, and its compile fails"
    if verdict.kind == "differs":
        theirs = "makes another module"
    elif difference.everywhere:  # what it reads beyond a list is one thing or another
        theirs = "takes it"
    elif verdict.compiled is not None and verdict.compiled.how == "abort":
        theirs = "traces it, and its compile aborts"
    return (
        f"| {difference.title} | {theirs} | {difference.why} | {_evidence(difference, verdict)} |"
    )


def _evidence(difference: Difference, verdict: Verdict) -> str:
    """Return the evidence of a row."""
    if verdict.kind == "refused early":
        return "the compile fails"
    if verdict.kind == "differs":
        return "otherwise"
    loose = sides.traced_by(oracle.ours, difference.source + _LOOSE)
    same = loose.how == "ok" and (difference.everywhere or loose.text == verdict.theirs.text)
    measured = evidence.against(difference.title)
    assert measured or same, f"no evidence, and no way out: {difference.title}\n{loose.text}"
    rests = f"measured: {measured}" if measured else "by the manuals"
    return f"{rests}; `strict=False`" if same else rests


def part() -> str:
    """The part of the installed release."""
    sides.warm()
    lines = [
        f"## Triton {RELEASE}",
        "",
        "| construct that ours refuses, or treats otherwise | upstream | why | evidence |",
    ]
    rows = filter(None, map(row, DIFFERENCES))
    return "\n".join([*lines, "| --- | --- | --- | --- |", *rows]) + "\n"


def written() -> str:
    """The part of the installed release as the page has it; empty if it has none."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    match = re.search(rf"^## Triton {re.escape(RELEASE)}\n.*?(?=^## |\Z)", text, re.M | re.S)
    return match.group(0).rstrip("\n") + "\n" if match else ""


def main() -> None:
    title, _, rest = part().partition("\n")
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    parts = dict(re.findall(r"^(## Triton [\d.]+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    parts[title] = rest
    body = "\n".join(f"{name}\n{parts[name].rstrip()}\n" for name in sorted(parts))
    PAGE.write_text(f"{_HEAD}\n{body}\n{section()}", encoding="utf-8")


if __name__ == "__main__":
    main()
