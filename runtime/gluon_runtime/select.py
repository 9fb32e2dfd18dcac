"""Which compiled form of a kernel fits the arguments of a launch.

A form fits where all that its code assumes holds. The one that assumes most is taken,
which is the one that the compiler in Gluon Core would be asked for. Assumptions are data of the
manifest: the type of an argument, its constants and its marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Mapping, Optional, Sequence

from gluon_runtime import native
from gluon_runtime.conditions import CONSTANT_SCORE, KINDS, condition
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
    spoken,
)
from gluon_runtime.rules import ABSENT
from gluon_runtime.values import Pointer, kind_of

__all__ = ["Choice"]


@dataclass(frozen=True)
class Choice:
    """The choice among the forms of a kernel for one call.

    Args:
        name: of the kernel.
        seen: per parameter, the argument as `look` returned it, a constant, or `ABSENT`.
        options: compile options that the caller names.
    """

    name: str
    kernel: Kernel
    seen: Sequence[Any]
    options: Mapping[str, Any]
    rules: Rules

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
                listed = ", ".join([*(p.name for p in self.kernel.parameters), *sorted(known)])
                raise BundleArgumentError(
                    f"{self.name} has no such parameter or option",
                    argument=option,
                    expected=f"one of {listed}",
                )
        scores = [self._scores(form) for form in forms]
        sums = [None if None in each.values() else sum(each.values()) for each in scores]
        best = max((total for total in sums if total is not None), default=None)
        if best is None:
            misfits = [[name for name, score in each.items() if score is None] for each in scores]
            raise self._missing(forms, misfits)
        left = [form for form, total in zip(forms, sums) if total == best]
        plain = [form for form in left if set(form.explicit) <= set(self.options)]
        if len(left) > 1 and len(plain) != 1:
            raise self._ambiguous(left)
        return left[0] if len(left) == 1 else plain[0]

    def _scores(self, form: Form) -> dict[str, Any]:
        """Return how many facts about each argument the form uses, and 0 for an option; None for those that do not fit."""
        parameters = self.kernel.parameters
        scores = map(self._score, parameters, form.arguments, self.seen)
        known: dict[str, Any] = dict(zip([p.name for p in parameters], scores))
        for option, value in self.options.items():
            known[option] = 0 if _same(form.options.get(option), value) else None
        return known

    def _score(self, parameter: Parameter, pattern: Pattern, seen: Any) -> Optional[int]:
        if seen is ABSENT:
            return 0
        if isinstance(pattern, Tuple):
            if not isinstance(seen, tuple) or len(seen) != len(pattern.items):
                return None
            inside = [self._score(parameter, p, s) for p, s in zip(pattern.items, seen)]
            return None if None in inside else sum(filter(None, inside))
        if isinstance(pattern, Described):
            return 0 if _descriptor_fits(pattern, seen) else None
        if isinstance(pattern, Constant):
            points = 0 if parameter.constexpr else CONSTANT_SCORE
            return points if _constant_fits(parameter, pattern, seen) else None
        return score(parameter, pattern, seen, self.rules)

    # -- errors ------------------------------------------------------------------------------------

    def _words(self, forms: Iterable[Form], name: str) -> str:
        """Return the arguments that forms take for a parameter or option, in words."""
        names = [parameter.name for parameter in self.kernel.parameters]
        if name in names:
            patterns = (form.arguments[names.index(name)] for form in forms)
            return " or ".join(dict.fromkeys(spoken(each, self.rules) for each in patterns))
        return " or ".join(dict.fromkeys(repr(form.options.get(name)) for form in forms))

    def _missing(self, forms: Sequence[Form], misfits: Sequence[Any]) -> BundleMissingError:
        wrong = min(misfits, key=len)
        near = [form for form, names in zip(forms, misfits) if names == wrong]
        got = {name: repr(value) for name, value in self.options.items()}
        for parameter, seen in zip(self.kernel.parameters, self.seen):
            constant = f"constant {seen!r}" if parameter.constexpr else ""
            got[parameter.name] = constant or _described(seen, self.rules)
        nearest = f" That is the nearest of {len(forms)} forms." if len(forms) > 1 else ""
        return BundleMissingError(
            f"{self.name} is not in the bundle for these arguments",
            argument=", ".join(wrong),
            expected="; ".join(f"{name}: {self._words(near, name)}" for name in wrong),
            got="; ".join(f"{name}: {got[name]}" for name in wrong),
            remedy="Add this form to the bundle, or keep the argument from changing the compiled "
            f"code.{nearest}",
        )

    def _ambiguous(self, forms: Sequence[Form]) -> BundleAmbiguousError:
        names = [p.name for p, s in zip(self.kernel.parameters, self.seen) if s is ABSENT]
        names += sorted({option for form in forms for option in form.explicit})
        choices = {name: self._words(forms, name) for name in names}
        several = {name: words for name, words in choices.items() if " or " in words}
        return BundleAmbiguousError(
            f"{len(forms)} forms of {self.name} fit",
            argument=", ".join(several) or None,
            expected="; ".join(f"{name}: {words}" for name, words in several.items()) or None,
            remedy="Give it with the launch.",
        )


def _same(ours: Any, theirs: Any) -> bool:
    """Return True if two constants compile to the same: 1, True and 1.0 do not."""
    if isinstance(ours, tuple) and isinstance(theirs, (tuple, list)):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return repr(ours) == repr(theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)


def score(parameter: Parameter, pattern: Value, seen: Any, rules: Rules) -> Optional[int]:
    """Return the score of an argument for a value that code takes, by the engine; None where it does not fit."""
    kinds = {"pointer": "pointer", "int": "integer", "float": "real", "bool": "boolean"}
    kind, known, most = kinds.get(kind_of(seen)), condition(parameter, pattern, rules), 2**64 - 1
    if kind is None:
        return None
    of = seen if kind == "pointer" else Pointer(0 if kind == "real" else seen)
    if not -(2**63) <= of.address <= most:
        return None
    kind = "unsigned" if kind == "integer" and of.address >= 2**63 else kind
    size = most if of.size is None else of.size
    value = KINDS.index(kind), of.address & most, of.dtype, size
    points: Optional[int] = native.engine.score(known.packed(1), known.text, *value)
    return points


def _constant_fits(parameter: Parameter, pattern: Constant, seen: Any) -> bool:
    kind = "" if parameter.constexpr else kind_of(seen)
    if pattern.opaque:
        return not kind and bool(pattern.value == (seen if isinstance(seen, str) else repr(seen)))
    return kind in ("", "int", "none") and _same(pattern.value, getattr(seen, "value", seen))


def _descriptor_fits(pattern: Described, seen: Any) -> bool:
    element = "u1" if pattern.element == "i1" else pattern.element
    if kind_of(seen) != "descriptor" or seen.base.dtype != element:
        return False
    fits = len(seen.shape) == pattern.rank and seen.block_shape in (None, pattern.block)
    return fits and seen.layout in (None, pattern.layout)


def _described(seen: Any, rules: Rules) -> str:
    """Return an argument in words."""
    kind = kind_of(seen)
    if kind == "tuple":
        return f"({', '.join(_described(item, rules) for item in seen)})"
    if kind == "pointer":
        size = "an unknown number of" if seen.size is None else seen.size
        divisible = "" if seen.address % rules.divisibility == 0 else "not "
        return (
            f"*{seen.dtype or '?'} at {seen.address:#x}, {divisible}divisible by {rules.divisibility}, "
            f"into {size} bytes"
        )
    if kind == "descriptor":
        box = "" if seen.block_shape is None else f" in boxes of {list(seen.block_shape)}"
        layout = "" if seen.layout is None else f" in {seen.layout}"
        return f"a descriptor of {seen.base.dtype}{list(seen.shape)}{box}{layout}"
    return "None" if seen is None else f"{type(seen).__name__} {seen!r}"
