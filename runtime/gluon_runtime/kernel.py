"""A kernel of a bundle: which compiled form a launch takes, and the launch."""

from __future__ import annotations

import operator
import threading
from functools import partial, reduce
from typing import Any, Callable, Mapping, Optional, Protocol, Sequence, Union

from gluon_runtime import manifest as manifests
from gluon_runtime.arrays import Seen
from gluon_runtime.calls import Calls, Reading, stream_handle
from gluon_runtime.driver import Driver
from gluon_runtime.errors import (
    BundleArgumentError,
    BundleDeviceError,
    BundleGridError,
    BundleTargetError,
)
from gluon_runtime.manifest import Constant, Form, Kernel
from gluon_runtime.native import Engaged, Hit
from gluon_runtime.pack import Packer
from gluon_runtime.rules import ABSENT, ALIGN, CONSTANT, SPECIALIZE, WIDTH, Parameter, storage_size
from gluon_runtime.select import select
from gluon_runtime.values import look

__all__ = ["BundledKernel", "Grid"]

Grid = Union[int, Sequence[int], Callable[[dict[str, Any]], Any]]
_MOST = (2**31 - 1, 65535, 65535)
_MOST_MAPS = 4096  # of one form that are kept
_MOST_GRIDS = 4096  # that are kept


class _Loaded:
    """One form on one device: launches it with one value per parameter, addresses for tensors.

    Attributes:
        engine: the same in C, where that was built.
        sizes: the grid of the bundle, if it names one.
    """

    def __init__(self, driver: Driver, form: Form, device: int, code: bytes, names: Sequence[str]):
        self.form = form
        self.device = device
        self._driver = driver
        self.loaded = driver.load(device, code, form.launch)
        self._packer = Packer(form.packing, names)
        self._fields_of = _getter([field.path for field in form.packing.fields])
        self.sizes = None if form.grid is None else _checked(form.grid)
        self._scratch = form.launch.global_scratch[0] or form.launch.profile_scratch[0]
        fields = enumerate(form.packing.fields)
        self._maps = [(index, field.map) for index, field in fields if field.map is not None]
        self._encoded: dict[Any, tuple[Any, ...]] = {}
        make = None if self._scratch else getattr(driver, "engaged", None)
        self.engine: Optional[Engaged] = make and make(self.loaded, form, self._again)
        alone = self.engine is not None and not self.engine.several  # no device to be made current
        self._in_c = self.engine.launch if self.engine is not None and alone else None

    def __call__(self, sizes: tuple[int, int, int], stream: int, *values: Any) -> None:
        if self._in_c is not None:
            try:
                self._in_c(sizes, stream, *values)
                return
            except (OverflowError, TypeError, ValueError):  # nothing was launched: Python says why
                pass
        self._again(0, sizes, stream, *values)

    def _mapped(self, flat: Sequence[Any]) -> list[Any]:
        """Return the values of the fields with descriptors as the code takes them; their maps are kept."""
        mapped = list(flat)
        for index, kind in self._maps:
            value = mapped[index]
            encoded = self._encoded.get((index, value))
            if encoded is None:
                if len(self._encoded) >= _MOST_MAPS:
                    self._encoded.clear()
                tensor_map = self._driver.tensor_map(self.device, kind, value)
                encoded = self._encoded[index, value] = (tensor_map, *value.shape, *value.strides)
            mapped[index] = encoded
        return mapped

    def _again(self, _: int, sizes: tuple[int, int, int], stream: int, *values: Any) -> None:
        """Launch in Python, as where the driver refused a launch of the engine."""
        flat = self._fields_of(values)
        if self._maps:
            flat = self._mapped(flat)
        owned: list[int] = []
        try:
            scratch = self._scratch_for(sizes, stream, owned) if self._scratch else ()
            packed = self._packer.take(flat, *scratch)
            try:
                self._driver.launch(self.loaded, self.form.launch, sizes, stream, packed)
            finally:
                self._packer.put(packed)
        finally:
            for address in owned:  # the stream keeps later users behind the kernel
                self._driver.free(self.device, address, stream)

    def _scratch_for(
        self, sizes: tuple[int, int, int], stream: int, owned: list[int]
    ) -> Sequence[int]:
        launch = self.form.launch
        needs: Any = (launch.global_scratch, launch.profile_scratch)
        return [self._take_scratch(need, sizes, stream, owned) for need in needs]

    def _take_scratch(
        self, need: tuple[int, int], sizes: tuple[int, int, int], stream: int, owned: list[int]
    ) -> int:
        size, alignment = need
        if not size:
            return 0
        extra = alignment if alignment > 256 else 0
        size *= sizes[0] * sizes[1] * sizes[2] * self.form.launch.num_ctas
        start = self._driver.allocate(self.device, size + extra, stream)
        owned.append(start)
        return start + -start % alignment


