"""A machine without a GPU that answers as the simulated device does, so that host code runs as written.

When `GLUON_TARGET` names a simulated target and Triton finds no GPU, `import gluon_core` gives
Triton a stand-in driver (`driver`): autotuning, `triton.testing` and suites that ask for the target
work. Calls of host code to torch, `device="cuda"` and its kin, is answered on request (`torch_device`):

    python -m gluon_core.standin --target sim:hopper script.py
    pytest --gluon-standin sim:hopper
"""

from __future__ import annotations

from typing import Any

__all__ = ["stand_in"]


def stand_in(target: str) -> Any:
    """Let torch and Triton answer as the simulated device `target`, to the end of the process.

    Returns:
        The `Target`.

    Raises:
        TargetError: an unknown target.
        DeviceError: it is not simulated, or the machine has such a device.
    """
    from gluon_standin.torch_device import stand_in

    return stand_in(target)
