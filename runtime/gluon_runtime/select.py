"""Which compiled form of a kernel fits the arguments of a launch.

A form fits where all that its code assumes holds. The one that assumes most is taken,
which is the one that the compiler in Gluon Core would be asked for. Assumptions are data of the
manifest: the type of an argument, its constants and its marks.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from gluon_runtime.arrays import Seen
from gluon_runtime.errors import BundleAmbiguousError, BundleArgumentError, BundleMissingError
from gluon_runtime.manifest import (
    Constant,
    Described,
    Form,
    Kernel,
    Parameter,
    Pattern,
    Rules,
    Tuple,
    Value,
    condition_of,
)
from gluon_runtime.rules import ABSENT, CONSTANT_SCORE

__all__ = ["select", "spoken"]


def select(
    name: str,
    kernel: Kernel,
    forms: Sequence[Form],
    seen: Sequence[Any],
    options: Mapping[str, Any],
    rules: Rules,
) -> Form:
    """Return the form for a launch.

    Args:
        name: of the kernel.
        forms: those for the device's architecture; at least one.
        seen: per parameter, a `Seen`, the value of a constexpr, or `ABSENT`.
        options: compile options that the caller names.

    Raises:
        BundleMissingError: none fits; the message names the arguments that keep the nearest from it.
        BundleAmbiguousError: several do, and differ in a constexpr or an option that was not given.
        BundleArgumentError: an option that no form knows.
    """
    known = {option for form in forms for option in form.options}
    for option in options:
        if option not in known:
            raise BundleArgumentError(
                f"{name} has no such parameter or option",
                argument=option,
                expected=f"one of {', '.join([*(p.name for p in kernel.parameters), *sorted(known)])}",
            )
    fitting: list[tuple[int, Form]] = []
    wrong: list[tuple[int, Form, list[int]]] = []
    for form in forms:
        if any(not _same(form.options.get(k), v) for k, v in options.items()):
            continue
        scores = [
            _score(parameter, pattern, value, rules)
            for parameter, pattern, value in zip(kernel.parameters, form.arguments, seen)
        ]
        bad = [index for index, score in enumerate(scores) if score is None]
        if bad:
            wrong.append((len(bad), form, bad))
        else:
            fitting.append((sum(score or 0 for score in scores), form))
    if not fitting:
        raise _missing(name, kernel, forms, seen, options, wrong, rules)
    best = max(score for score, _ in fitting)
    left = [form for score, form in fitting if score == best]
    if len(left) > 1:
        plain = [form for form in left if set(form.explicit) <= set(options)]
        left = plain if len(plain) == 1 else left
    if len(left) > 1:
        raise _ambiguous(name, kernel, left, seen)
    return left[0]


def _same(ours: Any, theirs: Any) -> bool:
    """Return True if two constants compile to the same: 1, True and 1.0 do not."""
    if isinstance(ours, tuple) and isinstance(theirs, (tuple, list)):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return repr(ours) == repr(theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)


def _score(parameter: Parameter, pattern: Pattern, seen: Any, rules: Rules) -> Optional[int]:
    """Return how many of the seen facts the pattern uses; None where it does not fit."""
    if seen is ABSENT:
        return 0
    if parameter.constexpr:
        return 0 if _constant_fits(pattern, seen) else None
    return _fits(parameter, pattern, seen, rules)


def _constant_fits(pattern: Pattern, value: Any) -> bool:
    if not isinstance(pattern, Constant):
        return False
    if pattern.opaque:
        return bool(pattern.value == (value if isinstance(value, str) else repr(value)))
    return _same(pattern.value, getattr(value, "value", value))


def _fits(parameter: Parameter, pattern: Pattern, seen: Seen, rules: Rules) -> Optional[int]:
    if isinstance(pattern, Tuple):
        if seen.kind != "tuple" or len(seen.value) != len(pattern.items):
            return None
        inside = [_fits(parameter, p, s, rules) for p, s in zip(pattern.items, seen.value)]
        return None if None in inside else sum(score or 0 for score in inside)
    if isinstance(pattern, Described):
        return _descriptor_fits(pattern, seen)
    if isinstance(pattern, Constant):
        if seen.kind == "other":
            return CONSTANT_SCORE if _constant_fits(pattern, seen.value) else None
        plain = seen.kind in ("int", "none") and not pattern.opaque
        return CONSTANT_SCORE if plain and _same(pattern.value, seen.value) else None
    condition = condition_of(parameter, pattern, rules)
    return condition.score(seen.kind, seen.value, seen.dtype, seen.size)


def _descriptor_fits(pattern: Described, seen: Seen) -> Optional[int]:
    element = "u1" if pattern.element == "i1" else pattern.element
    if seen.kind != "descriptor" or seen.dtype != element:
        return None
    value = seen.value
    fits = (
        len(value.shape) == pattern.rank
        and value.box in (None, pattern.block)
        and value.layout in (None, pattern.layout)
    )
    return 0 if fits else None


# -- messages of errors ----------------------------------------------------------------------------


def spoken(pattern: Pattern, rules: Rules) -> str:
    """Return a pattern in words."""
    if isinstance(pattern, Tuple):
        return f"({', '.join(spoken(item, rules) for item in pattern.items)})"
    if isinstance(pattern, Constant):
        return f"constant {pattern.value if pattern.opaque else repr(pattern.value)}"
    if isinstance(pattern, Described):
        rank = "" if pattern.rank == len(pattern.block) else f" of rank {pattern.rank}"
        return f"{pattern.text}{rank}"
    words = [pattern.type]
    if pattern.divisible:
        words.append(f"divisible by {rules.divisibility}")
    if pattern.small:
        words.append(f"into at most {rules.small} bytes")
    return " ".join(words)


def _described(parameter: Parameter, pattern: Pattern, seen: Any, rules: Rules) -> str:
    """Describe the argument in the words that matter for `pattern`."""
    if parameter.constexpr:
        return f"constant {seen!r}"
    if seen.kind == "tuple":
        parts = pattern.items if isinstance(pattern, Tuple) else [pattern] * len(seen.value)
        items = (_described(parameter, p, s, rules) for p, s in zip(parts, seen.value))
        return f"({', '.join(items)})" if seen.value else "()"
    if seen.kind == "pointer":
        text = f"*{seen.dtype or '?'}"
        if isinstance(pattern, Value) and pattern.divisible and seen.value % rules.divisibility:
            text += f" at {seen.value:#x}, which is not divisible by {rules.divisibility}"
        elif isinstance(pattern, Value) and pattern.small:
            text += f" into {'an unknown number of' if seen.size is None else seen.size} bytes"
        return text
    if seen.kind == "descriptor":
        value = seen.value
        box = "" if value.box is None else f" in boxes of {list(value.box)}"
        layout = "" if value.layout is None else f" in {value.layout}"
        return f"a descriptor of {seen.dtype}{list(value.shape)}{box}{layout}"
    if seen.kind == "none":
        return "None"
    return f"{type(seen.value).__name__} {seen.value!r}"


def _missing(
    name: str,
    kernel: Kernel,
    forms: Sequence[Form],
    seen: Sequence[Any],
    options: Mapping[str, Any],
    wrong: Sequence[tuple[int, Form, list[int]]],
    rules: Rules,
) -> BundleMissingError:
    remedy = "Add this form to the bundle, or keep the argument from changing the compiled code."
    if not wrong:
        there = sorted({f"{k}={f.options.get(k)!r}" for f in forms for k in options})
        return BundleMissingError(
            f"{name} is not in the bundle with these options",
            argument=", ".join(options),
            expected=" or ".join(there),
            got=", ".join(f"{k}={v!r}" for k, v in options.items()),
            remedy=remedy,
        )
    _, form, bad = min(wrong, key=lambda item: item[0])
    names = [kernel.parameters[index].name for index in bad]
    near = [other for _, other, theirs in wrong if theirs == bad]
    expected = []
    for index in bad:
        words = dict.fromkeys(spoken(other.arguments[index], rules) for other in near)
        expected.append(" or ".join(words))
    got = [
        _described(kernel.parameters[index], form.arguments[index], seen[index], rules)
        for index in bad
    ]
    return BundleMissingError(
        f"{name} is not in the bundle for these arguments",
        argument=", ".join(names),
        expected="; ".join(f"{n}: {text}" for n, text in zip(names, expected)),
        got="; ".join(f"{n}: {text}" for n, text in zip(names, got)),
        remedy=remedy
        if len(wrong) == 1
        else f"{remedy} That is the nearest of {len(wrong)} forms.",
    )


def _ambiguous(
    name: str, kernel: Kernel, forms: Sequence[Form], seen: Sequence[Any]
) -> BundleAmbiguousError:
    choices: list[tuple[str, list[str]]] = []
    for index, parameter in enumerate(kernel.parameters):
        values = sorted({_constant_text(form.arguments[index]) for form in forms})
        if seen[index] is ABSENT and len(values) > 1:
            choices.append((parameter.name, values))
    for option in sorted({option for form in forms for option in form.explicit}):
        values = sorted({repr(form.options.get(option)) for form in forms})
        if len(values) > 1:
            choices.append((option, values))
    return BundleAmbiguousError(
        f"{len(forms)} forms of {name} fit",
        argument=", ".join(choice for choice, _ in choices) or None,
        expected="; ".join(f"{choice}: {' or '.join(values)}" for choice, values in choices)
        or None,
        remedy="Give it with the launch.",
    )


def _constant_text(pattern: Pattern) -> str:
    if isinstance(pattern, Constant):
        return str(pattern.value) if pattern.opaque else repr(pattern.value)
    return "a value"
