"""A kernel of a bundle: which compiled form a launch takes, and the launch."""

from __future__ import annotations

import math
import operator
import threading
from functools import lru_cache, reduce
from typing import Any, Callable, Mapping, Optional, Protocol, Sequence

from gluon_runtime import manifest as manifests
from gluon_runtime import place
from gluon_runtime.arrays import Seen
from gluon_runtime.calls import Calls, Hit
from gluon_runtime.driver import Driver
from gluon_runtime.errors import BundleArgumentError, BundleGridError
from gluon_runtime.grid import Grid, checked
from gluon_runtime.manifest import Constant, Field, Form, Kernel
from gluon_runtime.pack import Packer
from gluon_runtime.rules import ABSENT, ALIGN, CONSTANT, SPECIALIZE, WIDTH, Parameter
from gluon_runtime.select import Choice
from gluon_runtime.values import look

__all__ = ["BundledKernel", "Grid"]


_MOST_MAPS = 4096  # of one form that are kept


class _Loaded:
    """One form on one device: launches it with one value per parameter.

    Attributes:
        engine: the same in C, see `native.launch`; None where C cannot.
    """

    def __init__(self, driver: Driver, form: Form, device: int, code: bytes, names: Sequence[str]):
        self.form = form
        self.device = device
        self._driver = driver
        self.loaded = driver.load(device, code, form.launch)
        self._packer = Packer(form.packing, names)
        self._encoded = lru_cache(_MOST_MAPS)(self._encode)
        self._scratch = (form.launch.global_scratch, form.launch.profile_scratch)
        needs_scratch = any(size for size, _ in self._scratch)
        make = None if needs_scratch else getattr(driver, "engaged", None)
        self.engine: Any = make and make(self.loaded, form)

    def __call__(self, sizes: tuple[int, int, int], stream: int, *values: Any) -> None:
        flat = [self._value(field, values) for field in self.form.packing.fields]
        owned: list[int] = []
        try:
            scratch = [self._take(*need, sizes, stream, owned) for need in self._scratch]
            packed = self._packer.take(flat, *scratch)
            try:
                self._driver.launch(self.loaded, self.form.launch, sizes, stream, packed)
            finally:
                self._packer.put(packed)
        finally:
            for address in owned:  # the stream keeps later users behind the kernel
                self._driver.free(self.device, address, stream)

    def _value(self, field: Field, values: Any) -> Any:
        """Return the value of a field as the code takes it; the maps of descriptors are kept."""
        value = look(reduce(operator.getitem, field.path, values)).value
        return value if field.map is None else self._encoded(field.map, value)

    def _encode(self, kind: manifests.TensorMap, value: Any) -> tuple[Any, ...]:
        encoded = self._driver.tensor_map(self.device, kind, value)
        return (encoded, *value.shape, *value.strides)

    def _take(
        self, size: int, alignment: int, sizes: Sequence[int], stream: int, owned: list[int]
    ) -> int:
        """Return the address of scratch memory of `size` bytes per block, 0 for none."""
        if not size:
            return 0
        extra = alignment if alignment > 256 else 0
        size *= math.prod(sizes) * self.form.launch.num_ctas
        start = self._driver.allocate(self.device, size + extra, stream)
        owned.append(start)
        return start + -start % alignment


class Source(Protocol):
    """The bundle of a kernel, see `gluon_runtime.bundle.Bundle`."""

    path: str
    manifest: manifests.Manifest

    @property
    def driver(self) -> Driver: ...

    def member(self, name: str) -> bytes: ...


