"""The price of an op: instructions of each warp by class, and the cycles that these take of the schedulers' pipes.

Counts are of the code that the compilers emit for an op alone: packed conversions of narrow types, one instruction for an element
of 32 bits, nothing for views. Two effects across ops are known: a product that only feeds a sum is part of an FMA, and what
does not change in a loop is computed in front of it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import ceil, log2, prod
from typing import Any, Iterable, Optional, Sequence

import numpy as np

from gluon_core.errors import GluonError
from gluon_core.layouts import cost as layout_cost
from gluon_core.plugin.timing import OpFacts, Tile, Timing
from gluon_sim.sanitizer.access import SharedCost, holders, shared_cost
from gluon_sim.timing.stream import Compute, Where
from gluon_sim.tracing.ir import Op, Value
from gluon_sim.tracing.types import MemDescType, PointerType, ScalarType, TensorType, Type

__all__ = ["FREE", "Prices", "facts_of", "pure", "registers_of"]

# op -> (class, instructions for an element); several pairs for several classes.
_FLOAT: dict[str, tuple[tuple[str, float], ...]] = {
    "fadd": (("add", 1),), "fsub": (("add", 1),), "fmul": (("mul", 1),), "fma": (("fma", 1),),
    "maximumf": (("max", 1),), "minimumf": (("max", 1),), "maxnumf": (("max", 1),), "minnumf": (("max", 1),),
    "clampf": (("max", 2),), "fneg": (), "fabs": (), "exp2": (("special", 1),),
    "exp": (("special", 1), ("mul", 1)), "log2": (("special", 1), ("fma", 1)), "log": (("special", 1), ("mul", 2)),
    "sqrt": (("special", 1), ("fma", 4)), "precise_sqrt": (("special", 1), ("fma", 8)),
    "rsqrt": (("special", 1), ("fma", 2)), "sin": (("special", 1), ("fma", 10)),
    "cos": (("special", 1), ("fma", 10)), "fdiv": (("special", 1), ("fma", 8)),
    "approx_divf": (("special", 1), ("fma", 2)), "precise_divf": (("special", 1), ("fma", 12)),
    "frem": (("special", 1), ("fma", 16)), "erf": (("special", 1), ("fma", 18)), "floor": (("special", 1),),
    "ceil": (("special", 1),),
}  # fmt: skip
_INTEGER: dict[str, tuple[tuple[str, float], ...]] = {
    "add": (("integer", 1),), "sub": (("integer", 1),), "mul": (("multiply", 1),), "umulhi": (("multiply", 2),),
    "and": (("logic", 1),), "or": (("logic", 1),), "xor": (("logic", 1),), "shl": (("shift", 1),),
    "lshr": (("shift", 1),), "ashr": (("shift", 1),), "select": (("select", 1),), "iabs": (("integer", 1),),
    "maxsi": (("max", 1),), "minsi": (("max", 1),), "maxui": (("max", 1),), "minui": (("max", 1),),
    "sdiv": (("integer", 12), ("special", 2)), "udiv": (("integer", 10), ("special", 2)),
    "srem": (("integer", 14), ("special", 2)), "urem": (("integer", 12), ("special", 2)), "addptr": (("integer", 1),),
}  # fmt: skip
FREE = frozenset(
    "splat broadcast expand_dims reshape trans unsplat join split cat make_range bitcast int_to_ptr ptr_to_int constant poison "
    "memdesc_index memdesc_reinterpret memdesc_reshape memdesc_subslice memdesc_trans assume assert print breakpoint scope "
    "get_program_id get_num_programs local_dealloc deferred_fence tile_placed tiles_begun warpgroup_mma_init".split()
)
_ACCESSES = frozenset(
    "load masked_load store masked_store atomic_rmw atomic_cas atomic_load atomic_store async_copy_global_to_local "
    "buffer_load buffer_store buffer_load_to_local".split()
)
_POWERS = ("sdiv", "udiv", "srem", "urem")
# class -> opcodes of inline assembly, without types and prefixes.
_OPCODES = {
    name: kind
    for kind, names in {
        "special": "ex2 lg2 rcp rsqrt sqrt sin cos tanh exp log rsq", "convert": "cvt", "max": "max min max3 min3",
        "add": "add sub", "mul": "mul", "compare": "setp cmp", "select": "selp cndmask", "move": "mov",
        "logic": "and or xor not lop3 prmt perm", "shift": "shl shr bfe bfi lshlrev lshrrev ashrrev shf",
    }.items()
    for name in names.split()
}  # fmt: skip
_INSTRUCTION = re.compile(
    r"(?:^|[;\n{])\s*(?:@!?[%$\w]+\s+)?(?:v_|s_)?([a-z][a-z0-9]*)[\w.]*\s+[%$\w{\[]"
)
_WIDE = 64


def registers_of(type: Type, warps: int, lanes: int) -> int:
    """Return the elements of a tensor that a thread holds; 1 for a scalar."""
    if not isinstance(type, TensorType):
        return 1
    return _registers(type.layout, type.shape, warps * lanes)


@lru_cache(maxsize=4096)
def _registers(layout: Any, shape: tuple[int, ...], threads: int) -> int:
    try:
        linear = layout.to_linear(shape).without_zero_bases("register")
        return int(linear.in_dims.get("register", 1))
    except (AttributeError, GluonError):
        return max(1, prod(shape) // threads)


def _vector_of(op: Op) -> int:
    """Return how many neighbouring elements an access of threads moves with one address."""
    for value in op.operands():
        element: Any = value.type.element
        if isinstance(value.type, TensorType) and isinstance(element, PointerType):
            size = max(1, _bits_of(element.pointee) // 8)
            per_thread = getattr(value.type.layout, "size_per_thread", None) or [16 // size]
            return int(max(1, min(16 // size, max(per_thread))))
    return 1


def _bits_of(element: Any) -> int:
    return int(getattr(element, "bits", 32))


def _bits(type: Type) -> int:
    element = type.element
    return _WIDE if isinstance(element, PointerType) else int(getattr(element, "bits", 32))


def _is_float(type: Type) -> bool:
    element = type.element
    return isinstance(element, ScalarType) and element.is_float


def facts_of(op: Op, warps: int) -> OpFacts:
    """Return an op as a vendor's `works` take it."""

    def tile(type: Type) -> Tile:
        memory = type.space if isinstance(type, MemDescType) else "registers"
        element = type.element
        name = getattr(element, "name", str(element))
        return Tile(tuple(type.dims), name, _bits(type), memory, getattr(type, "layout", None))

    return OpFacts(
        op.name,
        [tile(value.type) for value in op.operands()],
        [tile(result.type) for result in op.results],
        warps,
    )


