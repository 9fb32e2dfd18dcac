"""The code that decides, on every launch, which compiled kernel fits the arguments.

For each combination of argument classes that a kernel meets, one Python function is generated. It
checks the classes, reads what the decision depends on (element type, address modulo 16, value of
small integers, constants, device) into one key, looks the launch up and calls it. Everything else
happens on a miss, in `dispatch`.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Iterable, Mapping, Optional, Protocol, Sequence, cast

from gluon_core.compiler import parameters as of_kernel
from gluon_core.errors import ArgumentError, CallError, GluonError, did_you_mean, trimmed
from gluon_core.launch import arguments, foreign, opaque
from gluon_core.plugin.launcher import CallParameter, CallsOf
from gluon_core.values.constants import identity

__all__ = ["ABSENT", "Parameter", "Tokens", "entry", "handle", "parameters_of", "variant"]

_PREFIX = "_g_"  # names of ours in generated code; parameters may have any other


class Parameter(of_kernel.Parameter):
    """What the generated code needs to know of one parameter of a kernel."""

    def describe(self, value: Any, pointer_range_bits: Any) -> arguments.Described:
        """What the compiler is told of `value` in this place."""
        if self.is_constexpr:
            return arguments.Described("constexpr", value)
        found = arguments.describe(
            value,
            const=self.is_const,
            specialize=self.specialize,
            align=self.align,
            pointer_range_bits=pointer_range_bits,
        )
        if self.annotation_type:
            marks = found.attributes if self.specialize else None
            return arguments.Described(
                self.annotation_type, marks if isinstance(marks, str) else ""
            )
        return found


def parameters_of(kernel: Any) -> tuple[Parameter, ...]:
    """The parameters of a jit function, in order."""
    return cast("tuple[Parameter, ...]", of_kernel.parameters_of(kernel, Parameter))


class Tokens:
    """Small ints for constants that are costly to compare: equal constants share one.

    A constant that cannot change is recognised by its address first, and is then kept alive so
    that the address stays its own; the memory is bounded.
    """

    def __init__(self, size: int = 1024):
        self._by_id: dict[int, int] = {}
        self._kept: list[Any] = []
        self._by_text: dict[str, int] = {}
        self._size = size

    def __call__(self, value: Any) -> int:
        found = self._by_id.get(id(value))
        return self._add(value) if found is None else found

    def _add(self, value: Any) -> int:
        found = identity(value)
        token = self._by_text.setdefault(found.text, len(self._by_text))
        if found.settled:
            if len(self._kept) >= self._size:
                self._by_id.clear()
                self._kept.clear()
            self._kept.append(value)
            self._by_id[id(value)] = token
        return token


class Absent:
    """What a parameter has that a call leaves to `config=`."""


ABSENT = Absent()


def require_all(
    parameters: Sequence[Parameter], values: Sequence[Any], where: str, options: Iterable[str] = ()
) -> None:
    """Raise what Python does for missing arguments, where `values` lack some.

    Args:
        options: the keywords that no parameter took.

    Raises:
        CallError: a parameter has no argument; a keyword that resembles its name is suggested.
    """
    missing = [p for p, value in zip(parameters, values) if value is ABSENT]
    if not missing:
        return
    keyword = [p for p in missing if p.kind is inspect.Parameter.KEYWORD_ONLY]
    told = keyword if len(keyword) == len(missing) else [p for p in missing if p not in keyword]
    names = [repr(p.name) for p in told]
    if len(names) > 1:
        names[-1] = f"and {names[-1]}"
    kind = "keyword-only" if told is keyword else "positional"
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


def too_many(parameters: Sequence[Parameter], surplus: Sequence[Any], where: str) -> CallError:
    """Return the error for a launch with `surplus` arguments by place."""
    places = sum(p.kind is not inspect.Parameter.KEYWORD_ONLY for p in parameters)
    return CallError(
        f"{where}() takes {places} positional argument{'s' * (places != 1)} "
        f"but {places + len(surplus)} were given",
        expected=", ".join(p.name for p in parameters),
    )


def binder_source(
    parameters: Sequence[Parameter], lacking: bool = False, surplus: bool = False
) -> tuple[str, dict[str, Any]]:
    """The parameter list of a generated function, and the defaults it refers to.

    Args:
        lacking: constexprs, and as Python wants it what comes after them, may be left out: they are
            `ABSENT` then.
        surplus: further arguments by place are taken, too, as `_g_surplus`.
    """
    parts: list[str] = []
    defaults: dict[str, Any] = {}
    starred = False
    open_to_absence = False
    for param in parameters:
        open_to_absence |= lacking and param.is_constexpr
        if param.kind is inspect.Parameter.VAR_POSITIONAL:
            parts.append(f"*{param.name}")
            starred = True
            continue
        if param.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            parts.append("*_g_surplus" if surplus else "*")
            starred = True
        if param.has_default:
            defaults[f"{_PREFIX}default_{param.name}"] = param.default
            parts.append(f"{param.name}={_PREFIX}default_{param.name}")
        elif open_to_absence:
            parts.append(f"{param.name}={_PREFIX}absent")
        else:
            parts.append(param.name)
    if surplus and not starred:
        parts.append("*_g_surplus")
    return ", ".join(parts), defaults


def _open_binder(parameters: Sequence[Parameter], where: str) -> tuple[str, dict[str, Any], str]:
    """Return `binder_source` for any number of arguments, and the line that refuses surplus ones."""
    params, defaults = binder_source(parameters, lacking=True, surplus=True)
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return params, defaults, ""
    defaults["_g_too_many"] = lambda surplus: too_many(parameters, surplus, where)
    return params, defaults, "if _g_surplus: raise _g_too_many(_g_surplus)"


def passed(parameters: Sequence[Parameter]) -> str:
    """The parameters as the arguments of a call of another function with the same list."""
    parts = []
    starred = False
    for param in parameters:
        if param.kind is inspect.Parameter.VAR_POSITIONAL:
            parts.append(f"*{param.name}")
            starred = True
        elif starred or param.kind is inspect.Parameter.KEYWORD_ONLY:
            parts.append(f"{param.name}={param.name}")
        else:
            parts.append(param.name)
    return "".join(f"{part}, " for part in parts)


def _guarded(template: str) -> str:
    """A function's text such that an error of ours leaves it with the frames of the caller alone."""
    head, _, rest = template.lstrip("\n").partition("\n")
    body, blank, more = rest.partition("\n\n")
    lines = [f"    {line}" for line in body.rstrip("\n").split("\n")]
    lines = [
        head,
        "    try:",
        *lines,
        "    except _g_mistake as _g_raised:",
        "        raise _g_trimmed(_g_raised)",
    ]
    return "\n" + "\n".join(lines) + "\n" + blank[1:] + more


