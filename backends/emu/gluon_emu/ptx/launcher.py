"""From the arguments of a launch to PTX that runs."""

from __future__ import annotations

import gc
import sys
import time
from typing import Any, Callable, Optional

import numpy as np

from gluon_core.errors import ArgumentError, BackendError
from gluon_core.processes import no_collection
from gluon_core.simulation.evidence import note
from gluon_emu.arguments import arguments_of, encode
from gluon_emu.errors import TimeLimitError
from gluon_emu.memory import Allocation, GlobalMemory
from gluon_emu.ptx.isa.heap import Heap
from gluon_emu.ptx.loaded import code_in, code_of
from gluon_emu.ptx.machine.code import SHARED_START, Code
from gluon_emu.ptx.machine.launch import Counts, Launch, Waiting
from gluon_emu.ptx.machine.run import Machine
from gluon_emu.ptx.tensormap import encode_map
from gluon_emu.ptx.trace import write
from gluon_emu.replaced import named_file
from gluon_emu.settings import Settings, of_launch

__all__ = ["execute", "make_launcher", "prepared"]

_GRID = ((1 << 31) - 1, 65535, 65535)  # CUDA C++ Programming Guide, Technical Specifications
_UNITS = 132  # multiprocessors: so many blocks are resident at least
_RESIDENT = 256  # warps
_STATE_BYTES = 512 << 20


def make_launcher(compiled: Any) -> Callable[..., Any]:
    """`launch(grid, stream, *arguments)` for a `CompiledKernel` of NVIDIA's pipeline.

    Raises:
        BackendError: there is no PTX.
    """
    text = compiled.asm.get("ptx") if hasattr(compiled.asm, "get") else compiled.asm["ptx"]
    if text is None:
        raise BackendError(
            f"{compiled.metadata.name} comes without its PTX",
            expected='asm["ptx"]',
            got=", ".join(compiled.asm) or "nothing",
            remedy="Compile the kernel from its source.",
        )
    if isinstance(text, bytes):
        text = text.decode()
    metadata = compiled.metadata
    own = code_of(text, metadata.name)
    compiled.function = compiled.module = own.module

    def launch(grid: Any, stream: Any, *values: Any) -> None:
        settings, overridden = of_launch()
        arguments = arguments_of(compiled, grid, stream, values, encode_map)
        code = own if settings.assembly is None else _replacement(own, settings.assembly)
        request = prepared(
            code, arguments.grid, arguments.leaves, arguments.scratch, arguments.allocations,
            int(metadata.shared or 0), (arguments.cluster, 1, 1), (32 * int(metadata.num_warps), 1, 1),
        )  # fmt: skip
        request.together = bool(getattr(metadata, "launch_cooperative_grid", False))
        note(settings.off, overridden)
        execute(request, settings)

    return launch


def _replacement(own: Code, assembly: str) -> Code:
    """Return the code that a launch of a kernel executes: its own, or that of the file for its name."""
    file = named_file(own.kernel.name, assembly)
    return own if file is None else code_in(file, own.kernel.name)


