"""Write a page for each code of a finding into docs/findings: `python docs/_build/findings.py --write`."""

from __future__ import annotations

import sys
from pathlib import Path

from gluon_judge.codes import CODES, Code

FOLDER = Path(__file__).parents[1] / "findings"


def page(code: Code) -> str:
    """Return the page of a code."""
    return (
        f"# {code.name}\n\nClass: {code.family}. Usual severity: {code.severity}.\n\n{code.meaning}\n\n"
        f"## Detection\n\n{code.detection}\n\n## Example\n\n{code.example}\n\n## Remedy\n\n{code.remedy}\n"
    )


def index() -> str:
    """Return the page that lists all codes by class."""
    families = dict.fromkeys(code.family for code in CODES.values())
    lines = [
        "# Findings\n",
        "The codes of findings of [the judge](../judge.md). An error rejects a candidate, a doubt withholds acceptance, "
        "warnings and notes inform.\n",
    ]
    for family in families:
        lines += [f"## {family[0].upper()}{family[1:]}\n", "| code | severity | meaning |", "| --- | --- | --- |"]
        lines += [
            f"| [{code.name}]({code.name}.md) | {code.severity} | {code.meaning} |"
            for code in CODES.values()
            if code.family == family
        ]
        lines.append("")
    names = "\n".join(CODES)
    return "\n".join(lines) + f"\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"


def pages() -> dict[Path, str]:
    """Return the text of every page."""
    texts = {FOLDER / f"{code.name}.md": page(code) for code in CODES.values()}
    return {FOLDER / "index.md": index(), **texts}


if __name__ == "__main__" and "--write" in sys.argv:
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)
