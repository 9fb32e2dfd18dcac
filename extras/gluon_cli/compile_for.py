"""`gluon run --compile-for`: compile the launches of a file for targets that need not be there."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from typing import Any, Callable, Optional, Sequence

from gluon_cli.check import simulated_twin
from gluon_cli.launched import gluon_kernels
from gluon_cli.many import again, parsed, worst
from gluon_cli.output import Exit, byte_count, console, print_json, table
from gluon_cli.parse import signature_of
from gluon_cli.run import Runs, run_file
from gluon_core.errors import GluonError
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.simulation.evidence import Record

__all__ = ["Made", "compile_for", "compiled_row", "hardware_kernel", "kernels_table"]

_RUN = "the run of the file"  # which failed


@dataclass
class Made:
    """A kernel of a file for a target.

    Args:
        kernel: its name.
        signature: the types of its parameters that are not constants.
        result: `compiled`, or in one line why not.
    """

    kernel: str
    signature: str
    target: str
    result: str
    failed: bool = False
    registers: Optional[int] = None
    spills: Optional[int] = None
    shared_memory: Optional[int] = None
    instruction_count: Optional[int] = None


def compile_for(context: Any, targets: Sequence[str], runs: Runs, json: bool) -> int:
    """Run a file on the simulator of each target, and compile its launches there.

    A run for each target, as a file may choose layouts and tiles for the target that it runs on. With
    `--target` there is one run, on that simulator, for all of them.
    """
    file, arguments, run_on = context.params["file"], context.args, context.params["target"]
    if len(targets) == 1 or run_on is not None:
        chosen = [registry().target(name) for name in targets]
        with redirect_stdout(sys.stderr) if json else nullcontext():
            rows, code = _by_one_run(str(file), run_on, chosen, arguments, runs)
    else:
        rows, code = _in_processes(context, targets)
    code = code or (Exit.FAILED if any(row.failed for row in rows) else Exit.OK)
    if json:
        print_json({"exit": code, "kernels": [asdict(row) for row in rows]})
        return code
    console().print(kernels_table(rows))
    if code == Exit.UNAVAILABLE and not rows:
        print("nothing was compiled: no kernel was launched", file=sys.stderr)
    return code


def _by_one_run(
    file: str,
    run_on: Optional[str],
    targets: Sequence[Target],
    arguments: Sequence[str],
    runs: Runs,
) -> tuple[list[Made], int]:
    real = [Target(target.architecture.backend, target.architecture) for target in targets]
    run_on = run_on or str(simulated_twin(str(real[0])))
    record = Record()
    rows = []
    code = 0
    try:
        code = run_file(file, run_on, arguments, runs=runs, record=record)
    except GluonError as error:  # earlier launches can still be compiled
        where = str(real[0]) if len(real) == 1 else run_on
        rows.append(Made(_RUN, "", where, _first_line(error), failed=True))
    seen = set()
    for kernel in gluon_kernels(record):
        for target in real:
            row = _row(kernel, target)
            warps = str(kernel.metadata.num_warps)
            key = (row.kernel, row.signature, row.target, warps, kernel.src.hash())
            if key not in seen:
                seen.add(key)
                rows.append(row)
    if not rows and not code:
        code = Exit.UNAVAILABLE
    return rows, code


def _row(kernel: Any, target: Target) -> Made:
    types = signature_of(kernel.src)
    return compiled_row(kernel.src.name, types, target, lambda: hardware_kernel(kernel, target))


def compiled_row(name: str, types: str, target: Target, compiled: Callable[[], Any]) -> Made:
    """Return the row of a kernel that `compiled()` compiles."""
    row = Made(name, types, str(target), "compiled")
    try:
        report = compiled().report()
    except GluonError as error:
        row.result, row.failed = _first_line(error), True
        return row
    row.registers, row.spills = report.registers, report.spills
    row.shared_memory, row.instruction_count = report.shared_memory, report.instruction_count
    return row


def hardware_kernel(kernel: Any, target: Target) -> Any:
    """Return a kernel that a run recorded, compiled for the hardware of `target`."""
    if kernel.hardware is not None and kernel.target.architecture == target.architecture:
        return kernel.hardware.kernel()
    from gluon_core.compiler import compile

    options = {name: getattr(kernel.metadata, name) for name in ("num_warps", "num_ctas")}
    return compile(kernel.src, target, options)


def _first_line(error: GluonError) -> str:
    span = "" if error.span is None else f" ({os.path.basename(error.span.file)}:{error.span.line})"
    return f"{type(error).__name__}: {str(error).splitlines()[0]}{span}"


def _in_processes(context: Any, targets: Sequence[str]) -> tuple[list[Made], int]:
    rows: list[Made] = []
    codes = []
    for number, target in enumerate(targets):
        command = again(context, compile_for=target, json=True)
        done = subprocess.run(command, capture_output=True, text=True)
        output = parsed(done.stdout)
        if number == 0 or not output.get("kernels"):  # the prints of a file appear once
            print(done.stderr, end="", file=sys.stderr)
        if "error" in output:
            text = f"{output['error']['class']}: {output['error']['message'].splitlines()[0]}"
            rows.append(Made(_RUN, "", target, text, failed=True))
        rows += [Made(**row) for row in output.get("kernels", ())]
        codes.append(done.returncode)
    places = {target: place for place, target in enumerate(targets)}
    names = list(dict.fromkeys(row.kernel for row in rows))
    rows.sort(key=lambda row: (names.index(row.kernel), row.signature, places[row.target]))
    return rows, worst(codes)


def kernels_table(rows_of: Sequence[Made]) -> Any:
    """Return a heading for each kernel and its types, and a row for each target."""
    rows: list[Any] = []
    last = None
    for row in rows_of:
        if (row.kernel, row.signature) != last:
            heading = row.kernel if row.kernel == _RUN else f"{row.kernel}({_short(row.signature)})"
            rows += [None] * (last is not None) + [(heading,)]
        last = (row.kernel, row.signature)
        shared = None if row.shared_memory is None else byte_count(row.shared_memory)
        numbers = (row.registers, row.spills, shared, row.instruction_count)
        rows.append((f"  {row.target}", row.result, *numbers))
    columns = ("kernel, target", "result", ">regs", ">spills", ">shared", ">instr")
    text = table("", columns, rows)
    text.caption = "regs: 32-bit registers of a thread; shared: memory of a block"
    text.caption_justify = "left"
    return text


def _short(signature: str) -> str:
    """Types without the layouts of descriptors, which fill lines."""
    shown, depth = "", 0
    for letter in signature:
        depth -= letter == ">"
        opened, depth = depth, depth + (letter == "<")
        inside = shown.rpartition("<")[2]
        if opened and inside.count("[") == inside.count("]") and "]" in inside:
            continue  # behind the shape of a tile
        shown += letter
    return shown
