"""The key of a launch, everything that a call is compiled for: target, device, types and marks of the arguments, options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from gluon_core import _triton
from gluon_core.compiler.driver import requested_options
from gluon_core.errors import LimitError, OptionError, did_you_mean
from gluon_core.launch.arguments import Argument
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.targets import Target
from gluon_core.values.constants import identity, text_of

__all__ = ["Specialization", "specialize"]


@dataclass(frozen=True)
class Specialization:
    """Everything that one compiled form of a kernel was chosen by.

    Args:
        target: where it runs.
        device: index of the device.
        described: each argument as the compiler sees it.
        options: the parsed compile options.
        strict: as in `gluon.jit`.
        key: all of it as text.
        lasting: the constants never change.
        backend: that of the target.
    """

    target: Target
    device: int
    described: tuple[Argument, ...]
    options: Any
    strict: bool
    key: str
    lasting: bool
    backend: Backend

    def differences(
        self, other: Specialization, names: Sequence[str]
    ) -> list[tuple[str, str, str]]:
        """Return the differences to `other`: a name, its value here, and its value there."""
        shown = [
            (name, _spoken(before), _spoken(after))
            for name, before, after in zip(names, self.described, other.described)
            if (before.kind, text_of(before.attributes)) != (after.kind, text_of(after.attributes))
        ]
        here, there = (f"{each.target} device {each.device}" for each in (self, other))
        ours, theirs = vars(self.options), vars(other.options)
        changed = [name for name in theirs if ours.get(name) != theirs[name]]
        old, new = (", ".join(f"{n}={one.get(n)!r}" for n in changed) for one in (ours, theirs))
        strict = ("strict", str(self.strict), str(other.strict))
        others = [("target", here, there), strict, ("options", old, new)]
        return shown + [each for each in others if each[1] != each[2]]


def specialize(
    kernel: Any,
    names: Sequence[str],
    described: Sequence[Argument],
    requested: Mapping[str, Any],
    place: tuple[Target, int, Backend],
) -> Specialization:
    """Return the specialization of a call.

    Args:
        names: of the parameters.
        described: the arguments.
        requested: the options of the call.
        place: where it runs.
    """
    where, (target, device, backend) = kernel.__name__, place
    constants = {
        parameter.name: known.value
        for parameter, known in zip(kernel.params, described)
        if parameter.is_constexpr
    }
    try:
        parsed, strict = requested_options(kernel, requested, constants, backend, target)
    except OptionError as error:
        near = error.argument in requested and did_you_mean(error.argument or "", names)
        if near:
            error.message = f"{where} has no such parameter, and {error.message}"
            error.remedy = near
        raise
    except LimitError as error:
        raise _triton.caught_as(error) from None
    text, lasting = [str(target), str(device), repr(parsed)], True
    for name, known in zip(names, described):
        of_constant = identity(known.attributes)
        text.append(f"{known.kind!r}={of_constant.text}")
        lasting &= of_constant.settled or name not in constants
    text += [] if strict else ["strict=False"]
    key = "\n".join(text)
    kept = tuple([Argument(*known[:2]) for known in described])  # no tensors
    return Specialization(target, device, kept, parsed, strict, key, lasting, backend)


def _spoken(described: Argument) -> str:
    kind, marks = described[:2]
    if kind == "constexpr":
        return f"constant {marks!r}"
    if not isinstance(kind, str):
        return f"{kind} {marks}"
    words = {"D": " divisible by 16", "S": " into less than 2 GiB"}
    return kind + "".join(words[mark] for mark in marks or "")