def _getter(paths: Sequence[tuple[int, ...]]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function from the arguments to those at `paths`, which lead into tuples."""
    if len(paths) > 1 and all(len(path) == 1 for path in paths):
        return operator.itemgetter(*[index for (index,) in paths])
    return lambda values: [reduce(operator.getitem, path, values) for path in paths]


class Source(Protocol):
    """The bundle of a kernel, see `gluon_runtime.bundle.Bundle`."""

    path: str
    manifest: manifests.Manifest

    @property
    def driver(self) -> Driver: ...

    def member(self, name: str) -> bytes: ...


class BundledKernel:
    """A kernel of a bundle: `kernel[grid](*arguments)` launches it.

    Compile-time constants may be left out if only one form of the bundle is left then. `stream=`
    names a stream other than the current one; other keywords are compile options such as
    `num_warps`, which choose among forms.
    """

    call: Callable[..., None]  # set by the calls

    # As a `gluon_runtime.calls.Kernel`:
    watch = None  # nobody listens to the launches of bundles
    mistakes = ()
    token = staticmethod(repr)
    trimmed = sealed = view = staticmethod(lambda value: value)

    def __init__(self, bundle: Source, name: str, kernel: Kernel):
        self.bundle = bundle
        self.name = name
        self.kernel = kernel
        self.names = [parameter.name for parameter in kernel.parameters]
        self.rules = bundle.manifest.rules
        self.takes_stream = "stream" not in self.names
        self.grids: dict[Any, Optional[tuple[int, int, int]]] = {}
        self._ranged = any(
            getattr(pattern, "small", False)
            for form in kernel.forms
            for _, pattern in manifests.leaves_of(form.arguments)
        )
        self._loaded: dict[tuple[str, int], _Loaded] = {}
        self._lock = threading.Lock()
        self._calls = Calls(self, [_parameter(p) for p in kernel.parameters], door=self)

    def __repr__(self) -> str:
        return f"BundledKernel({self.name}, {len(self.kernel.forms)} forms)"

    # -- launching ---------------------------------------------------------------------------------

    def __getitem__(self, grid: Grid) -> Callable[..., None]:
        """Return a function of the kernel's arguments that launches it over `grid`."""
        return partial(self.call, grid)

    def __call__(self, /, *arguments: Any, **named: Any) -> None:
        """Launch over the grid that the bundle was built with.

        Raises:
            BundleGridError: it depends on the arguments.
        """
        self.call(None, *arguments, **named)

    def entry(self, grid: Optional[Grid], /, *arguments: Any, **named: Any) -> None:
        """Answer any launch, with the errors for arguments that Python could not bind."""
        try:
            self._calls.entry(grid, *arguments, **named)
        except TypeError as error:
            raise self._mistaken(error, arguments, named) from None

    def prepare(
        self, *arguments: Any, grid: Optional[Grid] = None, **named: Any
    ) -> Callable[..., None]:
        """Return `handle(*arguments)`, which launches on the current stream and decides nothing: its
        arguments must have the dtypes, alignment, constants and device of those given here."""
        try:
            values, options = self._calls.bind(arguments, named)
        except TypeError as error:
            raise self._mistaken(error, arguments, named) from None
        options.pop("stream", None)
        hit = self._choose(values, options)
        sizes = self.measure(grid, values, hit)
        readings = [
            reading and (reading[0], _TOLERANT if reading[1].memory else reading[1])
            for reading in self.readings(self._calls.parameters, values)
        ]
        fast, tolerant = (
            self._calls.handle(values, hit, sizes, True, known, lacking=True)
            for known in (None, readings)
        )

        def handle(*passed: Any) -> None:
            try:
                try:
                    fast(*passed)
                except AttributeError:  # an address instead of a tensor: nothing was launched
                    tolerant(*passed)
            except (AttributeError, TypeError) as error:
                raise self._mistaken(error, passed, {}) from None

        engine: Optional[Engaged] = hit.launch.engine  # type: ignore[attr-defined]
        if engine is None or sizes is None:
            return handle
        return engine.bind(sizes, hit.stream_of, hit.device, handle)

    # -- as a kernel of `calls` ----------------------------------------------------------------------

    def miss(self, grid: Any, values: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Choose a form, launch it, and have the next call of this kind find it."""
        left = dict(options)
        stream = left.pop("stream", None) if self.takes_stream else None
        hit = self._choose(values, left)
        sizes = self.measure(grid, values, hit)
        parameters, form = self.kernel.parameters, hit.launch.form  # type: ignore[attr-defined]
        self._calls.learn(
            values,
            left,
            hit,
            ranged=self._ranged,
            lasting=all(_settled(v) for p, v in zip(parameters, values) if p.constexpr),
            grid=form.grid,
            constants=tuple(map(_known, form.arguments, values)),
        )
        if sizes is not None:
            passed = [
                v if p.constexpr else self._read(p.name, v)[1] for p, v in zip(parameters, values)
            ]
            on = hit.stream_of(hit.device) if stream is None else stream_handle(stream)
            hit.launch(sizes, on, *passed)

    def measure(self, grid: Any, values: Sequence[Any], hit: Any) -> Optional[tuple[int, int, int]]:
        """Return three sizes, None for an empty grid."""
        form = hit.launch.form
        if grid is None:
            if form.grid is None:
                raise BundleGridError(
                    f"the bundle does not say over which grid {self.name} runs",
                    argument="grid",
                    remedy=f'Give it: bundle["{self.name}"][grid](...).',
                )
            sizes: Optional[tuple[int, int, int]] = hit.launch.sizes
            return sizes
        if callable(grid):
            known = map(_known, form.arguments, values)
            grid = grid(dict(zip(self.names, known)))
        sizes = _checked(grid)
        if type(grid) is tuple and len(grid) < 3 and all(type(size) is int for size in grid):
            if len(self.grids) >= _MOST_GRIDS:
                self.grids.clear()
            self.grids[grid] = sizes
        return sizes

    def refuse(self, values: tuple[Any, ...], error: Exception) -> Exception:
        """Return the error for a tensor that has no address."""
        for parameter, value in zip(self.kernel.parameters, values):
            if not parameter.constexpr:
                try:
                    self._look(parameter.name, value)
                except BundleArgumentError as ours:
                    return ours
        return error

    def too_many(self, surplus: Sequence[Any]) -> Exception:
        count = sum(p.kind == "plain" for p in self.kernel.parameters) + len(surplus)
        return self._wrong(None, f"{len(self.names)} arguments", str(count))

    def size_key(self, value: Any) -> bool:
        return self.rules.is_small(storage_size(value))

    def readings(
        self, parameters: Sequence[Parameter], values: Sequence[Any]
    ) -> list[Optional[tuple[Any, Reading]]]:
        return [
            None if p.flags & CONSTANT else self._reading(p.name, value)
            for p, value in zip(parameters, values)
        ]

    def _reading(self, name: str, value: Any) -> Optional[tuple[Any, Reading]]:
        seen = self._look(name, value)
        if seen.kind in ("int", "float", "bool", "none"):
            return None
        if seen.owner is value and seen.device is not None and hasattr(value, "data_ptr"):
            key = ("{it}.dtype", "{it}.device")
            return value, Reading(key, read="{it}.data_ptr()", value="{own}", memory=True)
        names = {"look": partial(self._read, name)}
        return value, Reading(("{own}[0]",), read="{look}({it})", value="{own}[1]", names=names)

    def _read(self, name: str, value: Any) -> tuple[Any, Any]:
        """Return the part of the key for an argument, and the argument as it is passed."""
        return self._key_of(self._look(name, value))

    def _key_of(self, seen: Seen) -> tuple[Any, Any]:
        rules = self.rules
        if seen.kind == "tuple":
            pairs = [self._key_of(item) for item in seen.value]
            return tuple(part for part, _ in pairs), tuple(passed for _, passed in pairs)
        if seen.kind == "pointer":
            small = self._ranged and rules.is_small(seen.size)
            return (seen.dtype, rules.is_divisible(seen.value), small, seen.device), seen.value
        if seen.kind == "descriptor":
            spread = seen.value
            key = (seen.dtype, len(spread.shape), spread.box, spread.layout, seen.device)
            return key, spread
        if seen.kind == "int":
            return rules.integer_key(seen.value), seen.value
        return (seen.kind, repr(seen.value) if seen.kind == "other" else None), seen.value

    # -- deciding ------------------------------------------------------------------------------------

    def _choose(self, values: Sequence[Any], options: Mapping[str, Any]) -> Hit:
        """Return the launch of the form that fits, on the device of the arguments."""
        seen: list[Any] = []
        places: dict[str, tuple[str, int]] = {}
        parameters = self.kernel.parameters
        missing = [p.name for p, v in zip(parameters, values) if v is ABSENT and not p.constexpr]
        if missing:
            raise self._wrong(", ".join(missing), "a value", "none")
        for parameter, value in zip(parameters, values):
            if parameter.constexpr:
                seen.append(value)
                continue
            argument = self._look(parameter.name, value)
            if argument.kind == "other":
                raise BundleArgumentError(
                    "kernels cannot take a value of this type",
                    argument=f"{self.name}({parameter.name})",
                    expected="a tensor, an array with __cuda_array_interface__ or __dlpack__, an int, "
                    "float, bool, None, tuple, gluon_runtime.TensorDescriptor or Pointer",
                    got=type(value).__name__,
                )
            _places(parameter.name, argument, places)
            seen.append(argument)
        device = self._device(places)
        forms = self._forms_for(device)
        form = select(self.name, self.kernel, forms, seen, options, self.rules)
        return Hit(self._load(form, device), self.bundle.driver.stream, device, None)

    def _mistaken(
        self, error: Exception, arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> Exception:
        """Return the error for arguments that Python could not bind; `error` itself if it is another."""
        left = [p for p in self.kernel.parameters[len(arguments) :] if p.name not in named]
        missing = [p.name for p in left if p.default is None and not p.constexpr]
        twice = set(self.names[: len(arguments)]) & set(named)
        if twice:
            argument = ", ".join(sorted(twice))
            return BundleArgumentError(f"{self.name} got it twice", argument=argument)
        if missing:
            return self._wrong(", ".join(missing), "a value", "none")
        return error

    def _wrong(self, argument: Optional[str], expected: str, got: str) -> BundleArgumentError:
        message = f"{self.name} takes {', '.join(self.names)}"
        return BundleArgumentError(message, argument=argument, expected=expected, got=got)

    def _look(self, name: str, value: Any) -> Seen:
        try:
            return look(value)
        except BundleArgumentError as error:
            error.argument = f"{self.name}({name})"
            raise

    def _device(self, places: Mapping[str, tuple[str, int]]) -> int:
        driver = self.bundle.driver
        for name, (kind, _) in places.items():
            if kind != driver.tensor_device:
                raise BundleDeviceError(
                    f"the tensor is not where {driver.name} kernels run",
                    argument=f"{self.name}({name})",
                    expected=driver.tensor_device,
                    got=kind,
                    remedy=f"Move it with .{driver.tensor_device}().",
                )
        known = {index for _, index in places.values() if index >= 0}
        if len(known) > 1:
            listed = ", ".join(f"{name} on {kind}:{i}" for name, (kind, i) in places.items())
            raise BundleDeviceError("the tensors of a launch are on different devices", got=listed)
        return known.pop() if known else driver.current_device()

    def _forms_for(self, device: int) -> list[Form]:
        driver = self.bundle.driver
        architecture = driver.architecture(device)
        forms = [
            form
            for form in self.kernel.forms
            if form.driver == driver.name and form.architecture == architecture
        ]
        if not forms:
            there = sorted({form.architecture for form in self.kernel.forms})
            raise BundleTargetError(
                f"{self.name} was not compiled for this device",
                argument=self.bundle.path,
                expected=architecture,
                got=", ".join(there) or "no code at all",
                remedy=f"Build the bundle with --target {architecture} as well.",
            )
        return forms

    def _load(self, form: Form, device: int) -> _Loaded:
        loaded = self._loaded.get((form.key, device))
        if loaded is None:
            with self._lock:
                loaded = self._loaded.get((form.key, device))
                if loaded is None:
                    code = self.bundle.member(form.code)
                    loaded = _Loaded(self.bundle.driver, form, device, code, self.names)
                    self._loaded[form.key, device] = loaded
        return loaded


def _address(value: Any) -> Any:
    try:
        return value.data_ptr()
    except AttributeError:
        return value if type(value) is int else look(value).value


# The reading, by a prepared launch, of an argument that was a tensor when it was prepared.
_TOLERANT = Reading(read="{address}({it})", value="{own}", names={"address": _address})


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
    how: Any = type(value).__hash__
    if how is object.__hash__:  # equal to itself alone, whatever it says it is
        return False
    try:
        hash(value)
    except TypeError:  # a list, or a tuple that holds one
        return False
    return True


def _known(pattern: Any, value: Any) -> Any:
    """Return the value of an argument; of a constant that was left out, that of the form."""
    return pattern.value if value is ABSENT and isinstance(pattern, Constant) else value


def _checked(grid: Any) -> Optional[tuple[int, int, int]]:
    sizes = grid if isinstance(grid, (tuple, list)) else (grid,)
    try:
        counts = [operator.index(size) for size in sizes]
    except TypeError:
        counts = []
    if not 1 <= len(counts) <= 3 or any(not 0 <= n <= most for n, most in zip(counts, _MOST)):
        raise BundleGridError(
            "not a grid",
            argument="grid",
            expected="one to three sizes of at most 2**31 - 1, 65535 and 65535, or a function of the "
            "arguments that returns those",
            got=repr(grid),
        )
    x, y, z = *counts, *[1] * (3 - len(counts))
    return (x, y, z) if x and y and z else None


def _places(name: str, seen: Seen, into: dict[str, tuple[str, int]]) -> None:
    if seen.kind == "tuple":
        for index, item in enumerate(seen.value):
            _places(f"{name}[{index}]", item, into)
    elif seen.device is not None:
        into[name] = seen.device
