"""The facet of a compiler: options, the builder, stages from module to machine code, and reading that."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Callable, Mapping, Optional, Sequence

from gluon_core.listing import Table, of_assembly, of_module
from gluon_core.plugin.machine_code import CodeLine, Instruction, Loop, find_loops
from gluon_core.plugin.options import CompileOptions
from gluon_core.plugin.paths import Form
from gluon_core.plugin.targets import Target

if TYPE_CHECKING:
    from gluon_core.plugin.builder import Builder
    from gluon_core.plugin.launcher import Compiled

__all__ = ["Compiler", "Report", "Stage"]


@dataclass(frozen=True)
class Stage:
    """One step of a compilation: a pure function of its input, the options and the metadata so far.

    `run(source, metadata) -> result`; `metadata` is a dict that the stage may add to: it starts from
    the options' fields, and the core reads `name` (of the kernel in the machine code), `shared` (bytes
    of shared memory of a block), `num_warps`, `num_ctas` and, where there are any, `warnings`: texts, reported as
    `KernelWarning`s. The first stage gets the module of the builder
    (`module` of `gluon_core.plugin.builder.RESULTS`), the result of the last one is bytes. `name` is also the
    key in `CompiledKernel.asm`.
    """

    name: str
    run: Callable[[Any, dict[str, Any]], Any]


@dataclass(frozen=True)
class Report(Table):
    """Numbers that the machine code gives of itself.

    Args:
        registers: 32-bit registers per thread, None where unknown.
        spills: of each thread, in the unit of the vendor's tools: registers or bytes.
        shared_memory: bytes per block.
        instruction_count: machine instructions in the kernel.
        instruction_mix: mnemonic class -> count.
        scratch: bytes of memory that each thread has to itself, for spills and arrays.
        occupancy: warps that fit on one multiprocessor (compute unit) at once, by registers, shared
            memory and the most it holds; None where unknown.
        register_files: registers by kind, where there are several.
        loops: the kernel's loops, with the instructions of each by full mnemonic.
    """

    registers: Optional[int]
    spills: Optional[int]
    shared_memory: int
    instruction_count: int
    instruction_mix: Mapping[str, int]
    scratch: Optional[int] = None
    occupancy: Optional[int] = None
    register_files: Mapping[str, int] = field(default_factory=dict)
    loops: tuple[Loop, ...] = ()

    @classmethod
    def of(
        cls, instructions: Sequence[Instruction], unit: Callable[[str], str], **numbers: Any
    ) -> Report:
        """Return the report of these instructions, counted, with their loops.

        Args:
            unit: returns the class of a mnemonic for `instruction_mix`.
            numbers: the other fields.
        """
        mix = Counter(unit(one.name) for one in instructions)
        return cls(
            instruction_count=len(instructions),
            instruction_mix=dict(mix.most_common()),
            loops=find_loops(instructions),
            **numbers,
        )

    def __post_init__(self) -> None:
        for name in ("instruction_mix", "register_files"):  # a Counter is no dict to `asdict`
            object.__setattr__(self, name, dict(getattr(self, name)))

    def rows(self) -> list[tuple[str, str]]:
        """Return the known values as (name, text), for tables."""
        mix = sorted(self.instruction_mix.items(), key=lambda item: -item[1])
        parts: list[tuple[str, Any]] = [
            ("registers", self.registers),
            *((f"registers, {kind}", count) for kind, count in self.register_files.items()),
            ("spills", self.spills),
            ("shared memory, bytes", self.shared_memory),
            ("scratch, bytes", self.scratch),
            ("occupancy, warps", self.occupancy),
            ("instructions", self.instruction_count),
            *((f"instructions, {kind}", count) for kind, count in mix if count),
        ]
        return [(name, str(value)) for name, value in parts if value is not None]


class Compiler:
    """The facet of a vendor's compiler.

    This class itself only has options: kernels of a backend with it are traced and simulated. A
    compiler defines `builder`, `pipeline` and `inspect`.

    Attributes:
        cacheable: compiled kernels may be kept on disk.
        isolate: the stages may abort the process, and run in a child where that works.
        derives: the entries of `asm` that `derive` makes.
        listings: the entries of `asm` that `listing` reads, the first to be shown first.
        pointer_range_bits: mark pointers into less than 2**(bits - 1) bytes for the compiler
            (`tt.pointer_range`); None never does.
    """

    cacheable: bool = True
    isolate: bool = False
    derives: Sequence[str] = ()
    listings: Sequence[str] = ("ttgir",)
    pointer_range_bits: Optional[
        Annotated[int, Form(r"[2-9]|\d\d+", "must be a number of bits")]
    ] = None

    def options(self, target: Target, requested: Mapping[str, Any]) -> CompileOptions:
        """Return the compile options for `target`: a frozen dataclass.

        A backend with options of its own derives a class from `CompileOptions`, whose `of` checks.

        Args:
            requested: the options of a launch.

        Raises:
            OptionError: an unknown key (with the nearest known one), or an illegal value.
        """
        return CompileOptions.of(target, requested)

    def target_attribute(self, target: Target) -> str:
        """Return the attribute of a module that names its target, such as `cuda:90`."""
        arch = target.architecture
        return f"{arch.triton_backend or arch.backend}:{arch.arch}"

    def load_dialects(self, context: Any) -> None:
        """Load the vendor's dialects into an MLIR context."""

    def builder(self, context: Any, target: Target) -> Builder:
        """Return the builder that the semantic layer calls, a new one for each traced function.

        Args:
            context: an MLIR context with Triton's dialects and those of `load_dialects`.

        Raises:
            CapabilityError: this backend has no compiler.
        """
        raise target.lacks("compiler")

    def codegen(self, target: Target, options: Any) -> Mapping[str, Any]:
        """Return the functions that Triton's frontend asks the vendor for.

        `convert_custom_types(value, type, rounding, _semantic)` casts where the compiler has no op for
        it; `min_dot_size(a_type, b_type) -> (M, N, K)` bounds `tl.dot`.
        """
        return {}

    def module_map(self, target: Target) -> Mapping[str, Any]:
        """Return modules whose functions replace those of Triton's modules, by name (`libdevice`)."""
        return {}

    def pipeline(self, target: Target, options: Any) -> tuple[Stage, ...]:
        """Return the stages from traced module to machine code; the last yields bytes.

        Raises:
            CapabilityError: this backend has no compiler.
        """
        raise target.lacks("compiler")

    def process(self, target: Target) -> str:
        """Return a key: the stages of targets with equal keys may run in one process.

        A compiler that keeps state of one architecture in its process names the architecture.
        """
        return ""

    def version(self, target: Target) -> str:
        """Return the versions of outside tools, on which the machine code depends as on Triton."""
        return ""

    def derive(self, name: str, asm: Mapping[str, Any]) -> Any:
        """Return an entry of `CompiledKernel.asm` that is made on request, such as a disassembly.

        Raises:
            KeyError: there is none of that name.
        """
        raise KeyError(name)

    def listing(self, name: str, asm: Mapping[str, Any]) -> tuple[CodeLine, ...]:
        """Return the lines of an entry of `CompiledKernel.asm`, each with its line of the kernel.

        Modules with `loc(...)` and assembly with `.loc` are read here; a backend reads its other texts.

        Raises:
            BackendError: no tool here reads it.
            KeyError: there is none of that name.
        """
        text = str(asm[name])
        lines = of_module(text) if " loc(" in text else of_assembly(text)
        return tuple(CodeLine(*line) for line in lines)

    def inspect(self, compiled: Compiled) -> Report:
        """Return registers, spills, shared memory and instruction mix, read from the machine code.

        Raises:
            BackendError: no tool here reads it.
            CapabilityError: this backend has no compiler.
        """
        raise compiled.target.lacks("compiler")

    def registers(self, compiled: Compiled) -> tuple[Optional[int], Optional[int]]:
        """Return `registers` and `spills` of the report; a backend that reads them without the instructions does it here."""
        report = self.inspect(compiled)
        return report.registers, report.spills

    def emitted(self, compiled: Compiled) -> Sequence[Instruction]:
        """Return the machine instructions that reach global memory, and matrix products, each with its
        line of the kernel; none where the backend does not read the machine code.

        Raises:
            BackendError: the tool that reads it failed.
        """
        return ()
