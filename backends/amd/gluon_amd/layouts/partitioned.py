"""Shared memory in partitions of LDS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gluon_amd.features import PARTITIONED
from gluon_core.errors import LayoutError
from gluon_core.layouts.base import SharedLayout
from gluon_core.layouts.linear import LinearLayout

__all__ = ["PartitionedSharedLayout"]


@dataclass(frozen=True)
class PartitionedSharedLayout(SharedLayout):
    """A buffer whose slices lie in different partitions of LDS, so that they are read at once.

    The buffer is cut along `partition_dim` into `num_partitions * num_groups` slices; slice i is in
    partition i % num_partitions. The linear layout has the in-dim "partition" besides.

    Args:
        num_partitions: a power of two, at least 2.
        num_groups: slices in each partition, a power of two.
        partition_dim: the dimension that is cut.
        partition_layout: of one slice, a shared layout that is not itself partitioned.

    Raises:
        LayoutError: an illegal field.

    ISA: gfx1250. Triton 3.8 or later.
    """

    num_partitions: int
    num_groups: int
    partition_dim: int
    partition_layout: SharedLayout

    since = PARTITIONED

    def __post_init__(self) -> None:
        inner = self.unwrap(self.partition_layout)
        if not isinstance(inner, SharedLayout) or isinstance(inner, PartitionedSharedLayout):
            raise LayoutError(
                "not the layout of a slice",
                argument="partition_layout",
                expected="a shared layout that is not partitioned",
                got=repr(inner),
            )
        self._set(
            num_partitions=self.check_int(self.num_partitions, "num_partitions"),
            num_groups=self.check_int(self.num_groups, "num_groups"),
            partition_dim=self.check_int(self.partition_dim, "partition_dim"),
            partition_layout=inner,
        )

    def verify(self) -> None:
        self.partition_layout.check()
        self.check_int(self.num_partitions, "num_partitions", 2)
        self.check_int(self.partition_dim, "partition_dim", 0, self.rank - 1)
        for name in ("num_partitions", "num_groups"):
            self.check_powers([getattr(self, name)], name)

    @property
    def rank(self) -> int:
        rank: int = self.partition_layout.rank
        return rank

    @property
    def cga_layout(self) -> list[list[int]]:
        inner: Any = self.partition_layout
        bases: list[list[int]] = inner.cga_layout
        return bases

    def pad(self, offsets: Any) -> Any:
        """Offsets within a partition (elements) -> offsets with the gaps of each slice's layout."""
        inner: Any = self.partition_layout
        pad = getattr(inner, "pad", None)
        if pad is None:
            return offsets
        size = 1 << len(inner.offset_bases)
        whole = inner.padded_size()
        return offsets // size * whole + pad(offsets % size)

    def _emit(self, builder: Any) -> Any:
        self.require_followed(PARTITIONED, "PartitionedSharedLayout")
        inner = self.partition_layout._to_ir(builder)
        return builder.get_partitioned_shared_layout(
            self.num_partitions, self.num_groups, self.partition_dim, inner
        )

    def _infer_reshape(self, shape: Any, new_shape: Any) -> Any:
        raise LayoutError(
            "no Triton reshapes a view of partitioned memory",
            argument="self",
            got=repr(self),
            remedy="Load it, and reshape the tensor.",
        )

    def _linear(self, shape: tuple[int, ...]) -> LinearLayout:
        slices = self.num_partitions * self.num_groups
        cut = list(shape)
        if cut[self.partition_dim] < slices:
            raise LayoutError(
                "fewer elements than slices",
                argument="shape",
                expected=f"at least {slices} along dimension {self.partition_dim}",
                got=list(shape),
            )
        cut[self.partition_dim] //= slices
        dim = f"dim{self.partition_dim}"
        layout = self.partition_layout.to_linear(cut)
        layout = layout * LinearLayout.identity_1d(self.num_partitions, "partition", dim)
        return layout * LinearLayout.identity_1d(self.num_groups, "offset", dim)
