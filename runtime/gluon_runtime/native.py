"""The launch in C of the wheel `gluon-nvidia`, where that is installed beside this one.

Neither Gluon Core nor Triton is imported for it. Without it, launches go through ctypes.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any, Callable, Optional

from gluon_runtime.manifest import Constant, Form, Value

__all__ = ["direct", "handle"]

_SCALARS = "bBhHiIqQfd"  # letters of struct that C packs; 16-bit floats are left to Python


def _kinds(form: Form) -> Optional[str]:
    """One letter per parameter as C is told: P for a pointer, x for a constant; None for others."""
    codes = {field.path: field.code for field in form.packing.fields}
    found = ""
    for index, pattern in enumerate(form.arguments):
        if isinstance(pattern, Constant):
            found += "x"
            continue
        if not isinstance(pattern, Value):
            return None
        code = "P" if pattern.type.startswith("*") else codes[(index,)]
        if code not in "P" + _SCALARS:
            return None
        found += code
    return found


def handle(
    driver: Any,
    loaded: Any,
    form: Form,
    sizes: tuple[int, int, int],
    device: int,
    slow: Callable[..., None],
    again: Callable[..., None],
) -> Callable[..., None]:
    """What launches a form with positional arguments: in C, or `slow` where C cannot.

    Args:
        driver: the CUDA driver.
        loaded: the form on `device`.
        sizes: the grid.
        slow: takes every call that C does not, such as one with names.
        again: `again(sizes, stream, arguments)`, for a launch that the driver refused.
    """
    found = _module(driver, form)
    if found is None:
        return slow
    native, letters_of, entry = found
    stream_of = native.stream(native.module(), driver.stream, device)
    made = slow
    # Constants may be given or left out; nearly all calls are one of the two.
    for letters in dict.fromkeys((letters_of, letters_of.rstrip("x"))):
        one = _launch(native, entry, loaded, form, letters, again)
        made = native.module().bind(one, sizes, stream_of, device, made)
    return made


def direct(
    driver: Any, loaded: Any, form: Form, again: Callable[..., None]
) -> Optional[Callable[..., None]]:
    """`launch(sizes, stream, *values)` in C, with one value per parameter and addresses for tensors; None
    where C cannot."""
    found = _module(driver, form)
    if found is None:
        return None
    native, letters, entry = found
    return _launch(native, entry, loaded, form, letters, again)


def _module(driver: Any, form: Form) -> Optional[tuple[Any, str, int]]:
    """What loads the launch in C, the letters of the form, and the driver's function; None where it is not
    there, or not for such a form."""
    try:
        native = importlib.import_module("gluon_nvidia.native")
        module = native.module()
        entry = ctypes.cast(driver.calls.cuLaunchKernelEx, ctypes.c_void_p).value
    except (ImportError, AttributeError):  # not installed, or another release
        return None
    except (ctypes.ArgumentError, TypeError):  # not a function of a library
        return None
    kinds = _kinds(form)
    if module is None or kinds is None or entry is None or len(kinds) > module.MOST_PARAMETERS:
        return None
    native.teach(module)
    return native, kinds, entry


def _launch(
    native: Any, entry: int, loaded: Any, form: Form, letters: str, again: Callable[..., None]
) -> Callable[..., None]:
    launch = form.launch
    made: Callable[..., None] = native.module().make(
        entry,
        loaded.function.value,
        launch.threads,
        launch.shared,
        ctypes.addressof(loaded.attributes) if len(loaded.attributes) else 0,
        len(loaded.attributes),
        launch.num_ctas,
        letters,
        len(letters),
        lambda status, sizes, stream, *given: again(sizes, stream, given),
        None,
        (),
        None,
        0,
        False,
    )
    return made
