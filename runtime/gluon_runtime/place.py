"""The place of a launch of a bundle: the device of its tensors, and code for its architecture."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from gluon_runtime.driver import Driver
from gluon_runtime.errors import BundleDeviceError, BundleTargetError
from gluon_runtime.manifest import Form, Kernel
from gluon_runtime.rules import ABSENT

__all__ = ["device_of", "forms_for"]


def device_of(kernel: str, seen: Mapping[str, Any], driver: Driver) -> int:
    """Return the index of the device of a launch.

    Args:
        kernel: its name.
        seen: parameter -> its argument, a `Seen` or `ABSENT`.

    Raises:
        BundleDeviceError: the tensors are where the driver runs no kernels, or on several devices.
    """
    arguments = {name: one for pair in seen.items() for name, one in _placed(*pair)}
    places = {name: one.device for name, one in arguments.items()}
    for name, (kind, _) in places.items():
        if not driver.reaches(arguments[name]):
            raise BundleDeviceError(
                f"the tensor is not where {driver.name} kernels run",
                argument=f"{kernel}({name})",
                expected=driver.tensor_device,
                got=kind,
                remedy=f"Move it with .{driver.tensor_device}().",
            )
    known = {index for _, index in places.values() if index >= 0}
    if len(known) > 1:
        listed = ", ".join(f"{name} on {kind}:{i}" for name, (kind, i) in places.items())
        raise BundleDeviceError("the tensors of a launch are on different devices", got=listed)
    return known.pop() if known else driver.current_device()


def _placed(name: str, seen: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arguments whose place is known."""
    if seen is not ABSENT and seen.kind == "tuple":
        for index, item in enumerate(seen.value):
            yield from _placed(f"{name}[{index}]", item)
    elif seen is not ABSENT and seen.device is not None:
        yield name, seen


def forms_for(device: int, driver: Driver, name: str, kernel: Kernel, path: str) -> list[Form]:
    """Return the forms for the architecture of a device; at least one.

    Args:
        name: of the kernel.
        path: of its bundle.

    Raises:
        BundleTargetError: there is none.
    """
    architecture = driver.architecture(device)
    here = (driver.name, architecture)
    forms = [form for form in kernel.forms if (form.driver, form.architecture) == here]
    if not forms:
        there = sorted({form.architecture for form in kernel.forms})
        raise BundleTargetError(
            f"{name} was not compiled for this device",
            argument=path,
            expected=architecture,
            got=", ".join(there) or "no code at all",
            remedy=f"Build the bundle with --target {architecture} as well.",
        )
    return forms
