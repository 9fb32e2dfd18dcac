"""`gluon explain`: which lowering each portable op takes, why not the others, and its outcome."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from gluon_cli.compile import options_of
from gluon_cli.launched import forms, one_form
from gluon_cli.outcomes import (
    line_as_dict,
    line_table,
    near_place,
    not_taken,
    op_as_dict,
    verdict,
)
from gluon_cli.output import console, print_json, table
from gluon_cli.parse import parse_assignments
from gluon_core.registry.load import registry

__all__ = ["show"]


def show(
    kernel: str,
    target: Optional[str],
    signature: Optional[str],
    constexpr: Optional[Sequence[str]],
    num_warps: Optional[int],
    option: Optional[Sequence[str]],
    json: bool,
) -> None:
    from gluon_cli.outcome import outcome

    chosen = registry().target(target)
    constants = parse_assignments(constexpr or (), "--constexpr")
    request = (kernel, chosen, signature, constants, options_of(num_warps, option))
    form = one_form(kernel, forms(*request))
    result = outcome(form.source, chosen, form.options)
    if json:
        print_json(
            {
                "kernel": form.name,
                "target": str(chosen),
                "ops": [op_as_dict(op) for op in result.ops],
                "lines": [line_as_dict(line) for line in result.lines],
                "problem": result.problem,
            }
        )
        return
    if result.ops:
        rows: list[Any] = []
        for op in result.ops:
            s = op.selection
            taken = f"{s.chosen.name} ({registry().contributor(s.chosen).plugin})"
            answer = verdict(op)
            taken = taken if answer is None else f"{taken}\n{answer}"
            rows += [(f"{s.op}\n{near_place(s.where)}", taken, not_taken(op)), None]
        title = f"{form.name} for {chosen}"
        console().print(table(title, ("op", "taken", "why not the others"), rows))
    else:
        console().print(f"{form.name} uses no op of gl.portable: there is nothing to choose.")
    if result.problem is not None:
        console().print(f"machine code: {result.problem}", markup=False)
    elif result.lines:
        console().print(line_table(form.name, result.lines))
