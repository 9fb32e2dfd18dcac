"""Plugins that observe the stages of a compilation."""

from __future__ import annotations

from typing import Any

from gluon_core.errors import GluonError, PluginError
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.waiting import Waiting

__all__ = ["stage_done"]


def stage_done(stage: str, module: Any, target: Target) -> None:
    """Tell the observers that `stage` finished; costs an attribute read when there are none.

    Raises:
        PluginError: one of them raised.
        PluginInterrupted: Ctrl-C came while one of them was at work.
    """
    for origin, call in registry().observers:
        hook = f"gluon_stage_done(stage={stage!r})"
        try:
            with Waiting(origin, hook):
                call(stage=stage, module=module, target=target)
        except GluonError:
            raise
        except Exception as error:
            message = f"plugin {origin}, {hook}, raised {type(error).__name__}: {error}"
            remedy = "It only observes: fix that plugin, or leave it out, as with GLUON_PLUGINS."
            raise PluginError(message, remedy=remedy) from error
