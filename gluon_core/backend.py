"""The contract that a vendor fills in.

A backend is one object, an instance of `Backend`, that a plugin hands over through the
`gluon_backends` hook. The registry verifies it when it registers. Paths are `"package.module"` or
`"package.module:attribute"` strings so that importing a plugin imports nothing heavy.
"""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Callable, ContextManager, Mapping, Optional, Sequence, Union

from gluon_core.errors import CapabilityError
from gluon_core.isa import Loop
from gluon_core.targets import Architecture, Target

__all__ = ["API_VERSION", "Backend", "Lowering", "Report", "Stage", "Watch", "load_path"]

API_VERSION = 1


def load_path(path: str) -> Any:
    """The module, or with `module:attribute` the attribute, that `path` names."""
    module, _, attribute = path.partition(":")
    value = importlib.import_module(module)
    return getattr(value, attribute) if attribute else value


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
        extras: paths of further compile-time functions an op asks for (`mma`: "layouts").
        min_triton: the oldest Triton (major, minor) whose builder can emit it.
        gives_up: text in a compiler's diagnostics, or several texts, which means that these operands cannot be done
            this way after all, for a reason that only the compiler sees, such as the alignment of
            an address. The kernel is then compiled once more without this lowering.
    """

    op: str
    name: str
    implement: str
    requires: tuple[str, ...] = ()
    priority: int = 0
    accepts: Optional[str] = None
    extras: Mapping[str, str] = field(default_factory=dict)
    min_triton: tuple[int, int] = (3, 6)
    gives_up: Union[str, tuple[str, ...], None] = None


@dataclass(frozen=True)
class Stage:
    """One step of a compilation: a pure function of its input, the options and the metadata so far.

    `run(source, metadata) -> result`; `metadata` is a dict that the stage may add to. The result of
    the last stage of a pipeline is bytes. `name` is also the key in `CompiledKernel.asm`.
    """

    name: str
    run: Callable[[Any, dict], Any]


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


@dataclass(frozen=True)
class Watch:
    """What to find out while kernels run; files are written when the run is over.

    Args:
        profile: print what each line of each kernel moved and computed.
        profile_json, profile_html: write the same to these files.
        trace: write a timeline to this file, in the JSON format of Chrome and Perfetto.
        debug: open a prompt where a kernel fails or calls `breakpoint()`.
    """

    profile: bool = False
    profile_json: Optional[str] = None
    profile_html: Optional[str] = None
    trace: Optional[str] = None
    debug: bool = False

    def __bool__(self) -> bool:
        return self != Watch()


class Backend:
    """Base of every backend. Attributes without a default must be set by the subclass.

    Attributes:
        name: `gl.<name>`, `target="<name>:arch"`.
        api_version: the contract version this backend was written for.
        architectures: usable with no device present.
        simulates: True for a backend that has no architectures of its own and stands in for those
            of all the others.
        simulation: path of `f(**settings)` of a backend that simulates: a context manager under which
            launches run with other settings, `schedule` ("latest", "eager" or "random") and `seed`
            at least.
        language: module path behind `gl.<name>`; None when it has no ops of its own.
        host: module path behind `gluon_core.<name>`.
        exports: names that kernels expect in `gl` itself -> path of the value.
        reference: module path of the reference models, NumPy only.
        lowerings: the portable ops it implements.
        descriptors: how descriptor arguments are called in a signature, such as `tensordesc`, ->
            path of the class of their type (a subclass of `descriptors.tensor_descriptor_type`).
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
    simulation: Optional[str] = None
    language: Optional[str] = None
    host: Optional[str] = None
    exports: Mapping[str, str] = {}
    reference: Optional[str] = None
    lowerings: Sequence[Lowering] = ()
    descriptors: Mapping[str, str] = {}
    cacheable: bool = True
    isolate: bool = False
    tensor_device: Optional[str] = None
    raw_pointers: bool = False
    pointer_range_bits: Optional[int] = None

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

    def options(self, target: Target, given: Mapping[str, Any]) -> Any:
        """A frozen dataclass of compile options, at least `num_warps`, `num_ctas` and `debug`.

        Raises:
            OptionError: an unknown key (with the nearest known one), or an illegal value.
        """
        raise NotImplementedError

    def target_attribute(self, target: Target) -> str:
        """How a module says what it is for, such as `cuda:90`."""
        arch = target.architecture
        return f"{arch.triton_backend or arch.backend}:{arch.arch}"

    def load_dialects(self, context: Any) -> None:
        """Load the vendor's dialects into an MLIR context."""

    def builder(self, context: Any, target: Target) -> Any:
        """What the semantic layer talks to: answers `create_x` and `get_x`."""
        raise NotImplementedError

    def codegen(self, target: Target, options: Any) -> Mapping[str, Any]:
        """Functions that the semantic layer asks the vendor for (`convert_custom_types`, `min_dot_size`)."""
        return {}

    def module_map(self, target: Target) -> Mapping[str, Any]:
        """Modules whose functions stand in for portable ones (`libdevice`)."""
        return {}

    def pipeline(self, target: Target, options: Any) -> tuple[Stage, ...]:
        """The stages from traced module to machine code; the last yields bytes."""
        raise NotImplementedError

    def launcher(self, compiled: Any) -> Callable[..., Any]:
        """`launch(grid, stream, *arguments)` for `compiled` (a `gluon_core.compiler.CompiledKernel`).

        `grid` is three positive ints, `stream` what `stream_getter` gave, and `arguments` are all
        parameters of the kernel in order, those that are constants in this specialization included.
        Called once per device, with that device current. It may set `function`, `module`, `n_regs`,
        `n_spills` and `n_max_threads` of `compiled`.
        """
        raise NotImplementedError

    def pipeline_version(self, target: Target) -> str:
        """What the machine code depends on beside Triton and the plugin: versions of outside tools."""
        return ""

    def derive(self, name: str, asm: Mapping[str, Any]) -> Any:
        """An entry of `CompiledKernel.asm` that is made when asked for, such as a disassembly.

        Raises:
            KeyError: there is none of that name.
        """
        raise KeyError(name)

    def inspect(self, compiled: Any) -> Report:
        """Registers, spills, shared memory and instruction mix, read from the machine code."""
        raise NotImplementedError
