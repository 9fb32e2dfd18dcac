"""The algebra of linear layouts: maps between index spaces that are linear over F2.

A layout sends a tuple of integers (a register, a lane, a warp, a block) to a tuple of integers
(the coordinates of a tensor element). It is linear: the image of `a ^ b` is the image of `a`
xor the image of `b`. So the images of the powers of two, the bases, say everything.

Dimensions are ordered. Wherever several are flattened into one, the first is the most minor.
"""

from __future__ import annotations

from functools import lru_cache, partial
from numbers import Integral
from operator import lshift
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

from gluon_core.errors import LayoutError
from gluon_core.layouts.f2 import Span, independent_rows
from gluon_core.layouts.later import np

__all__ = ["LinearLayout", "another_blocks", "split_over_blocks"]


def _log2(size: int, argument: str) -> int:
    if isinstance(size, bool) or not isinstance(size, Integral):
        raise LayoutError("a size must be an integer", argument=argument, got=repr(size))
    if size < 1 or size & (size - 1):
        raise LayoutError(
            "a size must be a power of two", argument=argument, expected="1, 2, 4, ...", got=size
        )
    return int(size).bit_length() - 1


class LinearLayout:
    """A linear map between named index spaces. Immutable and hashable.

    Args:
        bases: for each in-dim, in order, the images of 1, 2, 4, ...; an image has one coordinate
            per out-dim. An in-dim with n bases has the size 2**n.
        out_dims: the out-dims in order, with their sizes (powers of two); or only their names,
            and each size is then the least that holds all bases.

    Raises:
        LayoutError: a size that is no power of two, or a basis that does not fit the out-dims.
    """

    __slots__ = ("_bases", "_outs", "_hash")

    def __init__(
        self,
        bases: Mapping[str, Sequence[Sequence[int]]],
        out_dims: Union[Mapping[str, int], Sequence[str]],
    ):
        names = list(out_dims)
        if len(set(names)) != len(names):
            raise LayoutError("out-dims repeat", argument="out_dims", got=names)
        table = {}
        for dim, vectors in bases.items():
            rows = tuple(tuple(int(c) for c in vector) for vector in vectors)
            for row in rows:
                if len(row) != len(names):
                    raise LayoutError(
                        f"a basis of in-dim {dim!r} has the wrong rank",
                        argument="bases",
                        expected=f"{len(names)} coordinates",
                        got=list(row),
                    )
                if min(row, default=0) < 0:
                    raise LayoutError("a basis is negative", argument="bases", got=list(row))
            table[dim] = rows
        if isinstance(out_dims, Mapping):
            sizes = {name: int(size) for name, size in out_dims.items()}
            for name, size in out_dims.items():
                _log2(size, f"out_dims[{name!r}]")
        else:
            sizes = {}
            for i, name in enumerate(names):
                top = max((row[i] for rows in table.values() for row in rows), default=0)
                sizes[name] = 1 << top.bit_length()
        for dim, rows in table.items():
            for row in rows:
                for value, name in zip(row, names):
                    if value >= sizes[name]:
                        raise LayoutError(
                            f"a basis of in-dim {dim!r} leaves out-dim {name!r}",
                            argument="bases",
                            expected=f"less than {sizes[name]}",
                            got=list(row),
                        )
        self._bases: dict[str, tuple[tuple[int, ...], ...]] = table
        self._outs: dict[str, int] = sizes
        self._hash: Optional[int] = None

    # -- making ----------------------------------------------------------------------------

    @classmethod
    def _checked(cls, bases: Mapping[str, Any], outs: dict[str, int]) -> "LinearLayout":
        """Return the layout of bases, tuples of tuples, that are known to fit the out-dims."""
        layout = cls.__new__(cls)
        layout._bases, layout._outs, layout._hash = dict(bases), outs, None
        return layout

    @classmethod
    def empty(cls) -> "LinearLayout":
        """Return the layout with no dims: the neutral element of `*`."""
        return cls({}, {})

    @classmethod
    def identity_1d(cls, size: int, in_dim: str, out_dim: str) -> "LinearLayout":
        """i -> i, for i < size (a power of two)."""
        return cls.strided_1d(size, 1, in_dim, out_dim)

    @classmethod
    def strided_1d(cls, size: int, stride: int, in_dim: str, out_dim: str) -> "LinearLayout":
        """i -> i * stride, for i < size; both powers of two."""
        n, k = _log2(size, "size"), _log2(stride, "stride")
        return cls._checked({in_dim: tuple((1 << k + i,) for i in range(n))}, {out_dim: 1 << n + k})

    @classmethod
    def zeros_1d(cls, size: int, in_dim: str, out_dim: str, out_size: int = 1) -> "LinearLayout":
        """i -> 0, for i < size (a power of two)."""
        return cls({in_dim: [[0]] * _log2(size, "size")}, {out_dim: out_size})

    # -- asking ----------------------------------------------------------------------------

    @property
    def bases(self) -> dict[str, list[list[int]]]:
        """Return a copy of the bases: in-dim -> list of images."""
        return {dim: [list(row) for row in rows] for dim, rows in self._bases.items()}

    @property
    def in_dims(self) -> dict[str, int]:
        """In-dim -> size, in order."""
        return {dim: 1 << len(rows) for dim, rows in self._bases.items()}

    @property
    def out_dims(self) -> dict[str, int]:
        """Out-dim -> size, in order."""
        return dict(self._outs)

    def in_size(self, dim: str) -> int:
        """Return the size of an in-dim; 1 when the layout lacks it."""
        return 1 << len(self._bases.get(dim, ()))

    def out_size(self, dim: str) -> int:
        """Return the size of an out-dim; 1 when the layout lacks it."""
        return self._outs.get(dim, 1)

    @property
    def total_in_size(self) -> int:
        return 1 << sum(len(rows) for rows in self._bases.values())

    @property
    def total_out_size(self) -> int:
        total = 1
        for size in self._outs.values():
            total *= size
        return total

    def _flat(self, outs: Optional[Mapping[str, int]] = None) -> dict[str, list[int]]:
        """Return the bases, each flattened into one integer (the first of `outs` most minor)."""
        shifts, shift = {}, 0
        for dim, size in (outs or self._outs).items():
            shifts[dim] = shift
            shift += size.bit_length() - 1
        by = [shifts[dim] for dim in self._outs]
        return {
            dim: [sum(map(lshift, row, by)) for row in rows] for dim, rows in self._bases.items()
        }

    def _columns(self, outs: Optional[Mapping[str, int]] = None) -> list[int]:
        return [value for values in self._flat(outs).values() for value in values]

    @property
    def rank(self) -> int:
        """Return the dimension of the image over F2."""
        return len(independent_rows(self._columns()))

    def is_surjective(self) -> bool:
        return self.rank == self.total_out_size.bit_length() - 1

    def is_invertible(self) -> bool:
        return self.total_in_size == self.total_out_size and self.is_surjective()

    def _split_ins(self, flat: int) -> dict[str, int]:
        out = {}
        for dim, rows in self._bases.items():
            out[dim] = flat & ((1 << len(rows)) - 1)
            flat >>= len(rows)
        return out

    def kernel(self) -> list[dict[str, int]]:
        """Return a basis of the inputs that map to zero, each as in-dim -> value."""
        span = Span()
        combinations = [span.add(value, 1 << i) for i, value in enumerate(self._columns())]
        return [self._split_ins(combination) for combination in combinations if combination]

    # -- applying --------------------------------------------------------------------------

    def _check_ins(self, ins: Mapping[str, Any]) -> None:
        for dim in ins:
            if dim not in self._bases:
                raise LayoutError(
                    "unknown in-dim", argument=dim, expected=" or ".join(map(repr, self._bases))
                )
        for dim, rows in self._bases.items():
            if rows and dim not in ins:
                raise LayoutError("an in-dim is missing", argument=dim, got=sorted(ins))

    def apply(self, **ins: int) -> dict[str, int]:
        """Return the image of one input. An in-dim of size 1 may be left out.

        Raises:
            LayoutError: an unknown or missing in-dim, or a value outside it.
        """
        self._check_ins(ins)
        out = [0] * len(self._outs)
        for dim, value in ins.items():
            rows = self._bases[dim]
            if not 0 <= value < 1 << len(rows):
                raise LayoutError(
                    "value outside the in-dim",
                    argument=dim,
                    expected=f"0 to {(1 << len(rows)) - 1}",
                    got=value,
                )
            for i, row in enumerate(rows):
                if value >> i & 1:
                    out = [a ^ b for a, b in zip(out, row)]
        return dict(zip(self._outs, out))

    def apply_arrays(self, **ins: Any) -> dict[str, np.ndarray]:
        """Return the images of arrays of inputs (integers, broadcast against each other), as int64."""
        self._check_ins(ins)
        arrays = {dim: np.asarray(value, dtype=np.int64) for dim, value in ins.items()}
        shape = np.broadcast_shapes(*(a.shape for a in arrays.values())) if arrays else ()
        out: list[np.ndarray] = [np.zeros(shape, dtype=np.int64) for _ in self._outs]
        for dim, array in arrays.items():
            rows = self._bases[dim]
            if array.size and not (0 <= array.min() and array.max() < 1 << len(rows)):
                raise LayoutError(
                    "value outside the in-dim", argument=dim, expected=f"less than {1 << len(rows)}"
                )
            for i, row in enumerate(rows):
                bit = array >> i & 1
                for j, value in enumerate(row):
                    if value:
                        out[j] ^= bit * value
        return dict(zip(self._outs, out))

    def table(self) -> dict[str, np.ndarray]:
        """Return every image: out-dim -> int64 array with one axis per in-dim, in order."""
        sizes = list(self.in_dims.values())
        grids = np.ogrid[tuple(slice(0, size) for size in sizes)] if sizes else []
        arrays = self.apply_arrays(**dict(zip(self._bases, grids)))
        return {dim: np.broadcast_to(a, sizes) for dim, a in arrays.items()}

    # -- combining -------------------------------------------------------------------------

    def compose(self, outer: "LinearLayout") -> "LinearLayout":
        """`outer` after this layout. This one's out-dims must be the in-dims of `outer`."""
        if set(self._outs) != set(outer._bases):
            raise LayoutError(
                "the layouts do not chain",
                argument="outer",
                expected=f"in-dims {list(self._outs)}",
                got=list(outer._bases),
            )
        for dim, size in self._outs.items():
            if size > outer.in_size(dim):
                raise LayoutError(
                    f"out-dim {dim!r} is larger than the in-dim of the outer layout",
                    argument="outer",
                    expected=f"at least {size}",
                    got=outer.in_size(dim),
                )
        bases = {
            dim: [list(outer.apply(**dict(zip(self._outs, row))).values()) for row in rows]
            for dim, rows in self._bases.items()
        }
        return LinearLayout(bases, outer._outs)

    def __mul__(self, other: "LinearLayout") -> "LinearLayout":
        """Return the direct product: `other` repeats this layout as a tile.

        In-dims of one name are stacked, this one's bits below; in a shared out-dim the bases of
        `other` are scaled by this layout's size.
        """
        if not isinstance(other, LinearLayout):
            return NotImplemented
        outs = dict(self._outs)
        for dim, size in other._outs.items():
            outs[dim] = outs.get(dim, 1) * size
        names = list(outs)
        bases: dict[str, tuple[tuple[int, ...], ...]] = {}
        for layout, scale in ((self, {}), (other, self._outs)):
            places = [(names.index(dim), scale.get(dim, 1)) for dim in layout._outs]
            for dim, rows in layout._bases.items():
                for row in rows:
                    vector = [0] * len(names)
                    for value, (position, factor) in zip(row, places):
                        vector[position] = value * factor
                    bases[dim] = (*bases.get(dim, ()), tuple(vector))
                bases.setdefault(dim, ())
        return LinearLayout._checked(bases, outs)

    def inverse(self) -> "LinearLayout":
        """Return the inverse map.

        Raises:
            LayoutError: the layout is not invertible.
        """
        if not self.is_invertible():
            raise LayoutError(
                "the layout has no inverse: it is not a bijection",
                got=str(self),
                remedy="Use pseudo_inverse() if it is only surjective.",
            )
        return self.pseudo_inverse()

    def pseudo_inverse(self) -> "LinearLayout":
        """For each output one input that maps to it: the one whose free bits are zero.

        Raises:
            LayoutError: the layout is not surjective.
        """
        if not self.is_surjective():
            raise LayoutError(
                "the layout has no right inverse: it does not reach every output", got=str(self)
            )
        identity = LinearLayout.empty()
        for dim, size in self._outs.items():
            identity = identity * LinearLayout.identity_1d(size, dim, dim)
        return identity.invert_and_compose(self)

    def invert_and_compose(self, other: "LinearLayout") -> "LinearLayout":
        """Return the layout `c` from this one's in-dims to those of `other` with `other(c(x)) ==
        self(x)`.

        Where several exist, the free bits of `other` are zero.

        Raises:
            LayoutError: the out-dims differ, or `other` does not reach all that this one reaches.
        """
        if set(self._outs) != set(other._outs):
            raise LayoutError(
                "the layouts map to different spaces",
                argument="other",
                expected=f"out-dims {list(self._outs)}",
                got=list(other._outs),
            )
        outs = {dim: max(size, other._outs[dim]) for dim, size in self._outs.items()}
        span = _reach(other, tuple(outs.items()))

        def image(value: int) -> tuple[int, ...]:
            rest, answer = span.reduce(value)
            if rest:
                raise LayoutError(
                    "the other layout does not reach every element of this one",
                    argument="other",
                    got=str(other),
                )
            return tuple(other._split_ins(answer).values())

        bases = {dim: tuple(map(image, values)) for dim, values in self._flat(outs).items()}
        return LinearLayout._checked(bases, other.in_dims)

    # -- reshaping -------------------------------------------------------------------------

    def sublayout(self, ins: Iterable[str], outs: Iterable[str]) -> "LinearLayout":
        """Only some in-dims and out-dims, in this layout's order."""
        ins, outs = (
            set([ins] if isinstance(ins, str) else ins),
            set([outs] if isinstance(outs, str) else outs),
        )
        self._known(ins, self._bases, "ins")
        self._known(outs, self._outs, "outs")
        keep = [i for i, dim in enumerate(self._outs) if dim in outs]
        bases = {
            dim: [[row[i] for i in keep] for row in rows]
            for dim, rows in self._bases.items()
            if dim in ins
        }
        return LinearLayout(bases, {dim: s for dim, s in self._outs.items() if dim in outs})

    @staticmethod
    def _known(dims: Iterable[str], table: Mapping[str, Any], argument: str) -> None:
        for dim in dims:
            if dim not in table:
                raise LayoutError(
                    f"unknown dim {dim!r}", argument=argument, expected=list(table), got=list(dims)
                )

    def transpose_outs(self, order: Sequence[str]) -> "LinearLayout":
        """Return the out-dims in another order."""
        if sorted(order) != sorted(self._outs):
            raise LayoutError(
                "not an order of the out-dims",
                argument="order",
                expected=list(self._outs),
                got=list(order),
            )
        places = [list(self._outs).index(dim) for dim in order]
        moved = partial(map, lambda row: tuple([row[i] for i in places]))
        bases = {dim: tuple(moved(rows)) for dim, rows in self._bases.items()}
        return LinearLayout._checked(bases, {dim: self._outs[dim] for dim in order})

    def reshape_outs(self, dims: Mapping[str, int]) -> "LinearLayout":
        """Flatten the out-dims (first most minor), then cut them into `dims` (first most minor)."""
        bits = {dim: _log2(size, f"dims[{dim!r}]") for dim, size in dims.items()}
        if 1 << sum(bits.values()) != self.total_out_size:
            raise LayoutError(
                "the sizes do not match",
                argument="dims",
                expected=f"a product of {self.total_out_size}",
                got=dict(dims),
            )
        bases: dict[str, list[list[int]]] = {dim: [] for dim in self._bases}
        for dim, values in self._flat().items():
            for value in values:
                vector = []
                for n in bits.values():
                    vector.append(value & ((1 << n) - 1))
                    value >>= n
                bases[dim].append(vector)
        return LinearLayout(bases, dict(dims))

    def reshape(self, shape: Sequence[int]) -> "LinearLayout":
        """Return the map after a row-major reshape; the last dimension is the most minor."""
        reversed_outs = self.transpose_outs(list(self._outs)[::-1])
        names = [f"dim{i}" for i in range(len(shape))]
        cut = reversed_outs.reshape_outs(dict(zip(names[::-1], shape[::-1])))
        return cut.transpose_outs(names)

    def flatten_outs(self, name: Optional[str] = None) -> "LinearLayout":
        """Return one out-dim, named `name` or as the first was."""
        return self.reshape_outs({name or next(iter(self._outs), "out"): self.total_out_size})

    def rename(
        self,
        ins: Optional[Mapping[str, str]] = None,
        outs: Optional[Mapping[str, str]] = None,
    ) -> "LinearLayout":
        """Other names for some dims."""
        ins, outs = ins or {}, outs or {}
        return LinearLayout(
            {ins.get(dim, dim): rows for dim, rows in self._bases.items()},
            {outs.get(dim, dim): size for dim, size in self._outs.items()},
        )

    def without_zero_bases(self, dim: str) -> "LinearLayout":
        """In-dim `dim` without the bases that map to zero."""
        rows = tuple(filter(any, self._bases.get(dim, ())))
        return LinearLayout._checked({**self._bases, dim: rows}, self._outs)

    # -- being a value ---------------------------------------------------------------------

    def _key(self) -> tuple[Any, ...]:
        return (tuple(self._bases.items()), tuple(self._outs.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LinearLayout) and self._key() == other._key()

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._key())
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return (LinearLayout, (self.bases, self.out_dims))

    def __repr__(self) -> str:
        return f"LinearLayout({self.bases!r}, {self.out_dims!r})"

    def __str__(self) -> str:
        lines = []
        for dim, rows in self._bases.items():
            if not rows:
                lines.append(f"{dim} has one value")
            for i, row in enumerate(rows):
                coords = ", ".join(map(str, row))
                lines.append(f"{dim}={1 << i} -> ({coords})")
        outs = ", ".join(f"{dim} (size {size})" for dim, size in self._outs.items())
        return "\n".join([*lines, f"where out-dims are: [{outs}]"])


