"""The place of a launch: the target that was asked for, else where its tensors are, never silently on a simulator."""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping, Optional

from gluon_core.errors import DeviceError
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry

__all__ = ["Places", "chosen"]

Places = Mapping[str, tuple[str, int]]
_noticed: set[str] = set()


def chosen(wanted: Any, places: Places, running: bool = True) -> tuple[Target, int, Backend]:
    """Return the target of a launch, the index of the device, and the backend.

    Args:
        wanted: the target that the caller names, None for `GLUON_TARGET` or the tensors.
        places: parameter -> (device type, index) of its tensor.
        running: False to compile only: the tensors then decide nothing that is not left open.

    Raises:
        DeviceError: tensors that the target cannot work on, or on several devices.
        TargetError: an unknown target.
    """
    wanted = (os.environ.get("GLUON_TARGET") or None) if wanted is None else wanted
    plugged = _plugged_at(places) if wanted is None and running and places else None
    target = plugged or registry().target(wanted)
    backend = registry().backend(target.backend)
    device = _device_for(target, backend, places) if running else 0
    if wanted is None:
        _notice(target)
    return target, device, backend


def _plugged_at(places: Places) -> Optional[Target]:
    """Return the target that is plugged in where the tensors are."""
    kind, index = _one_place(places)
    for backend in registry().backends.values():
        if backend.device.tensor_device == kind and not backend.simulates:
            plugged = backend.device.target(index)
            if plugged is not None:
                return plugged
    return None


def _notice(target: Target) -> None:
    """Say once that kernels are simulated although nobody asked for it."""
    if target.simulated and target.name not in _noticed:
        _noticed.add(target.name)
        print(
            f"gluon: no GPU here, running on the simulator as {target} "
            f"(set GLUON_TARGET={target} to choose it and be silent)",
            file=sys.stderr,
        )


def _device_for(target: Target, backend: Backend, places: Places) -> int:
    """Return the index of the device of `target` that holds the tensors.

    Raises:
        DeviceError: they are elsewhere.
    """
    device, name = backend.device, target.architecture.name
    kind = "cpu" if backend.simulates else device.tensor_device
    elsewhere = {where for where, _ in places.values()} - {kind}
    if kind is not None and elsewhere:
        where, remedies = registry().simulator(), [f"Move them with .{kind}()."]
        if backend.simulates:
            problems = [each.device.problem() for each in registry().backends.values()]
            remedies += ["Or let a plugin run them there.", *filter(None, problems)]
            remedies.append(registry().installed())
        elif where is not None:
            remedies.append(f"Or simulate with GLUON_TARGET={where.name}:{name}.")
        raise DeviceError(
            f"{target} works on {'CPU' if kind == 'cpu' else kind} tensors",
            argument=", ".join(places),
            got=_listed(places),
            remedy=" ".join(remedies),
        )
    if backend.simulates:
        return 0
    index = _one_place(places)[1] if places else device.count() and device.current()
    plugged = device.target(index)
    if plugged == target:
        return index
    if not device.count():
        simulate = f"Simulate with GLUON_TARGET=sim:{name}, or gluon.compile only."
        remedy = device.problem() or simulate
        raise DeviceError(f"there is no {target} on this machine", remedy=remedy)
    raise DeviceError(
        f"device {index} is not {target}",
        argument="target",
        got=plugged,
        remedy="gluon.compile compiles for any target without running.",
    )


def _one_place(places: Places) -> tuple[str, int]:
    if len({*places.values()}) > 1:
        raise DeviceError("the tensors of a launch are on different devices", got=_listed(places))
    return next(iter(places.values()))


def _listed(places: Places) -> str:
    return ", ".join(f"{name} on {kind}:{index}" for name, (kind, index) in places.items())