_SOURCE = _guarded("""
def {name}(_g_grid, {params}{comma}**_g_options):
    if _g_options:
        try:
            _g_lookup = _g_tables.get((*_g_options.items(),), _g_empty).get
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
        if (
            _g_hit is not None
            and _g_runtime.launch_enter_hook is _g_enter
            and _g_runtime.launch_exit_hook is _g_exit
            and not (_g_enter_calls or _g_exit_calls or _g_pre_run_hooks)
            and not (_g_globals and _g_changed())
        ):
            try:
                _g_sizes = _g_grids[_g_grid]
                if not (_g_grid[0].__class__ is _g_grid[-1].__class__ is int):
                    _g_sizes = _g_measure(_g_grid, ({names}))  # of floats that equal them
            except (KeyError, TypeError):
                _g_sizes = _g_measure(_g_grid, ({names}))
            if _g_sizes is not None:
                return _g_hit[0](_g_sizes, _g_hit[1](_g_hit[2]), {values}) or _g_hit[3]
            return _g_hit[3]
        return _g_miss(_g_grid, ({names}), _g_options)
    {check}
    _g_other = _g_variants.get(({classes}))
    if _g_other is None or _g_other is {name}:
        return _g_miss(_g_grid, ({names}), _g_options)
    return _g_other(_g_grid, {passed}**_g_options)

def _g_key({plain}):
    {prepare}
    return ({key})

{name}.key_of = _g_key
""")

_HANDLE = _guarded("""
def {name}({params}{comma}{grid}=None):
    _g_sizes = _g_default_grid if {grid} is None else _g_measure({grid}, ({names}))
    if _g_sizes is not None:
        _g_launch(_g_sizes, _g_stream_of(_g_device), {values})
""")

