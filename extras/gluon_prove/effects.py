"""Ops that take effect, as instructions: which of their operands matter, and to which events."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence

import numpy as np

from gluon_core.errors import GluonError
from gluon_core.plugin.reference import Descriptor
from gluon_prove.code import Code, Effect, Flat, Loop, Spec, View
from gluon_prove.events import Noter, Places
from gluon_prove.numbering import Numbering
from gluon_prove.residues import Residues
from gluon_prove.symbols import truth, view_of
from gluon_prove.values import CannotSay, Term, term
from gluon_sim.executor.compile import constant_array
from gluon_sim.memory.shared import SharedView
from gluon_sim.tracing.dtypes import numpy_dtype
from gluon_sim.tracing.ir import Op, Value
from gluon_sim.tracing.types import (
    DescriptorType,
    MemDescType,
    PointerType,
    ScalarType,
    TensorType,
)

__all__ = ["Effects", "Env", "Lowered"]

STAND_IN = 128  # of an integer that no event depends on
_PROBES = (0, 1, 2, 3, 16, 64, 4096)

Env = dict[int, Spec]


class Lowered:
    """A program as code.

    Attributes:
        tasks: the kernel's own, then its partitions.
        roots: the unknowns that loops are bounded by.
        flats: counts of all rounds of a loop within another one; terms call them by their place here.
        floors: the least value of a root's bound wherever one of its loops is begun.
        stores: ops that write to global memory, those of models once they were walked.
        memory: lines of loads of numbers that loops and conditions depend on.
        guessed: lines of slots that are counted from a number that any can be.
        ends: lines of loops that only compute, and are taken to end.
        left: lines of copies that may still be under way at the end, once it was walked.
        pipelines: where steps of `gl.portable.pipeline` are fetched and waited for.
        assumed: lines of `gl.assume` that restrict the kernel's arguments.
        doubts: why it cannot be said that their order is right, with lines.
    """

    def __init__(self, places: Places) -> None:
        self.places = places
        self.tasks: list[Code] = []
        self.roots: list[Term] = []
        self.flats: list[Flat] = []
        self.floors: dict[int, int] = {}
        self.stores: dict[Op, None] = {}
        self.memory: set[int] = set()
        self.guessed: dict[int, None] = {}
        self.ends: dict[int, None] = {}
        self.left: dict[int, None] = {}
        self.pipelines: dict[Op, None] = {}
        self.assumed: dict[int, None] = {}
        self.doubts: dict[tuple[str, int], None] = {}
        self._views: dict[Any, SharedView] = {}

    def same(self, view: SharedView) -> SharedView:
        """Return one object for all equal views."""
        key = (id(view.buffer), int(view.base[0]), view.type, view.table.tobytes())
        return self._views.setdefault(key, view)


@dataclass(frozen=True)
class Made:
    """A descriptor changed by numbers that are known during the search only: the op, and its operands. An op that uses the descriptor adopts them."""

    op: Op
    model: Callable[..., Any]
    operands: list[Value]
    args: list[Spec]


class Effects:
    """Generates the code of ops with side effects.

    Args:
        target: the simulated target.
        num_warps: of the kernel.
    """

    def __init__(self, target: Any, num_warps: int):
        self.places = Places()
        self.out = Lowered(self.places)
        self.count = 0
        self.unknowns = 0
        self.code = Code("the kernel")
        self.out.tasks.append(self.code)
        self.loops: list[Loop] = []
        self.residues = Residues(self)
        self.numbering = Numbering()
        self.noter = Noter(self.places, target, num_warps, self.out.stores)

    # ---- pieces -----------------------------------------------------------------------------

    def var(self) -> int:
        self.count += 1
        return self.count

    def emit(self, step: Any) -> int:
        self.code.steps.append(step)
        self.code.active.append(tuple(self.loops))
        return len(self.code.steps) - 1

    @property
    def here(self) -> int:
        return len(self.code.steps)

    def unknown(self) -> Term:
        self.unknowns += 1
        return term("unknown", self.unknowns)

    def spec(self, env: Env, value: Value) -> Spec:
        value = value.resolve()
        spec = env.get(id(value))
        if spec is not None:
            return spec
        owner = value.owner
        if isinstance(owner, Op) and owner.name in ("constant", "poison"):
            return self.constant(owner)
        raise CannotSay("the origin of a value cannot be traced", value.get_loc())

    def constant(self, op: Op) -> Spec:
        type = op.results[0].type
        if isinstance(type, ScalarType) and not type.is_float:
            if op.name == "poison":
                return Spec(value=term("unknown", 0))
            return Spec(value=int(constant_array(op).reshape(-1)[0]))
        return Spec(name=self.numbering.constant(op))

    def specs(self, env: Env, values: Sequence[Value]) -> list[Spec]:
        return [self.spec(env, v) for v in values]

    def opaque(self, result: Value, op: Op, name: Optional[Term] = None) -> Spec:
        if isinstance(result.type, (MemDescType, DescriptorType)):
            raise CannotSay(f"`{op.name}` gives a buffer that is not followed", op.loc)
        if isinstance(result.type, ScalarType) and not result.type.is_float:
            return Spec(value=self.unknown() if name is None else name)
        return Spec(name=name)

    # ---- views and effects -----------------------------------------------------------------------

    def view(self, op: Op, env: Env) -> None:
        values = list(op.operands())
        args = self.specs(env, values)
        make = view_of(op)
        for index, arg in enumerate(args[1:], 1):
            if arg.var is None and not isinstance(arg.value, int):
                args[index] = self.residues.exact(arg.value, op.loc)
        if all(a.var is None for a in args):
            env[id(op.results[0])] = Spec(value=make(*[a.value for a in args]))
            return
        out = self.var()
        self.emit(View(op.loc, op, list(args), out, make))
        env[id(op.results[0])] = Spec(var=out)

    def effect(self, op: Op, env: Env, model: Callable[..., Any]) -> None:
        operands = list(op.operands())
        args = self.specs(env, operands)
        if self.remade(op, env, model, operands, args):
            return
        changed: list[tuple[int, Made, int]] = []
        for i, arg in enumerate(args):
            if isinstance(arg.value, Made):
                changed.append((i, arg.value, len(args)))
                operands += arg.value.operands
                args += arg.value.args
        noter = self.noter
        known: dict[tuple[Any, ...], tuple[tuple[Any, ...], list[Any]]] = {}

        def stand_in(i: int) -> Any:
            type = operands[i].type
            if isinstance(type, (MemDescType, DescriptorType)):
                return args[i].value
            if isinstance(type, (ScalarType, PointerType)):
                value = args[i].value
                return np.full(1, value if isinstance(value, int) else STAND_IN).astype(
                    numpy_dtype(type)
                )
            return noter.pending(i, (1,) * (len(type.dims) + 1), numpy_dtype(type))

        base: list[Any] = []

        def events(
            chosen: tuple[Any, ...], places: Optional[list[int]] = None
        ) -> tuple[tuple[Any, ...], list[Any]]:
            if not base:
                base.extend(stand_in(i) for i in range(len(args)))
            values = list(base)
            for i, value in zip(relevant if places is None else places, chosen):
                if isinstance(value, int):
                    value = np.full(1, value).astype(numpy_dtype(operands[i].type))
                values[i] = value
            for i, change, first in reversed(changed):
                own = values[first : first + len(change.args)]
                values[i] = noter.run(change.op, change.model, *_placed(change.op, own))[1][0]
            return noter.run(op, model, *_placed(op, values))

        def run(chosen: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
            answer = known.get(chosen)
            if answer is None:
                answer = known[chosen] = events(chosen)
            return answer

        relevant: list[int] = []
        tokens: list[int] = []
        choices = set()
        for i, (value, arg) in enumerate(zip(operands, args)):
            type = value.type
            if isinstance(type, ScalarType) and type.is_float:
                continue
            if isinstance(type, ScalarType):
                if isinstance(arg.value, int):
                    continue
                if type.bits == 1:
                    relevant.append(i)
                    choices.add(i)
            elif isinstance(type, TensorType):
                if arg.var is not None:
                    tokens.append(i)
            elif arg.var is not None:
                relevant.append(i)
            elif arg.value is None and not isinstance(type, PointerType):
                raise CannotSay(f"`{op.name}` takes a value that is not followed", op.loc)
        views = {i: args[i] for i in relevant if isinstance(operands[i].type, MemDescType)}
        for i, (value, arg) in enumerate(zip(operands, args)):
            type = value.type
            if not isinstance(type, ScalarType) or type.is_float or i in choices:
                continue
            if isinstance(arg.value, int):
                continue
            if self._matters(i, operands, views, choices, events, op):
                relevant.append(i)
                if isinstance(arg.value, Term) and not truth(arg.value):
                    with suppress(CannotSay):  # reported when the search reaches this op
                        args[i] = self.residues.exact(arg.value, op.loc)
        outs: list[Optional[int]] = []
        static = not relevant
        fixed_events: Optional[tuple[tuple[Any, ...], list[Any]]] = None
        if static:
            fixed_events = known[()] = events(())
        buffer = None
        for number, result in enumerate(op.results):
            fixed_result = None if fixed_events is None else fixed_events[1][number]
            if isinstance(fixed_result, SharedView):
                outs.append(None)
                env[id(result)] = Spec(value=fixed_result)
                if op.name == "local_alloc" or fixed_result.buffer.alloc is op:
                    buffer = self.places.buffer(fixed_result.buffer)
            elif isinstance(result.type, (TensorType, MemDescType)):
                out = self.var()
                outs.append(out)
                env[id(result)] = Spec(var=out)
            elif isinstance(result.type, DescriptorType):
                if not static:
                    raise CannotSay(f"`{op.name}` makes a descriptor that is not followed", op.loc)
                outs.append(None)
                env[id(result)] = Spec(value=fixed_result)
            else:
                outs.append(None)
                env[id(result)] = self.opaque(result, op)
        self.emit(Effect(op.loc, op, args, relevant, tokens, frozenset(choices), outs, run, buffer))

    def remade(
        self, op: Op, env: Env, model: Callable[..., Any], operands: list[Value], args: list[Spec]
    ) -> bool:
        """Return whether an op only changes a descriptor, by numbers that are unknown."""
        if len(op.results) != 1 or not isinstance(op.results[0].type, DescriptorType):
            return False
        if not any(isinstance(value.type, DescriptorType) for value in operands):
            return False
        if not any(
            isinstance(arg.value, Made)
            or isinstance(value.type, ScalarType)
            and not isinstance(arg.value, int)
            for value, arg in zip(operands, args)
        ):
            return False
        env[id(op.results[0])] = Spec(value=Made(op, model, operands, args))
        return True

    def _matters(
        self, i: int, operands: Sequence[Value], views: dict[int, Spec], choices: set[int],
        events: Callable[..., Any], op: Op,
    ) -> bool:  # fmt: skip
        """Return whether events depend on an integer: other ones are tried."""
        self.noter.op = op
        chosen_places = [i, *sorted(choices), *views]
        seen = set()
        for probe in _PROBES:
            chosen: list[Any] = [probe, *[1] * len(choices)]
            for v in views:
                chosen.append(self.any_view(operands[v].type))
            self.noter.places, kept = Places(), self.noter.places
            try:
                effects, results = events(tuple(chosen), chosen_places)
            except GluonError:
                continue  # a model may refuse a number that no kernel will come with
            finally:
                self.noter.places = kept
            seen.add(
                (
                    effects,
                    tuple(str(r) for r in results if not isinstance(r, (SharedView, Descriptor))),
                )
            )
        return len(seen) > 1

    def any_view(self, type: Any) -> SharedView:
        """Return a view of that type of a buffer of its own."""
        return self.noter.allocate_buffer(type)


def _placed(op: Op, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return an op's arguments, with values for its operands."""
    taken = iter(values)

    def place(arg: Any) -> Any:
        if isinstance(arg, Value):
            return next(taken)
        if isinstance(arg, (list, tuple)) and any(isinstance(a, Value) for a in arg):
            return [place(a) for a in arg]
        return arg

    return [place(a) for a in op.args], {k: place(v) for k, v in op.kwargs.items()}
