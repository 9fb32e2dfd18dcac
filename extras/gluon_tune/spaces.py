"""Define a search space: values of constants and options, and which of them go together."""

from __future__ import annotations

import inspect
import itertools
import math
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from gluon_tune.errors import TuneSpaceError
from gluon_tune.tuned.store import is_plain

__all__ = ["Config", "Space", "calling", "configs_of", "space"]

Config = Mapping[str, Any]


def calling(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call `function` with those of the keyword arguments that it takes."""
    taken = inspect.signature(function).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken):
        return function
    names = {p.name for p in taken}
    return lambda *args, **keywords: function(
        *args, **{k: v for k, v in keywords.items() if k in names}
    )


class Space:
    """Configurations: all combinations of values, or a list. `space` and `configs_of` make one.

    Args:
        values: name -> values, in the order in which neighbours are alike.
        when: `f(**config) -> bool`: which combinations belong to it; it takes the names that it needs.
        listed: the configurations, where they are no combinations.
    """

    def __init__(
        self,
        values: Mapping[str, Sequence[Any]],
        when: Optional[Callable[..., Any]] = None,
        listed: Optional[Sequence[Config]] = None,
    ):
        self.values: dict[str, tuple[Any, ...]] = {}
        for name, choices in values.items():
            if isinstance(choices, (str, bytes)) or not isinstance(choices, (list, tuple, range)):
                raise TuneSpaceError(
                    "not a list of values", argument=name, expected="a list", got=repr(choices)
                )
            self.values[name] = _checked(name, tuple(choices))
        if not self.values:
            raise TuneSpaceError("a space without names", argument="space", expected="NAME=[...]")
        self.when = when
        self._fits = calling(when) if when is not None else None
        self.listed = None if listed is None else [dict(config) for config in listed]

    @property
    def size(self) -> int:
        """Return the number of combinations, including those that `when` refuses."""
        if self.listed is not None:
            return len(self.listed)
        return math.prod(map(len, self.values.values()))

    def __contains__(self, config: Config) -> bool:
        if self.listed is not None:
            return dict(config) in self.listed
        if set(config) != set(self.values):
            return False
        if any(config[name] not in choices for name, choices in self.values.items()):
            return False
        return self._fits is None or bool(self._fits(**config))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.listed is not None:
            yield from map(dict, self.listed)
            return
        for combination in itertools.product(*self.values.values()):
            config = dict(zip(self.values, combination))
            if self._fits is None or self._fits(**config):
                yield config

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{k}={list(v)}' for k, v in self.values.items())})"


def _checked(name: str, choices: tuple[Any, ...]) -> tuple[Any, ...]:
    if not choices:
        raise TuneSpaceError("no values to choose from", argument=name)
    for value in choices:
        if not is_plain(value):
            raise TuneSpaceError(
                "values are kept as JSON",
                argument=name,
                expected="numbers, booleans, strings and None",
                got=f"{value!r} ({type(value).__name__})",
                remedy="Search numbers, and make layouts of them in the kernel.",
            )
    if len({(type(v), v) for v in choices}) != len(choices):
        raise TuneSpaceError("a value occurs twice", argument=name, got=list(choices))
    return choices


def space(*, when: Optional[Callable[..., Any]] = None, **values: Sequence[Any]) -> Space:
    """Return all combinations of values of constants and compile options.

    Args:
        when: `f(BLOCK_M, num_warps) -> bool`: which combinations belong to the space; it is called with
            the names that it takes.
        values: name of a constexpr or an option -> list of numbers, booleans, strings or None.

    Raises:
        TuneSpaceError: no names, no values, or values that are not plain.
    """
    return Space(values, when)


def configs_of(kernel: Any) -> Space:
    """Return the configurations of a `triton.autotune` decorator.

    Raises:
        TuneSpaceError: `kernel` has none.
    """
    configs = getattr(kernel, "configs", None)
    if not configs:
        raise TuneSpaceError(
            "not decorated with triton.autotune",
            argument="kernel",
            got=getattr(kernel, "__name__", type(kernel).__name__),
            remedy="Give a space: tune.space(BLOCK=[...]).",
        )
    listed = [dict(config.all_kwargs()) for config in configs]
    names = dict.fromkeys(name for config in listed for name in config)
    if any(set(config) != set(names) for config in listed):
        raise TuneSpaceError(
            "its configurations do not give values to the same names", argument="kernel"
        )
    values = {n: list({(type(c[n]), c[n]): c[n] for c in listed}.values()) for n in names}
    return Space(values, listed=listed)
