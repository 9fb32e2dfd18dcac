"""`gluon compile`: a kernel for a target, and any of the texts on the way."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional, Sequence

from gluon_core.cli.output import UsageError, byte_count, console, print_json, table
from gluon_core.cli.parse import find_kernel, parse_assignments, source_of
from gluon_core.contract.registry import registry
from gluon_core.errors import did_you_mean

__all__ = ["options_of", "show"]


def options_of(num_warps: Optional[int], option: Optional[Sequence[str]]) -> dict[str, Any]:
    """The compile options that the command line gives."""
    options = parse_assignments(option or (), "--option")
    if num_warps is not None:
        options["num_warps"] = num_warps
    return options


def show(
    kernel: str,
    target: Optional[str],
    signature: Optional[str],
    constexpr: Optional[Sequence[str]],
    num_warps: Optional[int],
    option: Optional[Sequence[str]],
    emit: str,
    output: Optional[Path],
    json: bool,
) -> None:
    from gluon_core.compiler import compile

    chosen = registry().target(target)
    found = find_kernel(kernel)
    constants = parse_assignments(constexpr or (), "--constexpr")
    source, options = source_of(found, chosen, signature, constants, options_of(num_warps, option))
    compiled = compile(source, chosen, options)
    if emit == "report":
        _report(found.name, compiled, output, json)
        return
    try:
        value = compiled.asm[emit]
    except KeyError:
        known = ["report", *compiled.asm]
        raise UsageError(
            f"compiling for {chosen} makes no {emit!r}",
            argument="--emit",
            expected=f"one of {', '.join(known)}",
            got=repr(emit),
            remedy=did_you_mean(emit, known),
        ) from None
    _write(value, emit, output, json)


def _write(value: Any, emit: str, output: Optional[Path], json: bool) -> None:
    binary = isinstance(value, bytes)
    if output is not None:
        output.write_bytes(value if binary else str(value).encode())
    elif json:
        print_json({emit: value.hex() if binary else str(value)})
    elif not binary:
        print(value)
    elif sys.stdout.isatty():
        raise UsageError(
            "is binary",
            argument="--emit",
            got=repr(emit),
            remedy="Write it to a file: --output FILE.",
        )
    else:
        sys.stdout.buffer.write(value)


_UNITS = {
    "registers": "per thread",
    "spills": "per thread",
    "shared_memory": "per block",
    "scratch": "per thread",
    "occupancy": "warps per multiprocessor",
}


def _with_unit(key: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if key in ("shared_memory", "scratch"):
        exact = "" if value < 1024 else f" ({value} B)"
        value = f"{byte_count(value)}{exact}"
    return f"{value} {_UNITS.get(key, '')}".rstrip()


def _report(name: str, compiled: Any, output: Optional[Path], json: bool) -> None:
    report = {
        "kernel": name,
        "target": str(compiled.target),
        "num_warps": compiled.metadata.num_warps,
        **asdict(compiled.report()),
    }
    if json:
        print_json(report)
        return
    mix, files, loops = (report.pop(k) for k in ("instruction_mix", "register_files", "loops"))
    rows: list[Optional[tuple[str, Any]]] = [
        (key.replace("_", " "), _with_unit(key, v)) for key, v in report.items()
    ]
    rows += ((name, f"{count} per thread") for name, count in files.items())
    rows += [None, *mix.items()]
    for loop in loops:
        title = f"loop at {loop['label']}, depth {loop['depth']}"
        rows += [None, (title, loop["instruction_count"]), *loop["instruction_mix"].items()]
    text = table("", ("", ">"), rows)
    text.show_header = False
    if output is None:
        console().print(text)
        return
    lines = (f"{key}: {value}" for key, value in (r for r in rows if r is not None))
    output.write_text("\n".join(lines) + "\n")
