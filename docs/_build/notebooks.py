"""The ten steps of examples/tutorials as notebooks: a cell for each part of a file, then pictures.

    python docs/_build/notebooks.py

writes examples/tutorials/*.ipynb, without outputs; tests run them.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any, Iterator

FOLDER = Path(__file__).parents[2] / "examples" / "tutorials"


def steps() -> list[Path]:
    return sorted(FOLDER.glob("step*.py"))


def cells(file: Path) -> Iterator[tuple[str, str]]:
    """Yield (kind, text): the file's docstring, its imports and constants, each function, its run."""
    text = file.read_text()
    lines = text.splitlines()
    tree = ast.parse(text)
    title, _, rest = (ast.get_docstring(tree) or "").partition("\n")
    yield "markdown", f"# {title}\n\n{rest.strip()}"
    layouts: list[str] = []
    run = ""
    start = tree.body[0].end_lineno or 0
    plain: list[str] = []

    def flush() -> Iterator[tuple[str, str]]:
        body = "\n".join(plain).strip()
        plain.clear()
        if body:
            yield "code", body

    for node in tree.body[1:]:
        part = lines[start : node.end_lineno]
        start = node.end_lineno or start
        if isinstance(node, ast.If):  # `if __name__ == "__main__":`, which a notebook is
            run = "\n".join(ast.unparse(one) for one in node.body)
            continue
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield from flush()
            yield "code", "\n".join(part).strip()
            continue
        plain += part
        if isinstance(node, ast.Assign) and "Layout(" in ast.unparse(node.value):
            shown = "next(iter({}.values()))" if isinstance(node.value, ast.Dict) else "{}"
            layouts += [
                shown.format(name.id) for name in node.targets if isinstance(name, ast.Name)
            ]
    yield from flush()
    yield "code", run
    for name in layouts:
        yield "markdown", f"`{name}`: hover over an element to see who holds it."
        yield "code", f"{name}.show()"


def notebook(file: Path) -> str:
    """Return the notebook of a step, in version 4 of the format."""
    parts: list[dict[str, Any]] = []
    for number, (kind, text) in enumerate(cells(file)):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        cell["source"] = text.splitlines(keepends=True)
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        parts.append(cell)
    spec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {
        "cells": parts,
        "metadata": {"kernelspec": spec, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(book, indent=1) + "\n"


if __name__ == "__main__":
    for step in steps():
        step.with_suffix(".ipynb").write_text(notebook(step))
