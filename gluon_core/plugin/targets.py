"""Architectures, their limits, and targets.

Every spelling (`nvidia:sm_90`, `hopper`, `h200`, `sim:hopper`) parses to one frozen `Target`; the
registry (`gluon_core.registry.load`) knows the spellings, this module knows no vendor.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Mapping, Optional, Union

from gluon_core.errors import CapabilityError
from gluon_core.features import OLDEST, Feature
from gluon_core.plugin.paths import Capability, Form

__all__ = ["Architecture", "Limits", "Target"]

Spelling = Annotated[
    str,
    Form(
        r"[a-z0-9][a-z0-9_.+-]*",
        "a spelling is lower case letters, digits, '_', '-', '.' or '+'",
    ),
]


@dataclass(frozen=True)
class Limits:
    """The resources of one architecture for one block (CTA, workgroup).

    Args:
        shared_memory: bytes of shared memory (LDS) that one block can use at most.
        max_warps: warps (waves) of one block.
        max_registers: 32-bit registers of one thread.
        max_ctas_per_cluster: blocks of one cluster; 1 where there are no clusters.
        tensor_memory_columns: columns of tensor memory; 0 where there is none.
        movable_registers: whether warps of a block can give registers to each other.
        register_file: 32-bit registers of one block, all threads together.
        register_range: least and most registers of a thread that gives or takes some, and the step.
        warp_group: warps that get the same registers, and that a kernel with partitions counts by.
        partitions: whether the warps of a block can run different functions at once.
        remote_shared: whether threads reach the shared memory of their cluster's other blocks.
    """

    shared_memory: int
    max_warps: int = 32
    max_registers: int = 255
    max_ctas_per_cluster: int = 1
    tensor_memory_columns: int = 0
    movable_registers: bool = True
    register_file: int = 65536
    register_range: tuple[int, int, int] = (24, 256, 8)
    warp_group: int = 4
    partitions: bool = True
    remote_shared: bool = True


@dataclass(frozen=True)
class Architecture:
    """One hardware generation that a backend can compile for.

    Args:
        name: the vendor's own name.
        backend: the plugin that contributes it.
        aliases: other spellings users type, lower case.
        arch: the `arch` field of Triton's GPUTarget.
        triton_backend: the `backend` field of Triton's GPUTarget; None when Triton is not involved.
        warp_size: threads of one warp.
        limits: see `Limits`.
        capabilities: dotted names of hardware features.
        min_triton: the oldest Triton (major, minor) that compiles for it.
        banks: shared-memory banks of 4 bytes.
        default: the architecture that the simulator stands in for when nobody says.
        peaks: the peak rates of one device, for estimates: "global" and "shared" in bytes/s,
            "vector" float32 FLOP/s, and of the matrix unit FLOP/s by operand type ("fp64", "tf32",
            "bf16", "fp16", "fp8", "fp4", "int8"), dense; and "units", its multiprocessors (compute
            units). Unknown numbers are left out.
        no_casts: conversions that its compiler rejects, (from, to) with Triton's short names of the
            dtypes, and the releases of Triton that have them all the same.
        casts_by_float32: conversions that its compiler makes only of float32, (from, to), and the releases
            of Triton that make them directly; before, they go by way of float32, which rounds once.
        no_ops: ops that its compiler rejects for a dtype, (op of `gl`, short name of the dtype), and
            the releases of Triton that have them all the same; None where none does.
        no_constraints: constraints of inline assembly on which its compiler ends the process.
        timing: path of its `gluon_core.plugin.timing.Timing`; None where no time can be predicted.
    """

    name: Spelling
    backend: str
    aliases: tuple[Spelling, ...] = ()
    _: KW_ONLY
    arch: Union[int, str]
    triton_backend: Optional[str]
    warp_size: Annotated[int, Form(r"[1248]|16|32|64|128", "must be a power of two")]
    limits: Limits
    capabilities: frozenset[Capability] = field(default_factory=frozenset)
    min_triton: tuple[int, int] = OLDEST
    banks: int = 32
    description: str = ""
    default: bool = False
    peaks: Mapping[str, float] = field(default_factory=dict, compare=False)
    no_casts: Mapping[tuple[str, str], Feature] = field(default_factory=dict, compare=False)
    casts_by_float32: Mapping[tuple[str, str], Feature] = field(default_factory=dict, compare=False)
    no_ops: Mapping[tuple[str, str], Optional[Feature]] = field(default_factory=dict, compare=False)
    no_constraints: tuple[str, ...] = field(default=(), compare=False)
    timing: Optional[str] = field(default=None, compare=False)

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True)
class Target:
    """The architecture that a kernel is compiled for, and the backend that runs it.

    `backend` names the plugin that compiles and launches; it differs from `architecture.backend`
    when one plugin stands in for another's hardware, as the simulator does.
    """

    backend: str
    architecture: Architecture

    @property
    def name(self) -> str:
        return f"{self.backend}:{self.architecture.name}"

    @property
    def simulated(self) -> bool:
        return self.backend != self.architecture.backend

    @property
    def warp_size(self) -> int:
        return self.architecture.warp_size

    @property
    def limits(self) -> Limits:
        return self.architecture.limits

    def has(self, capability: str) -> bool:
        """Return True if the hardware has `capability`; each op checks the installed Triton."""
        return capability in self.architecture.capabilities

    def lacks(self, part: str) -> CapabilityError:
        """Return the error of a backend without a compiler, or without a launcher."""
        remedy = f"Run on a simulator, as with GLUON_TARGET=sim:{self.architecture.name}."
        return CapabilityError(f"the backend {self.backend} has no {part}", remedy=remedy)

    def __str__(self) -> str:
        return self.name
