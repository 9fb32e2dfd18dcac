"""A kernel of a bundle: which compiled form a launch takes, and the launch.

A form fits where all that its code assumes holds. The one that assumes most is taken,
which is the one that the compiler in Gluon Core would be asked for. Assumptions are records of the
bundle's index: C compares them with the arguments, and this module words what does not fit.
"""

from __future__ import annotations

import json
import threading
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Union

from gluon_runtime import manifest as manifests
from gluon_runtime import native
from gluon_runtime.calls import Calls, Hit
from gluon_runtime.conditions import KINDS, map_kind
from gluon_runtime.driver import Block, Driver
from gluon_runtime.errors import (
    BundleAmbiguousError,
    BundleArgumentError,
    BundleDeviceError,
    BundleGridError,
    BundleMissingError,
    BundleTargetError,
)
from gluon_runtime.manifest import Constant, Form, Kernel, Pattern, Tuple, leaves_of, spoken
from gluon_runtime.rules import ABSENT, ALIGN, CONSTANT, SPECIALIZE, WIDTH, Parameter
from gluon_runtime.values import Pointer, TensorDescriptor, kind_of, look

__all__ = ["BundledKernel", "Grid"]

Grid = Union[int, Sequence[int], Callable[[dict[str, Any]], Any]]


class _Loaded:
    """One form on one device: launches it with one value per parameter.

    Attributes:
        engine: the launch in C; None where each call must come to Python.
    """

    def __init__(self, kernel: BundledKernel, form: Form, device: int):
        driver = kernel.bundle.driver
        self.form, self._kernel, self._driver, self._device = form, kernel, driver, device
        self.loaded = driver.load(device, kernel.bundle.member(form.code), form.launch)
        launch, parts = form.launch, driver.parts(self.loaded, form)
        maps = [field.map for field in form.packing.fields if field.map is not None]
        needs_scratch = launch.global_scratch[0] or launch.profile_scratch[0]
        self._launch = native.launch(
            manifests.letters_of(form),
            device=device,
            threads=launch.threads,
            shared=launch.shared,
            num_ctas=launch.num_ctas,
            cooperative=launch.cooperative,
            dependent=launch.dependent,
            allocate=self._allocate if needs_scratch else None,
            maps=[map_kind(encoding, object()) for encoding in maps],
            encode=lambda i, value: driver.tensor_map(device, maps[i], look(value)),
            **parts,
        )
        self.engine = self._launch if isinstance(parts["call"], int) else None

    def __call__(self, sizes: tuple[int, int, int], stream: int, *values: Any) -> None:
        pairs = zip(self.form.arguments, values)
        arguments = [v if isinstance(pattern, Constant) else look(v) for pattern, v in pairs]
        self._driver.enter(self._device)
        for last in (False, True):
            try:
                status = native.engine.launch(self._launch, sizes, stream, *arguments)
            except (TypeError, OverflowError, AttributeError) as error:
                if getattr(error.__traceback__, "tb_next", None):  # of a driver
                    raise
                self._kernel.among([self.form], arguments, {})  # names the argument
                raise BundleArgumentError(str(error)) from error
            if not status:
                return
            self._driver.refuse(status, self.form.launch, self._device, sizes, last)

    def _allocate(self, programs: int, stream: int) -> tuple[int, int, Any]:
        """Return the addresses of global and profile scratch memory, and the objects that keep it."""
        launch, count = self.form.launch, programs * self.form.launch.num_ctas
        parts = launch.global_scratch, launch.profile_scratch
        place = self._driver, self._device
        blocks = [Block(*place, size * count, alignment, stream) for size, alignment in parts]
        return blocks[0].data_ptr(), blocks[1].data_ptr(), blocks


