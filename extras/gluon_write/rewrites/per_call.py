"""Give each call of a function with products its own copy, where calls have tensors of other shapes.

    dk, dv = gradients(dk, dv, q, BLOCK_M=16, MASKED=True)
    dk, dv = gradients(dk, dv, q, BLOCK_M=32, MASKED=False)

has one loop with two shapes of tiles, which cannot have one ring. The second call takes a copy, `gradients_2`.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from gluon_write.text.form import Form, changed_copy, edited, free_name, function_of
from gluon_write.text.syntax import calls_in
from gluon_write.tracing.sketch import Place, Sketch, place_of

__all__ = ["copied_per_call", "per_call"]


def per_call(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel whose functions with products have one shape for each tensor, or the kernel."""
    several = [jit for i, jit in enumerate(drawn.jits) if "mma" in jit.src and _differ(drawn, i)]
    return copied_per_call(fn, drawn, several)


def copied_per_call(fn: Any, drawn: Sketch, several: list[Any]) -> Any:
    """Return a kernel whose calls of some functions, but for the first, have copies of their own, or the kernel."""
    sites: dict[int, list[Place]] = {}
    for place, called in drawn.called.items():
        if any(called is jit for jit in several):
            sites.setdefault(id(called), []).append(place)
    taken = {word for jit in drawn.jits for word in re.findall(r"\w+", jit.src)}
    names: dict[Place, str] = {}
    copies: dict[str, Any] = {}
    for jit in several:
        for place in sorted(sites.get(id(jit), ()), key=lambda p: (p[-1], *p[1:3]))[1:]:
            names[place] = free_name(jit.__name__, taken)
            text = re.sub(rf"\bdef {jit.__name__}\b", f"def {names[place]}", jit.src, count=1)
            copies[names[place]] = function_of(text, names[place], jit.get_capture_scope())
    texts: dict[int, str] = {}
    for number, jit in enumerate(drawn.jits):
        form = Form(jit)
        calls = calls_in(form.tree)
        edits = [
            (call.func, names[place])
            for call in calls
            for place in [place_of(call, number)]
            if place in names and place is not None and isinstance(call.func, ast.Name)
        ]
        if edits:
            texts[number] = edited(form.source, edits)
    return changed_copy(fn, drawn.jits, texts, {}, copies) if texts else fn


def _differ(drawn: Sketch, number: int) -> bool:
    """Return True if an expression of a function has values of several shapes; of the kernel, which one call has, False."""
    if number == 0:
        return False
    return any(
        len({tuple(getattr(value.type, "dims", ())) for value in values}) > 1
        for place, values in drawn.returned.items()
        if place[-1] == number
    )
