"""Every mistake that Gluon Core reports, one class each; those of plugins are found here, too.

A message names the argument, the expected and the actual value, and the remedy. Where the
mistake is in a kernel, the frontend adds the kernel's file, line and a caret (`SourceSpan`).
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Optional, TypeVar, cast

from gluon_core.tracebacks import (
    MACHINERY,
    SourceSpan,
    name_of_cell,
    trimmed_traceback,
    without_addresses,
)

__all__ = [
    "MACHINERY",
    "ArgumentError",
    "BackendError",
    "CacheError",
    "CallError",
    "CapabilityError",
    "DeviceError",
    "DistributedError",
    "DtypeError",
    "GlobalVariableError",
    "GluonError",
    "HostFunctionError",
    "IntegerError",
    "KernelChangedError",
    "KernelSyntaxError",
    "KernelWarning",
    "LaunchError",
    "LayoutError",
    "LimitError",
    "NotInKernelError",
    "OptionError",
    "PluginError",
    "RankMismatchError",
    "RecompileError",
    "ShapeError",
    "SourceSpan",
    "StageError",
    "StaticAssertionError",
    "TargetError",
    "TensorError",
    "TraceError",
    "TritonVersionError",
    "answering",
    "did_you_mean",
    "is_strict",
    "refuse",
    "strict_by_default",
    "trimmed",
    "trimmed_traceback",
    "trims",
    "without_addresses",
]


class GluonError(Exception):
    """Base of every error that Gluon Core raises on purpose.

    Args:
        message: the mistake, in one sentence.
        argument: the argument at fault.
        expected: values that would have been accepted.
        got: the actual value.
        remedy: the fix.
    """

    calls: tuple[SourceSpan, ...] = ()  # the calls that led to `span`, innermost first

    def __init__(
        self,
        message: str,
        *,
        argument: Optional[str] = None,
        expected: Any = None,
        got: Any = None,
        remedy: Optional[str] = None,
        span: Optional[SourceSpan] = None,
    ):
        self.message = message
        self.argument = argument
        self.expected = expected
        self.got = got
        self.remedy = remedy
        self.span = span
        super().__init__(message)

    def __str__(self) -> str:
        text = self.message
        if self.argument is not None:
            text = f"{self.argument}: {text}"
        if self.expected is not None:
            text += f"; expected {self.expected}"
        parts = (
            self.expected is None and str(self.got)[:1] in "'\"" and str(self.got) in self.message
        )
        if self.got is not None and not parts:
            text += f", got {self.got}" if self.expected is not None else f"; got {self.got}"
        text = without_addresses(text)
        if self.remedy:
            text = f"{text.rstrip('.')}. {self.remedy}"
        if self.span is not None:
            text += f"\n  at {self.span.render()}"
        for call, times in _repeated(self.calls):
            again = f"  ({times} times)" if times > 1 else ""
            text += f"\n  called from {call.render()}{again}"
        return text

    def _render_traceback_(self) -> list[str]:
        """Return the text for a notebook: the user's frames, without those of the machinery, and the error."""
        if os.environ.get("GLUON_TRACEBACK") == "full":
            shell = sys.modules["IPython"].get_ipython()
            lines: list[str] = shell.InteractiveTB.structured_traceback(
                type(self), self, self.__traceback__
            )
            return lines
        shown = []
        entry = trimmed_traceback(self.__traceback__)
        while entry is not None:
            file, line = entry.tb_frame.f_code.co_filename, entry.tb_lineno
            top = str(entry.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
            if top not in ("IPython", "ipykernel"):
                text = linecache.getline(file, line).rstrip("\n")
                shown += [f"{name_of_cell(file) or file}, line {line}", f"----> {text.strip()}"]
            entry = entry.tb_next
        return [*shown, "", f"{type(self).__name__}: {self}"]

    def as_dict(self) -> dict[str, Any]:
        """Return for machines: `class`, `message`, `file`, `line` and `column` (from 1) where it has a
        place in a kernel, and further facts of the class, such as `program` and `element`."""
        message = without_addresses(str(self))
        record: dict[str, Any] = {"class": type(self).__name__, "message": message}
        if self.span is not None:
            record.update(file=self.span.file, line=self.span.line, column=self.span.column + 1)
        known = ("message", "span", "calls", "remedy", "argument", "expected", "got", "node")
        for name, value in self.__dict__.items():
            if name not in known and not name.startswith("_"):
                record[name] = _plain(value)
        return record

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), dict(self.__dict__)))


