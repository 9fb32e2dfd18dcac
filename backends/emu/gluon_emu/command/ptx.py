"""`gluon emu` of a file of PTX."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Optional, Sequence

import numpy as np

from gluon_core.errors import ArgumentError, BackendError
from gluon_emu.arguments import allocation_of
from gluon_emu.command.arrays import saved, show
from gluon_emu.command.values import value_of
from gluon_emu.errors import EmulatorError
from gluon_emu.ptx.decode.parts import Parameter
from gluon_emu.ptx.launcher import execute, prepared
from gluon_emu.ptx.loaded import code_in
from gluon_emu.settings import current, using

__all__ = ["Schedules", "is_ptx", "run_ptx"]

_SHARED = 227 << 10  # bytes of a block
_FATBIN = b"\x50\xed\x55\xba"
_CUDA = b"\xbe\x00"  # EM_CUDA
_TARGET = re.compile(rb"\.target\s+sm_")
Three = tuple[int, int, int]


def is_ptx(file: Path) -> bool:
    """Return True if a file holds PTX.

    Raises:
        BackendError: it holds NVIDIA's machine code.
    """
    head = file.read_bytes()[:65536]
    if head.startswith(_FATBIN) or head.startswith(b"\x7fELF") and head[18:20] == _CUDA:
        raise BackendError(
            f"{file} is machine code of NVIDIA, which the emulator does not execute",
            expected="PTX",
            remedy=f"Extract it by `cuobjdump --dump-ptx {file}`, or compile with `nvcc -ptx`.",
        )
    if head.startswith(b"\x7fELF"):
        return False
    return file.suffix == ".ptx" or b".version" in head and _TARGET.search(head) is not None


@dataclass(frozen=True)
class Schedules:
    """The runs of a kernel: one latest, one eager, then random ones.

    Args:
        count: of runs.
        seed: of the first random one.
        check: whether races are searched for.
    """

    count: int = 1
    seed: int = 0
    check: bool = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.count == 1:
            yield {}
            return
        named: list[dict[str, Any]] = [{"schedule": "latest"}, {"schedule": "eager"}]
        seeds = range(self.seed, self.seed + max(0, self.count - 2))
        yield from [*named, *({"schedule": "random", "seed": seed} for seed in seeds)]

    def said(self) -> str:
        """Return the verdict on runs without a report."""
        if not self.check:
            return (
                "nothing wrong"
                if self.count == 1
                else f"nothing wrong under {self.count} schedules"
            )
        return f"no race and no other mistake under {_many(self.count)}"


def _many(count: int) -> str:
    return f"{count} schedules" if count > 1 else "one schedule"


def run_ptx(
    file: Path,
    kernel: Optional[str],
    texts: Sequence[str],
    sizes: tuple[Three, Three],
    shared: Optional[int],
    save: list[str],
    json: bool,
    watched: tuple[Optional[str], Optional[float]],
    schedules: Schedules = Schedules(),
) -> int:
    """Run a kernel of a file, and print the changes that it made to its arrays.

    Args:
        texts: the arguments (see `value_of`).
        sizes: blocks of the grid, and threads of a block where the code does not say.
        shared: bytes that the code does not declare.
        watched: the file for a trace, and seconds.
        schedules: the runs, each from the same arrays; the last one's results are printed.

    Raises:
        ArgumentError: there are too few values, too many, or others than the code takes.
    """
    code = code_in(file, kernel)
    name, wanted = code.kernel.name, code.kernel.parameters
    values = [value_of(text, number) for number, text in enumerate(texts)]
    own = 0  # pointers at the end, which the compiler may have added
    while own < min(2, len(wanted)) and wanted[-1 - own].size == 8:
        own += 1
    if not len(wanted) - own <= len(texts) <= len(wanted):
        raise ArgumentError(
            f"{name} takes {len(wanted)} arguments",
            argument="--arg",
            expected=", ".join(f"{one.size} bytes" for one in wanted) or "none",
            got=f"{len(texts)} values" + (f": {', '.join(texts)}" if texts else ""),
            remedy="Pointers at the end may be left out where they are buffers that the compiler adds.",
        )
    leaves = [_leaf(*one, name) for one in zip(range(len(values)), values, wanted, texts)]
    arrays = {number: value for number, (kind, value) in enumerate(values) if kind == "array"}
    allocations = [a for n, array in arrays.items() if (a := allocation_of(f"argument {n}", array))]
    targets = saved(save, arrays)
    before = {number: array.copy() for number, array in arrays.items()}
    left = max(0, _SHARED - code.static_shared) if shared is None else shared
    trace, timeout = watched
    scratch = [0] * (len(wanted) - len(values))
    first: dict[int, np.ndarray] = {}
    varying: list[int] = []
    always: dict[str, Any] = {"checks": True} if schedules.check else {}
    for order in schedules:
        for number, array in arrays.items():
            array[...] = before[number]
        limits: dict[str, Any] = {
            "trace": trace or current().trace,
            "timeout": timeout or current().timeout,
        }
        with using(**limits, **always, **order) as chosen:
            request = prepared(code, sizes[0], leaves, scratch, allocations, left, block=sizes[1])
            try:
                counts = execute(request, chosen)
            except EmulatorError as error:
                seed = f", seed {order['seed']}" if "seed" in order else ""
                under = f"\n  under schedule {order['schedule']}{seed}" if order else ""
                error.message += under
                raise
        first = first or {number: array.copy() for number, array in arrays.items()}
        varying += [n for n, array in arrays.items() if array.tobytes() != first[n].tobytes()]
    for number, path in targets.items():
        with path.open("wb") as out:
            np.save(out, arrays[number])
    caveat = code.module.caveat
    verdict = f"{schedules.said()} ({caveat})" if caveat else schedules.said()
    show(json, name, before, arrays, sum(counts.counts), "warps", verdict)
    if varying and not json:
        names = ", ".join(str(number) for number in sorted(set(varying)))
        print(f"  the results in argument {names} depend on the schedule")
    return 0


def _leaf(
    number: int, value: tuple[str, Any], wanted: Parameter, text: str, kernel: str
) -> tuple[str, str, Any]:
    kind, content = value
    array = kind == "array"
    if array and wanted.size != 8 or not array and wanted.pointer:
        raise ArgumentError(
            f"argument {number} of {kernel} is {'a number' if array else 'an array'}",
            argument="--arg",
            expected=f"a number of {wanted.size} bytes" if array else "such as f32[1024]",
            got=text,
        )
    if array:
        return f"argument {number}", "*", content.ctypes.data
    default = "i64" if isinstance(content, int) else "fp64" if wanted.size == 8 else "fp32"
    return f"argument {number}", kind or default, content
