"""Dependence of a grid on the one before it: launches of a simulated device follow each other, so that nothing is left to wait for."""

import numpy as np

from gluon_core.plugin.reference import Machine


def _depend(machine: Machine, value: np.ndarray) -> np.ndarray:
    return value


_WAIT, _ALLOW = "griddepcontrol.wait;", "griddepcontrol.launch_dependents;"
GRID_ASM = {f"{text} mov.b32 $0, $1;": _depend for text in (_WAIT, _ALLOW, f"{_WAIT} {_ALLOW}")}
