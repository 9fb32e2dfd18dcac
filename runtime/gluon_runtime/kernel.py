"""A kernel of a bundle: which compiled form a launch takes, and the launch."""

from __future__ import annotations

import functools
import operator
import threading
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Sequence, Union

from gluon_runtime import manifest as manifests
from gluon_runtime.driver import Driver
from gluon_runtime.errors import (
    BundleArgumentError,
    BundleDeviceError,
    BundleGridError,
    BundleTargetError,
)
from gluon_runtime.manifest import Constant, Form, Kernel, Parameter
from gluon_runtime.native import Answers
from gluon_runtime.pack import Packer
from gluon_runtime.select import LEFT_OUT, select
from gluon_runtime.values import Seen, look, storage_size

if TYPE_CHECKING:
    from gluon_runtime.bundle import Bundle

__all__ = ["BundledKernel", "Grid"]

Grid = Union[int, Sequence[int], Callable[[dict[str, Any]], Any]]
_MOST = (2**31 - 1, 65535, 65535)
_MOST_MAPS = 4096  # of one form that are kept


class _Hit:
    """All that a launch of one form on one device needs."""

    __slots__ = (
        "device", "direct", "form", "loaded", "maps", "native", "packer", "paths", "plain", "scratch",
        "_made",
    )  # fmt: skip

    def __init__(self, form: Form, device: int, loaded: Any, names: Sequence[str]):
        self.form = form
        self.device = device
        self.loaded = loaded
        self.packer = Packer(form.packing, names)
        self.paths = [field.path for field in form.packing.fields]
        self.plain = [p[0] for p in self.paths] if all(len(p) == 1 for p in self.paths) else None
        self.scratch = bool(form.launch.global_scratch[0] or form.launch.profile_scratch[0])
        found = enumerate(form.packing.fields)
        self.maps = [(index, field.map) for index, field in found if field.map is not None]
        self._made: dict[Any, tuple[Any, ...]] = {}
        self.native: Optional[Callable[..., None]] = None  # launches in fewer steps, on this device
        self.direct: Optional[Callable[..., None]] = None  # the same where that is the only one

    def mapped(self, driver: Driver, flat: list[Any]) -> list[Any]:
        """The same with what the code takes for each descriptor; maps are kept."""
        flat = list(flat)
        for index, kind in self.maps:
            value = flat[index]
            made = self._made.get((index, value))
            if made is None:
                if len(self._made) >= _MOST_MAPS:
                    self._made.clear()
                encoded = driver.tensor_map(self.device, kind, value)
                made = self._made[index, value] = (encoded, *value.shape, *value.strides)
            flat[index] = made
        return flat

    def flat(self, values: Sequence[Any]) -> list[Any]:
        """The values of the fields, out of one value per parameter."""
        if self.plain is not None:
            return [values[index] for index in self.plain]
        found = []
        for path in self.paths:
            value: Any = values
            for index in path:
                value = value[index]
            found.append(value)
        return found


