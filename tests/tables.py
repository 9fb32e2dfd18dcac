"""Bad input as data: tables of one row per line, with the code in the last column.

    error | match | code
    LayoutError | must be known | acc.load(gl.AutoLayout())
    ShapeError 3.9+ | columns | copies.slice(0, 32, 2).index(0)

` | ` separates columns, ` && ` the words of a message, ` ;; ` lines of code, which may also follow the row,
indented. An error may be several classes joined by `/`; `3.9+` or `<3.9` after it limits the row to releases
of Triton.
"""

from __future__ import annotations

import builtins
import re
from typing import Any

import pytest

from gluon_core import errors
from tests.frontend.vendor_oracle import before, since

__all__ = ["mistakes"]

_RELEASES = re.compile(r" (?:(\d)\.(\d+)\+|<(\d)\.(\d+))$")


def mistakes(table: str) -> pytest.MarkDecorator:
    """Run a test for each row of `table`, whose first line names the columns: the test's arguments.

    A column `id` names the row and is no argument, `name` names it and is one; without them the code does.
    `error` is a class or a tuple of classes, `words` is a tuple of texts, and `-` is None in a column `caret`.
    """
    header, *lines = filter(None, re.sub(r"(\|)?\n    ", _joined, table).splitlines())
    names = header.split(" | ")
    rows = []
    for line in lines:
        cells = line.split(" | ", len(names) - 1)
        assert len(cells) == len(names), f"{header}: {line}"
        row = dict(zip(names, cells))
        title = row.pop("id", row.get("name", cells[-1]))
        releases = _RELEASES.search(row["error"])
        row["error"] = _RELEASES.sub("", row["error"])
        row[names[-1]] = cells[-1].replace(" ;; ", "\n")
        values = [_VALUES.get(name, str)(cell) for name, cell in row.items()]
        rows.append(pytest.param(*values, id=title, marks=_marks(releases)))
    return pytest.mark.parametrize([name for name in names if name != "id"], rows)


def _joined(match: re.Match[str]) -> str:
    return "| " if match[1] else " ;; "


def _classes(cell: str) -> Any:
    classes = tuple(getattr(errors, name, None) or vars(builtins)[name] for name in cell.split("/"))
    return classes if len(classes) > 1 else classes[0]


_VALUES: dict[str, Any] = {
    "error": _classes,
    "words": lambda cell: tuple(cell.split(" && ")),
    "caret": lambda cell: None if cell == "-" else cell,
}


def _marks(releases: Any) -> list[Any]:
    if releases is None:
        return []
    first, last = releases.groups()[:2], releases.groups()[2:]
    return [since(*map(int, first)) if first[0] else before(*map(int, last))]
