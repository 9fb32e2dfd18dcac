"""The calls of a kernel: binds the arguments, finds the launch that fits them, and makes it.

The facts about the arguments that the choice of the code depends on (`rules`) are the key of a call. A key that
was learned leads to its `Hit`; every other call goes to `Calls.miss`, which decides, and teaches the launch with
`learn`. The C engine, where it was built, stands in front: it reads arguments of the usual classes, and launches
or calls `run`. This file is the plain form of the same, for all other arguments and without a C compiler.
"""

from __future__ import annotations

import operator
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

from gluon_runtime import native
from gluon_runtime.rules import ABSENT, CONSTANT, Parameter, Rules, storage_size

__all__ = ["Calls", "Hit", "Parameter", "Watch", "stream_handle"]

_MOST = 4096  # calls of a kernel that are kept; then all are forgotten
Values = tuple[Any, ...]
Options = Mapping[str, Any]


class Hit(NamedTuple):
    """A launch that fits a call: `launch(sizes, stream_of(device), *arguments)`, and the result of the call."""

    launch: Callable[..., Any]
    stream_of: Callable[[int], int]
    device: int
    result: Any


class Watch(NamedTuple):
    """The state that keeps calls from their fast way: launch hooks that are set, and globals that changed.

    Args:
        runtime: has the attributes `launch_enter_hook` and `launch_exit_hook`.
        enter, leave: their values while nobody listens; `enter_calls` and `leave_calls` are empty then.
        before: another such sequence.
        globals: a list; if it has entries, `changed()` returns whether calls go to `entry`.
    """

    runtime: Any = None
    enter: Any = None
    enter_calls: Sequence[Any] = ()
    leave: Any = None
    leave_calls: Sequence[Any] = ()
    before: Sequence[Any] = ()
    globals: Sequence[Any] = ()
    changed: Optional[Callable[[], bool]] = None

    def is_on(self) -> bool:
        """Return True if somebody listens to launches, or a global has another value."""
        return bool(
            self.runtime.launch_enter_hook is not self.enter
            or self.runtime.launch_exit_hook is not self.leave
            or self.enter_calls
            or self.leave_calls
            or self.before
            or (self.globals and self.changed is not None and self.changed())
        )


