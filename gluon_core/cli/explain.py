"""`gluon explain`: which lowering each portable op takes, and why not the others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Optional, Sequence

from gluon_core.cli.compile import options_of
from gluon_core.cli.output import console, print_json, table
from gluon_core.cli.parse import find_kernel, parse_assignments, source_of
from gluon_core.contract.registry import registry

if TYPE_CHECKING:
    from gluon_core.contract.selection import Selection
    from gluon_core.frontend.session import Session

__all__ = ["selections", "show"]


def selections(source: Any, target: Any, options: Any) -> list[Selection]:
    """What was chosen for each portable op that a trace meets."""
    from gluon_core.compiler.source import trace_source

    sessions: list[Session] = []
    parsed = registry().backend(target.backend).options(target, options)
    trace_source(source, target, parsed, on_session=sessions.append)
    return sessions[0].selections


def show(
    kernel: str,
    target: Optional[str],
    signature: Optional[str],
    constexpr: Optional[Sequence[str]],
    num_warps: Optional[int],
    option: Optional[Sequence[str]],
    json: bool,
) -> None:
    chosen = registry().target(target)
    found = find_kernel(kernel)
    constants = parse_assignments(constexpr or (), "--constexpr")
    source, options = source_of(found, chosen, signature, constants, options_of(num_warps, option))
    # The same op in an unrolled loop or a function called twice is one line.
    unique: dict[Any, Any] = {}
    for s in selections(source, chosen, options):
        key = (s.op, s.where, s.chosen.name, tuple(reason for _, reason in s.rejected))
        unique.setdefault(key, s)
    if json:
        print_json(
            {
                "kernel": found.name,
                "target": str(chosen),
                "ops": [
                    {
                        "op": s.op,
                        "where": s.where,
                        "taken": s.chosen.name,
                        "contributed_by": registry().contributor(s.chosen),
                        "not_taken": {low.name: reason for low, reason in s.rejected},
                    }
                    for s in unique.values()
                ],
            }
        )
        return
    if not unique:
        console().print(f"{found.name} uses no op of gl.portable: there is nothing to choose.")
        return
    rows: list[Any] = []
    for s in unique.values():
        where = s.where or ""
        if os.sep in where:
            near = os.path.relpath(where)
            where = os.path.basename(where) if near.startswith("..") else near
        others = "\n".join(f"{low.name}: {reason}" for low, reason in s.rejected)
        taken = f"{s.chosen.name} ({registry().contributor(s.chosen)})"
        rows += [(f"{s.op}\n{where}", taken, others or "there is no other"), None]
    title = f"{found.name} for {chosen}"
    console().print(table(title, ("op", "taken", "why not the others"), rows))
