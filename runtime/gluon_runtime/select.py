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

__all__ = ["Choice", "spoken"]


class Choice:
    """The choice among the forms of a kernel for one call.

    Args:
        name: of the kernel.
        seen: per parameter, a `Seen` or `ABSENT`.
        options: compile options that the caller names.
    """

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        seen: Sequence[Any],
        options: Mapping[str, Any],
        rules: Rules,
    ):
        self.name, self.parameters, self.rules = name, kernel.parameters, rules
        self.seen, self.options = seen, options

    def among(self, forms: Sequence[Form]) -> Form:
        """Return the form for the launch.

        Args:
            forms: those for the device's architecture; at least one.

        Raises:
            BundleMissingError: none fits; the message names the arguments that keep the nearest from it.
            BundleAmbiguousError: several do, and differ in a constexpr or an option that was not given.
            BundleArgumentError: an option that no form knows.
        """
        known = {option for form in forms for option in form.options}
        for option in self.options:
            if option not in known:
                raise BundleArgumentError(
                    f"{self.name} has no such parameter or option",
                    argument=option,
                    expected=f"one of {', '.join([*(p.name for p in self.parameters), *sorted(known)])}",
                )
        fitting: list[tuple[int, Form]] = []
        wrong: list[tuple[list[int], Form]] = []
        for form in forms:
            if any(not _same(form.options.get(k), v) for k, v in self.options.items()):
                continue
            scores = list(map(self._score, self.parameters, form.arguments, self.seen))
            bad = [index for index, score in enumerate(scores) if score is None]
            if bad:
                wrong.append((bad, form))
            else:
                fitting.append((sum(filter(None, scores)), form))
        if not fitting:
            raise self._missing(forms, wrong)
        best = max(score for score, _ in fitting)
        left = [form for score, form in fitting if score == best]
        if len(left) > 1:
            plain = [form for form in left if set(form.explicit) <= set(self.options)]
            left = plain if len(plain) == 1 else left
        if len(left) > 1:
            raise self._ambiguous(left)
        return left[0]

    def _score(self, parameter: Parameter, pattern: Pattern, seen: Any) -> Optional[int]:
        """Return how many of the seen facts the pattern uses; None where it does not fit."""
        if seen is ABSENT:
            return 0
        if isinstance(pattern, Tuple):
            if seen.kind != "tuple" or len(seen.value) != len(pattern.items):
                return None
            inside = [self._score(parameter, p, s) for p, s in zip(pattern.items, seen.value)]
            return None if None in inside else sum(filter(None, inside))
        if isinstance(pattern, Described):
            return 0 if _descriptor_fits(pattern, seen) else None
        if isinstance(pattern, Constant):
            points = 0 if parameter.constexpr else CONSTANT_SCORE
            return points if _constant_fits(pattern, seen) else None
        condition = condition_of(parameter, pattern, self.rules)
        return condition.score(seen.kind, seen.value, seen.dtype, seen.size)

    # -- errors ------------------------------------------------------------------------------------

    def _missing(
        self, forms: Sequence[Form], wrong: Sequence[tuple[list[int], Form]]
    ) -> BundleMissingError:
        remedy = (
            "Add this form to the bundle, or keep the argument from changing the compiled code."
        )
        if not wrong:
            there = sorted({f"{k}={f.options.get(k)!r}" for f in forms for k in self.options})
            return BundleMissingError(
                f"{self.name} is not in the bundle with these options",
                argument=", ".join(self.options),
                expected=" or ".join(there),
                got=", ".join(f"{k}={v!r}" for k, v in self.options.items()),
                remedy=remedy,
            )
        bad, form = min(wrong, key=lambda pair: len(pair[0]))
        near = [other for theirs, other in wrong if theirs == bad]
        names, expected, got = [self.parameters[index].name for index in bad], [], []
        for name, index in zip(names, bad):
            words = dict.fromkeys(spoken(other.arguments[index], self.rules) for other in near)
            expected.append(f"{name}: {' or '.join(words)}")
            got.append(f"{name}: {_described(form.arguments[index], self.seen[index], self.rules)}")
        if len(wrong) > 1:
            remedy += f" That is the nearest of {len(wrong)} forms."
        return BundleMissingError(
            f"{self.name} is not in the bundle for these arguments",
            argument=", ".join(names),
            expected="; ".join(expected),
            got="; ".join(got),
            remedy=remedy,
        )

    def _ambiguous(self, forms: Sequence[Form]) -> BundleAmbiguousError:
        choices: list[tuple[str, list[str]]] = []
        for index, parameter in enumerate(self.parameters):
            if self.seen[index] is ABSENT:
                patterns = (form.arguments[index] for form in forms)
                choices.append((parameter.name, sorted(set(map(_constant_text, patterns)))))
        for option in sorted({option for form in forms for option in form.explicit}):
            choices.append((option, sorted({repr(form.options.get(option)) for form in forms})))
        choices = [choice for choice in choices if len(choice[1]) > 1]
        return BundleAmbiguousError(
            f"{len(forms)} forms of {self.name} fit",
            argument=", ".join(name for name, _ in choices) or None,
            expected="; ".join(f"{name}: {' or '.join(texts)}" for name, texts in choices) or None,
            remedy="Give it with the launch.",
        )


