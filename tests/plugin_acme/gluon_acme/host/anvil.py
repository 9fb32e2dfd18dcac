"""`gluon_core.acme.anvil`: host-side types."""

from dataclasses import dataclass

from gluon_core.plugin import HostDescriptor


@dataclass(frozen=True)
class ClampRange:
    """The bounds of `add_clamped`."""

    low: float
    high: float


@dataclass(eq=False, repr=False)
class TileMap(HostDescriptor):
    """A matrix and the tile of it that one copy moves."""

    head = "tensordesc_acme"
    most_rank = 2
