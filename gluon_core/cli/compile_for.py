"""`gluon run --compile-for`: what a file launches, compiled for targets that need not be there."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from typing import Any, Optional, Sequence

from gluon_core.cli.check import simulated_twin
from gluon_core.cli.many import again, parsed, worst
from gluon_core.cli.output import Exit, byte_count, console, print_json, table
from gluon_core.cli.run import Runs, run_file
from gluon_core.contract.evidence import Record
from gluon_core.contract.registry import registry
from gluon_core.contract.targets import Target
from gluon_core.errors import GluonError

__all__ = ["Made", "compile_for"]


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
    """Run a file on the simulator of each target, and compile there what it launched.

    A run for each target, as a file may choose layouts and tiles for the target that it runs on.
    """
    file, arguments = context.params["file"], context.args
    if len(targets) == 1:
        target = registry().target(targets[0])
        with redirect_stdout(sys.stderr) if json else nullcontext():
            made, code = _on_one(str(file), target, arguments, runs)
    else:
        made, code = _in_processes(context, targets)
    code = code or (Exit.FAILED if any(row.failed for row in made) else Exit.OK)
    if json:
        print_json({"exit": code, "kernels": [asdict(row) for row in made]})
        return code
    console().print(_table(made))
    if code == Exit.UNAVAILABLE and not made:
        print("nothing was compiled: no kernel was launched", file=sys.stderr)
    return code


def _on_one(
    file: str, target: Target, arguments: Sequence[str], runs: Runs
) -> tuple[list[Made], int]:
    real = Target(target.architecture.backend, target.architecture)
    record = Record()
    made = []
    code = 0
    try:
        code = run_file(file, str(simulated_twin(str(real))), arguments, runs=runs, record=record)
    except GluonError as error:  # what was launched before can be compiled all the same
        made.append(Made("(the run)", "", str(real), _first_line(error), failed=True))
    seen = set()
    for kernel in record.kernels.values():
        row = _made(kernel, real)
        key = (row.kernel, row.signature, str(kernel.metadata.num_warps), kernel.src.hash())
        if key not in seen:
            seen.add(key)
            made.append(row)
    if not made and not code:
        code = Exit.UNAVAILABLE
    return made, code


def _made(kernel: Any, target: Target) -> Made:
    types = [str(kind) for kind in kernel.src.types if kind != "constexpr"]
    row = Made(kernel.src.name, ", ".join(types), str(target), "compiled")
    try:
        compiled = _compiled(kernel, target)
        report = compiled.report()
    except GluonError as error:
        row.result, row.failed = _first_line(error), True
        return row
    row.registers, row.spills = report.registers, report.spills
    row.shared_memory, row.instruction_count = report.shared_memory, report.instruction_count
    return row


def _compiled(kernel: Any, target: Target) -> Any:
    if kernel.hardware is not None and kernel.target.architecture == target.architecture:
        return kernel.hardware.kernel()
    from gluon_core.compiler import compile

    told = {name: getattr(kernel.metadata, name) for name in ("num_warps", "num_ctas")}
    return compile(kernel.src, target, told)


def _first_line(error: GluonError) -> str:
    span = "" if error.span is None else f" ({os.path.basename(error.span.file)}:{error.span.line})"
    return f"{type(error).__name__}: {str(error).splitlines()[0]}{span}"


def _in_processes(context: Any, targets: Sequence[str]) -> tuple[list[Made], int]:
    made: list[Made] = []
    codes = []
    for number, target in enumerate(targets):
        command = again(context, compile_for=target, json=True)
        done = subprocess.run(command, capture_output=True, text=True)
        found = parsed(done.stdout)
        if number == 0 or not found.get("kernels"):  # what a file prints is told once
            print(done.stderr, end="", file=sys.stderr)
        if "error" in found:
            text = f"{found['error']['class']}: {found['error']['message'].splitlines()[0]}"
            made.append(Made("(the run)", "", target, text, failed=True))
        made += [Made(**row) for row in found.get("kernels", ())]
        codes.append(done.returncode)
    places = {target: place for place, target in enumerate(targets)}
    names = list(dict.fromkeys(row.kernel for row in made))
    made.sort(key=lambda row: (names.index(row.kernel), row.signature, places[row.target]))
    return made, worst(codes)


def _table(made: Sequence[Made]) -> Any:
    rows: list[Any] = []
    last = None
    for row in made:
        if (row.kernel, row.signature) != last:
            rows += [None] * (last is not None) + [(f"{row.kernel}({row.signature})",)]
        last = (row.kernel, row.signature)
        shared = None if row.shared_memory is None else byte_count(row.shared_memory)
        numbers = (row.registers, row.spills, shared, row.instruction_count)
        rows.append((f"  {row.target}", row.result, *numbers))
    columns = ("kernel, target", "result", ">regs", ">spills", ">shared", ">instr")
    text = table("", columns, rows)
    text.caption = "regs: 32-bit registers of a thread; shared: memory of a block"
    text.caption_justify = "left"
    return text
