"""The calls of a kernel: binds the arguments, finds the launch that fits them, and makes it.

For each combination of argument classes that a kernel meets, one function is generated. It checks the
classes, reads the facts that the choice of the code depends on (`rules`) into one key, looks the launch up and calls it.
Every other call goes to `Kernel.miss`, which decides, and teaches the launch with `Calls.learn`. The C
engine, where it was built, stands in front and does the same for the calls that it can read.
"""

from __future__ import annotations

import functools
import operator
import threading
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Optional, Protocol, Sequence

from gluon_runtime import native
from gluon_runtime.native import Hit, Watch
from gluon_runtime.rules import ABSENT, ALIGN, CONSTANT, SPECIALIZE, WIDTH, Parameter, Rules

__all__ = ["Calls", "Hit", "Kernel", "Parameter", "Reading", "Watch"]


class Reading(NamedTuple):
    """The expressions by which generated code reads the arguments of one class. They have `{it}` for the argument, and
    `{own}` for the result of `read`.

    Args:
        key: the facts that the choice of the code depends on.
        device: the device.
        read: evaluated once: for tensors, the address.
        value: passed to a launch that takes addresses.
        memory: `{own}` is an address.
        names: objects that the expressions name, as `{name}`.
    """

    key: tuple[str, ...] = ()
    device: str = ""
    read: str = ""
    value: str = "{it}"
    memory: bool = False
    names: Mapping[str, Any] = {}


Readings = Sequence[Optional[tuple[Any, Reading]]]


