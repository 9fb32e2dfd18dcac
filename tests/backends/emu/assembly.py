"""Small kernels written in assembly, and single instructions on given registers."""

from __future__ import annotations

from typing import Any, Mapping, Optional

import numpy as np
import pytest

from gluon_core.testing import triton_at_least
from gluon_emu.amdgcn.decode.operands import EXEC, VCC
from gluon_emu.amdgcn.decode.program import Program
from gluon_emu.amdgcn.decode.text import parse
from gluon_emu.amdgcn.launcher import Launch, execute
from gluon_emu.amdgcn.machine.code import bind, rows_of
from gluon_emu.amdgcn.machine.run import Machine
from gluon_emu.amdgcn.machine.state import Batch
from gluon_emu.errors import HazardError
from gluon_emu.memory import Allocation, GlobalMemory
from gluon_emu.settings import Settings

# docs/known-compiler-bugs.md
MISCOUNTED = pytest.mark.xfail(
    triton_at_least(3, 8) and not triton_at_least(3, 9),
    raises=HazardError,
    strict=True,
    reason="LLVM of Triton 3.8 counts copies into LDS of gfx1250 among vector instructions",
)
_TEXT = """
	.amdgcn_target "amdgcn-amd-amdhsa-unknown-{arch}"
	.text
k:
	.file	1 "{file}"
{body}
{end}
	.section	.rodata,"a",@progbits
	.amdhsa_kernel k
		.amdhsa_private_segment_fixed_size {scratch}
		.amdhsa_user_sgpr_count {sgprs}
{asks}
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_next_free_vgpr {vgprs}
		.amdhsa_float_denorm_mode_32 {denormals}
		.amdhsa_float_denorm_mode_16_64 3
		.amdhsa_reserve_xnack_mask {xnack}
	.end_amdhsa_kernel
	.amdgpu_metadata
---
amdhsa.kernels:
  - .args:
{args}
    .kernarg_segment_size: {size}
    .max_flat_workgroup_size: {threads}
    .name:           k
    .wavefront_size: {lanes}
amdhsa.version:
  - 1
  - 2
...
	.end_amdgpu_metadata
"""


def lanes_of(arch: str) -> int:
    return 64 if arch.startswith("gfx9") else 32


def program(
    body: str,
    arch: str = "gfx942",
    pointers: int = 0,
    waves: int = 1,
    file: str = "kernel.py",
    scratch: int = 0,
    denormals: int = 3,
    xnack: bool = False,
    asks: str = "",
    sgprs: int = 2,
    end: str = "\ts_endpgm",
) -> Program:
    """A kernel that takes `pointers` arrays, and runs `body`, a line per instruction.

    Args:
        asks: what else it is to find in its first registers, by the names of `.amdhsa_`.
        end: the text behind `body`.
        sgprs: how many registers that and the address of the arguments fill.
    """
    args = "".join(
        f"      - .offset:         {8 * i}\n        .size:           8\n"
        "        .value_kind:     global_buffer\n"
        for i in range(pointers)
    )
    lines = "\n".join(
        line if line.rstrip().endswith(":") else f"\t{line.strip()}"
        for line in body.strip().splitlines()
    )
    return parse(
        _TEXT.format(
            arch=arch, body=lines, args=args.rstrip("\n"), size=8 * pointers or 8, vgprs=32,
            threads=waves * lanes_of(arch), lanes=lanes_of(arch), file=file, scratch=scratch,
            denormals=denormals, xnack=int(xnack), sgprs=sgprs, end=end,
            asks="\n".join(f"\t\t.amdhsa_{name} 1" for name in asks.split()),
        )
    )  # fmt: skip


