"""Tiles that do not divide among programs: some in equal shares along K ("stream-K", Osama et al.,
arXiv:2301.03598), the others whole; and sums of which several programs have a part.

    work = gl.portable.stream_k_tiles([M, N, K], [BLOCK_M, BLOCK_N, BLOCK_K])
    for i in range(work.count()):
        row, column, k, end, slot, part, parts = work.at(i)
        ...                                          # the product of this tile from k to end
        if parts == 1:
            ...                                      # store it
        if parts > 1:
            of_tile = sums + slot * (BLOCK_M * BLOCK_N)
            total, last = gl.portable.split_k_reduce(acc, of_tile, counters + slot, part, parts)
            if last:
                ...                                  # store the total
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Sequence, Union

from gluon_core._triton import constexpr, tensor, tl, tl_core, tl_tuple, unwrap
from gluon_core.errors import DtypeError, ShapeError
from gluon_core.layouts import SliceLayout
from gluon_core.plugin.ops import builtin, semantic_layer, traced
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Scalar, Shape, Values
from gluon_core.portable.records import Record
from gluon_core.portable.tile_orders import swizzled_tiles
from gluon_core.semantic import layer
from gluon_core.semantic.operands import scalar_int32
from gluon_core.values import unwrap_shape
from gluon_core.values.tensors import describe

__all__ = ["split_k_reduce", "stream_k_share", "stream_k_tiles"]


class _Number:
    """An int32 scalar to calculate with."""

    def __init__(self, semantic: SemanticLayer, value: Any):
        plain = unwrap(value)
        self.semantic = semantic
        self.value = scalar_int32(semantic, plain, "value")

    def _with(self, op: Any, other: Any, *rest: Any) -> _Number:
        right = other.value if isinstance(other, _Number) else _Number(self.semantic, other).value
        return _Number(self.semantic, op(self.value, right, *rest))

    def __add__(self, other: Any) -> _Number:
        return self._with(self.semantic.add, other, True)

    def __sub__(self, other: Any) -> _Number:
        return self._with(self.semantic.sub, other, True)

    def __mul__(self, other: Any) -> _Number:
        return self._with(self.semantic.mul, other, True)

    def __floordiv__(self, other: Any) -> _Number:
        return self._with(self.semantic.floordiv, other)

    def __mod__(self, other: Any) -> _Number:
        return self._with(self.semantic.mod, other)

    def least(self, other: Any) -> _Number:
        return self._with(self.semantic.minimum, other, tl.PropagateNan.NONE)

    def most(self, other: Any) -> _Number:
        return self._with(self.semantic.maximum, other, tl.PropagateNan.NONE)

    def below(self, other: Any, then: _Number, otherwise: _Number) -> _Number:
        """`then` where this is less than `other`."""
        right = other if isinstance(other, _Number) else _Number(self.semantic, other)
        smaller = self.semantic.less_than(self.value, right.value)
        return _Number(self.semantic, self.semantic.where(smaller, then.value, otherwise.value))


@dataclass(frozen=True)
class StreamKFacts:
    """Return the extent of a step along K."""

    step: int


class stream_k_share(Record):
    """A program's share of a stream-K GEMM. Its parts are the order of the tiles, the size of K
    the programs and this one."""

    def _numbers(self) -> tuple[_Number, ...]:
        """Tiles, the size of K, programs, and this one."""
        semantic = semantic_layer()
        order, depth, programs, program = self.parts.values
        return tuple(_Number(semantic, n) for n in (order.count(), depth, programs, program))

    def _pieces(self) -> tuple[tuple[_Number, ...], tuple[_Number, ...]]:
        """Tiles that the program does whole; steps of a tile; of the other tiles' steps, how many a
        program has, and how many programs have one more. And the ends of the program's pieces of those."""
        tiles, depth, programs, program = self._numbers()
        steps = (depth + (self.facts.step - 1)) // self.facts.step
        whole, rest = tiles // programs, tiles % programs
        # Adding parts takes time: where most programs have a last tile, it is done whole as well.
        many = programs * 3 // 4 + 1
        left = rest.below(many, rest * steps, rest * 0)
        further_tile = program.below(rest, steps * 0 + 1, steps * 0)
        whole = whole + rest.below(many, rest * 0, further_tile)
        base, further = left // programs, left % programs
        ends = [program * base + program.least(further)]
        last = ends[0] + base + program.below(further, steps * 0 + 1, steps * 0)
        for _ in range(2):
            ends.append(last.least((ends[-1] // steps + 1) * steps))
        return (whole, steps, base, further), tuple(ends)

    @staticmethod
    def _filled(ends: tuple[_Number, ...]) -> _Number:
        """Return the number of pieces."""
        zero = ends[0] * 0
        filled = zero
        for begin, end in zip(ends, ends[1:]):
            filled = filled + begin.below(end, zero + 1, zero)
        return filled

    @builtin(name="stream_k_share.count")
    def count(self) -> tensor:
        """Return how many pieces the program has, an int32 scalar: parts of two tiles at most, and whole ones."""
        (whole, *_), ends = self._pieces()
        return (whole + self._filled(ends)).value

    @builtin(name="stream_k_share.at")
    def at(self, index: Scalar[int]) -> tl_tuple:
        """Return the program's piece of that index: a tile, and its steps along K.

        Args:
            index: integer scalar, from 0 on; from `count()` on there is nothing to do.

        Returns:
            int32 scalars: the tile's first row and column; where along K to begin and where to end;
            the place of the tile's first part among all parts, which number less than twice the
            programs; which part this is, and how many the tile has. Where there is nothing to do the
            ends are the same, and there are 0 parts.
        """
        tiles, depth, programs, program = self._numbers()
        (whole, steps, base, further), ends = self._pieces()
        order, step = self.parts.values[0], self.facts.step
        here = _Number(semantic_layer(), index)
        pieces, zero = self._filled(ends), whole * 0
        one = zero + 1

        def owner(step: _Number) -> _Number:
            longer = further * (base + 1)
            return step.below(longer, step // (base + 1), further + (step - longer) // base.most(1))

        # The rest of a tile that another program began, the beginning of one, then whole tiles.
        start, stop = (here.below(1, ends[i], ends[i + 1]) for i in (0, 1))
        shared = start // steps
        opener, closer = owner(shared * steps), owner((shared + 1) * steps - 1)
        wave = here - pieces
        tile = here.below(pieces, tiles // programs * programs + shared, program + wave * programs)
        k = here.below(pieces, start - shared * steps, zero)
        end = here.below(pieces, stop - shared * steps, wave.below(whole, steps, zero))
        part = here.below(pieces, program - opener, zero)
        parts = k.below(end, here.below(pieces, closer - opener + 1, one), zero)
        row, column = order.at(tile.least(tiles - 1).value).values
        along = (k * step).value, k.below(end, (end * step).least(depth), k * step).value
        return tl_tuple([row, column, *along, (shared + opener).value, part.value, parts.value])


@builtin(name="gl.portable.stream_k_tiles")
def stream_k_tiles(
    shape: Union[Sequence[Scalar[int]], Values], block_shape: Shape, group: Const[int] = 8
) -> stream_k_share:
    """Compute this program's share of a matrix product. Where the tiles do not divide among the
    programs, and at most three quarters of them have a last tile, those of the last round are cut along K,
    such that all programs have as many steps to do but for one; of the others each is one program's.

    Args:
        shape: M, N and K, integer scalars, at least 1.
        block_shape: of a tile and a step along K, compile-time integers.
        group: rows of tiles that are walked at a time, as for `swizzled_tiles`.

    Returns:
        A `stream_k_share`.

    Raises:
        ArgumentError: `group` is no compile-time integer of at least 1.
        ShapeError: not three sizes.
    """
    sizes, block = unwrap(shape), tuple(unwrap_shape(block_shape, "block_shape"))
    if not isinstance(sizes, (list, tuple, tl_tuple)) or len(sizes) != 3 or len(block) != 3:
        raise ShapeError(
            "not the shape of a GEMM", argument="shape", expected="M, N, K", got=describe(sizes)
        )
    m, n, k = sizes
    order = swizzled_tiles([m, n], list(block[:2]), group)
    depth = scalar_int32(semantic_layer(), unwrap(k), "shape")
    programs = tl_core.num_programs(0, _semantic=semantic_layer())
    program = tl_core.program_id(0, _semantic=semantic_layer())
    return stream_k_share([order, depth, programs, program], StreamKFacts(block[2]))


@builtin
def _places(value: tensor, sums: tensor) -> tensor:
    """Pointers to where the elements of a tile are."""
    semantic = semantic_layer()
    held = semantic.require_distributed(value, "value")
    if held.dtype != tl.float32:
        raise DtypeError("parts are added in float32", argument="value", got=held.dtype)
    element = getattr(sums.type.scalar, "element_ty", None)
    if sums.type.is_block() or element != tl.float32:
        raise DtypeError(
            "not where parts can be left",
            argument="sums",
            expected="a scalar pointer to float32",
            got=describe(sums),
        )
    shape = [int(size) for size in held.shape]
    places = sums
    for dim in range(len(shape)):
        layout = held.type.layout
        for other in reversed(range(len(shape))):
            layout = layout if other == dim else SliceLayout(other, layout)
        along = semantic.arange(0, shape[dim], layout)
        for other in range(len(shape)):
            along = along if other == dim else semantic.expand_dims(along, other)
        stride = semantic.scalar_constant(math.prod(shape[dim + 1 :]), tl.int32)
        places = semantic.add(places, semantic.mul(along, stride, True), True)
    return places


@builtin
def _leave(places: tensor, value: tensor) -> None:
    semantic_layer().store_global(places, value, None, None, None, None)


@builtin
def _partial(places: tensor) -> tensor:
    return semantic_layer().load_global(places, None, None, None, None, False, None)


@builtin
def _nothing(value: tensor) -> tensor:
    """Zeros like `value`."""
    return semantic_layer().full(value.shape, 0, value.dtype, value.type.layout)


@builtin
def _count(counter: tensor) -> tensor:
    """Count one more finished part and return the number before. Accesses of each before happen before
    those of the last after."""
    semantic = layer()
    element = getattr(counter.type.scalar, "element_ty", None)
    if counter.type.is_block() or element != tl.int32:
        raise DtypeError(
            "not a counter",
            argument="counter",
            expected="a scalar pointer to int32",
            got=describe(counter),
        )
    semantic.barrier(False)  # all of the program have stored before one counts
    one = semantic.scalar_constant(1, tl.int32)
    return semantic.atomic_add(counter, one, None, constexpr("acq_rel"), None)


@builtin
def _reset(counter: tensor) -> None:
    semantic = semantic_layer()
    zero = semantic.scalar_constant(0, tl.int32)
    semantic.store_global(counter, zero, None, None, None, None)


@builtin
def _size(value: tensor) -> constexpr:
    """Elements of a tensor."""
    return constexpr(math.prod(int(size) for size in value.shape))


@traced
def split_k_reduce(
    value: "tensor", sums: "tensor", counter: "tensor", part: "Scalar[int]", parts: "Scalar[int]"
) -> "Values":
    """Add up the parts of one tensor that several programs have, in a fixed order: equal parts have
    equal sums, to the bit. No program waits: the last one adds.

    Args:
        value: float32 tensor, this program's part; of the same shape and layout in all programs.
        sums: scalar pointer to float32, room for `parts` tensors.
        counter: scalar pointer to int32, 0 before; 0 again when the last part has come.
        part: integer scalar: which this is, from 0 to below `parts`; each once.
        parts: integer scalar, how many there are.

    Returns:
        A tensor and an int1 scalar: the sum and true in the program that came last, else `value` and
        false.
    """
    places = _places(value, sums)
    _leave(places + part * _size(value), value)
    last = _count(counter) == parts - 1
    total = value
    if last:
        total = _nothing(value)
        for other in range(parts):
            total += _partial(places + other * _size(value))
        _reset(counter)
    return total, last
