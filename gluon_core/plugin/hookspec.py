"""The hooks a plugin may implement (pluggy project `gluon_core`).

A first plugin is three lines in a module that the entry point group `gluon_core.backends` names:

    from gluon_core.plugin.hookspec import hookimpl

    @hookimpl
    def gluon_backends():
        return [Backend("acme", ARCHITECTURES)]

Importing that module must import neither triton, torch nor a driver library: it happens whenever
anybody asks the registry anything.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import pluggy

from gluon_core.plugin.backend import Backend
from gluon_core.plugin.language import Lowering
from gluon_core.plugin.targets import Target

__all__ = ["ENTRY_POINTS", "PROJECT", "hookimpl", "hookspec"]

PROJECT = "gluon_core"
ENTRY_POINTS = "gluon_core.backends"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def gluon_backends() -> Sequence[Backend]:
    """The backends of this plugin. Called once, when it registers."""
    raise NotImplementedError


@hookspec
def gluon_lowerings() -> Sequence[Lowering]:
    """Lowerings of portable ops beyond those of the plugin's own backends.

    Called once, when the plugin registers; a plugin needs no backend to contribute some.
    """
    raise NotImplementedError


@hookspec
def gluon_assemblers() -> Mapping[str, str]:
    """Return interpreters of inline assembly: dialect -> path of a `gluon_core.simulation.assembly.Assembler`.

    Called once, when the plugin registers. The simulator takes the one for the dialect that the
    target's reference module names as `ASSEMBLY`.
    """
    raise NotImplementedError


@hookspec
def gluon_stage_done(stage: str, module: Any, target: Target) -> None:
    """Observe a finished compilation stage. The return value is ignored.

    Args:
        stage: its name in the backend's pipeline.
        module: what it returned; observers must not change it.
        target: what is being compiled for.
    """
    raise NotImplementedError


@hookspec
def gluon_provers() -> Sequence[str]:
    """Return paths (`module:function`) of what proves a simulated kernel for every trip count.

    The simulator calls the function with its launch when the setting `prove` asks for it. The
    function returns a `gluon_core.simulation.evidence.Proved`, and the error of a counterexample
    or None.
    """
    raise NotImplementedError
