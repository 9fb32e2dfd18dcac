"""`gluon_core.acme.anvil`."""

from dataclasses import dataclass

from gluon_core.plugin.host_descriptor import HostDescriptor


@dataclass(frozen=True)
class ClampRange:
    """What `add_clamped` clamps to."""

    low: float
    high: float


@dataclass(eq=False, repr=False)
class TileMap(HostDescriptor):
    """A matrix and the tile of it that one copy moves."""

    head = "tensordesc_acme"
    most_rank = 2