# -- the elements that each block of a cluster holds ---------------------------------------------


def _parts(layout: LinearLayout) -> tuple[list[int], list[int]]:
    """Return the bases within a block, and those of the blocks, each as one integer."""
    flat = layout._flat()
    blocks = flat.pop("block", [])
    return [v for rows in flat.values() for v in rows], blocks


def _reached(vectors: Sequence[int]) -> Span:
    span = Span()
    for i, vector in enumerate(vectors):
        span.add(vector, 1 << i)
    return span


@lru_cache(maxsize=1 << 10)
def _reach(layout: LinearLayout, outs: tuple[tuple[str, int], ...]) -> Span:
    return _reached(layout._columns(dict(outs)))


def another_blocks(held: LinearLayout, wanted: LinearLayout) -> bool:
    """Return whether some block wants elements that it does not hold itself."""
    (own, blocks), (wants, others) = _parts(held), _parts(wanted)
    count = max(len(blocks), len(others))
    blocks, others = (rows + [0] * (count - len(rows)) for rows in (blocks, others))
    span = _reached(own)
    return any(span.reduce(v)[0] for v in [*wants, *(a ^ b for a, b in zip(blocks, others))])


def split_over_blocks(layout: LinearLayout, axis: int) -> bool:
    """Return whether some block lacks elements along a dimension."""
    own, _ = _parts(layout)
    sizes = list(layout.out_dims.values())
    below = sum(size.bit_length() - 1 for size in sizes[:axis])
    span = _reached(own)
    return any(span.reduce(1 << below + bit)[0] for bit in range(sizes[axis].bit_length() - 1))
