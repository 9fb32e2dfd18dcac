"""`gluon emu`: a kernel in a file of PTX, assembly or a code object, with arguments from the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, Sequence

import typer

from gluon_core.errors import ArgumentError, did_you_mean

if TYPE_CHECKING:
    from gluon_emu.amdgcn.decode.metadata import Argument, KernelInfo

__all__ = ["emu"]


def emu(
    file: Annotated[
        Path,
        typer.Argument(help="PTX, AMD assembly (.s, .amdgcn) or a code object.", metavar="FILE"),
    ],
    arg: Annotated[
        Optional[list[str]],
        typer.Option(
            "--arg",
            "-a",
            metavar="VALUE",
            help="The next argument of the kernel: f32[1024]=arange, i32[4,8], values.npy, i32=1024, "
            "f32=0.5. Arrays are zeros, ones, arange, random or one number; zeros by default.",
        ),
    ] = None,
    grid: Annotated[
        str, typer.Option("--grid", "-g", metavar="X,Y,Z", help="Workgroups; 1 by default.")
    ] = "1",
    block: Annotated[
        str,
        typer.Option(
            "--block", metavar="X,Y,Z", help="Threads of a block, where PTX does not say."
        ),
    ] = "128",
    kernel: Annotated[
        Optional[str], typer.Option("--kernel", "-k", help="Its name, where FILE has several.")
    ] = None,
    lds: Annotated[
        Optional[int],
        typer.Option(
            "--lds",
            metavar="BYTES",
            min=0,
            help="Shared memory of a block that the code does not declare; all that is left by default.",
        ),
    ] = None,
    save: Annotated[
        Optional[list[str]],
        typer.Option(
            "--save",
            metavar="N=FILE.npy",
            help="Write argument N, counted from 0, when the kernel has ended; repeatable.",
        ),
    ] = None,
    trace_isa: Annotated[
        Optional[str],
        typer.Option("--trace-isa", metavar="FILE", help="Write how often instructions ran."),
    ] = None,
    timeout: Annotated[
        Optional[float], typer.Option("--timeout", metavar="SECONDS", help="End after that time.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Search PTX for races between threads, proxies and asynchronous work, too; AMD's code always "
            "has all checks.",
        ),
    ] = False,
    schedules: Annotated[
        int,
        typer.Option(
            "--schedules", metavar="N", min=1, help="Runs of PTX: latest, eager, random ones."
        ),
    ] = 1,
    seed: Annotated[int, typer.Option("--seed", help="The first seed of random schedules.")] = 0,
    coverage: Annotated[
        bool,
        typer.Option("--coverage", help="List the forms of instructions in the file, and end."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> int:
    """Execute PTX or AMD machine code in a file, and report violated rules."""
    import numpy as np

    from gluon_emu.amdgcn.launcher import execute, prepared
    from gluon_emu.amdgcn.replaced import code_in
    from gluon_emu.arguments import allocation_of
    from gluon_emu.command.arrays import saved, show
    from gluon_emu.command.coverage import coverage_of, show_coverage
    from gluon_emu.command.ptx import Schedules, is_ptx, run_ptx
    from gluon_emu.command.values import value_of
    from gluon_emu.settings import current, using

    if not file.is_file():
        close = did_you_mean(file.name, (p.name for p in file.parent.glob("*.s")))
        words = "a folder, and no file" if file.is_dir() else "no such file"
        raise ArgumentError(words, argument="FILE", got=str(file), remedy=close)
    if coverage:
        return show_coverage(coverage_of(file, kernel, is_ptx(file)), json)
    if is_ptx(file):
        return run_ptx(
            file,
            kernel,
            arg or [],
            (_grid(grid), _grid(block)),
            lds,
            save or [],
            json,
            (trace_isa, timeout),
            Schedules(schedules, seed, check),
        )
    code = code_in(file, kernel)
    name, texts = code.program.info.name, arg or []
    values = [value_of(text, number) for number, text in enumerate(texts)]
    wanted = _wanted(code.program.info, texts)
    leaves = [_leaf(*one, name) for one in zip(range(len(values)), values, wanted, texts)]
    arrays = {number: value for number, (kind, value) in enumerate(values) if kind == "array"}
    allocations = [a for n, array in arrays.items() if (a := allocation_of(f"argument {n}", array))]
    targets = saved(save or [], arrays)
    before = {number: array.copy() for number, array in arrays.items()}
    dynamic = _lds_left(code) if lds is None else lds
    scratch = [0] * (len(wanted) - len(values))
    with using(trace=trace_isa or current().trace, timeout=timeout or current().timeout) as chosen:
        request = prepared(code, _grid(grid), leaves, scratch, allocations, dynamic, chosen)
        tally = execute(request, chosen)
    for number, path in targets.items():
        with path.open("wb") as out:
            np.save(out, arrays[number])
    show(json, name, before, arrays, sum(tally.counts))
    return 0


def _wanted(info: "KernelInfo", texts: Sequence[str]) -> "list[Argument]":
    """Return the arguments that the code takes; the last two may be buffers of the compiler's own.

    Raises:
        ArgumentError: there are too few values, or too many.
    """
    wanted = [one for one in info.arguments if not one.kind.startswith("hidden_")]
    own = sum(one.kind == "global_buffer" for one in wanted[-2:])
    if not len(wanted) - own <= len(texts) <= len(wanted):
        raise ArgumentError(
            f"{info.name} takes {len(wanted)} arguments",
            argument="--arg",
            expected=", ".join(f"{one.kind} of {one.size} bytes" for one in wanted) or "none",
            got=f"{len(texts)} values" + (f": {', '.join(texts)}" if texts else ""),
            remedy="Pointers at the end may be left out where they are buffers that the compiler adds.",
        )
    return wanted


def _leaf(
    number: int, value: tuple[str, Any], wanted: "Argument", text: str, kernel: str
) -> tuple[str, str, Any]:
    """Return (name, type, value) of an argument.

    Raises:
        ArgumentError: the value is an array where the code takes a number, or the reverse.
    """
    kind, content = value
    pointer = wanted.kind == "global_buffer"
    if pointer != (kind == "array"):
        raise ArgumentError(
            f"argument {number} of {kernel} is {'an array' if pointer else 'a number'}",
            argument="--arg",
            expected="such as f32[1024]" if pointer else f"a number of {wanted.size} bytes",
            got=text,
        )
    if pointer:
        return f"argument {number}", "*", content.ctypes.data
    default = "i64" if isinstance(content, int) else "fp64" if wanted.size == 8 else "fp32"
    return f"argument {number}", kind or default, content


def _grid(text: str) -> tuple[int, int, int]:
    try:
        x, y, z = [*(int(n) for n in re.split(r"[,x]", text)), 1, 1][:3]
    except ValueError:
        x = y = z = 0
    if min(x, y, z) < 1:
        raise ArgumentError("no grid", argument="--grid", expected="such as 64 or 8,4,1", got=text)
    return x, y, z


def _lds_left(code: Any) -> int:
    """Return the LDS of the architecture that the code does not declare for itself."""
    from gluon_core.registry.load import registry

    limit = registry().target(code.program.architecture).limits.shared_memory
    return max(0, limit - int(code.program.directives.get("group_segment_fixed_size", 0)))
