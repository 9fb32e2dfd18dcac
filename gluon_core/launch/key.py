"""The key of a launch, everything that a call is compiled for: target, device, types and marks of the arguments, options.

The target is what was asked for, else where the tensors are, never a silent simulation.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence

from gluon_core import _triton
from gluon_core.compiler.driver import requested_options
from gluon_core.errors import (
    DeviceError,
    LimitError,
    OptionError,
    did_you_mean,
)
from gluon_core.launch.arguments import Described, Parameter, all_described
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.values.constants import identity, text_of

__all__ = ["Specialization", "choose", "device_target", "multiprocessors", "specialize"]


@dataclass(frozen=True)
class Specialization:
    """Everything that one compiled form of a kernel was chosen by.

    Args:
        target: what it runs on.
        device: index of the device.
        described: per parameter, what the compiler is told.
        options: the parsed compile options.
        strict: as in `gluon.jit`.
        key: all of it as text.
        lasting: the constants are what they are as long as they live.
        backend: that of the target.
    """

    target: Target
    device: int
    described: tuple[Described, ...]
    options: Any
    strict: bool
    key: str
    lasting: bool
    backend: Backend

    def differences(
        self, other: Specialization, names: Sequence[str]
    ) -> list[tuple[str, str, str]]:
        """Return what `other` differs in: its name, as it is here, and as it is there."""
        pairs = []
        for name, before, after in zip(names, self.described, other.described):
            if (before.kind, text_of(before.attributes)) != (after.kind, text_of(after.attributes)):
                pairs.append((name, _spoken(before), _spoken(after)))
        if self.target != other.target or self.device != other.device:
            here, there = (f"{s.target} device {s.device}" for s in (self, other))
            pairs.append(("target", here, there))
        if self.strict != other.strict:
            pairs.append(("strict", str(self.strict), str(other.strict)))
        if repr(self.options) != repr(other.options):
            pairs.append(("options", *_changed_options(self.options, other.options)))
        return pairs


def specialize(
    kernel: Any,
    parameters: Sequence[Parameter],
    values: Sequence[Any],
    requested: Mapping[str, Any],
    places: Places,
    running: bool = True,
) -> Specialization:
    """Return what a call with `values` is compiled for.

    Args:
        requested: the options of the call.
        places: of its tensors.
        running: whether the tensors are there to be worked on; False for a warm-up.
    """
    where = kernel.__name__
    target, device, backend = _choose(requested.get("target"), places, running)
    described = all_described(parameters, values, where, backend.compiler.pointer_range_bits)
    constants: dict[str, Any] = {}
    for parameter, value in zip(parameters, values):
        if parameter.is_constexpr:
            constants[parameter.name] = value
    try:
        parsed, strict = requested_options(kernel, requested, constants, backend, target)
    except OptionError as error:
        names = [p.name for p in parameters]
        near = error.argument in requested and did_you_mean(error.argument or "", names)
        if near:
            error.message = f"{where} has no such parameter, and {error.message}"
            error.remedy = near
        raise
    except LimitError as error:
        raise _triton.caught_as(error) from None
    text, lasting = [str(target), str(device), repr(parsed)], True
    for parameter, known in zip(parameters, described):
        of_constant = identity(known.attributes)
        text.append(f"{known.kind!r}={of_constant.text}")
        lasting &= of_constant.settled or not parameter.is_constexpr
    text += [] if strict else ["strict=False"]
    key = "\n".join(text)
    return Specialization(target, device, described, parsed, strict, key, lasting, backend)


def _spoken(found: Described) -> str:
    if found.kind == "constexpr":
        return f"constant {found.attributes!r}"
    words = [str(found.kind)]
    marks = found.attributes if isinstance(found.attributes, str) else ""
    if "D" in marks:
        words.append("divisible by 16")
    if "S" in marks:
        words.append("into less than 2 GiB")
    return " ".join(words) if isinstance(found.kind, str) else f"{found.kind} {found.attributes}"


def _changed_options(old: Any, new: Any) -> tuple[str, str]:
    before, after = vars(old), vars(new)
    keys = [key for key in after if before.get(key) != after[key]]
    return (
        ", ".join(f"{key}={before.get(key)!r}" for key in keys),
        ", ".join(f"{key}={after[key]!r}" for key in keys),
    )


# -- where a launch runs ---------------------------------------------------------------------------

Places = Mapping[str, tuple[str, int]]
_noticed: set[str] = set()


def choose(wanted: Any, places: Places, running: bool = True) -> tuple[Target, int]:
    """Return the target and the index of the device for a launch.

    Args:
        wanted: what the caller said, None for `GLUON_TARGET` or the tensors.
        places: parameter -> (device type, index) of its tensor.
        running: False to compile only: the tensors then decide nothing that is not left open.

    Raises:
        DeviceError: tensors that the target cannot work on, or on several devices.
        TargetError: an unknown target.
    """
    return _choose(wanted, places, running)[:2]


def _choose(wanted: Any, places: Places, running: bool) -> tuple[Target, int, Backend]:
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
    """How many multiprocessors (compute units) the device that holds `x` has, or None for an array in
    host memory, where kernels are simulated: what the grid of a persistent kernel is made of.

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
