"""`gluon_core.acme.anvil`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ClampRange:
    """What `add_clamped` clamps to."""

    low: float
    high: float