class BundledKernel(Calls):
    """A kernel of a bundle: `kernel[grid](*arguments)` launches it.

    Compile-time constants may be left out if only one form of the bundle is left then. `stream=`
    names a stream other than the current one; other keywords are compile options such as
    `num_warps`, which choose among forms.
    """

    def __init__(self, bundle: Source, name: str, kernel: Kernel):
        self.bundle = bundle
        self.kernel = kernel
        self.names = [parameter.name for parameter in kernel.parameters]
        self._ranged = any(
            getattr(pattern, "small", False)
            for form in kernel.forms
            for _, pattern in manifests.leaves_of(form.arguments)
        )
        self._loaded: dict[tuple[str, int], _Loaded] = {}
        self._lock = threading.Lock()
        declared = [_parameter(p) for p in kernel.parameters]
        takes_stream = "stream" not in self.names
        super().__init__(name, declared, bundle.manifest.rules, takes_stream=takes_stream)

    def __repr__(self) -> str:
        return f"BundledKernel({self.name}, {len(self.kernel.forms)} forms)"

    # -- launching ---------------------------------------------------------------------------------

    def __getitem__(self, grid: Grid) -> Callable[..., None]:
        """Return a function of the kernel's arguments that launches it over `grid`."""
        return self.over(grid)

    def __call__(self, /, *arguments: Any, **named: Any) -> None:
        """Launch over the grid that the bundle was built with.

        Raises:
            BundleGridError: it depends on the arguments.
        """
        self.over(None)(*arguments, **named)

    def prepare(
        self, *arguments: Any, grid: Optional[Grid] = None, **named: Any
    ) -> Callable[..., None]:
        """Return `handle(*arguments)`, which launches on the current stream and decides nothing: its
        arguments must have the dtypes, alignment, constants and device of those given here."""
        values, options = self.placed(arguments, named)
        options.pop("stream", None)
        hit = self._choose(values, options)
        return self.handle(values, hit, self.measure(grid, values, hit))

    # -- as one of `calls` -----------------------------------------------------------------------------

    def miss(
        self, grid: Any, stream: Any, passed: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        """Choose a form, launch it, and have the next call of this kind find it."""
        hit = self._choose(passed, options)
        parameters, form = self.kernel.parameters, hit.launch.form  # type: ignore[attr-defined]
        if all(_settled(v) for p, v in zip(parameters, passed) if p.constexpr):
            constants = tuple(map(_known, form.arguments, passed))
            self.learn(passed, options, hit, self._ranged, form.grid, constants)
        self.run(hit, grid, stream, passed)

    def measure(self, grid: Any, values: Sequence[Any], hit: Any) -> Optional[tuple[int, int, int]]:
        form = hit.launch.form
        if grid is None:
            if form.grid is None:
                raise BundleGridError(
                    f"the bundle does not say over which grid {self.name} runs",
                    argument="grid",
                    remedy=f'Give it: bundle["{self.name}"][grid](...).',
                )
            grid = form.grid
        if callable(grid):
            known = map(_known, form.arguments, values)
            grid = grid(dict(zip(self.names, known)))
        return checked(grid)

    def refused(self, text: str, left: Sequence[str], options: Mapping[str, Any]) -> Exception:
        listed = ", ".join(left) or None
        return BundleArgumentError(text, argument=listed, expected=", ".join(self.names))

    # -- deciding ------------------------------------------------------------------------------------

    def _choose(self, passed: Sequence[Any], options: Mapping[str, Any]) -> Hit:
        """Return the launch of the form that fits, on the device of the arguments."""
        seen = list(map(self._look, self.kernel.parameters, passed))
        self.check(tuple(seen), options, CONSTANT)
        driver = self.bundle.driver
        device = place.device_of(self.name, dict(zip(self.names, seen)), driver)
        choice = Choice(self.name, self.kernel, seen, options, self.rules)
        forms = place.forms_for(device, driver, self.name, self.kernel, self.bundle.path)
        form = choice.among(forms)
        return Hit(self._load(form, device), driver.stream, device, None)

    def _look(self, parameter: manifests.Parameter, value: Any) -> Any:
        """Return an argument as it was seen, or `ABSENT`."""
        if parameter.constexpr or value is ABSENT:
            return value if value is ABSENT else Seen("constant", value)
        name = parameter.name
        try:
            seen = look(value)
        except BundleArgumentError as error:
            error.argument = f"{self.name}({name})"
            raise
        if seen.kind == "other":
            raise BundleArgumentError(
                "kernels cannot take a value of this type",
                argument=f"{self.name}({name})",
                expected="a tensor, an array with __cuda_array_interface__ or __dlpack__, an int, "
                "float, bool, None, tuple, gluon_runtime.TensorDescriptor or Pointer",
                got=type(seen.value).__name__,
            )
        return seen

    def _load(self, form: Form, device: int) -> _Loaded:
        with self._lock:
            loaded = self._loaded.get((form.key, device))
            if loaded is None:
                code = self.bundle.member(form.code)
                loaded = _Loaded(self.bundle.driver, form, device, code, self.names)
                self._loaded[form.key, device] = loaded
        return loaded


def _parameter(parameter: manifests.Parameter) -> Parameter:
    """Return the parameter as `calls` knows it: forms of a bundle may depend on anything."""
    default = ABSENT
    if parameter.default is not None:
        known = parameter.default
        default = known.value if not known.opaque or parameter.constexpr else None
    flags = CONSTANT if parameter.constexpr else SPECIALIZE | ALIGN | WIDTH
    return Parameter(parameter.name, parameter.kind, default, flags)


def _settled(value: Any) -> bool:
    """Return True if a constant never changes as long as it lives, so that its address stands for it."""
    if value is None or value is ABSENT:
        return True
    try:
        hash(value)
    except TypeError:  # a list, or a tuple that holds one
        return False
    how: Any = type(value).__hash__
    # An object with that hash is equal to itself alone, whatever it says it is.
    return how is not object.__hash__


def _known(pattern: Any, value: Any) -> Any:
    """Return the value of an argument; of a constant that was left out, that of the form."""
    return pattern.value if value is ABSENT and isinstance(pattern, Constant) else value
