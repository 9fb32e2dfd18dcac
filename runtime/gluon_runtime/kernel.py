"""A kernel of a bundle: which compiled form a launch takes, and the launch."""

from __future__ import annotations

import threading
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Union

from gluon_runtime import manifest as manifests
from gluon_runtime import native
from gluon_runtime.calls import Calls, Hit
from gluon_runtime.conditions import map_kind
from gluon_runtime.driver import Block, Driver
from gluon_runtime.errors import (
    BundleArgumentError,
    BundleDeviceError,
    BundleGridError,
    BundleTargetError,
)
from gluon_runtime.manifest import Constant, Form, Kernel
from gluon_runtime.rules import ABSENT, ALIGN, CONSTANT, SPECIALIZE, WIDTH, Parameter
from gluon_runtime.select import Choice
from gluon_runtime.values import Pointer, TensorDescriptor, look

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
                Choice(self._kernel, arguments, {}).among([self.form])  # names the argument
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

    Attributes:
        places: key of a form -> place of the kernel and the form in the index.
    """

    grid_error = BundleGridError

    def __init__(self, bundle: Any, name: str, kernel: Kernel, number: int):
        self.bundle = bundle
        self.kernel = kernel
        self.places = {form.key: (number, i) for i, form in enumerate(kernel.forms)}
        leaves = [leaf for form in kernel.forms for _, leaf in manifests.leaves_of(form.arguments)]
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

    def measure(
        self, grid: Any, values: tuple[Any, ...], hit: Hit
    ) -> Optional[tuple[int, int, int]]:
        if grid is None and hit.grid is None:
            raise BundleGridError(
                f"the bundle does not say over which grid {self.name} runs",
                argument="grid",
                remedy=f'Give it: bundle["{self.name}"][grid](...).',
            )
        return super().measure(grid, values, hit)

    def refused(self, text: str, left: Sequence[str], options: Mapping[str, Any]) -> Exception:
        listed = ", ".join(left) or None
        return BundleArgumentError(text, argument=listed, expected=", ".join(self.names))

    # -- deciding ------------------------------------------------------------------------------------

    def _choose(self, passed: Sequence[Any], options: Mapping[str, Any]) -> Hit:
        """Return the launch of the form that fits, on the device of the arguments."""
        seen = list(map(self._look, self.kernel.parameters, passed))
        self.check(tuple(seen), options, CONSTANT)
        driver, device = self.bundle.driver, self._device(seen)
        form = Choice(self, seen, options).among(self._forms_for(device))
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
        known = {one.device[1] for _, one in placed} - {-1}
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