class BundledKernel:
    """A kernel of a bundle: `kernel[grid](*arguments)` launches it.

    Compile-time constants may be left out where only one form of the bundle is left then. `stream=`
    names a stream other than the current one; other keywords are compile options such as
    `num_warps`, which choose among forms.
    """

    def __init__(self, bundle: Bundle, name: str, kernel: Kernel):
        self.bundle = bundle
        self.name = name
        self.kernel = kernel
        self.names = [parameter.name for parameter in kernel.parameters]
        self._constexpr = [parameter.constexpr for parameter in kernel.parameters]
        self._simple = all(p.kind == "plain" for p in kernel.parameters)
        self._takes_stream = "stream" in self.names
        self._rests = [self._rest(count) for count in range(len(self.names) + 1)]
        self._tensors: set[type] = set()  # classes with data_ptr(), dtype and device
        self._ranged = any(
            getattr(pattern, "small", False)
            for form in kernel.forms
            for _, pattern in manifests.leaves_of(form.arguments)
        )
        self._hits: dict[Any, _Hit] = {}
        self._loaded: dict[tuple[str, int], _Hit] = {}
        self._lock = threading.Lock()
        self._known: Optional[Answers] = None  # what launches without a step in Python
        self._strange: set[Any] = set()  # keys of calls that it cannot read
        self.call: Callable[..., None] = self._first

    def __repr__(self) -> str:
        return f"BundledKernel({self.name}, {len(self.kernel.forms)} forms)"

    # -- launching ---------------------------------------------------------------------------------

    def __getitem__(self, grid: Grid) -> Callable[..., None]:
        """A function of the kernel's arguments that launches it over `grid`."""
        return functools.partial(self.call, grid)

    def __call__(self, /, *arguments: Any, **named: Any) -> None:
        """Launch over the grid that the bundle was built with.

        Raises:
            BundleGridError: it depends on the arguments.
        """
        self.call(None, *arguments, **named)

    def prepare(
        self, *arguments: Any, grid: Optional[Grid] = None, **named: Any
    ) -> Callable[..., None]:
        """`handle(*arguments)`, which launches on the current stream and decides nothing: its
        arguments must have the dtypes, alignment, constants and device of those given here."""
        values, options, _ = self._bind(arguments, named)
        key, _ = self._key(values, options)
        hit = self._hits.get(key) or self._miss(key, values, options)
        sizes = self._measure(grid, hit, values)
        driver = self.bundle.driver
        kinds = ["" if c else look(v).kind for c, v in zip(self._constexpr, values)]
        reads = {"pointer": _address, "tuple": _addresses, "descriptor": _spread}
        count, run, device = len(self.names), self._run, hit.device
        simple = hit.plain if not hit.maps else None
        plain = [] if simple is None else [(i, kinds[i] == "pointer") for i in simple]
        least = len(self.names) if simple is None else max(simple, default=-1) + 1

        def flatten(given: tuple[Any, ...]) -> list[Any]:
            if least <= len(given) <= count and simple is not None:  # constants are not looked at
                return [_address(given[i]) if pointer else given[i] for i, pointer in plain]
            if len(given) != count:
                given = tuple(self._bind(given, {})[0])  # says what is missing
            read = (reads[k](v) if k in reads else v for k, v in zip(kinds, given))
            return hit.flat(list(read))

        def handle(*given: Any) -> None:
            if sizes is not None:
                run(driver, hit, sizes, driver.stream(device), flatten(given))

        addressed = all(hasattr(values[i], "data_ptr") for i, pointer in plain if pointer)
        if sizes is None or simple is None or hit.scratch or not addressed:
            return handle
        fast = getattr(driver, "handle", None)  # a driver may launch in fewer steps
        if fast is None:
            return handle

        def again(_: Any, stream: int, given: tuple[Any, ...]) -> None:
            run(driver, hit, sizes, stream, flatten(given))

        made: Callable[..., None] = fast(hit.loaded, hit.form, sizes, device, handle, again)
        return made

    def _first(self, grid: Optional[Grid], /, *arguments: Any, **named: Any) -> None:
        """What was asked for before any launch asks each time for what is faster since."""
        launch = self.entry if self._known is None else self.call
        launch(grid, *arguments, **named)

    def entry(self, grid: Optional[Grid], /, *arguments: Any, **named: Any) -> None:
        """Any launch; what `call` comes to where it does not know the call."""
        rest = None
        if not named and len(arguments) < len(self._rests):
            rest = self._rests[len(arguments)]
        if rest is not None:
            values: Sequence[Any] = arguments + rest
            options: Mapping[str, Any] = {}
            stream = None
        else:
            values, options, stream = self._bind(arguments, named)
        key, passed = self._key(values, options)
        hit = self._hits.get(key)
        if hit is None:
            hit = self._miss(key, values, options)
        sizes = self._measure(grid, hit, values)
        if sizes is None:
            return
        driver = self.bundle.driver
        if stream is None:
            stream = driver.stream(hit.device)
        if hit.direct is not None:
            try:
                hit.direct(sizes, stream, *passed)
            except (OverflowError, TypeError, ValueError):  # nothing was launched
                self._run(driver, hit, sizes, stream, hit.flat(passed))  # says what does not fit
        else:
            self._run(driver, hit, sizes, stream, hit.flat(passed))
        if hit.native is not None and type(named.get("stream", 0)) is int:
            self._learn(key, tuple(values), options, hit)

    def _learn(
        self, key: Any, values: tuple[Any, ...], options: Mapping[str, Any], hit: _Hit
    ) -> None:
        """Let calls like this one be answered without a step in Python, where that can be."""
        if key in self._strange:
            return
        if self._known is None:
            make = getattr(self.bundle.driver, "answers", None)
            rules = self.bundle.manifest.rules
            defaults = tuple(map(_left_out, self.kernel.parameters))
            known = make(self, rules, defaults) if make and not self._ranged else None
            if known is None:
                self._strange.add(key)
                return
            self._known, self.call = known, known.call
        constants = [value for value, c in zip(values, self._constexpr) if c]
        told = tuple(map(_known, self.kernel.parameters, hit.form.arguments, values))
        settled = all(map(_settled, constants))
        if not settled or not self._known.remember(values, dict(options), hit, told):
            self._strange.add(key)

    def _run(
        self, driver: Driver, hit: _Hit, sizes: tuple[int, int, int], stream: int, flat: list[Any]
    ) -> None:
        launch = hit.form.launch
        if hit.maps:
            flat = hit.mapped(driver, flat)
        if not hit.scratch:
            packed = hit.packer.take(flat)
            try:
                driver.launch(hit.loaded, launch, sizes, stream, packed)
            finally:
                hit.packer.put(packed)
            return
        owned: list[int] = []
        try:
            addresses = [
                self._scratch(driver, hit, need, sizes, stream, owned)
                for need in (launch.global_scratch, launch.profile_scratch)
            ]
            packed = hit.packer.take(flat, *addresses)
            try:
                driver.launch(hit.loaded, launch, sizes, stream, packed)
            finally:
                hit.packer.put(packed)
        finally:
            for address in owned:  # the stream keeps later users behind the kernel
                driver.free(hit.device, address, stream)

    @staticmethod
    def _scratch(
        driver: Driver,
        hit: _Hit,
        need: tuple[int, int],
        sizes: tuple[int, int, int],
        stream: int,
        owned: list[int],
    ) -> int:
        size, alignment = need
        if not size:
            return 0
        extra = alignment if alignment > 256 else 0
        size *= sizes[0] * sizes[1] * sizes[2] * hit.form.launch.num_ctas
        start = driver.allocate(hit.device, size + extra, stream)
        owned.append(start)
        return start + -start % alignment

    # -- arguments ---------------------------------------------------------------------------------

    def _rest(self, count: int) -> Optional[tuple[Any, ...]]:
        """The values of the parameters after the first `count` where no argument has a name; None where
        that takes a closer look."""
        left = self.kernel.parameters[count:]
        if not self._simple or any(p.default is None and not p.constexpr for p in left):
            return None
        return tuple(_left_out(parameter) for parameter in left)

    def _bind(
        self, arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any], Optional[int]]:
        """A value per parameter, the options, and the stream."""
        left = dict(named)
        stream = None if self._takes_stream else left.pop("stream", None)
        values: list[Any] = []
        rest = list(arguments)
        missing = []
        for parameter in self.kernel.parameters:
            if parameter.kind == "variadic":
                values.append(tuple(rest))
                rest = []
            elif rest and parameter.kind == "plain":
                if parameter.name in left:
                    raise BundleArgumentError(f"{self.name} got it twice", argument=parameter.name)
                values.append(rest.pop(0))
            elif parameter.name in left:
                values.append(left.pop(parameter.name))
            elif parameter.default is not None or parameter.constexpr:
                values.append(_left_out(parameter))
            else:
                missing.append(parameter.name)
        if missing or rest:
            raise BundleArgumentError(
                f"{self.name} takes {', '.join(self.names)}",
                argument=", ".join(missing) or None,
                expected=f"{len(self.names)} arguments" if rest else "a value",
                got=len(arguments) if rest else "none",
            )
        return values, left, None if stream is None else _stream(stream)

    def _key(self, values: Sequence[Any], options: Mapping[str, Any]) -> tuple[Any, list[Any]]:
        """What the choice of a form depends on, and the values as they are passed: addresses for
        tensors. The key is None where it cannot be one."""
        rules = self.bundle.manifest.rules
        divisibility = rules.divisibility
        key: list[Any] = []
        passed: list[Any] = []
        for name, constexpr, value in zip(self.names, self._constexpr, values):
            cls = value.__class__
            if constexpr:
                plain = cls in (int, bool, str) or value is None or value is LEFT_OUT
                key.append((cls, value if plain else repr(value)))
                passed.append(value)
            elif cls is int:
                key.append(
                    value if value in rules.constants else (_width(value), not value % divisibility)
                )
                passed.append(value)
            elif cls is float or cls is bool or value is None:
                key.append(cls)
                passed.append(value)
            elif cls in self._tensors:  # as below, without the steps between
                try:
                    address = value.data_ptr()
                except RuntimeError:
                    address = self._look(name, value).value  # says what is wrong
                size = storage_size(value) if self._ranged else None
                small = size is not None and size <= rules.small
                key.append((value.dtype, not address % divisibility, small, value.device))
                passed.append(address)
            else:
                part, made = self._key_of(self._look(name, value))
                key.append(part)
                passed.append(made)
        if options:
            key.append(tuple((name, type(v), repr(v)) for name, v in options.items()))
        return tuple(key), passed

    def _key_of(self, seen: Seen) -> tuple[Any, Any]:
        rules = self.bundle.manifest.rules
        if seen.kind == "tuple":
            pairs = [self._key_of(item) for item in seen.value]
            return tuple(part for part, _ in pairs), tuple(made for _, made in pairs)
        if seen.kind == "pointer":
            small = self._ranged and seen.size is not None and seen.size <= rules.small
            aligned = not seen.value % rules.divisibility
            return (seen.dtype, aligned, small, seen.device), seen.value
        if seen.kind == "descriptor":
            made = seen.value
            return (seen.dtype, len(made.shape), made.box, made.layout, seen.device), made
        if seen.kind == "int":
            if seen.value in rules.constants:
                return seen.value, seen.value
            return (_width(seen.value), not seen.value % rules.divisibility), seen.value
        return (seen.kind, repr(seen.value) if seen.kind == "other" else None), seen.value

    def _miss(self, key: Any, values: Sequence[Any], options: Mapping[str, Any]) -> _Hit:
        """Choose, load, and remember."""
        seen: list[Any] = []
        places: dict[str, tuple[str, int]] = {}
        for parameter, value in zip(self.kernel.parameters, values):
            if parameter.constexpr:
                seen.append(value)
                continue
            found = self._look(parameter.name, value)
            if found.kind == "other":
                raise BundleArgumentError(
                    "kernels cannot take a value of this type",
                    argument=f"{self.name}({parameter.name})",
                    expected="a tensor, an array with __cuda_array_interface__ or __dlpack__, an int, "
                    "float, bool, None, tuple, gluon_runtime.TensorDescriptor or Pointer",
                    got=type(value).__name__,
                )
            _places(parameter.name, found, places)
            if found.owner is value and found.device is not None and hasattr(value, "data_ptr"):
                self._tensors.add(type(value))
            seen.append(found)
        device = self._device(places)
        forms = self._forms_for(device)
        form = select(self.name, self.kernel, forms, seen, options, self.bundle.manifest.rules)
        hit = self._load(form, device)
        self._hits[key] = hit
        return hit

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

    def _load(self, form: Form, device: int) -> _Hit:
        found = self._loaded.get((form.key, device))
        if found is None:
            with self._lock:
                found = self._loaded.get((form.key, device))
                if found is None:
                    code = self.bundle.member(form.code)
                    loaded = self.bundle.driver.load(device, code, form.launch)
                    found = _Hit(form, device, loaded, self.names)
                    found.native = self._native(found)
                    found.direct = found.native if self.bundle.driver.device_count() == 1 else None
                    self._loaded[form.key, device] = found
        return found

    def _native(self, hit: _Hit) -> Optional[Callable[..., None]]:
        """What the driver has to launch a form in fewer steps, where its device is the current one."""
        driver = self.bundle.driver
        make = getattr(driver, "direct", None)
        if make is None or hit.scratch:
            return None

        def again(sizes: tuple[int, int, int], stream: int, values: Sequence[Any]) -> None:
            self._run(driver, hit, sizes, stream, hit.flat(values))

        made: Optional[Callable[..., None]] = make(hit.loaded, hit.form, again)
        return made

    # -- grid --------------------------------------------------------------------------------------

    def _measure(
        self, grid: Optional[Grid], hit: _Hit, values: Sequence[Any]
    ) -> Optional[tuple[int, int, int]]:
        """Three sizes, None for an empty grid."""
        if grid is None:
            if hit.form.grid is None:
                raise BundleGridError(
                    f"the bundle does not say over which grid {self.name} runs",
                    argument="grid",
                    remedy=f'Give it: bundle["{self.name}"][grid](...).',
                )
            sizes: Any = hit.form.grid
        elif callable(grid):
            told = zip(self.kernel.parameters, hit.form.arguments, values)
            sizes = grid({p.name: _known(p, pattern, value) for p, pattern, value in told})
        else:
            sizes = grid
        if type(sizes) is int and 0 < sizes <= _MOST[0]:
            return sizes, 1, 1
        if type(sizes) is tuple and len(sizes) == 3 and 0 < min(sizes) and max(sizes) <= 65535:
            return sizes
        return _checked(sizes)


