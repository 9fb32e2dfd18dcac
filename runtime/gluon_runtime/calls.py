"""The calls of a kernel: binds the arguments, and has them decided and launched.

The facts about the arguments that the choice of the code depends on (`rules`) are the key of a call. The C engine
makes and knows the keys: it reads arguments of the usual classes, and launches calls that it learned, or has `run` do
so. Every other call goes to `Calls.miss`, which decides, launches, and teaches the engine with `learn`.
"""

from __future__ import annotations

import operator
import sys
from functools import cache, cached_property
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

from gluon_runtime import native
from gluon_runtime.grid import measured
from gluon_runtime.rules import ABSENT, CONSTANT, Parameter, Rules

__all__ = ["Calls", "Hit", "Parameter"]

Values = tuple[Any, ...]
Options = Mapping[str, Any]


@cache
def _code(text: str) -> Any:  # of identifiers and places alone
    return compile(text, "<parameters>", "exec")


class Hit(NamedTuple):
    """A launch that fits a call: `launch(sizes, stream_of(device), *arguments)`, and the result of the call.

    Args:
        grid: that of calls that name none.
        constants: per parameter, the value that functions for the grid get for a constant that is left out.
    """

    launch: Callable[..., Any]
    stream_of: Callable[[int], int]
    device: int
    result: Any
    grid: Any = None
    constants: Values = ()


