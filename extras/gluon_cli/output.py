"""Print the results of commands, and set their exit codes."""

from __future__ import annotations

import functools
import json
import linecache
import os
import signal
import sys
import tokenize
import traceback
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gluon_core.errors import (
    ArgumentError,
    CacheError,
    CapabilityError,
    DeviceError,
    GluonError,
    KernelSyntaxError,
    LimitError,
    OptionError,
    PluginError,
    SourceSpan,
    TargetError,
    TritonVersionError,
    trimmed_traceback,
    without_addresses,
)

__all__ = [
    "OUTCOME",
    "Exit",
    "UsageError",
    "byte_count",
    "command",
    "console",
    "errors",
    "file_and_kernel",
    "place_of",
    "print_json",
    "source_of",
    "table",
    "unparsed",
]


# A file that a run writes its outcome to in words, where its exit code says less.
OUTCOME = "OUTCOME_FILE_OF_GLUON"


class Exit(IntEnum):
    """Exit codes of the command `gluon`."""

    OK = 0
    FAILED = 1  # a kernel is wrong, does not compile, or gives a wrong result
    USAGE = 2  # the command line is wrong
    UNAVAILABLE = 3  # the command is right, and this machine or target cannot do it


class UsageError(GluonError, ValueError):
    """The command line is wrong."""


_UNAVAILABLE = (
    CapabilityError,
    CacheError,
    DeviceError,
    LimitError,
    PluginError,
    TritonVersionError,
)
_USAGE = (ArgumentError, OptionError, TargetError, UsageError)


def console() -> Console:
    """Return the console of results. A pipe gets the whole width of a table, not the 80 columns of no terminal."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return Console()
    return Console(width=160)


def errors() -> Console:
    """Return the console of progress and errors."""
    return Console(stderr=True)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str))


def byte_count(count: int) -> str:
    return f"{count / 1024:.4g} KiB" if count >= 1024 else f"{count} B"


def table(title: str, columns: Sequence[str], rows: Iterable[Optional[Sequence[Any]]]) -> Table:
    """Return a table of plain text; a column whose name starts with `>` is set to the right and keeps
    its width, and a row that is None draws a line."""
    built = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    built.padding = (0, 1, 0, 0)
    for name in columns:
        right = name.startswith(">")
        built.add_column(
            name.lstrip(">"),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right,
        )
    for row in rows:
        if row is None:
            built.add_section()
        else:
            built.add_row(*("" if cell is None else escape(str(cell)) for cell in row))
    return built


def code_of(error: BaseException) -> Exit:
    """Return the exit code that `error` stands for."""
    of_plugin = getattr(error, "exit_code", None)
    if of_plugin == Exit.UNAVAILABLE or isinstance(error, _UNAVAILABLE):
        return Exit.UNAVAILABLE
    if isinstance(error, GluonError) and error.span is not None:
        return Exit.FAILED
    usage = of_plugin == Exit.USAGE or isinstance(error, _USAGE)
    return Exit.USAGE if usage else Exit.FAILED


def _warn_of_plugins() -> None:
    """Print one line on standard error while a plugin is broken or several claim one name."""
    from gluon_core.registry.load import registry

    try:
        problems = registry().problems()
    except GluonError:
        return  # the command itself reports them
    if problems:
        first = " ".join(problems[0].split())
        count = f"{len(problems)} problems of plugins, the first: " if len(problems) > 1 else ""
        print(f"gluon: {count}{first}. See `gluon info`.", file=sys.stderr)


def _lacking(error: GluonError) -> Optional[str]:
    """Return the packages to install, where one may make a target known."""
    if not isinstance(error, (PluginError, TargetError)):
        return None
    from gluon_cli.packages import hint

    try:
        return hint()
    except GluonError:
        return None


def _of_the_file(error: BaseException, file: str) -> bool:
    """Return True if a file that was run raised `error`; its traceback then starts there, without the frames
    of its runner."""
    if isinstance(error, SyntaxError) and error.filename == file:
        error.__traceback__ = None
        return True
    frame = _in_file(error, file)
    if frame is None:
        return False
    error.__traceback__ = frame
    last = traceback.extract_tb(frame)[-1]
    # A launch without its arguments, or a grid that raises: nobody made a mistake there.
    if last.filename.startswith("<gluon ") or last.name == "require_all" or last.filename == file:
        if os.environ.get("GLUON_TRACEBACK") != "full":
            error.__traceback__ = trimmed_traceback(frame)
    return True


def _in_file(error: BaseException, file: str) -> Optional[TracebackType]:
    """Return the part of the traceback that begins in `file`; None where it never was there."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != file:
        frame = frame.tb_next
    return frame


