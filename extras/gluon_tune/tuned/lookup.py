"""`kernel[grid](..., config="tuned")`: which configuration was found for a call like this one.

`bucket_of` classifies calls: element types, and integers rounded up to powers of two.
The answer is kept by the values it depends on, so that only the first call of a kind opens the store.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

from gluon_bundle.form import identity_of
from gluon_core.errors import ArgumentError, did_you_mean
from gluon_core.launch import arguments
from gluon_core.launch.arguments import Parameter
from gluon_core.launch.place import chosen
from gluon_core.plugin.targets import Target
from gluon_core.values.constants import text_of
from gluon_runtime.rules import ABSENT
from gluon_tune import bench
from gluon_tune.errors import NotTunedError
from gluon_tune.tuned.store import (
    OBJECTIVES,
    Key,
    Store,
    Trial,
    default_path,
    is_plain,
    versions,
)

__all__ = ["Lookup", "bucket_of", "call_of", "fixed_of", "identity_of"]

_WAYS = ("tuned", "tuned:nearest")
_MOST = 4096  # kinds of calls remembered by one kernel


def _rounded(value: int) -> int:
    """Return the next power of two, with the sign of `value`."""
    size = 1 << (abs(value) - 1).bit_length() if value else 0
    return -size if value < 0 else size


def _kind(value: Any, size_of: Callable[[int], int] = _rounded) -> str:
    kind = arguments.kind_of(value)
    if kind == "int":
        return str(size_of(value))
    if kind in ("array", "pointer"):
        return f"*{arguments.dtype_name(value.dtype)}"
    if kind == "tuple":
        return f"({','.join(_kind(part, size_of) for part in value)})"
    if kind == "registered":
        base, shape = getattr(value, "base", None), getattr(value, "shape", ())
        element = "" if base is None else arguments.dtype_name(base.dtype)
        return f"{element}[{','.join(str(size_of(int(size))) for size in shape)}]"
    if kind in ("bool", "none"):
        return str(value)
    return text_of(value) if kind == "constant" else kind


def bucket_of(parameters: Sequence[Parameter], values: Sequence[Any]) -> str:
    """Return the class of a call: `a=*fp16, n=4096`; constexprs are left out."""
    pairs = zip(parameters, values)
    return ", ".join(f"{p.name}={_kind(v)}" for p, v in pairs if not p.is_constexpr)


def call_of(parameters: Sequence[Parameter], values: Sequence[Any]) -> str:
    """Return the text of one call: as `bucket_of`, with its own numbers."""
    pairs = zip(parameters, values)
    return ", ".join(f"{p.name}={_kind(v, int)}" for p, v in pairs if not p.is_constexpr)


def fixed_of(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Constants that were not searched, as a store keeps them: plain, or [their text]."""
    return {k: v if is_plain(v) else [text_of(v)] for k, v in sorted(constants.items())}


class Found(NamedTuple):
    """A configuration, split into what a kernel takes as constants, by index, and compile options."""

    constants: dict[int, Any]
    options: dict[str, Any]


