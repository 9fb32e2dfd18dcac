"""The contract that a vendor fills in.

A backend is one object, an instance of `Backend`, that a plugin hands over through the
`gluon_backends` hook. The registry verifies it when it registers. Paths are `"package.module"` or
`"package.module:attribute"` strings so that importing a plugin imports nothing heavy.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from html import escape
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ContextManager,
    Mapping,
    Optional,
    Sequence,
    Union,
)

from gluon_core.errors import CapabilityError
from gluon_core.features import OLDEST
from gluon_core.plugin.emitted import Emitted
from gluon_core.plugin.isa import Loop
from gluon_core.plugin.listing import CodeLine, of_assembly, of_module
from gluon_core.plugin.paths import load_path
from gluon_core.plugin.targets import Architecture, Target

if TYPE_CHECKING:
    from gluon_core.plugin.builder import Builder
    from gluon_core.plugin.launcher import CallsOf, Compiled, FastPath, Launcher
    from gluon_core.plugin.options import Options
    from gluon_core.simulation.findings import Findings

__all__ = [
    "API_VERSION",
    "Backend",
    "Executed",
    "Lowering",
    "Report",
    "Stage",
    "Watch",
    "load_path",
]

API_VERSION = 1


def _no_stream(index: int) -> int:
    return 0


@dataclass(frozen=True)
class Lowering:
    """One implementation of a portable op.

    Args:
        op: the portable op, one of `gluon_core.portable.OPS`.
        name: what `gluon explain` calls it, unique among the lowerings of an op.
        requires: capabilities that the target must have.
        priority: of the lowerings that fit, the highest wins; two that can fit the same target
            must not share one.
        implement: path of the function that emits the op: `f(request, _semantic) -> value`.
        accepts: path of a predicate `f(request) -> True | str`, the string saying why not; None
            accepts all operands. `request` is the op's request dataclass in `gluon_core.portable`.
        extras: paths of further compile-time functions: those that the op asks for
            (`gluon_core.plugin.requests.OPS`), and others that lowerings of it may have.
        min_triton: the oldest Triton (major, minor) whose builder can emit it.
        gives_up: text in a compiler's diagnostics, or several texts, which means that these operands cannot be done
            this way after all, for a reason that only the compiler sees, such as the alignment of
            an address. The kernel is then compiled once more without this lowering.
        expects: patterns of the names that `Backend.emitted` gives to instructions, at least one of
            which is at the op's line when the compiler kept the lowering; none for "nothing special".
    """

    op: str
    name: str
    implement: str
    requires: tuple[str, ...] = ()
    priority: int = 0
    accepts: Optional[str] = None
    extras: Mapping[str, str] = field(default_factory=dict)
    min_triton: tuple[int, int] = OLDEST
    gives_up: Union[str, tuple[str, ...], None] = None
    expects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """One step of a compilation: a pure function of its input, the options and the metadata so far.

    `run(source, metadata) -> result`; `metadata` is a dict that the stage may add to: it starts from
    the options' fields, and the core reads `name` (of the kernel in the machine code), `shared` (bytes
    of shared memory of a block), `num_warps`, `num_ctas` and, where there are any, `warnings`: texts, told as
    `KernelWarning`s. The first stage gets what the builder
    made (`gluon_core.plugin.builder.Module`), the result of the last one is bytes. `name` is also the
    key in `CompiledKernel.asm`.
    """

    name: str
    run: Callable[[Any, dict[str, Any]], Any]


@dataclass(frozen=True)
class Report:
    """What the machine code says about itself.

    Args:
        registers: 32-bit registers per thread, None where unknown.
        spills: what each thread spilled, in the unit of the vendor's tools: registers or bytes.
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

    def rows(self) -> list[tuple[str, str]]:
        """Return what is known, as (name, text), for tables."""
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

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(text)}</td></tr>"
            for name, text in self.rows()
        )
        return f"<table>{cells}</table>"

    def __rich__(self) -> Any:
        from rich.table import Table

        table = Table("", "", show_header=False)
        for row in self.rows():
            table.add_row(*row)
        return table