def _settled(value: Any) -> bool:
    """Whether a constant is what it is as long as it lives, so that its address stands for it."""
    if value is None or value is LEFT_OUT:
        return True
    how: Any = type(value).__hash__
    if how is object.__hash__:  # equal to itself alone, whatever it says it is
        return False
    try:
        hash(value)
    except TypeError:  # a list, or a tuple that holds one
        return False
    return True


def _left_out(parameter: Parameter) -> Any:
    """The value of a parameter that no argument is given for."""
    default = parameter.default
    if default is None:
        return LEFT_OUT
    return default.value if not default.opaque or parameter.constexpr else None


def _known(parameter: Parameter, pattern: Any, value: Any) -> Any:
    """The value of an argument; of a constexpr that was left out, that of the form."""
    return pattern.value if value is LEFT_OUT and isinstance(pattern, Constant) else value


def _checked(grid: Any) -> Optional[tuple[int, int, int]]:
    sizes = grid if isinstance(grid, (tuple, list)) else (grid,)
    try:
        found = [operator.index(size) for size in sizes]
    except TypeError:
        found = []
    if not 1 <= len(found) <= 3 or any(not 0 <= n <= most for n, most in zip(found, _MOST)):
        raise BundleGridError(
            "not a grid",
            argument="grid",
            expected="one to three sizes of at most 2**31 - 1, 65535 and 65535, or a function of the "
            "arguments that returns those",
            got=repr(grid),
        )
    found += [1] * (3 - len(found))
    return (found[0], found[1], found[2]) if all(found) else None


