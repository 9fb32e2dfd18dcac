"""The launch in C of the wheel `gluon-nvidia`, where that is installed beside this one.

Neither Gluon Core nor Triton is imported for it. Without it, launches go through ctypes.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from gluon_runtime.manifest import Constant, Form, Pattern, Rules, Tuple, Value

__all__ = ["Answers", "answers", "direct", "handle"]

_VERSION = 5  # of what the launch in C offers
_RULES = (16, (1,))  # what it tells integers and addresses apart by
_CONSTANT, _SPECIALIZE, _ALIGN, _WIDTH = 1, 2, 4, 8
_MISSING = object()
_SCALARS = "bBhHiIqQfd"  # letters of struct that C packs; 16-bit floats are left to Python


def _kinds(form: Form) -> Optional[str]:
    """One letter per parameter as C is told: P for a pointer, x for a constant, those of a tuple in
    parentheses; None for others."""
    codes = {field.path: field.code for field in form.packing.fields}
    found = [_letters(pattern, (i,), codes) for i, pattern in enumerate(form.arguments)]
    return None if None in found else "".join(map(str, found))


def _letters(
    pattern: Pattern, path: tuple[int, ...], codes: Mapping[tuple[int, ...], str]
) -> Optional[str]:
    if isinstance(pattern, Constant):
        return "x"
    if isinstance(pattern, Tuple):
        inside = [_letters(item, (*path, i), codes) for i, item in enumerate(pattern.items)]
        return None if None in inside else f"({''.join(map(str, inside))})"
    if not isinstance(pattern, Value):
        return None
    code = "P" if pattern.type.startswith("*") else codes[path]
    return code if code in "P" + _SCALARS else None


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
        slow: takes every call that C does not: with names, or while another device is current.
        again: `again(sizes, stream, arguments)`, for a launch that the driver refused.
    """
    found = _module(driver, form)
    several = driver.device_count() > 1
    current = _address(driver.calls, "cuCtxGetDevice") if several else 0
    if found is None or (several and not current):
        return slow
    native, letters, entry = found
    stream_of = native.stream(native.module(), driver.stream, device)
    one = _launch(native, entry, loaded, form, letters, again)
    made: Callable[..., None] = native.module().bind(one, sizes, stream_of, device, slow, current)
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


class Answers:
    """What launches calls of a kernel that came before, in C: see `_call.h` of `gluon-nvidia`.

    Attributes:
        call: `call(grid, *arguments, **named)`; what it does not know goes to `kernel.entry`.
    """

    def __init__(self, native: Any, driver: Any, kernel: Any, defaults: Sequence[Any]):
        self._native = native
        self._driver = driver
        self._parameters = kernel.kernel.parameters
        kinds = [parameter.kind for parameter in self._parameters]
        found = _address(driver.calls, "cuCtxGetDevice") if driver.device_count() > 1 else 0
        self._calls = native.module().Calls(
            tuple(kernel.names),
            tuple(
                value if p.constexpr or p.default is not None else _MISSING
                for p, value in zip(self._parameters, defaults)
            ),
            tuple(
                _CONSTANT if p.constexpr else _SPECIALIZE | _ALIGN | _WIDTH
                for p in self._parameters
            ),
            _MISSING,
            kinds.count("plain"),
            kernel,
            *(None, None, (), None, (), (), [], None),  # nobody listens to the launches of bundles
            (),
            found,
            None if "stream" in kernel.names else "stream",
        )
        self.call: Callable[..., None] = self._calls.call

    def remember(
        self,
        values: Sequence[Any],
        options: dict[str, Any],
        hit: Any,
        told: tuple[Any, ...],
    ) -> bool:
        """Answer calls like this one from now on; False where C cannot read it.

        Args:
            values: one for each parameter. Constants are recognised by their address.
            hit: what Python launches such calls with.
            told: what functions that give the grid are told of constants.
        """
        owners: list[Any] = [*options, *options.values()]
        for parameter, value in zip(self._parameters, values):
            owners.extend([value] if parameter.constexpr else _classes(value))
        stream_of = self._native.stream(self._native.module(), self._driver.stream, hit.device)
        known: bool = self._calls.remember(
            values,
            options,
            hit.native,
            stream_of,
            hit.device,
            None,
            tuple(owners),
            hit.form.grid,
            told,
        )
        return known


def _classes(value: Any) -> Iterator[type]:
    """Those of an argument, and of what is in it: their addresses are part of a key."""
    yield type(value)
    if type(value) is tuple:
        for item in value:
            yield from _classes(item)


def answers(driver: Any, kernel: Any, rules: Rules, defaults: Sequence[Any]) -> Optional[Answers]:
    """`Answers` for a `BundledKernel`; None where C cannot tell its calls apart.

    Args:
        driver: the CUDA driver.
        defaults: the value of each parameter that a call leaves out.
    """
    native = _native()
    parameters = kernel.kernel.parameters
    if native is None or len(parameters) > native.module().MOST_PARAMETERS:
        return None
    if (rules.divisibility, rules.constants) != _RULES:
        return None
    if any(parameter.kind == "variadic" for parameter in parameters):
        return None
    if driver.device_count() > 1 and not _address(driver.calls, "cuCtxGetDevice"):
        return None  # a driver that does not say where a launch would go
    return Answers(native, driver, kernel, defaults)


def _native() -> Any:
    """What loads the launch in C; None where it is not there, or is another release's."""
    try:
        native = importlib.import_module("gluon_nvidia.native")
        module = native.module()
    except (ImportError, AttributeError):
        return None
    if getattr(module, "VERSION", 0) != _VERSION:
        return None
    native.teach(module)
    return native


def _address(library: Any, name: str) -> int:
    """Where a function of the library is; 0 for one that it lacks, or that is none of C."""
    function: Any = getattr(library, name, None)
    try:
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    except (ctypes.ArgumentError, TypeError):
        return 0


def _module(driver: Any, form: Form) -> Optional[tuple[Any, str, int]]:
    """What loads the launch in C, the letters of the form, and the driver's function; None where it is not
    there, or not for such a form."""
    native, entry, kinds = _native(), _address(driver.calls, "cuLaunchKernelEx"), _kinds(form)
    if native is None or not entry or kinds is None or len(kinds) > native.module().MOST_KINDS:
        return None
    fits = len(form.arguments) <= native.module().MOST_PARAMETERS
    return (native, kinds, entry) if fits else None


def _launch(
    native: Any,
    entry: int,
    loaded: Any,
    form: Form,
    letters: str,
    again: Callable[..., None],
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
        len(form.arguments),
        lambda status, sizes, stream, *given: again(sizes, stream, given),
        None,
        (),
        None,
        0,
        False,
    )
    return made