def prepared(
    code: Code,
    grid: tuple[int, int, int],
    leaves: list[tuple[str, Any, Any]],
    scratch: list[int],
    allocations: list[Allocation],
    shared: int,
    cluster: tuple[int, int, int] = (1, 1, 1),
    block: Optional[tuple[int, int, int]] = None,
) -> Launch:
    """Return a launch of `code` with these arguments.

    Args:
        grid: blocks along x, y and z.
        leaves: (name, type, value) of each argument, addresses for pointers.
        scratch: addresses of buffers that the compiler asked for, behind the arguments.
        allocations: the memory that the addresses point into.
        shared: bytes of shared memory that the code does not declare.
        block: threads along x, y and z, where the code does not say.

    Raises:
        ArgumentError: the code takes other arguments, blocks of another size, or fewer blocks.
    """
    wanted = code.kernel.parameters
    if not len(leaves) <= len(wanted) <= len(leaves) + len(scratch):
        raise ArgumentError(
            f"{code.kernel.name} takes other arguments than these",
            expected=f"{len(wanted)} values",
            got=f"{len(leaves)}: {', '.join(name for name, _, _ in leaves)}",
        )
    values = [(kind, value) for _, kind, value in leaves] + [("i64", offset) for offset in scratch]
    room = np.zeros(code.parameter_bytes + 256, np.uint8)
    start = -room.ctypes.data % 128
    arguments = room[start : start + max(code.parameter_bytes, 16)]
    for parameter, (kind, value) in zip(wanted, values):
        offset = code.parameters[parameter.name]
        data = encode(kind, value, parameter.size)
        arguments[offset : offset + parameter.size] = np.frombuffer(data, np.uint8)
    directives = code.kernel.directives
    declared = directives.get("reqntid")
    size = [*declared, 1, 1][:3] if declared else list(block or (128, 1, 1))
    inner = directives.get("reqnctapercluster")
    if inner and cluster == (1, 1, 1):
        cluster = tuple([*inner, 1, 1][:3])  # type: ignore[assignment]
    if "blocksareclusters" in directives:  # the grid is one of clusters
        grid = (grid[0] * cluster[0], grid[1] * cluster[1], grid[2] * cluster[2])
    if any(blocks > most for blocks, most in zip(grid, _GRID)):
        raise ArgumentError(
            f"{code.kernel.name} has more blocks than a grid can have",
            argument="grid",
            expected=f"at most {_GRID[0]} blocks along x, and {_GRID[1]} along y and z",
            got=str(grid),
        )
    if any(g % c for g, c in zip(grid, cluster)):
        raise ArgumentError(
            f"{code.kernel.name} has clusters that the grid is no multiple of",
            argument="grid",
            expected=f"multiples of {cluster}",
            got=str(grid),
        )
    limit = int(np.prod(size))
    if not 1 <= limit <= 1024:
        raise ArgumentError("no block", expected="1 to 1024 threads", got=str(limit))
    return Launch(
        code,
        grid,
        (size[0], size[1], size[2]),
        shared,
        cluster,
        [*allocations, Allocation("the kernel arguments", arguments, False, room), *code.regions],
        parameters=arguments.ctypes.data,
        heap=Heap(code.heap) if code.heap else None,
    )


def execute(request: Launch, settings: Settings) -> Counts:
    """Run all blocks, as many at once as fit; return the executed instructions.

    Raises:
        EmulatorError: the code violates a rule.
    """
    code = request.code
    total = request.grid[0] * request.grid[1] * request.grid[2]
    warps = -(-int(np.prod(request.block)) // 32)
    cluster = int(np.prod(request.cluster))
    together = max(1, (settings.resident or _RESIDENT) // warps)
    if settings.resident is None:
        together = max(together, _UNITS)
        room = request.shared + code.static_shared + SHARED_START + code.local_bytes * warps * 32
        together = min(together, max(1, _STATE_BYTES // room))
    together = max(cluster, together // cluster * cluster)
    if request.together or code.workspace:
        together = total
    elif code.claims:  # some blocks start later, so that others can claim them
        together = max(cluster, min(together, total // 2) // cluster * cluster)
    memory = GlobalMemory(request.allocations)
    waiting = Waiting(total // cluster, cluster)
    started = time.monotonic()
    deadline = None if settings.timeout is None else started + settings.timeout
    tally = Counts([0] * len(code.steps))
    with np.errstate(all="ignore"), no_collection():
        while waiting:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeLimitError(
                    f"{code.kernel.name} did not end in {settings.timeout:g} s: {waiting.started * cluster} of {total} blocks have run",
                    remedy="Launch fewer blocks, or give it a larger timeout.",
                )
            numbers = waiting.take(together)
            Machine(request, memory, waiting, numbers, settings, deadline, tally).run()
            gc.collect(0)  # the state of these blocks, which refers to itself
            if settings.progress and time.monotonic() - started > 2:
                print(
                    f"{code.kernel.name}: block {int(numbers[-1]) + 1} of {total}", file=sys.stderr
                )
    if settings.trace:
        write(settings.trace, request, tally)
    return tally
