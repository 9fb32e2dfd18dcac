"""The drivers that a bundle's kernels can run on, opened on first use."""

from __future__ import annotations

import os
import threading
from importlib.metadata import entry_points
from typing import Optional, Sequence

from gluon_runtime.driver import Driver
from gluon_runtime.errors import BundleDeviceError

__all__ = ["find"]

_by_names: dict[tuple[str, ...], Driver] = {}
_lock = threading.Lock()


def find(names: Sequence[str]) -> Driver:
    """Return the first of these drivers (`cuda`, `hip`) that has a device, or the one that `GLUON_DRIVER` names.

    Raises:
        BundleDeviceError: none has; the message says why of each.
    """
    chosen = os.environ.get("GLUON_DRIVER")
    wanted = (chosen,) if chosen else tuple(names)
    known = _by_names.get(wanted)
    if known is not None:
        return known
    with _lock:
        problems = []
        for name in wanted:
            driver, problem = _open(name)
            if driver is not None and driver.device_count():
                _by_names[wanted] = driver
                return driver
            problems.append(problem or f"{name} sees no device")
    raise BundleDeviceError(
        "nothing on this machine can launch the kernels of the bundle",
        expected=" or ".join(wanted) or "code of a known driver",
        got="; ".join(problems) or "a bundle without code",
    )


def _open(name: str) -> tuple[Optional[Driver], Optional[str]]:
    if name == "cuda":
        from gluon_runtime import cuda

        return cuda.open_driver()
    if name == "hip":
        from gluon_runtime import hip

        return hip.open_driver()
    for plugin in entry_points(group="gluon_runtime.drivers", name=name.partition(":")[0]):
        opened: tuple[Optional[Driver], Optional[str]] = plugin.load()(name)
        return opened
    return None, f"nothing installed has a driver {name!r}"