_BIND = _guarded("""
def {name}(_g_grid, {params}{comma}**_g_options):
    {check}
    _g_other = _g_variants.get(({classes}))
    if _g_other is None:
        return _g_miss(_g_grid, ({names}), _g_options)
    return _g_other(_g_grid, {passed}**_g_options)
""")


def _names(parameters: Sequence[Parameter], template: str = "{}") -> str:
    return "".join(f"{template.format(p.name)}, " for p in parameters)


def call(
    parameters: Sequence[Parameter],
    function: Callable[..., Any],
    grid: Any,
    values: Sequence[Any],
    options: Mapping[str, Any],
) -> Any:
    """Call a generated function with one value for each parameter."""
    given: list[Any] = []
    named = dict(options)
    for param, value in zip(parameters, values):
        if param.kind is inspect.Parameter.VAR_POSITIONAL:
            given.extend(value)
        elif param.kind is inspect.Parameter.KEYWORD_ONLY:
            named[param.name] = value
        else:
            given.append(value)
    return function(grid, *given, **named)


def make_function(
    source: str, name: str, where: str, namespace: dict[str, Any]
) -> Callable[..., Any]:
    """Define `name` from generated source."""
    namespace.update(
        _g_absent=ABSENT, _g_mistake=GluonError, _g_trimmed=trimmed, __tracebackhide__=True
    )
    exec(compile(source, f"<gluon launch of {where}>", "exec"), namespace)
    made: Callable[..., Any] = namespace[name]
    made.__qualname__ = where  # what Python calls it when arguments are missing
    return opaque.closed(made)


def entry(parameters: Sequence[Parameter], namespace: Mapping[str, Any], where: str) -> Any:
    """The function that binds a call before any variant exists."""
    params, defaults, check = _open_binder(parameters, where)
    source = _BIND.format(
        name="_g_entry",
        check=check,
        params=params,
        comma=", " if params else "",
        classes=_names(parameters, "{}.__class__"),
        names=_names(parameters),
        passed=passed(parameters),
    )
    return make_function(source, "_g_entry", where, {**namespace, **defaults})


_FIRST = """def _g_entry(_g_grid, /, *_g_args, **_g_named):
    try:
        return _g_fastest()(_g_grid, *_g_args, **_g_named)
    except _g_mistake as _g_error:
        raise _g_trimmed(_g_error)
"""


def first(fastest: Callable[[], Callable[..., Any]], where: str) -> Callable[..., Any]:
    """What a `kernel[grid]` that was kept before any launch asks; each time it looks for what is
    faster since."""
    return make_function(_FIRST, "_g_entry", where, {"_g_fastest": fastest})


def calls_of(
    parameters: Sequence[Parameter], decide: Any, namespace: Mapping[str, Any]
) -> Optional[CallsOf]:
    """What a backend's fast path has to know of the kernel; None where a parameter takes several."""
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return None
    by_name = [p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters]
    return CallsOf(
        parameters=tuple(
            CallParameter(p.name, p.default, p.has_default, p.is_constexpr, p.specialize, p.align)
            for p in parameters
        ),
        positional=by_name.index(True) if any(by_name) else len(by_name),
        decide=decide,
        runtime=namespace["_g_runtime"],
        hooks=(
            (namespace["_g_enter"], namespace["_g_enter_calls"]),
            (namespace["_g_exit"], namespace["_g_exit_calls"]),
        ),
        before=namespace["_g_pre_run_hooks"],
        globals=namespace["_g_globals"],
        changed=namespace["_g_changed"],
    )


class Variant(Protocol):
    """A generated launch function; `key_of` only tells the key of its arguments."""

    key_of: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def variant(
    parameters: Sequence[Parameter],
    values: Sequence[Any],
    raw_pointers: bool,
    ranged: bool,
    namespace: Mapping[str, Any],
    where: str,
) -> Variant:
    """The launch function for arguments of the classes that `values` have.

    Args:
        raw_pointers: pass addresses, not tensors, to the launcher.
        ranged: the backend wants to know which pointers go into small storage.
        namespace: what `dispatch` offers to the generated code.
    """
    writer = _Writer(raw_pointers, ranged)
    for index, (param, value) in enumerate(zip(parameters, values)):
        writer.add(index, param, value)
    params, defaults, check = _open_binder(parameters, where)
    guards = [*writer.guards, *(["not _g_surplus"] if check else [])]
    key = "".join(f"{part}, " for part in writer.finish())
    source = _SOURCE.format(
        name="_g_variant",
        params=params,
        comma=", " if params else "",
        guards=" and ".join(guards) or "True",
        check=check,
        prepare="; ".join(writer.prepare) or "pass",
        key=key,
        names=_names(parameters),
        values="".join(f"{value}, " for value in writer.values),
        classes=_names(parameters, "{}.__class__"),
        passed=passed(parameters),
        plain=_names(parameters),
    )
    names = {**namespace, **defaults, **writer.namespace}
    return cast(Variant, make_function(source, "_g_variant", where, names))


