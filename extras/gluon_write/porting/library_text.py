"""The text of functions of gluon_write.porting.library, with the functions that they call."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path
from typing import Mapping, Sequence

from gluon_write.text.form import free_name

__all__ = ["copied", "library_texts"]


@lru_cache(maxsize=None)
def library_texts() -> dict[str, str]:
    """Return the definitions of the library by name, in its order."""
    text = (Path(__file__).parent / "library.py").read_text()
    text = re.sub(r" +# type: ignore\[.*\]", "", text)  # layouts that are left out
    lines, texts = text.splitlines(), {}
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            texts[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return texts


def copied(wanted: Sequence[str], names: Mapping[str, str], taken: set[str]) -> list[str]:
    """Return the definitions of functions and of those that they call, in the order of the library.

    Args:
        names: of some of them in the file that gets the text; others get names that are not `taken`.
    """
    texts = library_texts()
    used: set[str] = set()
    left = list(wanted)
    while left:
        name = left.pop()
        if name not in used:
            used.add(name)
            left += [word for word in re.findall(r"\w+", texts[name]) if word in texts]
    spelled = {name: names.get(name) or free_name(name, taken) for name in texts if name in used}
    return [
        re.sub(r"(?<![\w.])[A-Za-z_]\w*(?![\w\"'])", lambda m: spelled.get(m[0], m[0]), texts[name])
        for name in spelled
    ]