def _repeated(calls: tuple[SourceSpan, ...]) -> list[tuple[SourceSpan, int]]:
    """Return each call once for all of its repetitions in a row, as a function that calls itself has."""
    return [(call, len(list(same))) for call, same in groupby(calls)]


def _plain(value: Any) -> Any:
    """Return the value as JSON can hold it."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(_plain, value))
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return without_addresses(str(value))


def _rebuild(cls: type[GluonError], state: dict[str, Any]) -> GluonError:
    error = cls.__new__(cls)
    error.__dict__.update(state)
    Exception.__init__(error, state.get("message", ""))
    return error


class ArgumentError(GluonError, ValueError, AssertionError, RuntimeError):
    """An argument of a language or host function has an illegal value.

    Triton's Gluon refuses such arguments with any of three classes: it raises ValueError, asserts, or
    leaves the check to the compiler, which raises RuntimeError. Code that catches one of them catches this.
    """


class ShapeError(ArgumentError):
    """Shapes disagree, or a shape is not allowed."""


class DtypeError(ArgumentError, TypeError):
    """Element types disagree, or a type is not allowed."""


class IntegerError(ArgumentError, OverflowError):
    """An integer does not fit the type that is to hold it."""


class LayoutError(ArgumentError):
    """A layout is malformed, or does not fit the tensor, the buffer or the launch."""


class TensorError(ArgumentError, TypeError):
    """A tensor without memory of its own that a kernel could work on."""


class NotInKernelError(GluonError, RuntimeError, ValueError):
    """A language function was called outside a kernel."""


class GlobalVariableError(GluonError, NameError, RuntimeError):
    """A kernel reads a global that is not a constexpr."""


class HostFunctionError(GlobalVariableError):
    """A kernel calls a function of host code: one without `@gluon.jit`, of NumPy, a launch."""


class KernelSyntaxError(GluonError, SyntaxError, RuntimeError):
    """A Python construct that kernels do not support."""

    @property
    def msg(self) -> str:  # type: ignore[override]  # an attribute there
        """Return the text that a traceback prints of a SyntaxError, instead of its `str`."""
        return str(self)


class StaticAssertionError(GluonError, AssertionError, RuntimeError):
    """`static_assert` failed."""


class TraceError(GluonError, RuntimeError):
    """A kernel does something that cannot be compiled, and no narrower class fits."""


class CapabilityError(GluonError, RuntimeError):
    """Report that the target, or the installed Triton, lacks a capability of an op."""


class LimitError(GluonError, RuntimeError):
    """A kernel needs more of a resource than the target has."""

    # As Triton's OutOfResources carries them; unknown where a message is all that there is.
    required: Optional[int] = None
    limit: Optional[int] = None
    resource: str = ""

    @property
    def name(self) -> str:
        """Triton's word for `resource`."""
        return self.resource


class TargetError(GluonError, ValueError, RuntimeError):
    """A target that no plugin knows, or that two plugins claim."""


class OptionError(GluonError, TypeError, KeyError, ValueError, AssertionError):
    """An unknown compile option (KeyError in Triton), or one with an illegal value (the others)."""


class CallError(ArgumentError, TypeError):
    """A launch whose arguments are not those of the kernel's parameters."""


class PluginError(GluonError):
    """A plugin that could not be loaded or breaks the contract."""


class BackendError(GluonError):
    """A backend failed at something the contract asks of it."""


class StageError(BackendError, RuntimeError):
    """A compilation stage failed. `diagnostics` holds the compiler's output; `reproducer` a file to run again."""

    def __init__(
        self,
        message: str,
        *,
        diagnostics: str = "",
        reproducer: Optional[str] = None,
        **fields: Any,
    ):
        super().__init__(message, **fields)
        self.diagnostics = diagnostics
        self.reproducer = reproducer

    def __str__(self) -> str:
        text = super().__str__()
        if self.diagnostics:
            text += "\n" + self.diagnostics.rstrip()
        if self.reproducer:
            text += f"\nreproducer: {self.reproducer}"
        return text


class DeviceError(GluonError, RuntimeError, ValueError):
    """No device, the wrong device, or tensors on another device than the kernel."""


class LaunchError(GluonError, RuntimeError, TypeError):
    """A launch was refused by the driver or has an illegal grid."""


