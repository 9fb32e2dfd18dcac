"""The registry of plugins: it loads and verifies them, and finds names, targets and lowerings."""

__all__ = ["CORE_PLUGINS"]

CORE_PLUGINS: list[str] = []
"""Paths of the core's own plugins, which `gluon_core` adds: they are registered before all others."""
