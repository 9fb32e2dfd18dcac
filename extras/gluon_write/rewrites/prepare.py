"""Bring a kernel into the form from which all others are written."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from gluon_core.errors import GluonError
from gluon_write.rewrites.apart import apart
from gluon_write.rewrites.casts import without_casts
from gluon_write.rewrites.exponentials import with_powers_of_two
from gluon_write.rewrites.gather_axes import gathered_along_first
from gluon_write.rewrites.inline import makers_inlined, makes, steps_inlined
from gluon_write.rewrites.kept_rows import with_kept_rows
from gluon_write.rewrites.methods import methods_called
from gluon_write.rewrites.named_operands import with_named_loads, with_named_operands
from gluon_write.rewrites.own_names import with_own_names
from gluon_write.rewrites.packed_rows import with_packed_rows
from gluon_write.rewrites.per_call import per_call
from gluon_write.rewrites.quotients import divided_once
from gluon_write.rewrites.relaxed_sums import with_relaxed_sums
from gluon_write.rewrites.unrolled import unrolled
from gluon_write.rewrites.whole_steps import in_whole_steps
from gluon_write.text.form import Form
from gluon_write.text.with_spaces import with_spaces
from gluon_write.tracing.branches import products_taken, taken_alone, taken_in_loops
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.tracer import Tracer

__all__ = ["prepared"]


def prepared(fn: Any, traced: Tracer) -> tuple[Any, Sketch]:
    """Return a kernel with statements, functions and branches that the other forms can read, and its trace."""
    fn, drawn = unrolled(with_spaces(fn), traced)
    while (by_name := methods_called(fn, drawn)) is not fn:
        fn = with_spaces(by_name)
        drawn = traced(fn)
    while (single := apart(fn, drawn)) is not fn:
        fn, drawn = single, traced(single)
    fn, drawn = traced.after(fn, drawn, products_taken, steps_inlined)
    if any(makes(Form(one)) for one in drawn.jits[1:]):
        alone = traced.after(fn, drawn, taken_alone)
        whole = traced.after(*alone, makers_inlined)
        fn, drawn = whole if whole[0] is not alone[0] else (fn, drawn)
    fn, drawn = traced.after(fn, drawn, per_call)
    fn, drawn = taken_in_loops(fn, drawn, traced)
    kept = partial(with_kept_rows, threads=traced.threads)
    for written in (
        without_casts, with_own_names, divided_once, gathered_along_first, with_named_loads,
        with_named_operands, with_packed_rows, kept, in_whole_steps, with_relaxed_sums, partial(with_powers_of_two, target=traced.target),
    ):  # fmt: skip
        with contextlib.suppress(GluonError):  # a branch that the kernel's values cannot leave
            fn, drawn = traced.after(fn, drawn, written)
    return fn, drawn