@dataclass(frozen=True)
class Executed:
    """What launches of a kernel executed. It does not depend on how many warps are resident at once.

    Args:
        launches: how many are counted here.
        warps: of all launches.
        instructions: machine instructions, each counted once for each warp that executed it.
        instruction_mix: family of instructions -> how many of them.
        global_bytes: moved from and to global memory.
        bank_cycles: that banks of shared memory took beyond the first of each access.
        idle_waits: waits that never had anything to wait for, of `waits`.
        lines: (file, line, instructions) of the kernel's source, line 0 where it is not known.
        same_code: whether all is of this very code; else of the kernel with other types or constants.
    """

    launches: int
    warps: int
    instructions: int
    instruction_mix: Mapping[str, int]
    global_bytes: int
    bank_cycles: int
    waits: int
    idle_waits: int
    lines: tuple[tuple[str, int, int], ...]
    same_code: bool = True


@dataclass(frozen=True)
class Watch:
    """What to find out while kernels run; files are written when the run is over.

    Args:
        profile: print what each line of each kernel moved and computed.
        profile_json, profile_html: write the same to these files.
        trace: write a timeline to this file, in the JSON format of Chrome and Perfetto.
        debug: open a prompt where a kernel fails or calls `breakpoint()`.
        trace_isa: write the executed machine instructions, counted by source line, to this file.
        asm: "KERNEL=FILE", for each kernel whose launches execute the machine code in a file of
            assembly rather than the compiler's.
        findings: gets everything that can be told of the run when it is over.
    """

    profile: bool = False
    profile_json: Optional[str] = None
    profile_html: Optional[str] = None
    trace: Optional[str] = None
    debug: bool = False
    trace_isa: Optional[str] = None
    findings: Optional[Callable[[Findings], None]] = field(
        default=None, metadata={"option": "--html"}
    )
    asm: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != Watch()


