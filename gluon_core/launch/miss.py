"""A launch that no hit answers: decides on the form, launches it, and teaches the calls that follow.

A `Dispatcher` belongs to one kernel. Its `calls`, an engine of `gluon_runtime`, answer all that they have learned;
every other call comes to `miss`.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
import sys
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

from gluon_core import _triton
from gluon_core.compiler import grid
from gluon_core.compiler.kernel import CompiledKernel
from gluon_core.errors import (
    ArgumentError,
    CallError,
    GluonError,
    RecompileError,
    did_you_mean,
    trimmed,
)
from gluon_core.launch import opaque
from gluon_core.launch.arguments import (
    Parameter,
    Placeholder,
    looked_at,
    parameters_of,
    places_of,
    small_storage,
    viewed,
)
from gluon_core.launch.cache import Forms
from gluon_core.launch.key import Specialization, specialize
from gluon_core.launch.reading import Tokens, readings
from gluon_core.plugin.backend import Backend
from gluon_core.registry.load import registry
from gluon_core.simulation.evidence import refused
from gluon_runtime.calls import Calls
from gluon_runtime.native import Hit, Watch
from gluon_runtime.rules import ABSENT, RULES

__all__ = ["OBSERVERS", "Dispatcher"]

# Each is called with the source, target, options and grid (None: no program ran) of every launch that
# takes no fast way; while a launch hook of Triton's is set, none does.
OBSERVERS: list[Callable[..., None]] = []


class Dispatcher:
    """Launches one kernel: the `gluon_runtime.calls.Kernel` of its calls.

    Args:
        kernel: the jit function.
    """

    rules = RULES
    takes_stream = False
    mistakes = GluonError
    grids = grid.TABLE
    trimmed = staticmethod(trimmed)
    view = staticmethod(viewed)
    sealed = staticmethod(opaque.closed)

    def __init__(self, kernel: Any):
        self.kernel = kernel
        self.name: str = kernel.__name__
        self.parameters = parameters_of(kernel)
        self.names = tuple(p.name for p in self.parameters)
        self.forms = Forms(kernel, self.names)
        self.token = Tokens()
        self.readings = functools.partial(readings, self.token)
        self._lookup: Optional[Callable[..., Any]] = None
        runtime = self._runtime = _triton.knobs.runtime
        self.watch = Watch(
            runtime,
            runtime.launch_enter_hook,
            getattr(runtime.launch_enter_hook, "calls", ()),
            runtime.launch_exit_hook,
            getattr(runtime.launch_exit_hook, "calls", ()),
            kernel.pre_run_hooks,
            self.forms.globals,
            self.forms.globals_changed,
        )
        self.calls = Calls(self, [p.of_call() for p in self.parameters])

    # -- questions of the calls ------------------------------------------------------------------------

    def measure(
        self, sizes: Any, values: tuple[Any, ...], hit: Optional[Hit] = None
    ) -> Optional[tuple[int, int, int]]:
        """See `grid.measured`."""
        return grid.measured(sizes, self.names, values)

    def size_key(self, value: Any) -> bool:
        return small_storage(value, 32)

    def refuse(self, values: tuple[Any, ...], error: Exception) -> Exception:
        """Return the error for a tensor without an address, or an array that kernels cannot work on; torch and
        NumPy refuse them with errors of their own."""
        try:
            places_of(self.parameters, values, self.name)
        except ArgumentError as ours:
            return ours
        return error

    def too_many(self, surplus: Sequence[Any]) -> CallError:
        """Return the error for a launch with `surplus` arguments by place."""
        places = sum(p.kind is not inspect.Parameter.KEYWORD_ONLY for p in self.parameters)
        return CallError(
            f"{self.name}() takes {places} positional argument{'s' * (places != 1)} "
            f"but {places + len(surplus)} were given",
            expected=", ".join(self.names),
        )

    def miss(self, sizes: Any, values: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Launch where no hit answers; the next call of this kind will be one."""
        if "config" in options:
            filled, left = self.lookup(values, options)
            _require_all(self.parameters, filled, self.name, options)
            return self.calls.again(sizes, filled, left)
        _require_all(self.parameters, values, self.name, options)
        seen, places = looked_at(self.parameters, values, self.name)
        if any(map(operator.is_not, seen, values)):
            return self.calls.again(sizes, seen, options)
        for hook in self.kernel.pre_run_hooks:
            hook(*values, **options)
        try:
            specialization = specialize(self.kernel, self.parameters, values, options, places)
            compiled = self.forms.obtain(specialization, values, warmup=False)
        except GluonError as error:
            refused(self.name, error)
            raise
        if compiled is None:  # Triton's jit_cache_hook took over
            return None
        measured = grid.measured(sizes, self.names, values)
        hit = self._learn(specialization, values, options, compiled)
        for observe in OBSERVERS:
            observe(compiled.src, specialization.target, specialization.options, measured)
        if measured is not None:
            stream = hit.stream_of(hit.device)
            record = compiled.launch_metadata(measured, stream, *values)
            if not _triton.hook_is_empty(self._runtime.launch_enter_hook):
                self._runtime.launch_enter_hook(record)
            hit.launch(measured, stream, *values)
            if not _triton.hook_is_empty(self._runtime.launch_exit_hook):
                self._runtime.launch_exit_hook(record)
        return compiled

    @property
    def lookup(self) -> Callable[..., Any]:
        """Return the finder of configurations for `config=`; made on first use.

        Raises:
            PluginError: no plugin does.
        """
        if self._lookup is None:
            make = registry().service("tune.configurations")
            self._lookup = make(self.kernel, self.parameters)
        return self._lookup

    def _learn(
        self,
        specialization: Specialization,
        values: tuple[Any, ...],
        options: Mapping[str, Any],
        compiled: CompiledKernel,
    ) -> Hit:
        """Return the hit of this call, which answers the next ones."""
        backend = specialization.backend
        hit, _ = self._hit(specialization, compiled, raw=False)
        if backend.simulates:
            hit = hit._replace(launch=self._guard_environment(hit.launch, options))
        self.calls.learn(
            values,
            options,
            hit,
            raw=backend.device.raw_pointers,
            ranged=backend.compiler.pointer_range_bits is not None,
            lasting=specialization.lasting,
        )
        return hit

    @staticmethod
    def _hit(
        specialization: Specialization, compiled: CompiledKernel, raw: bool
    ) -> tuple[Hit, Any]:
        """Return the launch of a compiled form, and `bind` of a backend that binds grid and stream faster."""
        backend, device = specialization.backend, specialization.device
        launch = compiled.launcher(device)
        bind = getattr(launch, "bind", None)
        if raw:
            launch = getattr(launch, "raw", launch)
        if not backend.simulates and backend.device.count() > 1:
            launch = _on_device(launch, backend, device)
        return Hit(launch, backend.device.stream_getter(), device, compiled), bind

    def _guard_environment(
        self, launch: Callable[..., Any], options: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """Return a simulated launch that holds as long as GLUON_TARGET stays."""
        wanted = os.environ.get("GLUON_TARGET")

        def guarded(sizes: Any, stream: int, *values: Any) -> Any:
            if os.environ.get("GLUON_TARGET") != wanted:
                self.forget()
                return self.miss(sizes, values, options)
            launch(sizes, stream, *values)
            return None

        return guarded

    def forget(self) -> None:
        """Drop all forms and calls in memory; the next call decides anew. The disk cache stays."""
        self.forms.forget()
        self._lookup = None
        self.calls.forget()

    # -- ahead of a call -------------------------------------------------------------------------------

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the values of all parameters in order, and the options that are left."""
        values, options = self.calls.bind(args, kwargs)
        if "config" in options:
            values, options = self.lookup(values, options)
        _require_all(self.parameters, values, self.name, options)
        return values, options

    def specialize(
        self, values: tuple[Any, ...], options: Mapping[str, Any], running: bool = True
    ) -> Specialization:
        """Return the specialization of a call with `values`, see `key.specialize`."""
        places = places_of(self.parameters, values, self.name, running)
        return specialize(self.kernel, self.parameters, values, options, places, running)

    def warmup(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Optional[CompiledKernel]:
        """Compile for a call without making it."""
        values, options = self.bind([_stand_in(value) for value in args], kwargs)
        values = tuple(map(_stand_in, values))
        specialization = self.specialize(values, options, running=False)
        return self.forms.obtain(specialization, values, warmup=True)

    def prepare(
        self, args: Sequence[Any], sizes: Any, kwargs: Mapping[str, Any]
    ) -> Callable[..., None]:
        """See `GluonJITFunction.prepare`."""
        passed, options = self.bind(args, kwargs)
        values, places = looked_at(self.parameters, passed, self.name)
        specialization = specialize(self.kernel, self.parameters, values, options, places)
        compiled = self.forms.obtain(specialization, values, warmup=True)
        if compiled is None:
            raise RecompileError(f"a jit_cache_hook kept {self.name} from being compiled")
        raw = specialization.backend.device.raw_pointers
        hit, bind = self._hit(specialization, compiled, raw)
        measured = self.measure(sizes, values)
        handle = self.calls.handle(passed, hit, measured, raw)
        if bind is None or measured is None:
            return handle
        bound: Callable[..., None] = bind(measured, hit.stream_of, hit.device, handle)
        return bound


def _on_device(launch: Callable[..., Any], backend: Backend, device: int) -> Callable[..., Any]:
    """Return a launch for a machine with several devices: it makes `device` the current one."""
    current = backend.device.current

    def launch_there(*values: Any, **named: Any) -> Any:
        if current() == device:
            return launch(*values, **named)
        with backend.device.scope(device):
            return launch(*values, **named)

    launch_there.engine = getattr(launch, "engine", None)  # type: ignore[attr-defined]
    return launch_there


def _stand_in(value: Any) -> Any:
    """Torch and NumPy dtypes stand for aligned tensors of them in a warm-up."""
    cls = type(value)
    if cls.__name__ == "dtype" and cls.__module__ == "torch":
        return Placeholder(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.dtype):
        return Placeholder(value)
    return value


def _require_all(
    parameters: Sequence[Parameter], values: Sequence[Any], where: str, options: Iterable[str] = ()
) -> None:
    """Raise the error of Python for missing arguments, if `values` lack some.

    Args:
        options: the keywords that no parameter took.

    Raises:
        CallError: a parameter has no argument; a keyword that resembles its name is suggested.
    """
    missing = [p for p, value in zip(parameters, values) if value is ABSENT]
    if not missing:
        return
    keyword = [p for p in missing if p.kind is inspect.Parameter.KEYWORD_ONLY]
    named = keyword if len(keyword) == len(missing) else [p for p in missing if p not in keyword]
    names = [repr(p.name) for p in named]
    if len(names) > 1:
        names[-1] = f"and {names[-1]}"
    kind = "keyword-only" if named is keyword else "positional"
    text = f"{where}() missing {len(names)} required {kind} argument{'s' * (len(names) > 1)}: " + (
        ", " if len(names) > 2 else " "
    ).join(names)
    for parameter in missing:
        for option in options:
            if did_you_mean(option, [parameter.name]):
                raise CallError(text, got=option, remedy=f"Did you mean {parameter.name!r}?")
    if not options:
        raise CallError(text)
    raise CallError(
        text,
        expected=", ".join(p.name for p in parameters),
        got=f"{', '.join(options)} by name",
    )