class RecompileError(GluonError, RuntimeError):
    """Strict mode is on and this call would have compiled."""


class KernelChangedError(GluonError, RuntimeError):
    """The kernel's source is missing or changed on disk since it was imported."""


class CacheError(GluonError, OSError):
    """The compilation cache cannot be used."""


class DistributedError(GluonError):
    """Kernels across devices cannot be run as asked."""


class RankMismatchError(DistributedError, RuntimeError):
    """Ranks that must do the same do different things."""


class TritonVersionError(GluonError, ImportError):
    """The installed Triton is missing or outside the supported range."""


_elsewhere: Callable[[str], Any]


def set_source(source: Callable[[str], Any]) -> None:
    """Set the function that finds the error classes of plugins; `gluon_core` does, on import."""
    global _elsewhere
    _elsewhere = source


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _elsewhere(name)


E = TypeVar("E", bound=BaseException)
F = TypeVar("F", bound=Callable[..., Any])


_recast: Callable[[Any], Any] = lambda error: error  # noqa: E731


def set_recast(function: Callable[[Any], Any]) -> None:
    """Set the function that replaces an error which leaves the package; the room that knows Triton does so once."""
    global _recast
    _recast = function


def trimmed(error: E) -> E:
    """Return `error` to be raised anew: as an object that code around Triton catches, too, with only the
    frames of the user's code, and no causes within the machinery, as the message holds the kernel's line.
    `GLUON_TRACEBACK=full` keeps everything."""
    error = cast(E, _recast(error))
    if os.environ.get("GLUON_TRACEBACK") == "full":
        return error
    error.__traceback__ = trimmed_traceback(error.__traceback__)
    for name in ("__cause__", "__context__"):
        cause = getattr(error, name)
        if cause is None:
            continue
        kept = trimmed_traceback(cause.__traceback__)
        if kept is None:
            setattr(error, name, None)
        else:
            cause.__traceback__ = kept
    error.__suppress_context__ = error.__cause__ is not None or error.__context__ is None
    return error


def trims(function: F) -> F:
    """Wrap `function`, a door of the package: errors of ours leave it `trimmed`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except GluonError as error:
            raise trimmed(error)  # noqa: B904  # the same error

    return cast(F, call)


class KernelWarning(UserWarning):
    """A kernel has legal code that is hardly meant, such as cutting a float to an integer.

    `warnings.filterwarnings("ignore", category=KernelWarning)` switches them off.
    """


# Decides on refusals while a kernel is traced; None outside of traces.
_answer: ContextVar[Optional[Callable[[GluonError], None]]] = ContextVar("answer", default=None)


def strict_by_default() -> bool:
    """Return False where the environment says `GLUON_STRICT=0`: for kernels that do not say it themselves."""
    return os.environ.get("GLUON_STRICT", "1") not in ("0", "false", "off")


def is_strict() -> bool:
    """Return whether `refuse` raises here."""
    answer = _answer.get()
    return answer is _raised or answer is None and strict_by_default()


def _raised(error: GluonError) -> None:
    raise error


def refuse(error: GluonError) -> None:
    """Raise `error`, a refusal of a program that Triton's Gluon compiles and that is wrong as we read the
    manuals. Where the kernel is compiled with `strict=False`, warn of it instead, and return.

    Everything that a compiler refuses or aborts on, and that a GPU was seen to compute wrong, is raised.
    """
    answer = _answer.get()
    if answer is not None:
        answer(error)
    elif strict_by_default():
        raise error
    else:
        warnings.warn(without_addresses(str(error)), KernelWarning, stacklevel=3)


@contextmanager
def answering(answer: Optional[Callable[[GluonError], None]]) -> Iterator[None]:
    """Let `refuse` call `answer` within; None lets it raise."""
    token = _answer.set(answer or _raised)
    try:
        yield
    finally:
        _answer.reset(token)


def did_you_mean(word: str, known: Iterable[str], count: int = 3) -> Optional[str]:
    """`Did you mean 'a', 'b' or 'c'?`, or None when nothing is close."""
    from difflib import get_close_matches  # few programs come here

    close = get_close_matches(str(word), dict.fromkeys(str(k) for k in known), n=count, cutoff=0.6)
    words = ", ".join(map(repr, close[:-1])) + " or " * (len(close) > 1)
    return f"Did you mean {words}{close[-1]!r}?" if close else None