class BundledKernel(Calls):
    """A kernel of a bundle: `kernel[grid](*arguments)` launches it.

    Compile-time constants may be left out if only one form of the bundle is left then. `stream=`
    names a stream other than the current one; other keywords are compile options such as
    `num_warps`, which choose among forms.

    Args:
        bundle: the `Bundle` that it is in.
        number: its place in the index.
    """

    grid_error = BundleGridError

    def __init__(self, bundle: Any, name: str, kernel: Kernel, number: int):
        self.bundle = bundle
        self.kernel = kernel
        self._places = {form.key: (number, i) for i, form in enumerate(kernel.forms)}
        leaves = [leaf for form in kernel.forms for _, leaf in leaves_of(form.arguments)]
        self._ranged = any(getattr(pattern, "small", False) for pattern in leaves)
        self._loaded: dict[tuple[str, int], _Loaded] = {}
        self._lock = threading.Lock()
        declared = [_parameter(p) for p in kernel.parameters]
        takes_stream = "stream" not in [p.name for p in declared]
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
        settled = all(_settled(v) for p, v in zip(self.kernel.parameters, passed) if p.constexpr)
        if settled and not getattr(self.bundle.driver, "looks_at_each", False):
            self.learn(passed, options, hit, self._ranged)
        self.run(hit, grid, stream, passed)

    def refused(self, text: str, left: Sequence[str], options: Mapping[str, Any]) -> Exception:
        listed = ", ".join(left) or None
        return BundleArgumentError(text, argument=listed, expected=", ".join(self.names))

    # -- deciding ------------------------------------------------------------------------------------

    def _choose(self, passed: Sequence[Any], options: Mapping[str, Any]) -> Hit:
        """Return the launch of the form that fits, on the device of the arguments."""
        seen = list(map(self._look, self.kernel.parameters, passed))
        self.check(tuple(seen), options, CONSTANT)
        driver, device = self.bundle.driver, self._device(seen)
        form = self.among(self._forms_for(device), seen, options)
        with self._lock:
            loaded = self._loaded.get((form.key, device))
            if loaded is None:
                loaded = self._loaded[form.key, device] = _Loaded(self, form, device)
        constants = tuple(getattr(pattern, "value", None) for pattern in form.arguments)
        return Hit(loaded, driver.stream, device, None, form.grid, constants)

    def _look(self, parameter: manifests.Parameter, value: Any) -> Any:
        """Return an argument as the choice and the engine take it, or `ABSENT`."""
        if parameter.constexpr or value is ABSENT:
            return value
        try:
            return look(value)
        except BundleArgumentError as error:
            error.argument = f"{self.name}({parameter.name})"
            raise
        except Exception as error:  # whatever the library that owns it raises
            name, got = f"{self.name}({parameter.name})", type(value).__name__
            raise BundleArgumentError(f"no argument: {error}", argument=name, got=got) from error

    def _device(self, seen: Sequence[Any]) -> int:
        """Return the index of the device that holds the arguments.

        Raises:
            BundleDeviceError: they are where the driver runs no kernels, or on several devices.
        """
        driver: Driver = self.bundle.driver
        placed = [pair for one in zip(self.names, seen) for pair in _placed(*one)]
        for name, one in placed:
            if not driver.reaches(one):
                raise BundleDeviceError(
                    f"the tensor is not where {driver.name} kernels run",
                    argument=f"{self.name}({name})",
                    expected=driver.tensor_device,
                    got=one.device[0],
                    remedy=f"Move it with .{driver.tensor_device}().",
                )
        known = {one.device[1] for _, one in placed}
        if len(known) > 1:
            listed = ", ".join("{} on {}:{}".format(name, *one.device) for name, one in placed)
            raise BundleDeviceError("the tensors of a launch are on different devices", got=listed)
        return known.pop() if known else driver.current_device()

    def _forms_for(self, device: int) -> list[Form]:
        """Return the forms for the architecture of a device; at least one.

        Raises:
            BundleTargetError: there is none.
        """
        driver, forms = self.bundle.driver, self.kernel.forms
        architecture = driver.architecture(device)
        here = (driver.name, architecture)
        fitting = [form for form in forms if (form.driver, form.architecture) == here]
        if not fitting:
            raise BundleTargetError(
                f"{self.name} was not compiled for this device",
                argument=self.bundle.path,
                expected=architecture,
                got=", ".join(sorted({form.architecture for form in forms})) or "no code at all",
                remedy=f"Build the bundle with --target {architecture} as well.",
            )
        return fitting

    def among(self, forms: Sequence[Form], seen: Sequence[Any], options: Mapping[str, Any]) -> Form:
        """Return the form for a launch.

        Args:
            forms: those for the device's architecture; at least one.
            seen: per parameter, the argument as `look` returned it, a constant, or `ABSENT`.
            options: compile options that the caller names.

        Raises:
            BundleMissingError: none fits; the message names an option, or the first argument that keeps the nearest from it.
            BundleAmbiguousError: several do, and differ in a constexpr or an option that was not given.
        """
        for option, value in options.items():
            known = [form for form in forms if option in form.options]
            forms = [form for form in known if _text(form.options[option]) == _text(value)]
            if not forms:
                raise self._missing(option, known, value)
        fits = []
        for form in forms:
            each = zip(form.arguments, seen, [p.constexpr for p in self.kernel.parameters])
            values = [value for argument in each for value in _values(*argument)]
            fit = native.engine.fit(self.bundle.index, *self._places[form.key], values)
            fits.append((*fit[:2], not set(form.explicit) <= set(options), fit[2]))
        best = min(fits)
        left = [form for form, fit in zip(forms, fits) if fit == best]
        if best[0]:
            of = left[0].arguments
            empty = [i for i, value in enumerate(seen) if of[i] == Tuple(()) and value != ()]
            number = empty[0] if empty else leaves_of(of)[best[-1]][0][0]
            raise self._missing(self.names[number], forms, seen[number])
        if len(left) > 1:
            raise self._ambiguous(left, seen)
        return left[0]

    def _words(self, forms: Sequence[Form], name: str) -> str:
        """Return the arguments that forms take for a parameter or option, in words."""
        if name in self.names:
            patterns = (form.arguments[self.names.index(name)] for form in forms)
            return " or ".join(dict.fromkeys(spoken(each, self.rules) for each in patterns))
        return " or ".join(dict.fromkeys(repr(form.options.get(name)) for form in forms))

    def _missing(self, name: str, forms: Sequence[Form], got: Any) -> BundleMissingError:
        return BundleMissingError(
            f"{self.name} is not in the bundle for these arguments",
            argument=name,
            expected=self._words(forms, name)
            or f"one of {', '.join(self.names)}, or a compile option",
            got=repr(got),
            remedy="Add this form to the bundle, or keep the argument from changing the compiled code.",
        )

    def _ambiguous(self, forms: Sequence[Form], seen: Sequence[Any]) -> BundleAmbiguousError:
        names = [name for name, argument in zip(self.names, seen) if argument is ABSENT]
        names += sorted({option for form in forms for option in form.explicit})
        choices = {name: self._words(forms, name) for name in names}
        several = {name: words for name, words in choices.items() if " or " in words}
        return BundleAmbiguousError(
            f"{len(forms)} forms of {self.name} fit",
            argument=", ".join(several) or None,
            expected="; ".join(f"{name}: {words}" for name, words in several.items()) or None,
            remedy="Give it with the launch.",
        )


