"""What `gluon_core.distributed` offers: groups of ranks, and the memory that they share."""

from __future__ import annotations

from gluon_core.runtime.ranks.group import Group
from gluon_core.runtime.ranks.simulated import simulate
from gluon_core.runtime.ranks.symmetric import Multicast, Symmetric
from gluon_core.runtime.ranks.with_torch import group, symmetric

__all__ = ["Group", "Multicast", "Symmetric", "group", "simulate", "symmetric"]