class Calls:
    """A kernel whose calls are answered: base of the kernels of the compiler and of bundles.

    Args:
        name: of it.
        declared: its parameters.
        rules: those of specialization.
        watch: what keeps calls from their fast way.
        takes_stream: the keyword `stream` names the stream of a call.

    Attributes:
        call: answers any call, the fastest function that does: `entry`, or the C engine.
        front: the C engine; None where it was not built or cannot tell the calls apart.
        ranged: the choice of the code depends on the size of storages.
        comparable: classes of constants whose equals compile alike.
    """

    call: Callable[..., Any]
    comparable: tuple[type, ...] = ()

    def __init__(
        self,
        name: str,
        declared: Sequence[Parameter],
        rules: Rules,
        watch: Optional[Watch] = None,
        takes_stream: bool = False,
    ):
        self.name = name
        self.rules = rules
        self._declared = tuple(declared)
        self._watch = watch
        self._takes_stream = takes_stream
        self._table: dict[Any, Hit] = {}
        self.ranged = False
        self.front = native.front(
            self,
            self._declared,
            rules,
            watch or Watch(),
            "stream" if takes_stream else None,
            self._is_small,
        )
        self.call = self.entry if self.front is None else self.front.call

    # -- asked of a kernel -------------------------------------------------------------------------------

    def read(self, passed: Values) -> Sequence[Any]:
        """Return the classification of each argument: an object with `value`, the argument as kernels take it, and `fact`,
        on which the choice of the code depends."""
        raise NotImplementedError

    def miss(
        self, grid: Any, stream: Any, values: Values, seen: Sequence[Any], options: Options
    ) -> Any:
        """Launch a call that was not learned."""
        raise NotImplementedError

    def measure(self, grid: Any, values: Values, hit: Hit) -> Optional[tuple[int, int, int]]:
        """Return three sizes; None for an empty grid."""
        raise NotImplementedError

    def mistake(self, kind: str, names: Sequence[str], count: int, options: Options) -> Exception:
        """Return the error for a call that does not fit the parameters.

        Args:
            kind: `missing`, `twice`, `unknown` or `surplus`.
            names: the parameters or keywords at fault.
            count: the number of arguments by place.
            options: keywords that no parameter took.
        """
        raise NotImplementedError

    def sealed(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        """Return a prepared launch as programs get it."""
        return handle

    # -- answering ---------------------------------------------------------------------------------------

    def entry(self, grid: Any, /, *arguments: Any, **named: Any) -> Any:
        """Answer any call."""
        passed, options = self.placed(arguments, named)
        stream = options.pop("stream", None) if self._takes_stream else None
        return self.answer(grid, stream, passed, options)

    def answer(self, grid: Any, stream: Any, passed: Values, options: Options) -> Any:
        """Answer a call with one value for each parameter."""
        hit, watched = None, self._watch is not None and self._watch.is_on()
        seen = self.read(passed)
        values = tuple([argument.value for argument in seen])
        if not watched:
            try:
                hit = self._table.get(self._key(seen, options))
            except TypeError:
                pass  # an option that cannot be part of a key
        if hit is None:
            return self.miss(grid, stream, values, seen, options)
        return self.run(hit, grid, stream, values)

    def run(self, hit: Hit, grid: Any, stream: Any, values: Values) -> Any:
        """Launch a call whose launch is known."""
        sizes = self.measure(grid, values, hit)
        if sizes is None:
            return hit.result
        on = hit.stream_of(hit.device) if stream is None else stream_handle(stream)
        return hit.launch(sizes, on, *values) or hit.result

    def placed(
        self, arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Values, dict[str, Any]]:
        """Return the values of all parameters in order, `ABSENT` for those that were left out and have no default, and the
        keywords that are none of them."""
        options, left = dict(named), list(arguments[::-1])
        values: list[Any] = []
        for parameter in self._declared:
            name, kind, value, _ = parameter
            if kind == "variadic":
                value, left = tuple(left[::-1]), []
            elif kind == "plain" and left:
                value = left.pop()
                if name in options:
                    raise self.mistake("twice", [name], len(arguments), options)
            elif name in options:
                value = options.pop(name)
            values.append(value)
        if left:
            raise self.mistake("surplus", [], len(arguments), options)
        return tuple(values), options

    def _key(self, seen: Sequence[Any], options: Options) -> Any:
        return (
            *[argument.fact for argument in seen],
            *[(name, type(v), v) for name, v in options.items()],
        )

    def _is_small(self, value: Any) -> bool:
        return self.rules.is_small(storage_size(value))

    # -- learning ----------------------------------------------------------------------------------------

    def learn(
        self,
        values: Values,
        seen: Sequence[Any],
        options: Options,
        hit: Hit,
        ranged: bool = False,
        lasting: bool = True,
        grid: Any = None,
        constants: Any = None,
    ) -> None:
        """Answer calls like this one with `hit` from now on.

        Args:
            options: keywords, without a stream.
            ranged: the choice of the code depends on the size of storages.
            lasting: constants among `values` never change.
            grid: three sizes for calls without a grid.
            constants: per parameter, the value that functions for the grid get for a constant.
        """
        if len(self._table) >= _MOST or (ranged and not self.ranged):
            self._table.clear()
        self.ranged |= ranged
        try:
            self._table[self._key(seen, options)] = hit
        except TypeError:
            return  # an option that cannot be part of a key: every call is a miss
        if self.front is not None and lasting:
            fixed = (hit, grid, constants, ranged, self.comparable)
            native.remember(self.front, self._declared, values, dict(options), *fixed)

    def forget(self) -> None:
        """Know no call any more."""
        self._table.clear()
        if self.front is not None:
            self.front.forget()

    def handle(self, passed: Values, hit: Hit, sizes: Any) -> Callable[..., None]:
        """Return `f(*arguments)`, which launches and decides nothing; constants may be left out.

        Args:
            passed: arguments of the classes that it will get.
            sizes: the grid where a call names none; None where that is empty.
        """
        launch, stream_of, device, _ = hit
        count = len(self._declared)
        plain = all(p.kind != "variadic" for p in self._declared)
        plain &= all(a.value is value for a, value in zip(self.read(passed), passed))

        def handle(*values: Any, **named: Any) -> None:
            grid = sizes
            if named or len(values) != count or not plain:
                values, grid = self._bound(values, named, hit, sizes)
            if grid is not None:
                launch(grid, stream_of(device), *values)

        door, engine = self.sealed(handle), getattr(launch, "engine", None)
        if engine is None or sizes is None:
            return door
        return native.bind(engine, passed, sizes, hit, door)

    def _bound(
        self, arguments: Values, named: Mapping[str, Any], hit: Hit, sizes: Any
    ) -> tuple[Values, Any]:
        """Return the values of a prepared call, and its grid."""
        values, options = self.placed(arguments, named)
        grid = options.pop("grid", None)
        pairs = zip(self._declared, values)
        missing = [p.name for p, v in pairs if v is ABSENT and not p.flags & CONSTANT]
        if missing or options:
            kind = "missing" if missing else "unknown"
            raise self.mistake(kind, missing or list(options), len(arguments), options)
        values = tuple([argument.value for argument in self.read(values)])
        return values, sizes if grid is None else self.measure(grid, values, hit)


def stream_handle(stream: Any) -> int:
    """Return the handle of a stream: an int, or a stream with the `cuda_stream` of torch or the `ptr` of CuPy."""
    for name in ("cuda_stream", "ptr"):
        stream = getattr(stream, name, stream)
    return operator.index(stream)