# How many bits a number needs -> a class of numbers that the same types hold.
_CLASSES = [sum(bits > most for most in (0, 1, 7, 8, 15, 16, 31, 32, 63, 64)) for bits in range(66)]


def _width(value: int) -> int:
    """Numbers that get the same fit the same integer types."""
    if value >= 0:
        return _CLASSES[min(value.bit_length(), 65)]
    return -1 - _CLASSES[min((~value).bit_length(), 65)]


def _places(name: str, seen: Seen, into: dict[str, tuple[str, int]]) -> None:
    if seen.kind == "tuple":
        for index, item in enumerate(seen.value):
            _places(f"{name}[{index}]", item, into)
    elif seen.device is not None:
        into[name] = seen.device


def _stream(value: Any) -> int:
    """The handle of a stream: an int, or what torch and CuPy call `cuda_stream` and `ptr`."""
    for name in ("cuda_stream", "ptr"):
        value = getattr(value, name, value)
    return operator.index(value)


def _address(value: Any) -> Any:
    try:
        return value.data_ptr()
    except AttributeError:
        return value if type(value) is int else look(value).value


def _spread(value: Any) -> Any:
    return look(value).value


def _addresses(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The items of a tuple as they are passed."""
    seen = zip(values, map(look, values))
    return tuple(
        _addresses(value) if found.kind == "tuple" else found.value for value, found in seen
    )
