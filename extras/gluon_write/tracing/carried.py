"""Take the names that a loop assigns for those that it carries, in place of a trace of its body for them."""

from __future__ import annotations

from typing import Any, Optional

from gluon_core.frontend.generator import KernelGenerator
from gluon_core.frontend.loops import handles_of
from gluon_write.text.syntax import stores

__all__ = ["CarriedNames", "Unforeseen"]


class Unforeseen(BaseException):
    """End a trace in which a loop does not carry each name that it assigns; no handler of mistakes takes it for one."""


class CarriedNames(KernelGenerator):
    """The part of a sketcher that knows what a loop carries.

    Triton traces the body of a loop once for the names that it carries, and once for its code. A sketch is thrown away
    after a reader has seen it, and a choice of layouts makes a dozen: with one trace of each body they take 0.6 of
    the time. The names are those that the body assigns, but for one in a branch that a constant leaves out.

    Attributes:
        looks: each loop is traced for its names.
        foreseen: id of a loop's body -> the names that it has to carry.
    """

    looks = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.foreseen: dict[int, list[str]] = {}

    def _find_carries(self, node: Any, liveins: Any, ignore: Any = frozenset()) -> Any:
        names = None if self.looks or self.looking else _carried(node, liveins, ignore)
        if names is None:
            return super()._find_carries(node, liveins, ignore)
        self.foreseen[id(node.body)] = names
        values = [liveins[name] for name in names]
        handles = [handle for value in values for handle in handles_of(value)]
        return names, handles, [value.type for value in values]

    def visit_compound_statement(self, stmts: Any) -> Any:
        names = self.foreseen.pop(id(stmts), ())
        first = [self.lscope[name] for name in names]
        super().visit_compound_statement(stmts)
        for name, value in zip(names, first):
            last = self.lscope[name]
            self._verify_loop_carried_variable(name, last, value)
            if handles_of(last) == handles_of(value):
                raise Unforeseen


def _carried(node: Any, liveins: Any, ignore: Any) -> Optional[list[str]]:
    """Return the names that a loop assigns, in the order of the scope; None where one of them is no value at run time."""
    assigned = {name for statement in node.body for name in stores(statement)}
    names = [name for name in liveins if name in assigned and name not in ignore]
    return names if all(handles_of(liveins[name]) for name in names) else None