class Backend:
    """Base of every backend: `name` and, unless it simulates, `architectures` must be set.

    That alone makes targets, and kernels run on them in the simulator. A backend that compiles defines
    `builder`, `pipeline` and `inspect`; one that launches defines `device` and `launcher` besides.

    Attributes:
        name: `gl.<name>`, `target="<name>:arch"`.
        api_version: the contract version this backend was written for.
        architectures: usable with no device present.
        simulates: True for a backend that has no architectures of its own and stands in for those
            of all the others.
        unasked: of a backend that simulates: whether kernels run on it when nobody names a target and
            there is no device.
        machine_code: of a backend that simulates: whether its launcher executes what the compiler of
            the architecture made, also where that is Triton's own (`gluon_standin`).
        stands_in_for: names of the backends whose architectures one that simulates stands in for;
            None for all.
        watches: the fields of `Watch` that its `watch` can grant.
        simulation: path of the `gluon_core.plugin.launcher.Simulation` of a backend that simulates.
        command: path of a function that is the command `gluon <name>`; its parameters are Typer's.
        ranks: path of the `gluon_core.plugin.launcher.Ranks` of a backend that simulates several
            ranks side by side.
        language: module path behind `gl.<name>`; None when it has no ops of its own.
        host: module path behind `gluon_core.<name>`.
        exports: names that kernels expect in `gl` itself -> path of the value.
        reference: module path of the reference models, NumPy only.
        lowerings: the portable ops it implements.
        descriptors: how descriptor arguments are called in a signature, such as `tensordesc`, ->
            path of the class of their type (a subclass of `descriptors.tensor_descriptor_type`).
        argument_kinds: paths of `gluon_core.plugin.launcher.ArgumentKind`s, for host objects of its own
            that kernels take and that are no descriptors. They are loaded when the first object of a
            class that the core does not know is passed to a kernel.
        derives: the entries of `asm` that `derive` makes.
        listings: the entries of `asm` that `listing` can lay beside the source, the first to be shown first.
        cacheable: whether compiled kernels may be kept on disk.
        isolate: whether the stages may abort the process, and so run in a child where that works.
        tensor_device: the torch device type of the tensors its kernels take, such as `cpu`.
        raw_pointers: whether the launcher takes pointers as addresses; otherwise it gets the
            tensors themselves.
        pointer_range_bits: mark pointers into less than 2**(bits - 1) bytes for the compiler
            (`tt.pointer_range`); None never does.
    """

    name: str
    api_version: int = API_VERSION
    architectures: tuple[Architecture, ...] = ()
    simulates: bool = False
    unasked: bool = True
    machine_code: bool = False
    stands_in_for: Optional[tuple[str, ...]] = None
    watches: tuple[str, ...] = ("profile", "profile_json", "profile_html", "trace", "debug")
    simulation: Optional[str] = None
    command: Optional[str] = None
    ranks: Optional[str] = None
    language: Optional[str] = None
    host: Optional[str] = None
    exports: Mapping[str, str] = {}
    reference: Optional[str] = None
    lowerings: Sequence[Lowering] = ()
    descriptors: Mapping[str, str] = {}
    argument_kinds: Sequence[str] = ()
    derives: Sequence[str] = ()
    listings: Sequence[str] = ("ttgir",)
    cacheable: bool = True
    isolate: bool = False
    tensor_device: Optional[str] = None
    raw_pointers: bool = False
    pointer_range_bits: Optional[int] = None

    @property
    def compiles(self) -> bool:
        """Whether it has a compiler, that is, defines `builder`."""
        return type(self).builder is not Backend.builder

    def device(self) -> Optional[Target]:
        """The target of the device that is plugged in, or None. Never raises."""
        return None

    def device_problem(self) -> Optional[str]:
        """Why `device()` is None although hardware of this vendor may be there; None when all is well."""
        return None

    def device_count(self) -> int:
        """How many devices of this vendor there are."""
        return 1

    def current_device(self) -> int:
        """Index of the device that a launch goes to when no argument says otherwise."""
        return 0

    def device_target(self, index: int) -> Optional[Target]:
        """The target of one of several devices."""
        return self.device()

    def torch_properties(self, target: Target) -> Mapping[str, Any]:
        """What torch's `get_device_properties` says of such a device, for `gluon_standin`.

        `name`, `major` and `minor` (the device capability), `multi_processor_count`,
        `total_memory` (bytes) and what else the vendor has; `version` holds attributes of
        `torch.version`, by which host code tells vendors apart.
        """
        return {}

    def device_scope(self, index: int) -> ContextManager[Any]:
        """Make device `index` the current one."""
        return nullcontext()

    def watch(self, wish: Watch) -> ContextManager[Any]:
        """Launches inside are watched; simulators can do it.

        Raises:
            CapabilityError: this backend cannot.
        """
        raise CapabilityError(
            f"the backend {self.name} cannot watch its kernels",
            remedy="Run them on the simulator.",
        )

    def stream_getter(self) -> Callable[[int], int]:
        """A function from a device's index to its current stream, as cheap as can be had."""
        return _no_stream

    def fast_path(self, kernel: CallsOf) -> Optional[FastPath]:
        """What answers calls of `kernel` that came before at less cost, or None."""
        return None

    def options(self, target: Target, given: Mapping[str, Any]) -> Options:
        """The compile options for `target` when a launch gives these: a frozen dataclass.

        A backend with options of its own derives a class from `CompileOptions`, whose `of` checks.

        Raises:
            OptionError: an unknown key (with the nearest known one), or an illegal value.
        """
        from gluon_core.plugin.options import CompileOptions

        return CompileOptions.of(target, given)

    def target_attribute(self, target: Target) -> str:
        """How a module says what it is for, such as `cuda:90`."""
        arch = target.architecture
        return f"{arch.triton_backend or arch.backend}:{arch.arch}"

    def load_dialects(self, context: Any) -> None:
        """Load the vendor's dialects into an MLIR context."""

    def builder(self, context: Any, target: Target) -> Builder:
        """What the semantic layer talks to, a new one for each function that is traced.

        Args:
            context: an MLIR context with Triton's dialects and those of `load_dialects`.

        Raises:
            CapabilityError: this backend has no compiler.
        """
        raise self._lacks("compiler", target)

    def codegen(self, target: Target, options: Any) -> Mapping[str, Any]:
        """Functions that Triton's frontend asks the vendor for.

        `convert_custom_types(value, type, rounding, _semantic)` casts where the compiler has no op for
        it; `min_dot_size(a_type, b_type) -> (M, N, K)` bounds `tl.dot`.
        """
        return {}

    def module_map(self, target: Target) -> Mapping[str, Any]:
        """Modules whose functions stand in for those of Triton's modules, by name (`libdevice`)."""
        return {}

    def pipeline(self, target: Target, options: Any) -> tuple[Stage, ...]:
        """The stages from traced module to machine code; the last yields bytes.

        Raises:
            CapabilityError: this backend has no compiler.
        """
        raise self._lacks("compiler", target)

    def launcher(self, compiled: Compiled) -> Launcher:
        """A launch of `compiled`, which it loads.

        Called once per device, with that device current.

        Raises:
            CapabilityError: this backend cannot launch.
            DeviceError: there is no device.
            LaunchError: the driver refused to load the kernel.
            LimitError: the kernel needs more than the device has.
        """
        raise self._lacks("launcher", compiled.target)

    def hardware_options(self, options: Any) -> Any:
        """Of a backend that simulates: the options of the architecture's own backend in `options`.

        What its kernels answer about machine code (`asm["ptx"]`, `n_regs`) is compiled with them.
        """
        return options

    def compiler_process(self, target: Target) -> str:
        """Which targets' stages may run in one process: those for which this says the same.

        A compiler that keeps in its process what only one architecture needs names the architecture.
        """
        return ""

    def pipeline_version(self, target: Target) -> str:
        """What the machine code depends on beside Triton and the plugin: versions of outside tools."""
        return ""

    def derive(self, name: str, asm: Mapping[str, Any]) -> Any:
        """An entry of `CompiledKernel.asm` that is made when asked for, such as a disassembly.

        Raises:
            KeyError: there is none of that name.
        """
        raise KeyError(name)

    def listing(self, name: str, asm: Mapping[str, Any]) -> tuple[CodeLine, ...]:
        """The lines of an entry of `CompiledKernel.asm`, each with the line of the kernel that it is for.

        Modules with `loc(...)` and assembly with `.loc` are read here; a backend reads its other texts.

        Raises:
            BackendError: no tool here reads it.
            KeyError: there is none of that name.
        """
        text = str(asm[name])
        return of_module(text) if " loc(" in text else of_assembly(text)

    def inspect(self, compiled: Compiled) -> Report:
        """Registers, spills, shared memory and instruction mix, read from the machine code.

        Raises:
            BackendError: no tool here reads it.
            CapabilityError: this backend has no compiler.
        """
        raise self._lacks("compiler", compiled.target)

    def emitted(self, compiled: Compiled) -> Sequence[Emitted]:
        """Return the machine instructions that reach global memory, and matrix products, each with the
        kernel's line that it is for. None where the backend does not read the machine code.

        Raises:
            BackendError: the tool that reads it failed.
        """
        return ()

    def executed(self, compiled: Compiled, path: str) -> Executed:
        """What the launches of the kernel executed that `Watch.trace_isa` wrote to the file `path`.

        Raises:
            CapabilityError: this backend does not execute machine code instruction by instruction.
            ArgumentError: the file is none of these, or has no launch of the kernel.
        """
        raise CapabilityError(
            f"the backend {self.name} does not count executed instructions",
            got=str(compiled.target),
            remedy="Compile for a target that executes machine code on the CPU, as the launches did.",
        )

    def _lacks(self, what: str, target: Target) -> CapabilityError:
        return CapabilityError(
            f"the backend {self.name} has no {what}",
            remedy=f"Run on a simulator, as with GLUON_TARGET=sim:{target.architecture.name}.",
        )