class Lookup:
    """Finds configurations for one kernel.

    Args:
        kernel: the jit function.
        parameters: its.
    """

    def __init__(self, kernel: Any, parameters: Sequence[Parameter]):
        self._kernel = kernel
        self._parameters = parameters
        self._index = {p.name: index for index, p in enumerate(parameters)}
        self._known: dict[Any, Optional[Found]] = {}

    def forget(self) -> None:
        self._known.clear()

    def __call__(
        self, values: Sequence[Any], options: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the values and options to launch with instead of those given, `config` among them.

        Raises:
            NotTunedError: nothing is known, and constants without a default were left to it.
            ArgumentError: `config` is nothing that can be looked up.
            TuneStoreError: the store cannot be read.
        """
        passed = dict(options)
        how = passed.pop("config")
        key = self._key(how, values, passed)
        try:
            match = self._known[key]
        except KeyError:
            if len(self._known) >= _MOST:
                self._known.clear()
            match = self._known[key] = self._find(how, values, passed)
        except TypeError:  # an argument that cannot be part of a key
            match = self._find(how, values, passed)
        if match is None:
            self._require_fallback(how, values, passed)
            return tuple(values), passed
        filled = list(values)
        for index, value in match.constants.items():
            filled[index] = value
        return tuple(filled), {**passed, **match.options}

    def _key(self, how: Any, values: Sequence[Any], options: Mapping[str, Any]) -> Any:
        parts: list[Any] = [how if isinstance(how, str) else id(how)]
        for value in values:
            dtype = getattr(value, "dtype", None)
            if dtype is None:
                parts.append(value)
            elif hasattr(value, "get_device"):
                parts += (dtype, value.get_device())
            else:
                parts += (value.__class__, dtype)
        return (*parts, *options.items(), os.environ.get("GLUON_TARGET"))

    def _find(self, how: Any, values: Sequence[Any], options: Mapping[str, Any]) -> Optional[Found]:
        if isinstance(how, Mapping):
            rows = self._of_table(how)
        elif how in _WAYS:
            rows = self._of_store()
        else:
            raise ArgumentError(
                "unknown way to find a configuration",
                argument="config",
                expected="'tuned', 'tuned:nearest' or a table that `gluon tune --export` wrote",
                got=repr(how),
                remedy=did_you_mean(str(how), _WAYS),
            )
        target, device = self._where(values, options)
        bucket = bucket_of(self._parameters, values)
        rows = [row for row in rows if self._agrees(row[0], values)]
        rows = [row for row in rows if row[0].target == str(target)]
        exact = [
            (key, trial)
            for key, trial in rows
            if key.bucket == bucket
            and key.device in (device, "")
            and key.versions in (versions(), "")
        ]
        if exact:
            return self._split(*_first(exact))
        if how == "tuned:nearest" and rows:
            near = [row for row in rows if _distance(row[0].bucket, bucket) is not None]
            if near:
                closest = min(_distance(row[0].bucket, bucket) or 0.0 for row in near)
                near = [r for r in near if (_distance(r[0].bucket, bucket) or 0.0) == closest]
                here = [row for row in near if row[0].device == device]
                return self._split(*_first(here or near))
        return None

    def _of_store(self) -> list[tuple[Key, Trial]]:
        if not default_path().is_file():
            return []
        with Store(readonly=True) as store:
            rows = store.trials(kernel=identity_of(self._kernel))
        return [(key, trial) for key, trial in rows if trial.status == "ok"]

    def _of_table(self, table: Mapping[Any, Any]) -> list[tuple[Key, Trial]]:
        rows = []
        for place_, config in table.items():
            if not isinstance(place_, tuple) or len(place_) != 3 or not isinstance(config, Mapping):
                raise ArgumentError(
                    "not a table of configurations",
                    argument="config",
                    expected="{(target, device, arguments): {name: value}}",
                    got=f"{place_!r}: {config!r}",
                    remedy="`gluon tune --export FILE.py` writes one.",
                )
            target, device, bucket = place_
            key = Key("", target, device, bucket, "{}", "", "time")
            rows.append((key, Trial(config, "ok", 0.0)))
        return rows

    def _where(self, values: Sequence[Any], options: Mapping[str, Any]) -> tuple[Target, str]:
        """Return the target of a launch (the simulated one, if any) and the device's name."""
        places = {}
        for param, value in zip(self._parameters, values):
            if not param.is_constexpr and value is not ABSENT:
                place = arguments.place_of(value)
                if place is not None:
                    places[param.name] = place
        target, index, _ = chosen(options.get("target"), places)
        if target.simulated:
            architecture = target.architecture
            return Target(architecture.backend, architecture), ""
        return target, bench.device_name(target, index)

    def _agrees(self, key: Key, values: Sequence[Any]) -> bool:
        """Return True if the constants that were not searched are those of the call."""
        for name, known in json.loads(key.fixed).items():
            index = self._index.get(name)
            passed = ABSENT if index is None else values[index]
            if passed is ABSENT:
                if isinstance(known, list):
                    return False
            elif (known if isinstance(known, list) else [text_of(known)]) != [text_of(passed)]:
                return False
        return True

    def _split(self, key: Key, trial: Trial) -> Found:
        fixed = {k: v for k, v in json.loads(key.fixed).items() if not isinstance(v, list)}
        constants, options = {}, {}
        for name, value in {**fixed, **trial.config}.items():
            if name in self._index:
                constants[self._index[name]] = value
            else:
                options[name] = value
        return Found(constants, options)

    def _require_fallback(
        self, how: Any, values: Sequence[Any], options: Mapping[str, Any]
    ) -> None:
        missing = [p.name for p, value in zip(self._parameters, values) if value is ABSENT]
        if not missing:
            return
        target, device = self._where(values, options)
        raise NotTunedError(
            f"no configuration of {self._kernel.__name__} is known for this call",
            argument="config",
            expected=f"one for {target}{f' ({device})' if device else ''}, "
            f"{bucket_of(self._parameters, values)}",
            got="a table without it" if isinstance(how, Mapping) else f"none in {default_path()}",
            remedy=f"Run `gluon tune` for it, take the nearest with config='tuned:nearest', or give "
            f"{', '.join(missing)}: a launch falls back to given values.",
        )


def _first(rows: Sequence[tuple[Key, Trial]]) -> tuple[Key, Trial]:
    """Return the row that a launch trusts most, and of those the best."""
    return min(
        rows,
        key=lambda row: (
            not row[0].device,
            OBJECTIVES.index(row[0].objective) if row[0].objective in OBJECTIVES else 9,
            row[1].value if row[1].value is not None else float("inf"),
        ),
    )


def _distance(known: str, wanted: str) -> Optional[float]:
    """Return the number of doublings between the sizes of two buckets; None where types differ."""
    pairs = list(zip(known.split(", "), wanted.split(", ")))
    if len(known.split(", ")) != len(wanted.split(", ")):
        return None
    total = 0.0
    for one, other in pairs:
        if one == other:
            continue
        (name, _, a), (other_name, _, b) = one.partition("="), other.partition("=")
        if name != other_name or not (a.lstrip("-").isdigit() and b.lstrip("-").isdigit()):
            return None
        total += abs(abs(int(a)).bit_length() - abs(int(b)).bit_length()) + (int(a) * int(b) < 0)
    return total
