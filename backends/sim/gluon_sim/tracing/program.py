"""A recorded program: all functions of one kernel.

The builder writes it, the machine runs it, `str(program)` prints it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterator, Optional, Union

from gluon_sim.tracing.ir import Function, Op, Region
from gluon_sim.tracing.text import render

__all__ = ["Findings", "Origin", "Program"]

# The origin of a pointer or a buffer: the position of a kernel's argument, the op that
# allocates it, or `origins.ANYWHERE`.
Origin = Union[int, str, Op]


@dataclass
class Findings:
    """Cached results of analyses of a program; None before the first query.

    Attributes:
        origins, written: as the functions of `tracing.origins` say.
        rewritten: arguments that the kernel writes and may read, too.
        ordered: whether the order of its programs matters.
        parted: the grid in which programs parted that were to stay together.
        users: by id of a value, the ops that take it.
        buffer_users: by the op that allocates a shared buffer, the ops that may use it.
        columns: of tensor memory in use at once, and the op that allocates most.
        lifetimes: of its buffers.
        copies: by id of a load, the elements of which several warps use what they loaded.
    """

    origins: Optional[dict[int, set[Origin]]] = None
    written: Optional[set[Origin]] = None
    rewritten: Optional[set[int]] = None
    ordered: Optional[bool] = None
    parted: Optional[tuple[int, int, int]] = None
    users: Optional[dict[int, list[Op]]] = None
    buffer_users: Optional[dict[Op, list[Op]]] = None
    columns: Optional[tuple[int, Optional[Op]]] = None
    lifetimes: Any = None
    copies: dict[int, Any] = field(default_factory=dict)


class Program:
    """All functions that one kernel specialization needs; the public one is the kernel."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self.context: Any = None
        self.attrs: dict[str, Any] = {}
        self.findings = Findings()

    def has_function(self, name: str) -> bool:
        return name in self.functions

    def get_function(self, name: str) -> Function:
        return self.functions[name]

    def push_back(self, function: Function) -> None:
        self.functions[function.name] = function

    def get_entry_func_name(self) -> str:
        return self.kernel.name

    @property
    def kernel(self) -> Function:
        for function in self.functions.values():
            if function.public:
                return function
        raise LookupError("the program has no kernel")

    def verify(self) -> bool:
        return True

    def verify_with_diagnostics(self) -> tuple[bool, str]:
        return True, ""

    def set_attr(self, name: str, value: Any) -> None:
        self.attrs[name] = value

    def walk_ops(self) -> Iterator[Op]:
        """Return every op, also those in nested regions."""
        ops: list[Op] = []

        def walk(region: Region) -> None:
            for block in region.blocks:
                for op in block.ops:
                    ops.append(op)
                    for inner in op.regions:
                        walk(inner)

        for function in self.functions.values():
            walk(function.body)
        return iter(ops)

    def str_nodebug(self) -> str:
        """Return the text without source locations."""
        return render(self.functions.values(), locations=False)

    def __str__(self) -> str:
        return render(self.functions.values(), locations=True)
