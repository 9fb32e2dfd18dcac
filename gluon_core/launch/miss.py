"""A launch that no hit answers: decides on the form, launches it, and teaches the calls that follow.

A `Dispatcher` belongs to one kernel. As one of `gluon_runtime.calls` it has the C engine answer all calls that it has
learned; every other call comes to `miss`.
"""

from __future__ import annotations

import functools
import operator
import os
from typing import Any, Callable, Mapping, Optional, Sequence

from gluon_core import _triton
from gluon_core.compiler.kernel import CompiledKernel
from gluon_core.errors import (
    ArgumentError,
    CallError,
    GluonError,
    LaunchError,
    RecompileError,
    did_you_mean,
    trimmed,
)
from gluon_core.launch import opaque
from gluon_core.launch.arguments import Argument, parameters_of
from gluon_core.launch.cache import Forms
from gluon_core.launch.key import Specialization, specialize
from gluon_core.launch.place import chosen
from gluon_core.launch.placeholder import stand_in
from gluon_core.layouts.base import Layout
from gluon_core.plugin.backend import Backend
from gluon_core.registry.load import registry
from gluon_core.simulation.evidence import refused
from gluon_core.values.constants import changed
from gluon_runtime.calls import Calls, Hit
from gluon_runtime.grid import measured
from gluon_runtime.rules import ABSENT, RULES

__all__ = ["OBSERVERS", "Dispatcher"]

# Each is called with the source, target, options and grid (None: no program ran) of every launch that
# takes no fast way; while a launch hook of Triton's is set, none does.
OBSERVERS: list[Callable[..., None]] = []
_HOOKS = ("launch_enter_hook", "launch_exit_hook")  # of Triton