# What is read for an address, by kind of argument.
_ADDRESS = {"pointer": "{}.data_ptr()", "array": "{}.ctypes.data"}


def handle(
    parameters: Sequence[Parameter],
    values: Sequence[Any],
    raw_pointers: bool,
    namespace: Mapping[str, Any],
    where: str,
) -> Callable[..., None]:
    """A function of the kernel's parameters that launches and decides nothing."""
    passed_on = []
    for param, given in zip(parameters, values):
        value = given if param.is_constexpr else arguments.viewed(given)
        name = param.name if value is given else f"_g_view({param.name})"
        plain = param.is_constexpr or not raw_pointers
        address = "{}" if plain else _ADDRESS.get(arguments.kind_of(value), "{}")
        passed_on.append(address.format(name))
    params, defaults = binder_source(parameters)
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        params, defaults = _names(parameters).rstrip(", "), {}
    source = _HANDLE.format(
        name="_g_handle",
        grid="_g_grid" if any(p.name == "grid" for p in parameters) else "grid",
        params=params,
        comma=", " if params else "",
        names=_names(parameters),
        values="".join(f"{value}, " for value in passed_on),
    )
    return make_function(source, "_g_handle", where, {**namespace, **defaults})


class _Writer:
    """Collects, parameter by parameter, the parts of a variant."""

    def __init__(self, raw_pointers: bool, ranged: bool):
        self.raw_pointers = raw_pointers
        self.ranged = ranged
        self.guards: list[str] = []
        self.prepare: list[str] = []
        self.key: list[str] = []
        self.values: list[str] = []
        self.namespace: dict[str, Any] = {}
        self.devices: list[str] = []
        self.addresses: list[str] = []

    def finish(self) -> list[str]:
        """The parts of the key. What is usually the same for all tensors makes one short part."""
        key = list(self.key)
        if self.devices:
            first, *rest = self.devices
            same = "".join(f" == {other}" for other in rest)
            each = "".join(f"{other}, " for other in self.devices)
            key.append(
                f"_g_device if (_g_device := {first}){same} else ({each})" if rest else first
            )
        if self.addresses:
            each = "".join(f"not {address} & 15, " for address in self.addresses)
            key.append(f"not ({' | '.join(self.addresses)}) & 15 or ({each})")
        return key

    def add(self, index: int, param: Parameter, value: Any) -> None:
        cls = f"_g_class{index}"
        self.namespace[cls] = type(value)
        self.guards.append(f"{param.name}.__class__ is {cls}")
        if param.is_constexpr:
            self.values.append(param.name)
            self._constant(param.name, value)
            return
        what = arguments.kind_of(value)
        write = self._constant_argument if what == "constant" else getattr(self, f"_{what}")
        write(index, param, value)

    def _constant(self, name: str, value: Any) -> None:
        cls = type(value)
        if cls in (int, bool, str):
            self.key.append(name)
        elif value is not None:
            self.key.append(f"_g_token({name})")

    def _pointer(self, index: int, param: Parameter, value: Any) -> None:
        name, address = param.name, f"_g_address{index}"
        self.prepare.append(f"{address} = {_ADDRESS['pointer'].format(name)}")
        self.key.append(f"{name}.dtype")
        if hasattr(value, "get_device"):
            self.devices.append(f"{name}.get_device()")
        else:
            self.key.append(f"_g_place({name})")
        if param.specialize and param.align:
            self.addresses.append(address)
        if param.specialize and self.ranged:
            self.key.append(f"_g_range({name})")
        self.values.append(address if self.raw_pointers else name)

    def _array(self, index: int, param: Parameter, value: Any) -> None:
        name = param.name
        self.key.append(f"{name}.dtype")
        self.key.append(f"_g_place({name})")
        if param.specialize and param.align:
            self.key.append(f"not {name}.ctypes.data & 15")
        self.values.append(_ADDRESS["array"].format(name) if self.raw_pointers else name)

    def _int(self, index: int, param: Parameter, value: Any) -> None:
        name = param.name
        inside = f"-2147483648 <= {name} <= 2147483647"
        if not param.specialize:
            self.key.append(f"{inside} or _g_width({name})")
        elif param.align:
            self.key.append(
                f"({name} == 1 or 2 + (not {name} & 15)) if {inside} else _g_wide({name})"
            )
        else:
            self.key.append(f"({name} == 1 or 2) if {inside} else _g_width({name})")
        self.values.append(name)

    def _bool(self, index: int, param: Parameter, value: Any) -> None:
        self.values.append(param.name)

    _float = _bool
    _none = _bool

    def _tuple(self, index: int, param: Parameter, value: Any) -> None:
        self.key.append(f"_g_tuple({param.name})")
        self.values.append(param.name)

    def _constant_argument(self, index: int, param: Parameter, value: Any) -> None:
        self.key.append(f"_g_token({param.name})")
        self.values.append(param.name)

    def _registered(self, index: int, param: Parameter, value: Any) -> None:
        kind = f"_g_kind{index}"
        found = arguments.registered_kind(type(value))
        assert found is not None
        if found is arguments.DESCRIPTORS:
            self._descriptor(index, param, value)
            return
        self.namespace[kind] = found.key
        self.key.append(f"{kind}({param.name})")
        if found.place is not None:
            self.namespace[f"_g_at{index}"] = found.place
            self.devices.append(f"_g_home(_g_at{index}({param.name}))")
        self.values.append(param.name)

    def _descriptor(self, index: int, param: Parameter, value: Any) -> None:
        """What `DESCRIPTORS.key` and `.place` say, without their calls."""
        name, base = param.name, f"_g_base{index}"
        self.key += [
            f"{name}.base.dtype",
            f"_g_layouts.get(id({name}.layout)) or _g_layout({name}.layout)",
            f"*{name}.block_shape",
        ]
        if value.input_rank is not None:
            self.key.append(f"{name}.input_rank")
        # The class of the tensor is no class of an argument: it is not guarded, it is looked at.
        self.namespace[base] = type(value.base) if hasattr(value.base, "get_device") else None
        self.devices.append(
            f"({name}.base.get_device() if {name}.base.__class__ is {base} "
            f"else _g_home({name}.base))"
        )
        self.values.append(name)

    def _unknown(self, index: int, param: Parameter, value: Any) -> None:
        arguments.describe(value)  # raises


