"""Write a page for each code of a finding into docs/findings: `python docs/_build/findings.py --write`."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from gluon_judge.codes import CODES, Code

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "findings"
MOST = 5  # candidates that a page lists


def candidates() -> dict[str, list[str]]:
    """Return lines about the candidates of the corpus that each code rejects, the first of their labels."""
    lines: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests" / "judge" / "corpus").glob("*/cheat_*.py")):
        label, _, text = (ast.get_docstring(ast.parse(path.read_text())) or "").partition(": ")
        name = path.relative_to(ROOT).as_posix()
        lines.setdefault(label.partition(" ")[0], []).append(f"- `{name}` {text.splitlines()[0]}")
    return lines


def page(code: Code, corpus: list[str]) -> str:
    """Return the page of a code."""
    listed = "\n".join(corpus[:MOST])
    more = f"\n## In the corpus\n\n{listed}\n" if listed else ""
    return (
        f"# {code.name}\n\nClass: {code.family}. Usual severity: {code.severity}.\n\n{code.meaning}\n\n"
        f"## Detection\n\n{code.detection}\n\n## Example\n\n{code.example}\n\n## Remedy\n\n{code.remedy}\n{more}"
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
        lines += [
            f"## {family[0].upper()}{family[1:]}\n",
            "| code | severity | meaning |",
            "| --- | --- | --- |",
        ]
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
    corpus = candidates()
    texts = {
        FOLDER / f"{one.name}.md": page(one, corpus.get(one.name, [])) for one in CODES.values()
    }
    return {FOLDER / "index.md": index(), **texts}


if __name__ == "__main__" and "--write" in sys.argv:
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)
