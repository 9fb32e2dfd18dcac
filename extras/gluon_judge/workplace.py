"""The target of a process: the simulated device that answers where there is no GPU."""

from __future__ import annotations

import os
from typing import Optional

from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_judge.errors import JudgeError

__all__ = ["on_target", "simulated"]


def simulated(target: Optional[str]) -> Target:
    """Return the simulated target of a name: of an architecture its simulator.

    Raises:
        JudgeError: no simulator is installed.
        TargetError: an unknown target.
    """
    simulator = registry().simulator()
    if simulator is None:
        raise JudgeError(
            "kernels need a simulator, and none is installed", remedy="pip install gluon-sim"
        )
    if target is None:
        return registry().target(f"{simulator.name}:hopper")
    chosen = registry().target(target)
    if chosen.simulated:
        return chosen
    return registry().target(f"{simulator.name}:{chosen.architecture.name}")


def on_target(target: str) -> None:
    """Let this process launch kernels on a simulated target, and let the stand-in answer for its device."""
    os.environ["GLUON_TARGET"] = target
    if "standin" in registry().offers("service"):
        registry().service("standin").begin(target, None, True)