def wide_key(value: int) -> tuple[int, bool]:
    """The key of an integer that needs more than 32 bits."""
    return width_key(value), not value & 15


def width_key(value: int) -> int:
    """Which of i64 and u64 holds an integer outside 32 bits; larger ones are refused on the miss."""
    if -(2**63) <= value < 2**63:
        return 64
    return 65 if 0 <= value < 2**64 else 66


_NEVER = object()  # in the key of no kernel


def tuple_key(value: Any, token: Tokens, bits: Any = None) -> Any:
    """The key of a tuple argument: types, marks, constants and places, nested."""
    parts: list[Any] = [type(value)]
    for item in value:
        if isinstance(item, tuple):
            parts.append(tuple_key(item, token, bits))
            continue
        if foreign.number(item) is not item:
            parts.append(object())  # never found: `dispatch` makes numbers of NumPy's scalars
            continue
        kind = arguments.registered_kind(type(item))
        if kind is not None:
            at = kind.place(item) if kind.place is not None else None
            parts.append((type(item), kind.key(item), arguments.home_of(at)))
            continue
        try:
            found = arguments.describe(item, pointer_range_bits=bits)
        except ArgumentError:
            if not hasattr(item, "__dlpack__"):
                raise
            parts.append(_NEVER)  # the call is made again with what it is a view of
            continue
        constant = token(found.attributes) if found.kind == "constexpr" else found.attributes
        parts.append((found.kind, constant, arguments.place_of(item)))
    return tuple(parts)