def _placed(name: str, seen: Any) -> Iterator[tuple[str, Any]]:
    """Yield the pointers whose place is known, by names."""
    pointer = seen.base if isinstance(seen, TensorDescriptor) else seen
    for index, item in enumerate(seen if isinstance(seen, tuple) else ()):
        yield from _placed(f"{name}[{index}]", item)
    if isinstance(pointer, Pointer) and pointer.device is not None:
        yield name, pointer


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
    try:
        hash(value)
    except TypeError:  # a list, or a tuple that holds one
        return False
    own: Any = type(value).__hash__
    # An object with the hash of all objects is equal to itself alone, whatever it says it is.
    return value is None or value is ABSENT or own is not object.__hash__


def _values(pattern: Pattern, seen: Any, constexpr: bool) -> Iterator[tuple[Any, ...]]:
    """Yield a `gb_value` of c/gluon_bundle.h for each leaf of a pattern: kind, bits, number, text, bytes of storage, sizes of
    a descriptor. A tuple of another structure fits none."""
    if isinstance(pattern, Tuple):
        alike = isinstance(seen, tuple) and len(seen) == len(pattern.items)
        items = pattern.items if alike else pattern.items or (Constant(None),)  # one too many
        for item, each in zip(items, seen if alike else [object()] * len(items)):
            yield from _values(item, each, constexpr)
        return
    kind = "left out" if seen is ABSENT else "" if constexpr else kind_of(seen)
    bits, number, text, size, sizes = 0, 0.0, None, None, ((), (), ())
    if kind == "descriptor":
        sizes, seen = (seen.shape, seen.strides, seen.block_shape or ()), seen.base
    if kind in ("pointer", "descriptor") and 0 <= seen.address < 2**64:
        bits, text, size = seen.address, seen.dtype, seen.size
    elif kind == "bool":
        kind, bits = "boolean", seen
    elif kind == "int" and -(2**63) <= seen < 2**64:
        kind, bits = "unsigned" if seen >= 2**63 else "integer", seen
    elif kind == "float":
        kind, number = "real", seen
    elif kind != "left out":
        kind, text = "constant", _text(seen, getattr(pattern, "opaque", False))
    known = 2**64 - 1 if size is None else size
    yield KINDS.index(kind), bits, number, text, known, sizes


def _text(value: Any, opaque: bool = False) -> str:
    """Return a constant as the index has it: JSON, where 1, true and 1.0 differ, or as Python prints an opaque one."""
    if opaque:
        return value if isinstance(value, str) else repr(value)
    try:
        return json.dumps(getattr(value, "value", value), separators=(",", ":"), default=repr)
    except (TypeError, ValueError):  # keys that JSON lacks, or a list that holds itself
        return repr(value)