class Kernel(Protocol):
    """The kernel whose calls `Calls` answers, as it asks it.

    Attributes:
        mistakes: the errors whose traceback `trimmed` shortens.
        grids: grids that were measured.
    """

    name: str
    rules: Rules
    takes_stream: bool
    mistakes: Any

    @property
    def watch(self) -> Optional[Watch]: ...

    @property
    def grids(self) -> Mapping[Any, Optional[tuple[int, int, int]]]: ...

    def miss(self, grid: Any, values: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Launch a call that no hit answers."""

    def measure(self, grid: Any, values: tuple[Any, ...], hit: Optional[Hit]) -> Any:
        """Return three sizes; None for an empty grid."""

    def refuse(self, values: tuple[Any, ...], error: Exception) -> Exception:
        """Return the error for arguments that could not be read."""

    def too_many(self, surplus: Sequence[Any]) -> Exception:
        """Return the error for surplus arguments."""

    def trimmed(self, error: Any) -> Exception: ...

    def sealed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a generated function, marked for tracers."""

    def token(self, value: Any) -> Any:
        """Return the stand-in of a constant in a key."""

    def view(self, value: Any) -> Any:
        """Return `value` as kernels take it."""

    def size_key(self, value: Any) -> Any:
        """Return whether the storage of `value` is small."""

    def readings(self, parameters: Sequence[Parameter], values: Sequence[Any]) -> Readings:
        """Return, per parameter, the argument as kernels take it and how those of its class are read; None for
        constants and for numbers of Python."""


# -- generated code --------------------------------------------------------------------------------
# Names of ours begin with _g_; parameters may have any other.

_GUARD = """
    except _g_mistakes as _g_raised:
        raise _g_trimmed(_g_raised)
"""

_ENTRY = """
def _g_entry(_g_grid, {params}**_g_options):
    try:
        {surplus}
        _g_other = _g_variants.get(({classes}))
        if _g_other is None:
            return _g_miss(_g_grid, ({names}), _g_options)
        return _g_other(_g_grid, {passed}**_g_options)
""" + _GUARD.lstrip("\n")

_VARIANT = (
    """
def _g_variant(_g_grid, {params}**_g_options):
    try:
        {stream}
        if {given}:
            try:
                _g_lookup = _g_tables.get({options}, _g_empty).get
            except TypeError:
                _g_lookup = _g_empty.get
        else:
            _g_lookup = _g_table.get
        if {guards}:
            try:
                {prepare}
                _g_key = ({key})
            except (RuntimeError, ValueError) as _g_error:
                raise _g_refuse(({names}), _g_error) from None
            _g_hit = _g_lookup(_g_key)
            if _g_hit is not None{unwatched}:
                try:
                    _g_sizes = _g_grids[_g_grid]
                    if not (_g_grid[0].__class__ is _g_grid[-1].__class__ is int):
                        _g_sizes = _g_measure(_g_grid, ({names}), _g_hit)  # of floats that equal them
                except (KeyError, TypeError):
                    _g_sizes = _g_measure(_g_grid, ({names}), _g_hit)
                if _g_sizes is not None:
                    return _g_hit[0](_g_sizes, {on}, {values}) or _g_hit[3]
                return _g_hit[3]
            return _g_miss(_g_grid, ({names}), _g_options)
        {surplus}
        _g_other = _g_variants.get(({classes}))
        if _g_other is None or _g_other is _g_variant:
            return _g_miss(_g_grid, ({names}), _g_options)
        return _g_other(_g_grid, {passed}**_g_options)
"""
    + _GUARD.lstrip("\n")
    + """
def _g_key({names}):
    {prepare}
    return ({key})

_g_variant.key_of = _g_key
"""
)

_HANDLE = """
def _g_handle({params}{grid}=None):
    try:
        {prepare}
        _g_sizes = _g_default_grid if {grid} is None else _g_measure({grid}, ({names}), None)
        if _g_sizes is not None:
            _g_launch(_g_sizes, _g_stream_of(_g_device), {values})
""" + _GUARD.lstrip("\n")

_LATEST = """
def _g_entry(_g_grid, /, *_g_args, **_g_named):
    try:
        return _g_fastest()(_g_grid, *_g_args, **_g_named)
""" + _GUARD.lstrip("\n")

_UNWATCHED = """ and (
                _g_runtime.launch_enter_hook is _g_enter
                and _g_runtime.launch_exit_hook is _g_leave
                and not (_g_enter_calls or _g_leave_calls or _g_before)
                and not (_g_globals and _g_changed())
            )"""


def listed(items: Iterable[Any], template: str = "{}") -> str:
    """Return the items with a comma behind each."""
    return "".join(f"{template.format(item)}, " for item in items)


class _Signature:
    """The parameter list of generated functions, and the same parameters as arguments of a call."""

    def __init__(self, parameters: Sequence[Parameter]):
        self.names = tuple(p.name for p in parameters)
        self.variadic = any(p.kind == "variadic" for p in parameters)
        self.defaults = {
            f"_g_default_{p.name}": p.default for p in parameters if p.default is not ABSENT
        }
        self._parameters = parameters
        passed, starred = [], False
        for p in parameters:
            passed.append(f"*{p.name}" if p.kind == "variadic" else p.name)
            starred |= p.kind == "variadic"
            if passed[-1] == p.name and (starred or p.kind == "keyword"):
                passed[-1] = f"{p.name}={p.name}"
        self.passed = listed(passed)

    def written(self, lacking: bool, surplus: bool) -> str:
        """Return the list as source.

        Args:
            lacking: constants, and as Python wants it all that follows them, may be left out.
            surplus: further arguments by place are taken, as `_g_surplus`.
        """
        parts: list[str] = []
        starred = absent = False
        for p in self._parameters:
            absent |= lacking and bool(p.flags & CONSTANT)
            if p.kind == "keyword" and not starred:
                parts.append("*_g_surplus" if surplus else "*")
            starred |= p.kind != "plain"
            if p.kind == "variadic":
                parts.append(f"*{p.name}")
            elif p.default is not ABSENT:
                parts.append(f"{p.name}=_g_default_{p.name}")
            else:
                parts.append(f"{p.name}=_g_absent" if absent else p.name)
        if surplus and not starred:
            parts.append("*_g_surplus")
        return listed(parts)


class Calls:
    """Answers the calls of one kernel.

    Args:
        door: the object whose `entry` is asked about calls that C does not know, and that gets `call`, too;
            None for these calls.

    Attributes:
        call: answers any call, the fastest function that does: the door's `entry`, or the C engine. Before
            anything was launched, it is one that looks for the fastest at each call.
        entry: the newest generated function, which answers any call.
        front: the C engine; None as long as no launch of its was learned.
    """

    call: Callable[..., Any]

    def __init__(self, kernel: Kernel, parameters: Sequence[Parameter], door: Any = None):
        self.parameters = parameters
        self._door = self if door is None else door
        self._kernel = kernel
        self._signature = _Signature(parameters)
        self._lock = threading.RLock()
        self._variants: dict[tuple[type, ...], Any] = {}
        self.front: Any = None
        self._binder: Optional[Callable[..., Any]] = None  # made on first use
        self._surplus = "pass"
        if not self._signature.variadic:
            self._surplus = "if _g_surplus: raise _g_too_many(_g_surplus)"
        watch = kernel.watch or Watch()
        self._namespace: dict[str, Any] = {
            **{f"_g_{name}": value for name, value in watch._asdict().items()},
            **self._signature.defaults,
            "__tracebackhide__": True,
            "_g_absent": ABSENT,
            "_g_apart": _apart,
            "_g_empty": {},
            "_g_fastest": self._fastest,
            "_g_grids": kernel.grids,
            "_g_integer": kernel.rules.integer_key,
            "_g_measure": kernel.measure,
            "_g_miss": kernel.miss,
            "_g_mistakes": kernel.mistakes,
            "_g_view": kernel.view,
            "_g_refuse": kernel.refuse,
            "_g_small": kernel.size_key,
            "_g_token": kernel.token,
            "_g_too_many": kernel.too_many,
            "_g_trimmed": kernel.trimmed,
            "_g_type": kernel.rules.integer_type,
            "_g_variants": self._variants,
            "_g_wide": lambda n: (kernel.rules.integer_type(n), kernel.rules.is_divisible(n)),
        }
        self._latest = self._define(_LATEST, "_g_entry", self._namespace)
        self.entry = self._entry(kernel.miss)
        self._publish(self._latest)

    def _fastest(self) -> Callable[..., Any]:
        fastest: Callable[..., Any] = self._door.entry if self.front is None else self.front.call
        return fastest

    def _define(self, source: str, name: str, names: Mapping[str, Any]) -> Any:
        namespace, where = dict(names), self._kernel.name
        exec(compile(source, f"<gluon launch of {where}>", "exec"), namespace)
        function = namespace[name]
        function.__qualname__ = where  # its name where Python reports missing arguments
        return self._kernel.sealed(function)

    def _entry(self, miss: Callable[..., Any], **names: Any) -> Any:
        """Return a function that binds a call and goes to a variant, or to `miss`."""
        source = _ENTRY.format(**self._source)
        return self._define(source, "_g_entry", {**self._namespace, "_g_miss": miss, **names})

    @functools.cached_property
    def _source(self) -> dict[str, str]:
        """Return the parts of every generated function that binds a call."""
        names = self._signature.names
        return {
            "params": self._signature.written(True, surplus=not self._signature.variadic),
            "names": listed(names),
            "classes": listed(names, "{}.__class__"),
            "passed": self._signature.passed,
            "surplus": self._surplus,
        }

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the values of all parameters in order, and the keywords that are none of them."""
        if self._binder is None:
            taken = lambda _, values, options: (values, options)  # noqa: E731
            self._binder = self._entry(taken, _g_variants={})
        values, options = self._binder(None, *args, **kwargs)
        return values, options

    def again(self, grid: Any, values: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Call `entry` with one value for each parameter."""
        positional: list[Any] = []
        named = dict(options)
        for parameter, value in zip(self.parameters, values):
            if parameter.kind == "variadic":
                positional.extend(value)
            elif parameter.kind == "keyword":
                named[parameter.name] = value
            else:
                positional.append(value)
        return self.entry(grid, *positional, **named)

    # -- learning ----------------------------------------------------------------------------------

    def learn(
        self,
        values: tuple[Any, ...],
        options: Mapping[str, Any],
        hit: Hit,
        raw: bool = True,
        ranged: bool = False,
        lasting: bool = True,
        grid: Any = None,
        constants: Any = None,
    ) -> None:
        """Answer calls like this one with `hit` from now on.

        Args:
            options: keywords, without a stream.
            raw: the launch takes addresses in the place of tensors.
            ranged: the choice of the code depends on the size of storages.
            lasting: constants among `values` never change.
            grid: three sizes for calls without a grid.
            constants: per parameter, the value that functions for the grid get for a constant.
        """
        classes = tuple(map(type, values))
        with self._lock:
            variant = self._variant(classes, values, raw, ranged)
            launch = hit.launch
            if variant.flags[0]:
                launch = getattr(launch, "raw", launch)
            try:
                table = variant.tables.setdefault(self._options(options), {})
            except TypeError:
                return  # an option that cannot be a key: every call is a miss
            table[variant.key_of(*values)] = hit._replace(launch=launch)
            engaged = getattr(hit.launch, "engine", None)
            if engaged is None or ranged or not lasting:
                return
            if self.front is None:
                kernel, stream = self._kernel, "stream" if self._kernel.takes_stream else None
                self.front = native.front(
                    self._door, engaged, self.parameters, kernel.rules, kernel.watch, stream
                )
                self._publish(self._fastest())
            if self.front is not None:
                native.remember(
                    self.front,
                    self.parameters,
                    values,
                    dict(options),
                    engaged,
                    hit,
                    grid,
                    constants,
                )

    def _options(self, options: Mapping[str, Any]) -> Any:
        """Return the key of the options of a call, as the generated code has it."""
        if not options:
            return ()
        exact = map(type, options.values()) if self._kernel.takes_stream else ()
        return (*options.items(), *exact)

    def _variant(
        self, classes: tuple[type, ...], values: tuple[Any, ...], raw: bool, ranged: bool
    ) -> Any:
        """Return a generated function that fits `classes`, and all launches that were learned."""
        known = self._variants.get(classes)
        if known is not None:
            raw, ranged = raw and known.flags[0], ranged or known.flags[1]
            if known.flags == (raw, ranged):
                return known
        table: dict[Any, Hit] = {}
        tables: dict[Any, dict[Any, Hit]] = {(): table}
        writer = _Writer(self._kernel, raw, ranged)
        writer.add_all(self.parameters, values)
        guards = [*writer.guards, *([] if self._signature.variadic else ["not _g_surplus"])]
        stream = self._kernel.takes_stream
        source = _VARIANT.format(
            **self._source,
            stream="_g_given, _g_on = _g_apart(_g_options)" if stream else "pass",
            given="_g_given" if stream else "_g_options",
            on="_g_hit[1](_g_hit[2])" + " if _g_on is None else _g_on" * stream,
            options="(*_g_given.items(), *map(type, _g_given.values()))"
            if stream
            else "(*_g_options.items(),)",
            guards=" and ".join(guards) or "True",
            prepare="; ".join(writer.prepare) or "pass",
            key=listed(writer.finish()),
            values=listed(writer.values),
            unwatched=_UNWATCHED if self._kernel.watch is not None else "",
        )
        names = {**self._namespace, **writer.names, "_g_table": table, "_g_tables": tables}
        variant = self._define(source, "_g_variant", names)
        variant.tables, variant.flags = tables, (raw, ranged)
        self._variants[classes] = self.entry = variant
        self._publish(self._fastest())
        return variant

    def _publish(self, call: Callable[..., Any]) -> None:
        """Make `call` the function that launches ask, also by the door."""
        self.call = self._door.call = call

    def forget(self) -> None:
        """Know no call any more."""
        with self._lock:
            self._variants.clear()
            if self.front is not None:
                self.front.forget()
            self.entry = self._entry(self._kernel.miss)
            self._publish(self._fastest())

    def handle(
        self,
        values: Sequence[Any],
        hit: Hit,
        sizes: Any,
        raw: bool,
        readings: Optional[Readings] = None,
        lacking: bool = False,
    ) -> Callable[..., None]:
        """Return a function of the kernel's parameters that launches and decides nothing.

        Args:
            values: arguments of the classes that it will get.
            sizes: the grid where a call names none; None where that is empty.
            readings: as of the kernel; None for those.
            lacking: constants may be left out.
        """
        writer = _Writer(self._kernel, raw, False)
        writer.add_all(self.parameters, values, readings)
        params = self._signature.written(lacking, surplus=False)
        source = _HANDLE.format(
            params=listed(self._signature.names) if self._signature.variadic else params,
            grid="_g_grid" if "grid" in self._signature.names else "grid",
            prepare="; ".join(writer.prepare) if raw and writer.prepare else "pass",
            names=listed(self._signature.names),
            values=listed(writer.values),
        )
        names = {
            **self._namespace,
            **writer.names,
            "_g_default_grid": sizes,
            "_g_device": hit.device,
            "_g_launch": hit.launch,
            "_g_stream_of": hit.stream_of,
        }
        handle: Callable[..., None] = self._define(source, "_g_handle", names)
        return handle


_NO_OPTIONS: tuple[dict[str, Any], None] = {}, None


def _apart(options: dict[str, Any]) -> tuple[dict[str, Any], Optional[int]]:
    """Return the options of a call without the stream, and the stream."""
    if not options:
        return _NO_OPTIONS
    left = dict(options)
    stream = left.pop("stream", None)
    return left, None if stream is None else stream_handle(stream)


def stream_handle(stream: Any) -> int:
    """Return the handle of a stream: an int, or a stream with the `cuda_stream` of torch or the `ptr` of CuPy."""
    for name in ("cuda_stream", "ptr"):
        stream = getattr(stream, name, stream)
    return operator.index(stream)


class _Writer:
    """Collects, parameter by parameter, the expressions of the generated code of one variant."""

    def __init__(self, kernel: Kernel, raw: bool, ranged: bool):
        self._kernel, self._raw, self._ranged = kernel, raw, ranged
        self.guards: list[str] = []
        self.prepare: list[str] = []
        self.values: list[str] = []
        self.names: dict[str, Any] = {}
        self._key: list[str] = []
        self._devices: list[str] = []
        self._addresses: list[str] = []

    def add_all(
        self,
        parameters: Sequence[Parameter],
        values: Sequence[Any],
        readings: Optional[Readings] = None,
    ) -> None:
        readings = readings or self._kernel.readings(parameters, values)
        for parameter, value, known in zip(parameters, values, readings):
            self._add(parameter, value, known)

    def _add(self, parameter: Parameter, value: Any, known: Optional[tuple[Any, Reading]]) -> None:
        name, index = parameter.name, len(self.guards)
        self.names[f"_g_class{index}"] = type(value)
        self.guards.append(f"{name}.__class__ is _g_class{index}")
        if parameter.flags & CONSTANT:
            self.values.append(name)
            if type(value) in (int, bool, str):
                self._key.append(name)
            elif value is not None and value is not ABSENT:
                self._key.append(f"_g_token({name})")
            return
        if known is None:
            if isinstance(value, int) and not isinstance(value, bool):
                self._key.append(self._integer(name, parameter.flags))
            self.values.append(name)
            return
        viewed, reading = known
        it = name if viewed is value else f"_g_view({name})"
        parts = {"it": it, "own": f"_g_own{index}"}
        for own, item in reading.names.items():
            parts[own] = f"_g_{own}{index}"
            self.names[parts[own]] = item
        self._key += [part.format(**parts) for part in reading.key]
        if reading.device:
            self._devices.append(reading.device.format(**parts))
        if reading.read:
            self.prepare.append(f"{parts['own']} = {reading.read.format(**parts)}")
        if reading.memory and parameter.flags & SPECIALIZE:
            if parameter.flags & ALIGN:
                self._addresses.append(parts["own"])
            if self._ranged:
                self._key.append(f"_g_small({it})")
        self.values.append(reading.value.format(**parts) if self._raw else it)

    def _divides(self, number: str) -> str:
        """Return the expression for divisibility."""
        divisor = self._kernel.rules.divisibility
        is_power = divisor & (divisor - 1) == 0
        return f"not {number} & {divisor - 1}" if is_power else f"not {number} % {divisor}"

    def _integer(self, name: str, flags: int) -> str:
        """Return the key of an integer, by the rules of the parameter."""
        rules = self._kernel.rules
        _, least, most = rules.integers[0]
        inside = f"{least} <= {name} <= {most}"
        if not flags & SPECIALIZE:
            return f"{inside} or _g_type({name})"
        if flags & WIDTH:
            return f"_g_integer({name})"
        constants = "".join([f"{name} == {one} and '{one}' or " for one in rules.constants])
        if flags & ALIGN:
            return f"({constants}2 + ({self._divides(name)})) if {inside} else _g_wide({name})"
        return f"({constants}2) if {inside} else _g_type({name})"

    def finish(self) -> list[str]:
        """Return the parts of the key. Facts that are usually the same for all tensors make one short part."""
        key = list(self._key)
        if self._devices:
            first, *rest = self._devices
            same = "".join(f" == {other}" for other in rest)
            each = listed(self._devices)
            key.append(
                f"_g_device if (_g_device := {first}){same} else ({each})" if rest else first
            )
        if self._addresses:
            each = listed(map(self._divides, self._addresses))
            joined = self._divides(f"({' | '.join(self._addresses)})")
            key.append(f"{joined} or ({each})" if "&" in joined else f"({each})")
        return key
