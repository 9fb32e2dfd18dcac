"""The place of a launch: the target that was asked for, else where its tensors are, never silently on a simulator."""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping, Optional

from gluon_core.errors import DeviceError
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry

__all__ = ["Places", "choose", "chosen", "device_target", "multiprocessors"]

Places = Mapping[str, tuple[str, int]]
_noticed: set[str] = set()


def choose(wanted: Any, places: Places, running: bool = True) -> tuple[Target, int]:
    """Return the target and the index of the device for a launch.

    Args:
        wanted: the target that the caller names, None for `GLUON_TARGET` or the tensors.
        places: parameter -> (device type, index) of its tensor.
        running: False to compile only: the tensors then decide nothing that is not left open.

    Raises:
        DeviceError: tensors that the target cannot work on, or on several devices.
        TargetError: an unknown target.
    """
    return chosen(wanted, places, running)[:2]


def chosen(wanted: Any, places: Places, running: bool) -> tuple[Target, int, Backend]:
    """Return the same with the backend."""
    if wanted is None:
        wanted = os.environ.get("GLUON_TARGET") or None
    plugins, kinds = registry(), {kind for kind, _ in places.values()}
    if wanted is None and running and kinds:
        return _of_tensors(places, kinds)
    target = plugins.target(wanted)
    backend = plugins.backend(target.backend)
    if wanted is None:
        _notice(target)
    return target, _device_for(target, backend, places, kinds) if running else 0, backend


def _of_tensors(places: Places, kinds: set[str]) -> tuple[Target, int, Backend]:
    if len(kinds) > 1:
        raise DeviceError("the tensors of a launch are on different devices", got=_listed(places))
    index, (kind,) = _one_index(places), kinds
    for backend in registry().backends.values():
        if backend.device.tensor_device == kind and not backend.simulates:
            plugged = backend.device.target(index)
            if plugged is not None:
                return plugged, index, backend
    if kind == "cpu":
        target = _on_cpu(places)
        return target, 0, registry().backend(target.backend)
    raise DeviceError(
        "no installed plugin runs kernels where the tensors are",
        got=_listed(places),
        remedy=" ".join([*_problems(), registry().installed()]),
    )


def _plugged_in() -> Optional[tuple[Backend, Target]]:
    for backend in registry().backends.values():
        if not backend.simulates:
            target = registry().device_of(backend)
            if target is not None:
                return backend, target
    return None


def _problems() -> list[str]:
    problems = (backend.device.problem() for backend in registry().backends.values())
    return [problem for problem in problems if problem]


def _on_cpu(places: Places) -> Target:
    there = _plugged_in()
    if there is not None:
        backend, target = there
        raise DeviceError(
            f"the tensors are on the CPU, and {target} is plugged in",
            argument=", ".join(places),
            remedy=f"Move them with .{backend.device.tensor_device}(), or simulate with "
            f"GLUON_TARGET=sim:{target.architecture.name}.",
        )
    target = registry().target(None)
    if not registry().backend(target.backend).simulates:
        raise DeviceError("the tensors are on the CPU", argument=", ".join(places), expected=target)
    _notice(target)
    return target


def _notice(target: Target) -> None:
    """Say once that kernels are simulated although nobody asked for it."""
    if not target.simulated or target.name in _noticed:
        return
    _noticed.add(target.name)
    print(
        f"gluon: no GPU here, running on the simulator as {target} "
        f"(set GLUON_TARGET={target} to choose it and be silent)",
        file=sys.stderr,
    )


def _device_for(target: Target, backend: Backend, places: Places, kinds: set[str]) -> int:
    """Return the index of the device of `target` that holds the tensors, which are on `kinds`.

    Raises:
        DeviceError: they are elsewhere.
    """
    if backend.simulates:
        elsewhere = kinds - {"cpu", "meta"}
        if elsewhere:
            raise DeviceError(
                f"{target} works on CPU tensors",
                argument=", ".join(places),
                got=_listed(places),
                remedy="Move them with .cpu(), or leave the target to the tensors.",
            )
        return 0
    kind = backend.device.tensor_device
    if kind is not None and kinds - {kind}:
        where = registry().simulator()
        remedy = f"Move them with .{kind}()"
        if where is not None:
            remedy += f", or simulate with GLUON_TARGET={where.name}:{target.architecture.name}"
        raise DeviceError(
            f"{target} works on {kind} tensors",
            argument=", ".join(places),
            got=_listed(places),
            remedy=remedy + ".",
        )
    index = _one_index(places) if places else backend.device.count() and backend.device.current()
    plugged = backend.device.target(index)
    if plugged != target and not backend.device.count():
        raise DeviceError(
            f"there is no {target} on this machine",
            remedy=backend.device.problem()
            or f"Simulate with GLUON_TARGET=sim:{target.architecture.name}, or gluon.compile only.",
        )
    if plugged != target:
        raise DeviceError(
            f"device {index} is not {target}",
            argument="target",
            got=plugged,
            remedy="gluon.compile compiles for any target without running.",
        )
    return index


def _one_index(places: Places) -> int:
    indices = {index for _, index in places.values()}
    if len(indices) > 1:
        raise DeviceError("the tensors of a launch are on different devices", got=_listed(places))
    return indices.pop()


def _listed(places: Places) -> str:
    return ", ".join(f"{name} on {kind}:{index}" for name, (kind, index) in places.items())


def device_target() -> Optional[Target]:
    """Return the target of the device that is plugged in and that torch can put tensors on, None without one."""
    for backend in registry().backends.values():
        target = None if backend.simulates else backend.device.target()
        if target is not None:
            try:
                import torch

                torch.empty(1, device=backend.device.tensor_device)
            except (ImportError, RuntimeError, AssertionError):
                continue
            return target
    return None


def multiprocessors(x: Any) -> Optional[int]:
    """Return the number of multiprocessors (compute units) of the device that holds `x`, None for an array in
    host memory, where kernels are simulated. The grid of a persistent kernel is made of it.

        programs = gluon.multiprocessors(x) or 3
        kernel[(min(tiles, programs),)](x, ...)

    Args:
        x: a tensor of torch, or an array.
    """
    torch = sys.modules.get("torch")  # who has a tensor has imported it
    if torch is None or not isinstance(x, torch.Tensor):
        return None
    kinds = {backend.device.tensor_device for backend in registry().backends.values()}
    for kind in kinds - {None, "cpu"}:
        if getattr(x, f"is_{kind}", False):
            known = getattr(torch, str(kind)).get_device_properties(x.device)
            count: int = known.multi_processor_count
            return count
    return None