class Calls(native.engine.Calls):  # type: ignore[misc] # that in C
    """A kernel whose calls are answered: base of the kernels of the compiler and of bundles.

    Args:
        name: of it.
        declared: its parameters.
        rules: those of specialization.
        watched: lists and dictionaries, at most six, each followed by a function: while one has entries and its function
            returns True, every call goes to `miss`.
        takes_stream: the keyword `stream` names the stream of a call.

    Attributes:
        over: `over(grid)(*arguments, **options)` answers any call.
        learns: the engine may learn calls: it can tell them apart.
        comparable: classes of constants whose equals compile alike.
        grid_error: the class of the error for what is no grid.
    """

    over: Callable[[Any], Callable[..., Any]]
    comparable: tuple[type, ...] = (str,)
    grid_error: Callable[..., Exception]

    def __init__(
        self,
        name: str,
        declared: Sequence[Parameter],
        rules: Rules,
        watched: Sequence[Any] = (),
        takes_stream: bool = False,
    ):
        self.name, self.rules, self._takes_stream = name, rules, takes_stream
        self.declared = tuple(p._replace(name=sys.intern(p.name)) for p in declared)
        self.names = tuple(p.name for p in self.declared)
        self._variadic = any(p.kind == "variadic" for p in self.declared)
        told_apart = len(rules.constants) == 1 and rules.divisibility.bit_count() == 1
        fits = len(self.declared) <= native.engine.MOST_PARAMETERS and not self._variadic
        self.learns = told_apart and fits
        native.teach()
        stream = "stream" if takes_stream else None
        known, constant = (self.declared, rules.constants[0]) if self.learns else ((), 0)
        table = (rules.divisibility - 1, constant, *rules.integers[0][1:])
        super().__init__(known, ABSENT, tuple(watched), stream, rules.is_small, table)

    # -- asked of a kernel -------------------------------------------------------------------------------

    def taken(self, passed: Values) -> Values:
        """Return arguments as kernels take them."""
        return passed

    def miss(self, grid: Any, stream: Any, passed: Values, options: dict[str, Any]) -> Any:
        """Decide on the launch of a call, make it, and teach the engine."""
        raise NotImplementedError

    def refused(self, text: str, left: Sequence[str], options: Options) -> Exception:
        """Return the error for a call that does not fit the parameters.

        Args:
            text: as Python says it of a function.
            left: the parameters without an argument.
            options: keywords that no parameter took.
        """
        raise NotImplementedError

    def sealed(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        """Return a prepared launch as programs get it."""
        return handle

    # -- answering ---------------------------------------------------------------------------------------

    def entry(self, grid: Any, /, *arguments: Any, **named: Any) -> Any:
        """Answer a call that the engine does not."""
        passed, options = self.placed(arguments, named)
        stream = options.pop("stream", None) if self._takes_stream else None
        return self.miss(grid, stream, passed, options)

    def measure(self, grid: Any, values: Values, hit: Hit) -> Optional[tuple[int, int, int]]:
        """Return three sizes; None for an empty grid."""
        known = zip(values, hit.constants or values)
        named = [constant if value is ABSENT else value for value, constant in known]
        return measured(hit.grid if grid is None else grid, self.names, named, self.grid_error)

    def run(self, hit: Hit, grid: Any, stream: Any, values: Values) -> Any:
        """Launch a call whose launch is known."""
        sizes = self.measure(grid, values, hit)
        if sizes is None:
            return hit.result
        for name in ("cuda_stream", "ptr"):  # of a stream of torch, or of CuPy
            stream = getattr(stream, name, stream)
        on = hit.stream_of(hit.device) if stream is None else operator.index(stream)
        return hit.launch(sizes, on, *values) or hit.result

    def placed(
        self, arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Values, dict[str, Any]]:
        """Return the values of all parameters in order, `ABSENT` for those that were left out and have no default, and the
        keywords that are none of them."""
        try:
            bound: tuple[Values, dict[str, Any]] = self._binding(*arguments, **named)
        except TypeError as error:
            raise self.refused(str(error), (), {}) from None
        return bound

    @cached_property
    def _binding(self) -> Callable[..., Any]:
        """Return a function with the parameters of the kernel, all of which may be left out."""
        parts: list[str] = []
        for number, p in enumerate(self.declared):
            if p.kind == "keyword" and not any(part[0] == "*" for part in parts):
                parts.append("*, ")
            plain = f"{p.name}=defaults[{number}], "
            parts.append(f"*{p.name}, " if p.kind == "variadic" else plain)
        names = "".join(f"{name}, " for name in self.names)
        scope: dict[str, Any] = {"defaults": [p.default for p in self.declared]}
        exec(_code(f"def bind({''.join(parts)}**__others): return ({names}), __others"), scope)
        scope["bind"].__qualname__ = self.name
        binding: Callable[..., Any] = scope["bind"]
        return binding

    def check(self, values: Values, options: Options, optional: int = 0) -> None:
        """Check that no parameter is `ABSENT` but those with one of the flags `optional`."""
        pairs = zip(self.declared, values)
        left = [p.name for p, v in pairs if v is ABSENT and not p.flags & optional]
        if left:
            listed = f"{'s' * (len(left) > 1)}: {', '.join(map(repr, left))}"
            text = f"{self.name}() missing {len(left)} required argument{listed}"
            raise self.refused(text, left, options)

    # -- learning ----------------------------------------------------------------------------------------

    def learn(self, values: Values, options: dict[str, Any], hit: Hit, ranged: bool) -> None:
        """Have the engine answer calls like this one with `hit` from now on.

        Args:
            values: the constants among them never change.
            options: keywords, without a stream.
            ranged: the choice of the code depends on the size of storages.
        """
        if self.learns:
            answer, named = (hit, *self._in_c(hit, values)), dict(zip(self.names, values))
            self.remember(*answer, ranged, self.comparable, **named, **options)

    @staticmethod
    def _in_c(hit: Hit, values: Values) -> tuple[Any, Any]:
        """Return the launch in C, None where there is none, and how it finds its stream. C may read `values` then."""
        native.teach()
        launcher = getattr(hit.launch, "engine", None)
        return launcher, launcher and native.stream(hit.stream_of)

    def handle(self, passed: Values, hit: Hit, sizes: Any) -> Callable[..., None]:
        """Return `f(*arguments)`, which launches and decides nothing; constants may be left out.

        Args:
            passed: arguments of the classes that it will get.
            sizes: the grid where a call names none; None where that is empty.
        """
        launch, stream_of, device = hit[:3]
        plain = not self._variadic and all(map(operator.is_, self.taken(passed), passed))

        def handle(*values: Any, **named: Any) -> None:
            grid = sizes
            if named or len(values) != len(self.declared) or not plain:
                values, options = self.placed(values, named)
                other = options.pop("grid", None)
                self.check(values, options, CONSTANT)
                if options:
                    text = f"{self.name}() got an unexpected keyword argument {min(options)!r}"
                    raise self.refused(text, (), options)
                values = self.taken(values)
                grid = sizes if other is None else self.measure(other, values, hit)
            if grid is not None:
                launch(grid, stream_of(device), *values)

        door, (launcher, stream) = self.sealed(handle), self._in_c(hit, passed)
        if launcher is None or sizes is None:
            return door
        bound: Callable[..., None] = native.engine.bind(launcher, sizes, stream, door)
        return bound
