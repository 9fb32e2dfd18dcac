"""What happens when a launch finds no compiled kernel, and the hand-over to generated code when it does.

A `Dispatcher` belongs to one kernel. `entry` binds a call; `specialize.variant` generates the fast
function for the argument classes that come; `_miss` decides the target, describes the arguments,
compiles, and leaves a hit `(launch, stream_of, device, compiled)` behind for the next call.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping, NoReturn, Optional, Sequence

from gluon_core import _triton
from gluon_core.compiler import grid
from gluon_core.compiler.driver import compile_source, shared_options
from gluon_core.compiler.kernel import CompiledKernel
from gluon_core.compiler.source import GluonASTSource, strictness
from gluon_core.errors import (
    ArgumentError,
    GlobalVariableError,
    GluonError,
    LimitError,
    OptionError,
    RecompileError,
    did_you_mean,
)
from gluon_core.launch import arguments, foreign, place, specialize
from gluon_core.launch.ahead import compile_configurations
from gluon_core.launch.placeholder import Placeholder
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.launcher import FastPath
from gluon_core.plugin.options import whole
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.simulation.evidence import refused
from gluon_core.values.constants import Read, changed, identity, text_of

__all__ = ["OBSERVERS", "Dispatcher", "Specialization"]

# Each is called with the source, target, options and grid (None: no program ran) of every launch that
# takes no fast way; while a launch hook of Triton's is set, none does.
OBSERVERS: list[Callable[..., None]] = []


@dataclass(frozen=True)
class Specialization:
    """Everything that one compiled form of a kernel was chosen by.

    Args:
        target: what it runs on.
        device: index of the device.
        described: per parameter, what the compiler was told.
        options: the parsed compile options.
        strict: as in `gluon.jit`.
        key: all of it as text.
    """

    target: Target
    device: int
    described: tuple[arguments.Described, ...]
    options: Any
    strict: bool
    key: str


# What a call needs: the launch, what gives the stream, the device, and the kernel it returns.
Hit = tuple[Callable[..., Any], Callable[[int], Any], int, CompiledKernel]


class Dispatcher:
    """Launches one kernel.

    Args:
        kernel: the jit function.
    """

    def __init__(self, kernel: Any):
        self.kernel = kernel
        self.parameters = specialize.parameters_of(kernel)
        self.names = tuple(p.name for p in self.parameters)
        self._lock = threading.RLock()
        self._token = specialize.Tokens()
        self._variants: dict[tuple[type, ...], specialize.Variant] = {}
        self._flags: dict[tuple[type, ...], tuple[bool, bool]] = {}
        self._tables: dict[tuple[type, ...], dict[Any, dict[Any, Hit]]] = {}
        self._compiled: dict[str, CompiledKernel] = {}
        self._compiling: dict[str, Any] = {}  # the locks of those on their way, by key
        self._known: list[Specialization] = []
        self._globals: list[Read] = []  # what any compiled form read
        self._reads: dict[str, tuple[Read, ...]] = {}  # what each did, by its key
        self._lookup: Optional[Callable[..., Any]] = None
        runtime = _triton.knobs.runtime
        self._runtime = runtime
        self.namespace: dict[str, Any] = {
            "_g_changed": self._globals_changed,
            "_g_empty": {},
            "_g_enter": runtime.launch_enter_hook,
            "_g_enter_calls": getattr(runtime.launch_enter_hook, "calls", ()),
            "_g_exit": runtime.launch_exit_hook,
            "_g_exit_calls": getattr(runtime.launch_exit_hook, "calls", ()),
            "_g_globals": self._globals,
            "_g_grids": grid.TABLE,
            "_g_home": arguments.home_of,
            "_g_layout": arguments.layout_token,
            "_g_layouts": arguments.LAYOUTS,
            "_g_measure": self._measure,
            "_g_miss": self._miss,
            "_g_place": arguments.place_of,
            "_g_pre_run_hooks": kernel.pre_run_hooks,
            "_g_refuse": self._refuse_memory,
            "_g_range": lambda value: arguments.small_storage(value, 32),
            "_g_runtime": runtime,
            "_g_token": self._token,
            "_g_tuple": lambda value: specialize.tuple_key(value, self._token, 32),
            "_g_variants": self._variants,
            "_g_wide": specialize.wide_key,
            "_g_width": specialize.width_key,
        }
        self.entry = specialize.entry(self.parameters, self.namespace, kernel.__name__)
        self._first = specialize.first(self._fastest, kernel.__name__)
        self.call: Callable[..., Any] = self._first  # what launches ask: in the end what is fastest
        self._fast: dict[str, Optional[FastPath]] = {}  # by name of the backend

    # -- launching -----------------------------------------------------------------------------------

    def _fastest(self) -> Callable[..., Any]:
        return self.entry if self.call is self._first else self.call

    def _measure(self, sizes: Any, values: tuple[Any, ...]) -> Optional[tuple[int, int, int]]:
        """Three sizes, or None for an empty grid; a grid may be a function of the arguments."""
        if callable(sizes):
            sizes = sizes(dict(zip(self.names, values)))
        return grid.normalize(sizes)

    def _miss(self, sizes: Any, values: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Launch where no generated code could; the next call of this kind will be a hit."""
        if "config" in options:
            filled, told = self.lookup(values, options)
            self._require_all(filled, options)
            return specialize.call(self.parameters, self.entry, sizes, filled, told)
        self._require_all(values, options)
        seen = self._viewed(values)
        if any(view is not value for view, value in zip(seen, values)):
            return specialize.call(self.parameters, self.entry, sizes, seen, options)
        for hook in self.kernel.pre_run_hooks:
            hook(*values, **options)
        try:
            specialization = self.specialize(values, options)
            compiled = self._obtain(specialization, values, warmup=False)
        except GluonError as error:
            refused(self.kernel.__name__, error)
            raise
        if compiled is None:  # Triton's jit_cache_hook took over
            return None
        backend = registry().backend(specialization.target.backend)
        hit = self._remember(specialization, values, options, compiled, backend)
        measured = self._measure(sizes, values)
        for observe in OBSERVERS:
            observe(compiled.src, specialization.target, specialization.options, measured)
        if measured is not None:
            stream = hit[1](hit[2])
            told = compiled.launch_metadata(measured, stream, *values)
            if not _triton.hook_is_empty(self._runtime.launch_enter_hook):
                self._runtime.launch_enter_hook(told)
            hit[0](measured, stream, *values)
            if not _triton.hook_is_empty(self._runtime.launch_exit_hook):
                self._runtime.launch_exit_hook(told)
        return compiled

    def _require_all(self, values: Sequence[Any], options: Iterable[str]) -> None:
        specialize.require_all(self.parameters, values, self.kernel.__name__, options)

    @property
    def lookup(self) -> Callable[..., Any]:
        """Return what finds configurations for `config=`; made on first use.

        Raises:
            PluginError: no plugin does.
        """
        if self._lookup is None:
            make = registry().service("tune.configurations")
            self._lookup = make(self.kernel, self.parameters)
        return self._lookup

    def _viewed(self, values: Sequence[Any]) -> tuple[Any, ...]:
        pairs = zip(self.parameters, values)
        return tuple(foreign.number(v) if p.is_constexpr else arguments.viewed(v) for p, v in pairs)

    def _refuse_memory(self, values: tuple[Any, ...], error: Exception) -> Exception:
        """What to raise where torch would not tell an address, which it does with an error of its own,
        or where an array is none that kernels work on."""
        for param, value in zip(self.parameters, values):
            if not param.is_constexpr:
                try:
                    arguments.place_of(value)
                except ArgumentError as ours:
                    ours.argument = f"{self.kernel.__name__}({param.name})"
                    return ours
        return error

    def _remember(
        self,
        specialization: Specialization,
        values: tuple[Any, ...],
        options: Mapping[str, Any],
        compiled: CompiledKernel,
        backend: Backend,
    ) -> Hit:
        """The hit of this call, stored where the generated code looks."""
        device = specialization.device
        launch = compiled.launcher(device)
        if backend.simulates:
            launch = self._guard_environment(launch, options)
        elif backend.device.count() > 1:
            launch = _on_device(launch, backend, device)
        stream_of = backend.device.stream_getter()
        hit = (launch, stream_of, device, compiled)
        with self._lock:
            classes = tuple(type(value) for value in values)
            self._variant(classes, values, backend)
            if self._flags[classes][0]:
                fast = (getattr(launch, "raw", launch), stream_of, device, compiled)
            else:
                fast = hit
            try:
                table = self._tables[classes].setdefault((*options.items(),), {})
            except TypeError:
                return hit  # an option that cannot be a key: every call takes this path
            table[self._key(classes, values)] = fast
            path = self._fast_path(backend)
            if path is not None and self._addressed(values):
                path.remember(
                    values, options, compiled.launcher(device), stream_of, device, compiled
                )
        return hit

    def _fast_path(self, backend: Backend) -> Optional[FastPath]:
        """That of `backend`, which takes the place of `entry` in launches from now on."""
        if backend.name not in self._fast:
            told = specialize.calls_of(self.parameters, self, self.namespace)
            path = backend.device.fast_path(told) if told is not None else None
            self._fast[backend.name] = path
            if path is not None:
                self.call = path.call
        return self._fast[backend.name]

    def _addressed(self, values: tuple[Any, ...]) -> bool:
        """Whether the constants among `values` are what they are as long as they live."""
        pairs = zip(self.parameters, values)
        return all(identity(value).settled for param, value in pairs if param.is_constexpr)

    def _guard_environment(
        self, launch: Callable[..., Any], options: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """A simulated launch, as long as GLUON_TARGET says what it said; else what it says now."""
        wanted = os.environ.get("GLUON_TARGET")

        def guarded(sizes: Any, stream: int, *values: Any) -> Any:
            if os.environ.get("GLUON_TARGET") != wanted:
                self.forget()
                return self._miss(sizes, values, options)
            launch(sizes, stream, *values)
            return None

        return guarded

    def _variant(
        self, classes: tuple[type, ...], values: tuple[Any, ...], backend: Backend
    ) -> None:
        """Make sure that a generated function fits `classes` and `backend`."""
        raw, ranged = backend.device.raw_pointers, backend.compiler.pointer_range_bits is not None
        known = self._flags.get(classes)
        if known is not None:
            raw, ranged = raw and known[0], ranged or known[1]
            if known == (raw, ranged):
                return
        table: dict[Any, Hit] = {}
        tables: dict[Any, dict[Any, Hit]] = {(): table}
        namespace = {**self.namespace, "_g_table": table, "_g_tables": tables}
        made = specialize.variant(
            self.parameters, values, raw, ranged, namespace, self.kernel.__name__
        )
        self._tables[classes] = tables
        self._flags[classes] = (raw, ranged)
        self._variants[classes] = made
        self._enter(made)

    def _enter(self, entry: Callable[..., Any]) -> None:
        """Make `entry` the function that is asked first, or that a fast path asks."""
        if self.call is self.entry or self.call is self._first:
            self.call = entry
        self.entry = entry

    def _key(self, classes: tuple[type, ...], values: tuple[Any, ...]) -> Any:
        """The key that the generated function computes for `values`."""
        return self._variants[classes].key_of(*values)

    def forget(self) -> None:
        """Drop what is remembered in memory; the next call decides anew. The disk cache stays."""
        with self._lock:
            self._variants.clear()
            self._flags.clear()
            self._tables.clear()
            self._compiled.clear()
            self._compiling.clear()
            self._known.clear()
            self._globals.clear()
            self._reads.clear()
            self._lookup = None
            for path in self._fast.values():
                if path is not None:
                    path.forget()
            self._enter(specialize.entry(self.parameters, self.namespace, self.kernel.__name__))

    # -- deciding ------------------------------------------------------------------------------------

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The values of all parameters in order, and the options that are left."""
        taken: list[Any] = []

        def take(_: Any, values: tuple[Any, ...], options: dict[str, Any]) -> None:
            taken.extend((values, options))

        namespace = {**self.namespace, "_g_variants": {}, "_g_miss": take}
        bound = specialize.entry(self.parameters, namespace, self.kernel.__name__)
        bound(None, *args, **kwargs)
        if "config" in taken[1]:
            taken[:] = self.lookup(*taken)
        self._require_all(taken[0], taken[1])
        return taken[0], taken[1]

    def specialize(
        self, values: tuple[Any, ...], options: Mapping[str, Any], running: bool = True
    ) -> Specialization:
        """What a call with `values` is compiled for.

        Args:
            running: whether the tensors are there to be worked on; False for a warm-up.
        """
        given = whole(options)
        strict = strictness(self.kernel, given.pop("strict", None))
        target, device = place.choose(
            given.pop("target", None), self._places(values, running), running
        )
        backend = registry().backend(target.backend)
        described = []
        for param, value in zip(self.parameters, values):
            try:
                described.append(param.describe(value, backend.compiler.pointer_range_bits))
            except ArgumentError as error:
                error.argument = f"{self.kernel.__name__}({param.name})"
                raise
        runtime = _triton.knobs.runtime
        given["debug"] = bool(given.get("debug", self.kernel.debug)) or bool(runtime.debug)
        told = {p.name: v for p, v in zip(self.parameters, values) if p.is_constexpr}
        given = {**shared_options(told, backend, target), **given}
        try:
            parsed = backend.compiler.options(target, self._with_knobs(given, backend, target))
        except OptionError as error:
            near = error.argument in options and did_you_mean(error.argument or "", self.names)
            if near:
                error.message = f"{self.kernel.__name__} has no such parameter, and {error.message}"
                error.remedy = near
            raise
        except LimitError as error:
            raise _triton.caught_as(error) from None
        text = [str(target), str(device), repr(parsed)]
        text += [f"{found.kind!r}={text_of(found.attributes)}" for found in described]
        text += [] if strict else ["strict=False"]
        key = "\n".join(text)
        return Specialization(target, device, tuple(described), parsed, strict, key)

    def _with_knobs(
        self, given: dict[str, Any], backend: Backend, target: Target
    ) -> dict[str, Any]:
        """The options with what Triton's instrumentation knobs add to them."""
        knobs = _triton.knobs.compilation
        for name in ("instrumentation_mode", "fpsan_homomorphic_casts"):
            value = getattr(knobs, name, None)
            if value and not backend.simulates:
                given.setdefault(name, value)
        return given

    def _places(self, values: tuple[Any, ...], running: bool) -> dict[str, tuple[str, int]]:
        found: dict[str, tuple[str, int]] = {}
        for param, value in zip(self.parameters, values):
            if param.is_constexpr:
                continue
            try:
                where = arguments.place_of(value)
            except ArgumentError as error:
                if not running:
                    continue
                error.argument = f"{self.kernel.__name__}({param.name})"
                raise
            if where is not None:
                found[param.name] = where
        return found

    # -- compiling -----------------------------------------------------------------------------------

    def source(self, specialization: Specialization, values: tuple[Any, ...]) -> GluonASTSource:
        """The kernel with the types, constants and attributes of a call."""
        signature: dict[str, Any] = {}
        constants: dict[tuple[int, ...], Any] = {}
        attrs: dict[tuple[int, ...], list[Any]] = {}

        def walk(kind: Any, marks: Any, value: Any, path: tuple[int, ...]) -> None:
            if isinstance(kind, tuple):
                for index, item in enumerate(kind):
                    walk(item, marks[index], value[index], (*path, index))
            elif kind == "constexpr":
                constants[path] = value
            elif isinstance(marks, str) and marks:
                attrs[path] = arguments.parse_marks(marks)

        for index, (name, found) in enumerate(zip(self.names, specialization.described)):
            signature[name] = found.kind
            walk(found.kind, found.attributes, values[index], (index,))
        return GluonASTSource(self.kernel, signature, constants, attrs, specialization.strict)

    def _obtain(
        self, specialization: Specialization, values: tuple[Any, ...], warmup: bool
    ) -> Optional[CompiledKernel]:
        """The compiled kernel, from memory, from disk or by compiling."""
        found = self._compiled.get(specialization.key)
        if found is not None and self._is_current(specialization.key):
            return found
        if registry().backend(specialization.target.backend).compiler.isolate:
            compile_configurations(self.kernel)
        with self._lock:
            turn = self._compiling.setdefault(specialization.key, threading.RLock())
        with turn:  # other forms of this kernel may be compiled meanwhile
            found = self._compiled.get(specialization.key)
            if found is not None:
                return found
            source = self.source(specialization, values)
            backend = registry().backend(specialization.target.backend)
            told = {
                "signature": source.signature,
                "device": specialization.device,
                "constants": source.constants,
                "attrs": source.attrs,
                "options": specialization.options,
                "warmup": warmup,
            }
            if self._hooked(_triton.knobs.runtime.jit_cache_hook, specialization, told):
                return None
            strict = not warmup and os.environ.get("GLUON_NO_JIT", "0") not in ("", "0")
            wanted = (source, specialization.target, backend, specialization.options)
            bundles = registry().service("bundle.code") if os.environ.get("GLUON_BUNDLE") else None
            compiled = None if bundles is None else bundles.take(*wanted)
            if compiled is None:
                compiled = compile_source(*wanted, load_only=strict)
            if compiled is None:
                self._refuse(specialization, None if bundles is None else bundles.nearest(*wanted))
            with self._lock:
                self._compiled[specialization.key] = compiled
                self._known.append(specialization)
                self._note_globals(specialization.key, source.identity().reads)
            self._hooked(_triton.knobs.runtime.jit_post_compile_hook, specialization, told)
            return compiled

    def _hooked(self, hook: Any, specialization: Specialization, told: Mapping[str, Any]) -> Any:
        if hook is None:
            return None
        target = specialization.target
        shown = _triton.gpu_target(target) if target.architecture.triton_backend else target
        return hook(**_triton.jit_hook_arguments(self.kernel, specialization.key, told, shown))

    def _refuse(self, wanted: Specialization, near: Any) -> NoReturn:
        """Say which argument asks for code that is not there."""
        name = self.kernel.__name__
        if near is not None and not self._known:
            differences = list(near.differences)
            if near.changed:
                differences.append(("source", "as when the bundle was built", "another"))
            raise RecompileError(
                f"this launch of {name} is in no bundle, and would compile while GLUON_NO_JIT is set",
                argument=", ".join(what for what, _, _ in differences),
                expected="; ".join(f"{what}: {old}" for what, old, _ in differences),
                got="; ".join(f"{what}: {new}" for what, _, new in differences),
                remedy="Add this form to the bundle, or keep the argument from changing the key.",
            )
        if not self._known:
            raise RecompileError(
                f"{name} is not compiled and GLUON_NO_JIT is set",
                remedy=f"Call {name}.warmup(...) or .prepare(...) for what will be launched.",
            )
        nearest = min(self._known, key=lambda known: len(self._differences(known, wanted)))
        differences = self._differences(nearest, wanted)
        raise RecompileError(
            f"this launch of {name} would compile and GLUON_NO_JIT is set",
            argument=", ".join(what for what, _, _ in differences),
            expected="; ".join(f"{what}: {old}" for what, old, _ in differences),
            got="; ".join(f"{what}: {new}" for what, _, new in differences),
            remedy="Warm it up, or keep the argument from changing the key "
            "(do_not_specialize, do_not_specialize_on_alignment).",
        )

    def _differences(self, old: Specialization, new: Specialization) -> list[tuple[str, str, str]]:
        found = []
        for name, before, after in zip(self.names, old.described, new.described):
            if (before.kind, text_of(before.attributes)) != (after.kind, text_of(after.attributes)):
                found.append((name, _spoken(before), _spoken(after)))
        if old.target != new.target or old.device != new.device:
            found.append(
                ("target", f"{old.target} device {old.device}", f"{new.target} device {new.device}")
            )
        if old.strict != new.strict:
            found.append(("strict", str(old.strict), str(new.strict)))
        if repr(old.options) != repr(new.options):
            found.append(("options", *_changed_options(old.options, new.options)))
        return found

    # -- globals ---------------------------------------------------------------------------------------

    def _note_globals(self, key: str, reads: tuple[Read, ...]) -> None:
        self._reads[key] = reads
        found = {read.place: read for read in (*self._globals, *reads)}
        self._globals[:] = found.values()

    def _globals_changed(self) -> bool:
        return changed(self._globals)

    def _is_current(self, key: str) -> bool:
        """Return whether the variables that a compiled form read are still what they were.

        An object that is known as itself alone may have been replaced by its equal, as when a test
        puts a mock in the place of a logger: the kernel is compiled again.

        Raises:
            GlobalVariableError: a variable has another value.
        """
        current = True
        for read in self._reads[key]:
            if changed([read]):
                now = read.scope.get(read.name, "nothing")
                if not read.by_value:
                    current = False
                    continue
                raise GlobalVariableError(
                    f"the global {read.name} has changed since {self.kernel.__name__} was compiled",
                    argument=read.name,
                    expected=read.value,
                    got=now,
                    remedy="Pass it as a constexpr argument instead.",
                )
        if not current:
            with self._lock:
                self._compiled.pop(key, None)
        return current

    # -- ahead of time ---------------------------------------------------------------------------------

    def warmup(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Optional[CompiledKernel]:
        """Compile for a call without making it."""
        values, options = self.bind([_stand_in(value) for value in args], kwargs)
        specialization = self.specialize(tuple(map(_stand_in, values)), options, running=False)
        return self._obtain(specialization, tuple(map(_stand_in, values)), warmup=True)

    def prepare(
        self, args: Sequence[Any], sizes: Any, kwargs: Mapping[str, Any]
    ) -> Callable[..., None]:
        """See `GluonJITFunction.prepare`."""
        given, options = self.bind(args, kwargs)
        values = self._viewed(given)
        specialization = self.specialize(values, options)
        compiled = self._obtain(specialization, values, warmup=True)
        if compiled is None:
            raise RecompileError(
                f"a jit_cache_hook kept {self.kernel.__name__} from being compiled"
            )
        backend = registry().backend(specialization.target.backend)
        device = specialization.device
        launch = compiled.launcher(device)
        # A backend may bind grid and stream in a faster form; what that cannot do comes back to ours.
        bind: Optional[Callable[..., Callable[..., None]]] = getattr(launch, "bind", None)
        if backend.device.raw_pointers:
            launch = getattr(launch, "raw", launch)
        if not backend.simulates and backend.device.count() > 1:
            launch = _on_device(launch, backend, device)
        names = {
            "_g_default_grid": self._measure(sizes, values),
            "_g_device": device,
            "_g_launch": launch,
            "_g_measure": self._measure,
            "_g_stream_of": backend.device.stream_getter(),
            "_g_view": arguments.viewed,
        }
        handle = specialize.handle(
            self.parameters, given, backend.device.raw_pointers, names, self.kernel.__name__
        )
        if bind is None or names["_g_default_grid"] is None:
            return handle
        return bind(names["_g_default_grid"], names["_g_stream_of"], device, handle)


def _on_device(launch: Callable[..., Any], backend: Backend, device: int) -> Callable[..., Any]:
    """A launch on a machine with several devices: the current one is switched where it differs."""
    current = backend.device.current

    def launch_there(*values: Any, **named: Any) -> Any:
        if current() == device:
            return launch(*values, **named)
        with backend.device.scope(device):
            return launch(*values, **named)

    return launch_there


def _spoken(found: arguments.Described) -> str:
    if found.kind == "constexpr":
        return f"constant {found.attributes!r}"
    words = [str(found.kind)]
    marks = found.attributes if isinstance(found.attributes, str) else ""
    if "D" in marks:
        words.append("divisible by 16")
    if "S" in marks:
        words.append("into less than 2 GiB")
    return " ".join(words) if isinstance(found.kind, str) else f"{found.kind} {found.attributes}"


def _changed_options(old: Any, new: Any) -> tuple[str, str]:
    before, after = vars(old), vars(new)
    keys = [key for key in after if before.get(key) != after[key]]
    return (
        ", ".join(f"{key}={before.get(key)!r}" for key in keys),
        ", ".join(f"{key}={after[key]!r}" for key in keys),
    )


def _stand_in(value: Any) -> Any:
    """Torch and NumPy dtypes stand for aligned tensors of them in a warm-up."""
    cls = type(value)
    if cls.__name__ == "dtype" and cls.__module__ == "torch":
        return Placeholder(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.dtype):
        return Placeholder(value)
    return value