def _door(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that programs call: torch does not trace it, and errors of ours leave it trimmed. Its frame names
    no file, so that a traceback shows none of the machinery."""

    def door(*values: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        try:
            return function(*values, **named)
        except GluonError as error:
            raise trimmed(error)  # noqa: B904  # the same error

    code = door.__code__
    door.__code__ = code.replace(co_filename="<gluon launch>", co_name=function.__name__)
    return opaque.closed(door)


class Dispatcher(Calls):
    """Launches one kernel.

    Args:
        kernel: the jit function.
    """

    comparable, grid_error = (Layout, str), LaunchError

    def __init__(self, kernel: Any):
        self.kernel = kernel
        self.parameters = parameters_of(kernel)
        self.forms = Forms(kernel)
        runtime = self._runtime = _triton.knobs.runtime
        hooks = [(n, getattr(type(runtime), n, None)) for n in _HOOKS]  # nobody set one

        def replaced() -> bool:
            return any(getattr(runtime, name) is not hook for name, hook in hooks)

        watched = [getattr(runtime, "__dict__", [True]), replaced]
        for hook in (*(getattr(hook, "calls", []) for _, hook in hooks), kernel.pre_run_hooks):
            watched += [hook, lambda: True]
        watched += [self.forms.globals, functools.partial(changed, self.forms.globals)]
        self._simulated: list[Optional[str]] = []  # GLUON_TARGET when simulated calls were learned
        watched += [self._simulated, lambda: self._is_retargeted()]  # a method would keep self
        super().__init__(kernel.__name__, [p.of_call() for p in self.parameters], RULES, watched)

    # -- as one of `calls` -----------------------------------------------------------------------------

    entry, run = _door(Calls.entry), _door(Calls.run)

    def sealed(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        return _door(handle)

    def read(
        self, passed: Sequence[Any], bits: Optional[int] = None, running: bool = True
    ) -> list[Argument]:
        """Return the arguments of a call.

        Args:
            bits, running: see `Parameter.read`.
        """
        seen: list[Argument] = []
        for parameter, value in zip(self.parameters, passed):
            try:
                seen.append(parameter.read(value, bits, running))
            except ArgumentError as error:
                error.argument = f"{self.name}({parameter.name})"
                raise
        return seen

    def taken(self, passed: Sequence[Any]) -> tuple[Any, ...]:
        return tuple([argument.value for argument in self.read(passed)])

    def refused(self, text: str, left: Sequence[str], options: Mapping[str, Any]) -> CallError:
        for option in options:
            near = did_you_mean(option, left or self.names)
            if near:
                return CallError(text, got=option, remedy=near)
        passed = f"{', '.join(options)} by name" if options else None
        return CallError(text, expected=", ".join(self.names), got=passed)

    def miss(self, grid: Any, stream: Any, passed: tuple[Any, ...], options: dict[str, Any]) -> Any:
        values, left = self._completed(self.taken(passed), options)
        differs = "config" in options or any(map(operator.is_not, passed, values))
        if self.learns and differs:
            # It may know this call without a configuration, and with the values that kernels take.
            return self.over(grid)(**dict(zip(self.names, values)), **left)
        options = left
        for hook in self.kernel.pre_run_hooks:
            hook(*values, **options)
        try:
            specialization = self.specialize(values, options)
            compiled = self.forms.obtain(specialization, warmup=False)
        except GluonError as error:
            refused(self.name, error)
            raise
        if compiled is None:  # Triton's jit_cache_hook took over
            return None
        sizes = measured(grid, self.names, values, LaunchError)
        hit = self._hit(specialization, compiled)
        if specialization.backend.simulates:
            self._simulated[:] = [os.environ.get("GLUON_TARGET")]
        on = hit.stream_of(hit.device)
        record = compiled.launch_metadata(sizes, on, *values) if sizes else None
        if specialization.lasting:
            ranged = specialization.backend.compiler.pointer_range_bits is not None
            self.learn(values, options, hit, ranged)
        for observe in OBSERVERS:
            observe(compiled.src, specialization.target, specialization.options, sizes)
        if sizes is not None:
            if not _triton.hook_is_empty(self._runtime.launch_enter_hook):
                self._runtime.launch_enter_hook(record)
            hit.launch(sizes, on, *values)
            if not _triton.hook_is_empty(self._runtime.launch_exit_hook):
                self._runtime.launch_exit_hook(record)
        return compiled

    def _completed(
        self, values: Sequence[Any], options: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the values of a call, those of its configuration included, and the options that are left.

        Raises:
            CallError: a parameter has no argument.
        """
        left = dict(options)
        if "config" in options:
            values, left = self.lookup(values, options)
        if any(value is ABSENT for value in values):
            self.check(tuple(values), left)
        return tuple(values), left

    @functools.cached_property
    def lookup(self) -> Callable[..., Any]:
        """Return the finder of configurations for `config=`.

        Raises:
            PluginError: no plugin does.
        """
        find: Callable[..., Any] = registry().service("tune.configurations")(
            self.kernel, self.parameters
        )
        return find

    @staticmethod
    def _hit(specialization: Specialization, compiled: CompiledKernel) -> Hit:
        """Return the launch of a compiled form."""
        backend, device = specialization.backend, specialization.device
        launch: Callable[..., Any] = compiled.launcher(device)
        if compiled.src.fn.layouts and getattr(compiled.metadata, "short_launches", None):
            launch = registry().service("write.launch")(compiled, launch, specialization.options)
        if not backend.simulates and backend.device.count() > 1:
            launch = _on_device(launch, backend, device)
        return Hit(launch, backend.device.stream_getter(), device, compiled)

    def _is_retargeted(self) -> bool:
        """Return True, and decide anew on all calls, if GLUON_TARGET is not what it was for simulated ones."""
        if os.environ.get("GLUON_TARGET") in self._simulated:
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """Drop all forms and calls in memory; the next call decides anew. The disk cache stays."""
        self.forms.forget()
        self._simulated.clear()
        super().forget()

    # -- ahead of a call -------------------------------------------------------------------------------

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the values of all parameters in order, as kernels take them, and the options that are left."""
        return self._completed(*self.placed(args, kwargs))

    def specialize(
        self, values: Sequence[Any], options: Mapping[str, Any], running: bool = True
    ) -> Specialization:
        """Return the specialization of a call with `values`; tensors of one that is not `running`, a warm-up, have no memory."""
        seen = self.read(values, running=running)
        places = {name: a.place for name, a in zip(self.names, seen) if a.place is not None}
        place = _, _, backend = chosen(options.get("target"), places, running)
        bits = backend.compiler.pointer_range_bits
        if bits is not None:
            seen = self.read(values, bits, running)
        return specialize(self.kernel, self.names, seen, options, place)

    def warmup(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Optional[CompiledKernel]:
        """Compile for a call without making it."""
        values, options = self.bind([stand_in(value) for value in args], kwargs)
        specialization = self.specialize([*map(stand_in, values)], options, running=False)
        return self.forms.obtain(specialization, warmup=True)

    def prepare(
        self, args: Sequence[Any], sizes: Any, kwargs: Mapping[str, Any]
    ) -> tuple[Callable[..., None], CompiledKernel, Any]:
        """Return the handle of `GluonJITFunction.prepare`, the kernel that it launches, and its options."""
        passed, options = self.bind(args, kwargs)
        values = self.taken(passed)
        specialization = self.specialize(values, options)
        compiled = self.forms.obtain(specialization, warmup=True)
        if compiled is None:
            raise RecompileError(f"a jit_cache_hook kept {self.name} from being compiled")
        hit = self._hit(specialization, compiled)
        handle = self.handle(passed, hit, self.measure(sizes, values, hit))
        return handle, compiled, specialization.options


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
