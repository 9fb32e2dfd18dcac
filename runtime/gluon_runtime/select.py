"""Which compiled form of a kernel fits the arguments of a launch.

A form fits where all that its code assumes holds. The one that assumes most is taken,
which is the one that the compiler in Gluon Core would be asked for. Assumptions are records of the
bundle's index: C compares them with the arguments, and this module words what does not fit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence

from gluon_runtime import native
from gluon_runtime.conditions import KINDS
from gluon_runtime.errors import BundleAmbiguousError, BundleArgumentError, BundleMissingError
from gluon_runtime.manifest import Form, Pattern, Tuple, leaves_of, spoken
from gluon_runtime.rules import ABSENT
from gluon_runtime.values import Pointer, kind_of

__all__ = ["Choice"]

_MOST = 2**64 - 1


@dataclass(frozen=True)
class Choice:
    """The choice among the forms of a kernel for one call.

    Args:
        kernel: a `BundledKernel`.
        seen: per parameter, the argument as `look` returned it, a constant, or `ABSENT`.
        options: compile options that the caller names.
    """

    kernel: Any
    seen: Sequence[Any]
    options: Mapping[str, Any]

    def among(self, forms: Sequence[Form]) -> Form:
        """Return the form for the launch.

        Args:
            forms: those for the device's architecture; at least one.

        Raises:
            BundleMissingError: none fits; the message names the first argument that keeps the nearest from it.
            BundleAmbiguousError: several do, and differ in a constexpr or an option that was not given.
            BundleArgumentError: an option that no form knows.
        """
        for option, value in self.options.items():
            known = [form for form in forms if option in form.options]
            fitting = [form for form in known if _text(form.options[option]) == _text(value)]
            if not known:
                listed = ", ".join([*self.kernel.names, *sorted(forms[0].options)])
                raise BundleArgumentError(
                    f"{self.kernel.name} has no such parameter or option",
                    argument=option,
                    expected=f"one of {listed}",
                )
            if not fitting:
                raise self._missing(option, known, value)
            forms = fitting
        index, places = self.kernel.bundle.index, self.kernel.places
        fits = [native.engine.fit(index, *places[f.key], self._values(f)) for f in forms]
        wrong, points, first = least = min(fits)
        if wrong:
            path, _ = leaves_of(forms[fits.index(least)].arguments)[first]
            raise self._missing(self.kernel.names[path[0]], forms, self.seen[path[0]])
        left = [form for form, fit in zip(forms, fits) if fit[:2] == (0, points)]
        plain = [form for form in left if set(form.explicit) <= set(self.options)]
        if len(left) > 1 and len(plain) != 1:
            raise self._ambiguous(left)
        return left[0] if len(left) == 1 else plain[0]

    def _values(self, form: Form) -> list[tuple[Any, ...]]:
        """Return the arguments as `engine.fit` takes them, one for each leaf of the form's patterns."""
        parameters = self.kernel.kernel.parameters
        return [
            _value(leaf, seen, parameter.constexpr)
            for parameter, *argument in zip(parameters, form.arguments, self.seen)
            for leaf, seen in _leaves(*argument)
        ]

    # -- errors ------------------------------------------------------------------------------------

    def _words(self, forms: Sequence[Form], name: str) -> str:
        """Return the arguments that forms take for a parameter or option, in words."""
        names = self.kernel.names
        if name in names:
            patterns = (form.arguments[names.index(name)] for form in forms)
            return " or ".join(dict.fromkeys(spoken(each, self.kernel.rules) for each in patterns))
        return " or ".join(dict.fromkeys(repr(form.options.get(name)) for form in forms))

    def _missing(self, name: str, forms: Sequence[Form], got: Any) -> BundleMissingError:
        return BundleMissingError(
            f"{self.kernel.name} is not in the bundle for these arguments",
            argument=name,
            expected=self._words(forms, name),
            got=repr(got),
            remedy="Add this form to the bundle, or keep the argument from changing the compiled code.",
        )

    def _ambiguous(self, forms: Sequence[Form]) -> BundleAmbiguousError:
        names = [name for name, seen in zip(self.kernel.names, self.seen) if seen is ABSENT]
        names += sorted({option for form in forms for option in form.explicit})
        choices = {name: self._words(forms, name) for name in names}
        several = {name: words for name, words in choices.items() if " or " in words}
        return BundleAmbiguousError(
            f"{len(forms)} forms of {self.kernel.name} fit",
            argument=", ".join(several) or None,
            expected="; ".join(f"{name}: {words}" for name, words in several.items()) or None,
            remedy="Give it with the launch.",
        )


def _leaves(pattern: Pattern, seen: Any) -> Iterator[tuple[Pattern, Any]]:
    """Yield each leaf of a pattern with its argument, an object that fits none where a tuple is another."""
    if not isinstance(pattern, Tuple):
        yield pattern, seen
        return
    alike = isinstance(seen, tuple) and len(seen) == len(pattern.items)
    for item, argument in zip(pattern.items, seen if alike else [object()] * len(pattern.items)):
        yield from _leaves(item, argument)


def _value(pattern: Pattern, seen: Any, constexpr: bool) -> tuple[Any, ...]:
    """Return a `gb_value` of c/gluon_bundle.h: kind, bits, number, text, bytes of storage, sizes of a descriptor."""
    kind = "left out" if seen is ABSENT else "" if constexpr else kind_of(seen)
    bits, number, text, size, sizes = 0, 0.0, None, _MOST, ((), (), ())
    if kind == "descriptor":
        sizes, seen = (seen.shape, seen.strides, seen.block_shape or ()), seen.base
    if isinstance(seen, Pointer):
        bits, text, size = seen.address, seen.dtype, _MOST if seen.size is None else seen.size
    elif kind == "bool":
        kind, bits = "boolean", seen
    elif kind == "int" and -(2**63) <= seen <= _MOST:
        kind, bits = "unsigned" if seen >= 2**63 else "integer", seen
    elif kind == "float":
        kind, number = "real", seen
    elif kind != "left out":
        kind, text = "constant", _text(seen, getattr(pattern, "opaque", False))
    return KINDS.index(kind), bits, number, text, size, sizes


def _text(value: Any, opaque: bool = False) -> str:
    """Return a constant as the index has it: JSON, where 1, true and 1.0 differ, or as Python prints an opaque one."""
    if opaque:
        return value if isinstance(value, str) else repr(value)
    return json.dumps(getattr(value, "value", value), separators=(",", ":"), default=repr)