def _assembly(text: str, pack: int) -> list[tuple[str, float]]:
    """Return (class, instructions for an element) of inline assembly that takes `pack` elements at a time."""
    text = re.sub(r"//[^\n]*", "", text)
    return [(_OPCODES.get(name, "fma"), 1 / pack) for name in _INSTRUCTION.findall(text)]


class Prices:
    """The prices of a program's ops on one device.

    Args:
        timing: of the architecture.
        lanes: threads of a warp.
        banks: of shared memory.
    """

    def __init__(self, timing: Timing, lanes: int, banks: int):
        self.timing = timing
        self.lanes = lanes
        self.banks = banks
        self._known: dict[tuple[int, int], Optional[Compute]] = {}
        self._kept: list[Op] = []
        self._shared: dict[Any, SharedCost] = {}
        self.uses: dict[int, list[Op]] = {}
        self._vector: dict[
            int, int
        ] = {}  # op that computes addresses -> elements that one of them serves

    def learn(self, ops: Sequence[Op]) -> None:
        """Learn which ops use which values, and which compute addresses and masks."""
        for op in ops:
            for value in op.operands():
                self.uses.setdefault(id(value), []).append(op)
        for op in ops:
            if op.name in _ACCESSES:
                for value in op.operands():
                    self._address(value, _vector_of(op))

    def _address(self, value: Value, vector: int) -> None:
        """Note that an op computes addresses or masks of accesses, `vector` neighbouring elements of which are one."""
        owner = value.get_defining_op()
        integer = not _is_float(value.type) and isinstance(value.type, TensorType)
        if owner is None or not integer or owner.name in _ACCESSES:
            return
        if self._vector.get(id(owner), 1 << 30) <= vector:
            return
        self._vector[id(owner)] = vector
        for operand in owner.operands():
            self._address(operand, vector)

    def of(self, op: Op, warps: int, where: Where) -> Optional[Compute]:
        """Return the price of an op that computes in registers; None for nothing."""
        key = (id(op), warps)
        if key not in self._known:
            self._kept.append(op)
            self._known[key] = self._price(op, warps, where)
        return self._known[key]

    def instructions(
        self, where: Where, warps: int, counts: Iterable[tuple[str, float]], depth: int = 1
    ) -> Compute:
        """Return the cost of instructions of each warp.

        Args:
            counts: (class, instructions of a thread).
            depth: how many of each class depend on each other.
        """
        out = Compute(where)
        each = warps / self.timing.schedulers  # warps of a scheduler
        share = max(1.0, each)
        for name, count in counts:
            pipe, cycles = self.timing.instructions[name]
            out.issue += count * share
            out.pipes[pipe] = out.pipes.get(pipe, 0.0) + count * cycles * share
            slow = (
                "special" if name == "special" else "shuffle" if name == "shuffle" else "arithmetic"
            )
            out.chain += self.timing.latency[slow] * depth * min(1.0, count)
        return out

    # ---- ops ----------------------------------------------------------------------------------------

    def _price(self, op: Op, warps: int, where: Where) -> Optional[Compute]:
        name = op.name
        if name in FREE or not (op.results or name in ("barrier",)):
            return None
        if name in ("reduce", "scan"):
            return self._reduce(op, warps, where)
        if name == "convert_layout":
            return self._convert(op, warps, where)
        if not op.results:
            return None
        result = op.results[0].type
        counts = list(self._counts(op))
        if not counts:
            return None
        held = registers_of(result, warps, self.lanes)
        if isinstance(result, TensorType):
            held = max(1, held // self._vector.get(id(op), 1))
            return self.instructions(where, warps, [(c, n * held) for c, n in counts])
        # Scalars are the same in all threads: each warp computes them once.
        return self.instructions(where, warps, counts, depth=1)

    def _counts(self, op: Op) -> Iterable[tuple[str, float]]:
        """Return (class, instructions for an element of the result)."""
        name, result = op.name, op.results[0].type
        if name == "fmul" and self._contracted(op):
            return ()
        bits = _bits(result)
        if name in _FLOAT and _is_float(result):
            counts = _FLOAT[name]
            if bits == 16 and all(c in ("add", "mul", "fma", "max") for c, _ in counts):
                return [("half", n / 2) for _, n in counts]
            if bits == _WIDE:
                return [("double", n) for _, n in counts]
            return counts
        if name.startswith(("icmp", "fcmp")):
            return (("compare", 1),)
        if name in _POWERS and self._by_constant(op):
            return (("shift", 1), ("integer", 1))
        if name in _INTEGER:
            if bits == 1:
                return (("logic", 0.5),)
            return [(c, n * max(1.0, bits / 32)) for c, n in _INTEGER[name]]
        return self._cast(op, name, bits)

    def _cast(self, op: Op, name: str, bits: int) -> Iterable[tuple[str, float]]:
        if name in ("fp_trunc", "fp_to_fp", "fp_ext"):
            before = _bits(next(op.operands()).type)
            if before == bits:
                return ()
            return (
                (("convert", 0.5),)
                if min(before, bits) <= 16 and before > bits
                else (("logic", 1),)
            )
        if name in ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui"):
            return (("special", 1),)
        if name == "int_cast":
            before = _bits(next(op.operands()).type)
            return (("integer", 1),) if bits > before and bits == _WIDE else ()
        if name == "inline_asm":
            return _assembly(str(op.args[0]), int(op.args[4]) if len(op.args) > 4 else 1)
        if name in ("extern_elementwise", "map_elementwise"):
            return (("fma", 4),)
        if name in ("gather", "histogram"):
            return (("shuffle", 2),)
        return ()

    def _by_constant(self, op: Op) -> bool:
        divisor = list(op.operands())[1].get_defining_op()
        return divisor is not None and divisor.name in ("constant", "splat")

    def _contracted(self, op: Op) -> bool:
        """Return True if a product is only an operand of one sum."""
        users = self.uses.get(id(op.results[0]), [])
        return len(users) == 1 and users[0].name in ("fadd", "fsub")

    def _reduce(self, op: Op, warps: int, where: Where) -> Compute:
        operands = list(op.operands())
        source: Any = operands[0].type
        axis = next((a for a in op.args if isinstance(a, int)), len(source.shape) - 1)
        kinds = [o.name for o in op.regions[0].blocks[0].ops if o.results] or ["fadd"]
        held = registers_of(source, warps, self.lanes)
        lanes, of_warps = _spread(source.layout, source.shape, axis, warps, self.lanes)
        result = op.results[0].type
        rows = (
            max(1, registers_of(result, warps, self.lanes)) if isinstance(result, TensorType) else 1
        )
        counts: list[tuple[str, float]] = []
        shuffles = ceil(log2(lanes)) if lanes > 1 else 0
        for kind in kinds:
            for table in (_FLOAT, _INTEGER):
                if kind in table:
                    counts += [(c, n * max(0, held - rows)) for c, n in table[kind]]
                    counts += [(c, n * rows * shuffles) for c, n in table[kind]]
                    break
        counts += [("shuffle", rows * shuffles * len(operands))]
        out = self.instructions(where, warps, [(c, n) for c, n in counts if n])
        out.chain += shuffles * (self.timing.latency["shuffle"] + self.timing.latency["arithmetic"])
        if of_warps > 1:
            out.chain += 2 * self.timing.latency["shared"] + 2 * self.timing.latency["barrier"]
            out.pipes["shared"] = out.pipes.get("shared", 0.0) + 2.0 * warps * rows
        return out

    def _convert(self, op: Op, warps: int, where: Where) -> Optional[Compute]:
        before, after = next(op.operands()).type, op.results[0].type
        if not (isinstance(before, TensorType) and isinstance(after, TensorType)):
            return None
        bits = max(8, _bits(after))
        try:
            moved = layout_cost.conversion(before.layout, after.layout, tuple(after.shape), bits)
        except (AttributeError, GluonError):
            return None
        if moved.kind in ("none", "registers"):
            return None
        if moved.kind == "shuffle":
            out = self.instructions(
                where, warps, [("shuffle", moved.shuffles), ("select", moved.shuffles)]
            )
            out.chain += self.timing.latency["shuffle"]
            return out
        words = moved.shared_bytes / (4 * self.lanes * 4)  # accesses of 16 bytes of a warp
        out = self.instructions(where, warps, [("move", 2 * words / warps)])
        out.pipes["shared"] = 2 * moved.shared_bytes / self.timing.shared_bytes
        out.chain += 2 * self.timing.latency["shared"] + self.timing.latency["barrier"]
        return out

    def shared_access(
        self, where: Where, warps: int, view: Any, type: Any, stores: bool
    ) -> Compute:
        """Return the cost of a tensor's access to shared memory."""
        size = view.dtype.itemsize
        held = holders(type.layout, tuple(type.dims)) if isinstance(type, TensorType) else None
        key = (id(view.table), view.type, size, stores, getattr(type, "layout", None))
        if key not in self._shared:
            base = view.base[:1]
            self._shared[key] = shared_cost(
                (view.table + base)[None], size, held, self.banks, stores
            )
            self._kept.append(view.table)  # its id stays its own
        passes = self._shared[key].passes
        # A matrix instruction moves 16 bytes of each lane.
        accesses = passes * self.banks * 4 / (16 * self.lanes) / warps
        out = self.instructions(where, warps, [("move", max(1.0, accesses))])
        out.chain = 0.0
        out.pipes["shared"] = passes * self.banks * 4 / self.timing.shared_bytes
        return out


@lru_cache(maxsize=1024)
def _spread(
    layout: Any, shape: tuple[int, ...], axis: int, warps: int, lanes: int
) -> tuple[int, int]:
    """Return how many lanes and how many warps hold parts of one row along `axis`."""
    try:
        linear = layout.to_linear(shape)
    except (AttributeError, GluonError):
        return lanes, warps
    holders_of_row = []
    for dim in ("lane", "warp"):
        rows = linear.bases.get(dim, [])
        holders_of_row.append(1 << sum(bool(row[axis]) for row in rows))
    return holders_of_row[0], holders_of_row[1]


def pure(op: Op) -> bool:
    """Return True for an op of one result that depends on its operands alone."""
    return len(op.results) == 1 and (
        op.name in _FLOAT or op.name in _INTEGER or op.name in FREE
        or op.name.startswith(("icmp", "fcmp", "fp_", "int_")) or op.name == "convert_layout"
    )  # fmt: skip


def elements(mask: Optional[np.ndarray], shape: tuple[int, ...]) -> int:
    """Return how many elements of an access are live in one program."""
    if mask is None:
        return prod(shape)
    return int(np.count_nonzero(mask)) * (prod(shape) // max(1, int(np.prod(mask.shape[1:]))))