def _same(ours: Any, theirs: Any) -> bool:
    """Return True if two constants compile to the same: 1, True and 1.0 do not."""
    if isinstance(ours, tuple) and isinstance(theirs, (tuple, list)):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return repr(ours) == repr(theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)


def _constant_fits(pattern: Constant, seen: Seen) -> bool:
    value, as_object = seen.value, seen.kind in ("constant", "other")
    if pattern.opaque:
        text = value if isinstance(value, str) else repr(value)
        return as_object and bool(pattern.value == text)
    known = as_object or seen.kind in ("int", "none")
    return known and _same(pattern.value, getattr(value, "value", value))


def _descriptor_fits(pattern: Described, seen: Seen) -> bool:
    element = "u1" if pattern.element == "i1" else pattern.element
    if seen.kind != "descriptor" or seen.dtype != element:
        return False
    value = seen.value
    return (
        len(value.shape) == pattern.rank
        and value.block_shape in (None, pattern.block)
        and value.layout in (None, pattern.layout)
    )


# -- words of errors -------------------------------------------------------------------------------


def spoken(pattern: Pattern, rules: Rules) -> str:
    """Return a pattern in words."""
    if isinstance(pattern, Tuple):
        return f"({', '.join(spoken(item, rules) for item in pattern.items)})"
    if isinstance(pattern, Constant):
        return f"constant {_constant_text(pattern)}"
    if isinstance(pattern, Described):
        rank = "" if pattern.rank == len(pattern.block) else f" of rank {pattern.rank}"
        return f"{pattern.text}{rank}"
    words = [pattern.type]
    if pattern.divisible:
        words.append(f"divisible by {rules.divisibility}")
    if pattern.small:
        words.append(f"into at most {rules.small} bytes")
    return " ".join(words)


def _described(pattern: Pattern, seen: Seen, rules: Rules) -> str:
    """Describe an argument in the words that matter for `pattern`."""
    if seen.kind == "constant":
        return f"constant {seen.value!r}"
    if seen.kind == "tuple":
        parts = pattern.items if isinstance(pattern, Tuple) else [pattern] * len(seen.value)
        return f"({', '.join(_described(p, s, rules) for p, s in zip(parts, seen.value))})"
    if seen.kind == "pointer":
        text = f"*{seen.dtype or '?'}"
        if isinstance(pattern, Value) and pattern.divisible and seen.value % rules.divisibility:
            text += f" at {seen.value:#x}, which is not divisible by {rules.divisibility}"
        elif isinstance(pattern, Value) and pattern.small:
            text += f" into {'an unknown number of' if seen.size is None else seen.size} bytes"
        return text
    if seen.kind == "descriptor":
        value = seen.value
        box = "" if value.block_shape is None else f" in boxes of {list(value.block_shape)}"
        layout = "" if value.layout is None else f" in {value.layout}"
        return f"a descriptor of {seen.dtype}{list(value.shape)}{box}{layout}"
    return "None" if seen.kind == "none" else f"{type(seen.value).__name__} {seen.value!r}"


def _constant_text(pattern: Pattern) -> str:
    if isinstance(pattern, Constant):
        return str(pattern.value) if pattern.opaque else repr(pattern.value)
    return "a value"
