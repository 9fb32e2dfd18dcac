"""Import paths that users and plugins have, and the rooms where those modules stand."""

from __future__ import annotations

from typing import Mapping

__all__ = ["ALIASES", "GONE_IN", "MOVED", "SHORT"]

# Paths that are to stay: what users type, for modules that stand in a room of the core.
SHORT: Mapping[str, str] = {
    "gluon_core._runtime": "gluon_core.launch.private",
    "gluon_core.language._semantic": "gluon_core.semantic.private",
}

GONE_IN = "1.0"  # the release that no longer has these paths

MOVED: Mapping[str, str] = {
    "gluon_core.backend": "gluon_core.plugin.backend",
    "gluon_core.builtin": "gluon_core.plugin.ops",
    "gluon_core.descriptors": "gluon_core.values.descriptors",
    "gluon_core.hookspec": "gluon_core.plugin.hookspec",
    "gluon_core.host_descriptor": "gluon_core.plugin.host_descriptor",
    "gluon_core.isa": "gluon_core.plugin.isa",
    "gluon_core.plugins": "gluon_core.registry.load",
    "gluon_core.portable.requests": "gluon_core.plugin.requests",
    "gluon_core.portable.selection": "gluon_core.registry.selection",
    "gluon_core.reference": "gluon_core.plugin.reference",
    "gluon_core.targets": "gluon_core.plugin.targets",
}
ALIASES: Mapping[str, str] = {**SHORT, **MOVED}