def place_of(error: BaseException, file: str) -> Optional[SourceSpan]:
    """Return the host's line that `error` came from: the innermost one of the user."""
    entry = trimmed_traceback(_in_file(error, file))
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    if entry is None:
        return None
    code, line = entry.tb_frame.f_code, entry.tb_lineno
    text = linecache.getline(code.co_filename, line).rstrip()
    column, end = len(text) - len(text.lstrip()), len(text)
    if hasattr(code, "co_positions"):  # from Python 3.11 on
        _, last, start, stop = list(code.co_positions())[entry.tb_lasti // 2]
        if start is not None and last is not None and stop is not None:
            # Positions count bytes.
            column = len(text.encode()[:start].decode(errors="ignore"))
            end = len(text.encode()[:stop].decode(errors="ignore")) if last == line else end
    return SourceSpan(code.co_filename, line, column, end, text or None)


def _plainly(error: BaseException) -> dict[str, Any]:
    """Return an ordinary exception as JSON: its class, its message, and where the file was."""
    fields: dict[str, Any] = {
        "class": type(error).__name__,
        "message": without_addresses(str(error)),
    }
    if error.__traceback__ is not None:
        code = error.__traceback__.tb_frame.f_code
        fields.update(file=code.co_filename, line=error.__traceback__.tb_lineno)
    elif isinstance(error, SyntaxError):
        fields.update(file=error.filename, line=error.lineno)
    return fields


def _of_an_option(error: BaseException, parameters: Mapping[str, Any]) -> Optional[UsageError]:
    """Return the error of a path that an option names and the system refuses; None for any other error."""
    if not isinstance(error, OSError) or not isinstance(error.filename, (str, os.PathLike)):
        return None
    refused = os.fspath(error.filename)
    for name, value in parameters.items():
        path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
        if path and (refused == path or refused.startswith((f"{path}.", os.path.join(path, "")))):
            option = f"--{name.strip('_').replace('_', '-')}"
            return UsageError("cannot be opened", argument=option, got=f"{refused}: {error.strerror}")  # fmt: skip
    return None


def file_and_kernel(spec: str) -> tuple[str, Optional[str]]:
    """`FILE:KERNEL`, or a file alone, in its parts."""
    head, colon, tail = spec.rpartition(":")
    return (head, tail) if colon and tail.isidentifier() else (spec, None)


def source_of(file: Path) -> str:
    """Return the text of a Python file.

    Raises:
        UsageError: the file is no text in the encoding that it names, UTF-8 by default.
    """
    try:
        with tokenize.open(file) as opened:
            return opened.read()
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UsageError("no Python source", argument="FILE", got=f"{file}: {error}") from None


def unparsed(error: SyntaxError, file: str) -> KernelSyntaxError:
    """Return the error of a file that Python does not parse, with its place.

    Raises:
        UsageError: the file is no text.
    """
    if Path(file).is_file():
        source_of(Path(file))
    text = (error.text or "").rstrip() or None
    column, end = (max(0, (place or 1) - 1) for place in (error.offset, error.end_offset))
    span = SourceSpan(file, error.lineno or 1, column, max(end, column + 1), text)
    return KernelSyntaxError(f"the file does not parse: {error.msg}", span=span)


def _show(error: GluonError, as_json: bool) -> Exit:
    """Print an error of Gluon Core without a traceback, and return its exit code."""
    if as_json:
        print_json({"error": error.as_dict()})
    else:
        text = f"[bold red]{type(error).__name__}[/]: {escape(str(error))}"
        errors().print(text, soft_wrap=True, highlight=False)
    return code_of(error)


def command(
    function: Optional[Callable[..., Any]] = None, *, runs: Optional[str] = None
) -> Callable[..., Any]:
    """Wrap a command: Gluon Core's own errors are printed without a traceback and become an exit
    code; the command returns its exit code, None for OK. Exceptions of a file that is run keep
    its part of the traceback, other ones are bugs and keep all of it. A plugin with a problem is warned of first, by every command but a bare `info`,
    which shows it all.

    Args:
        runs: the parameter with the file that the command runs as Python does, alone or as FILE:KERNEL.
    """
    if function is None:
        return functools.partial(command, runs=runs)

    def file_of(parameters: Mapping[str, Any]) -> Optional[str]:
        return None if runs is None else file_and_kernel(str(parameters[runs]))[0]

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        code: Optional[int] = None
        if function.__name__ != "info" or kwargs.get("name"):
            _warn_of_plugins()
        try:
            code = function(*args, **kwargs)
        except GluonError as error:
            ran = file_of(kwargs)
            if ran is not None and error.span is None:
                error.span = place_of(error, ran)  # of host code: a descriptor, an argument, a grid
            lacking = _lacking(error)
            if lacking:
                error.remedy = " ".join(filter(None, (error.remedy, lacking)))
            code = _show(error, bool(kwargs.get("json")))
            code = Exit.UNAVAILABLE if lacking else code
            if isinstance(error, LimitError) and OUTCOME in os.environ:
                with open(os.environ[OUTCOME], "w") as file:
                    file.write("too large")
        except Exception as error:
            ran = file_of(kwargs)
            wrong = _of_an_option(error, {k: v for k, v in kwargs.items() if k != runs})
            if wrong is not None:
                code = _show(wrong, bool(kwargs.get("json")))
            elif ran is None or not _of_the_file(error, ran):
                raise
            else:
                code = Exit.FAILED
                traceback.print_exception(error)
                if kwargs.get("json"):
                    print_json({"error": _plainly(error)})
        except KeyboardInterrupt as interrupt:
            # The simulator's position; nothing where other code was interrupted.
            text = f": {escape(str(interrupt))}" if str(interrupt) else ""
            errors().print(f"[bold red]interrupted[/]{text}", soft_wrap=True, highlight=False)
            code = 128 + signal.SIGINT
        raise typer.Exit(int(code or Exit.OK))

    return run