def run(
    body: str,
    *arrays: np.ndarray,
    arch: str = "gfx942",
    waves: int = 1,
    grid: int = 1,
    lds: int = 0,
    settings: Optional[Settings] = None,
    **more: Any,
) -> None:
    """Launch `body`: s[0:1] point to the addresses of `arrays`, s2 is the workgroup (before gfx12)."""
    code = bind(program(body, arch, len(arrays), waves, **more))
    kernarg = np.zeros(max(2 * len(arrays), 4), np.uint32)
    for i, array in enumerate(arrays):
        kernarg[2 * i : 2 * i + 2] = np.array([array.ctypes.data], np.uint64).view(np.uint32)
    segment = kernarg.view(np.uint8)
    allocations = [
        Allocation(f"argument {i}", a.view(np.uint8).reshape(-1), a.flags.writeable, a)
        for i, a in enumerate(arrays)
    ]
    allocations.append(Allocation("the kernel arguments", segment, False))
    request = Launch(code, (grid, 1, 1), waves, segment, lds, 1, allocations)
    execute(request, settings or Settings())


def one(
    instruction: str,
    registers: Mapping[str, Any],
    *wanted: str,
    arch: str = "gfx942",
    exec_mask: Optional[np.ndarray] = None,
    denormals: int = 3,
) -> list[np.ndarray]:
    """The registers `wanted` after one instruction.

    Args:
        registers: name -> its 32 bits, one number per lane for `v0` and `a0`, one for `s0`, `vcc`,
            `exec` and `m0`; `scc` is a bool.
    """
    instruction_program = program(instruction, arch, denormals=denormals)
    code = bind(instruction_program)
    lanes = code.context.lanes
    settings = Settings(uninitialised=False, hazards=False)
    machine = Machine(code, GlobalMemory([]), np.zeros((1, 3), np.int64), 1, 4096, settings)
    v = np.zeros((max(rows_of(instruction_program), 64), 1, lanes), np.uint32)
    s = np.zeros((130, 1), np.uint32)
    s[EXEC : EXEC + 2] = 0xFFFFFFFF
    batch = Batch(
        machine, v, s, np.zeros(1, bool), np.arange(1), np.zeros(1, np.int64), 0, denormals << 4
    )
    for name, value in registers.items():
        _write(batch, code, name, value)
    if exec_mask is not None:
        batch.set_mask(EXEC, exec_mask[None, :])
    batch.exec_changed()
    with np.errstate(all="ignore"):
        batch.pc = 0
        machine.code.steps[0](batch)
    return [_read(batch, code, name) for name in wanted]


def _write(b: Batch, code: Any, name: str, value: Any) -> None:
    if name == "scc":
        b.scc = np.array([bool(value)])
    elif name == "vcc":
        b.s[VCC], b.s[VCC + 1] = int(value) & 0xFFFFFFFF, int(value) >> 32
    elif name == "m0":
        b.s[124] = value
    elif name[0] == "s":
        b.s[int(name[1:])] = np.uint32(int(value) & 0xFFFFFFFF)
    else:
        row = int(name[1:]) + (code.context.vgprs if name[0] == "a" else 0)
        bits = np.asarray(value)
        b.v[row, 0] = bits.view(np.uint32) if bits.dtype.itemsize == 4 else bits.astype(np.uint32)


def _read(b: Batch, code: Any, name: str) -> np.ndarray:
    if name == "scc":
        return b.scc[0]
    if name in ("vcc", "exec"):
        return b.mask(VCC if name == "vcc" else EXEC)[0].copy()
    if name[0] == "s":
        return b.s[int(name[1:])][0]
    row = int(name[1:]) + (code.context.vgprs if name[0] == "a" else 0)
    return b.v[row, 0].copy()


EDGES = np.array(
    [0, 1, 2, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000,
     0x80000001, 0xFFFFFFFE, 0xFFFFFFFF], np.uint32
)  # fmt: skip


def words(seed: int, lanes: int = 64) -> np.ndarray:
    """Random words, edges among them."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2**32, lanes, dtype=np.uint64).astype(np.uint32)
    places = rng.choice(lanes, lanes // 3, replace=False)
    values[places] = rng.choice(EDGES, places.size)
    return values
