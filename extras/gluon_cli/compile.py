"""`gluon compile`: a kernel for a target, and any of the texts on the way."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from linecache import getline
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator, Optional, Sequence

from gluon_cli.compile_for import compiled_row, kernels_table
from gluon_cli.launched import Form, forms, one_form
from gluon_cli.outcomes import line_as_dict, line_rows, line_table
from gluon_cli.output import Exit, UsageError, byte_count, console, print_json, table
from gluon_cli.parse import parse_assignments
from gluon_core.errors import GluonError, did_you_mean
from gluon_core.registry.load import registry
from gluon_core.simulation.watch import Executed

if TYPE_CHECKING:
    from gluon_cli.outcome import LineOutcome

__all__ = ["options_of", "show"]


def options_of(num_warps: Optional[int], option: Optional[Sequence[str]]) -> dict[str, Any]:
    """Return the compile options that the command line gives."""
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
    trace_isa: Optional[str] = None,
) -> int:
    from gluon_core.compiler import compile

    chosen = registry().target(target)
    constants = parse_assignments(constexpr or (), "--constexpr")
    request = (kernel, chosen, signature, constants, options_of(num_warps, option))
    names = [name.strip() for name in emit.split(",") if name.strip()] or ["report"]
    launched = forms(*request)
    if len(launched) > 1 and names == ["report"] and output is None and trace_isa is None:
        return _each(launched, chosen, json)
    form = launched[0] if len(launched) == 1 else one_form(kernel, launched)
    source, options = form.source, form.options
    compiled = compile(source, chosen, options)
    if trace_isa is not None and "report" not in names:
        raise UsageError("needs a report", argument="--trace-isa", got=f"--emit {emit}")
    counts = None
    if trace_isa is not None:
        counts = registry().backend(chosen.backend).simulation.executed(compiled, trace_isa)
    if names == ["report"]:
        lines = _lines(source, chosen, options)
        _report(form.name, compiled, output, json, counts, lines)
        return Exit.OK
    values = {name: _entry(compiled, name, chosen, counts) for name in names}
    if len(values) == 1:
        _write(values[names[0]], names[0], output, json)
    elif json:
        print_json({name: _text(value) for name, value in values.items()})
    else:
        for name, value in values.items():
            if output is None:
                print(f"==== {name} ====")
            _write(value, name, output and output.with_name(f"{output.name}.{name}"), False)
    return Exit.OK


def _each(launched: Sequence[Form], target: Any, json: bool) -> int:
    """Compile each form of each kernel that a file launches; print a row for each."""
    from gluon_core.compiler import compile

    rows = [
        compiled_row(
            form.name,
            form.types,
            target,
            partial(compile, form.source, target, form.options),
        )
        for form in launched
    ]
    code = Exit.FAILED if any(row.failed for row in rows) else Exit.OK
    if json:
        print_json({"exit": code, "kernels": [asdict(row) for row in rows]})
    else:
        console().print(kernels_table(rows))
    return code


def _lines(source: Any, target: Any, options: Any) -> tuple[LineOutcome, ...]:
    """Return the instructions of each line; nothing where there is no machine code to read."""
    from gluon_cli.outcome import outcome

    try:
        return outcome(source, target, options).lines
    except GluonError:
        return ()


def _entry(compiled: Any, name: str, target: Any, counts: Optional[Executed] = None) -> Any:
    """Return the stage of that name, or derive it."""
    if name == "report":
        return "\n".join(f"{key}: {value}" for key, value in _rows(compiled, counts) if key)
    try:
        return compiled.asm[name]
    except KeyError:
        backend = registry().backend(target.architecture.backend)
        known = dict.fromkeys(("report", *compiled.asm, *backend.compiler.derives))
        raise UsageError(
            f"compiling for {target} makes no {name!r}",
            argument="--emit",
            expected=f"one of {', '.join(known)}, or several with commas",
            remedy=did_you_mean(name, known),
        ) from None


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _write(value: Any, emit: str, output: Optional[Path], json: bool) -> None:
    binary = isinstance(value, bytes)
    if output is not None:
        output.write_bytes(value if binary else str(value).encode())
    elif json:
        print_json({emit: _text(value)})
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


def _facts(
    compiled: Any,
    counts: Optional[Executed] = None,
    lines: Optional[tuple[LineOutcome, ...]] = None,
) -> dict[str, Any]:
    facts = {"target": str(compiled.target), "num_warps": compiled.metadata.num_warps}
    measured = {} if counts is None else {"executed": asdict(counts)}
    by_line = {} if lines is None else {"lines": [line_as_dict(line) for line in lines]}
    return {**facts, **asdict(compiled.report()), **by_line, **measured}


def _rows(compiled: Any, counts: Optional[Executed] = None) -> Iterator[tuple[str, Any]]:
    """Everything of a report with units, parts parted by an empty row."""
    report = _facts(compiled)
    mix, files, loops = (report.pop(k) for k in ("instruction_mix", "register_files", "loops"))
    yield from ((key.replace("_", " "), _with_unit(key, v)) for key, v in report.items())
    yield from ((name, f"{count} per thread") for name, count in files.items())
    yield "", ""
    yield from mix.items()
    for loop in loops:
        yield "", ""
        yield f"loop at {loop['label']}, depth {loop['depth']}", loop["instruction_count"]
        yield from loop["instruction_mix"].items()
    if counts is not None:
        yield "", ""
        yield from _executed(counts)


def _executed(counts: Executed) -> Iterator[tuple[str, Any]]:
    """Print the instructions that a warp executes on average; by line with its text where the file is there."""
    each = max(counts.warps, 1)
    code = "" if counts.same_code else ", of other types or constants"
    yield "executed", f"in launches: {counts.launches}, warps: {counts.warps}{code}"
    yield "instructions", f"{counts.instructions / each:.1f} per warp"
    yield from ((name, f"{n / each:.1f} per warp") for name, n in counts.instruction_mix.items())
    yield "global memory", f"{counts.global_bytes / each:.1f} B per warp"
    yield "cycles lost to banks", f"{counts.bank_cycles / each:.1f} per warp"
    yield "waits", f"{counts.waits / each:.1f} per warp, {counts.idle_waits / each:.1f} for nothing"
    yield "", ""
    for file, line, count in counts.lines:
        text = getline(file, line).strip()
        place = f"{Path(file).name}:{line}" if line else "no line"
        yield f"{place}  {text}".rstrip(), f"{count / each:.1f} per warp"


def _report(
    name: str,
    compiled: Any,
    output: Optional[Path],
    json: bool,
    counts: Optional[Executed] = None,
    lines: tuple[LineOutcome, ...] = (),
) -> None:
    if json:
        print_json({"kernel": name, **_facts(compiled, counts, lines)})
        return
    rows = [("kernel", name), *_rows(compiled, counts)]
    if output is not None:
        by_line = ((place.replace("\n", "  "), note) for place, note in line_rows(lines))
        output.write_text("".join(f"{key}: {value}\n" for key, value in (*rows, *by_line) if key))
        return
    text = table("", ("", ">"), (row if row[0] else None for row in rows))
    text.show_header = False
    console().print(text)
    if lines:
        console().print(line_table(name, lines))
