"""The NVIDIA backend: Triton's CUDA pipeline behind the contract, compiling with no GPU present."""

from __future__ import annotations

from typing import Any, Callable, ContextManager, Mapping, Optional, Sequence

from gluon_core.plugin import machine_code
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.compiler import Report
from gluon_core.plugin.language import Language
from gluon_core.plugin.targets import Target
from gluon_core.plugin.triton_compiler import TritonCompiler, TritonDevice
from gluon_nvidia.arch import ARCHITECTURES, properties
from gluon_nvidia.columns import narrowed
from gluon_nvidia.features import DESCRIPTORS_MERGED
from gluon_nvidia.held_operands import held
from gluon_nvidia.lowerings import LOWERINGS
from gluon_nvidia.matrix_addresses import complete
from gluon_nvidia.pairs import paired
from gluon_nvidia.timeline import instrumented

__all__ = ["NVIDIA"]


class NvidiaCompiler(TritonCompiler):
    """Triton's CUDA compiler."""

    architectures = ARCHITECTURES
    path = "triton.backends.nvidia.compiler:CUDABackend"
    options_path = "triton.backends.nvidia.compiler:CUDAOptions"
    ops_path = "gluon_nvidia.builder:NvidiaOps"
    derives = ("sass",)
    listings = ("sass", "ptx", "ttgir")

    def builder_arch(self, target: Target) -> str:
        return f"sm{target.architecture.arch}"

    def around(self, target: Target, options: Any) -> Mapping[str, Callable[..., Any]]:
        from gluon_nvidia.assembler import keep_spills, keep_warnings, located

        threads = 32 * int(options.num_warps)

        def written(run: Callable[..., Any]) -> Callable[..., Any]:
            ptx = paired(narrowed(located(run)), threads)
            return held(ptx) if target.has("nvidia.wgmma") else ptx

        around: dict[str, Callable[..., Any]] = {"ptx": written}
        assembled = complete if self.has(DESCRIPTORS_MERGED) else lambda run: run
        if target.has("nvidia.wgmma"):
            around["cubin"] = lambda run: keep_warnings(assembled(run))
        recording = self.recording(options)
        if recording is not None:
            around["ptx"] = lambda run: instrumented(written(run), *recording)
            around["cubin"] = lambda run: keep_spills(keep_warnings(assembled(run)))
        return around

    def derive(self, name: str, asm: Mapping[str, Any]) -> Any:
        if name == "sass" and "cubin" in asm:
            return self.disassembled(asm["cubin"])
        return super().derive(name, asm)

    def listing(self, name: str, asm: Mapping[str, Any]) -> tuple[machine_code.CodeLine, ...]:
        if name != "sass":
            return super().listing(name, asm)
        from gluon_nvidia.inspect import listing

        return listing(asm["cubin"])

    def emitted(self, compiled: Any) -> Sequence[machine_code.Instruction]:
        from gluon_nvidia.inspect import emitted

        return emitted(self.listing("sass", compiled.asm))

    def inspect(self, compiled: Any) -> Report:
        from gluon_nvidia.inspect import report

        return report(compiled)

    def registers(self, compiled: Any) -> tuple[Optional[int], Optional[int]]:
        from gluon_nvidia.inspect import registers

        return registers(compiled)


class NvidiaDevice(TritonDevice):
    """GPUs behind the CUDA driver."""

    tensor_device = "cuda"

    def problem(self) -> Optional[str]:
        from gluon_nvidia import driver

        cuda = driver.find()
        if cuda is None:
            return driver.problem()
        if self.target(0) is None:
            return f"the device is sm_{cuda.capability(0)}, which gluon-nvidia does not know"
        return None

    def torch_properties(self, target: Target) -> Mapping[str, Any]:
        return {"version": {"cuda": "13.0", "hip": None}, **properties(target.architecture)}

    def target(self, index: int = 0) -> Optional[Target]:
        from gluon_nvidia import driver

        cuda = driver.find()
        if cuda is None or index >= cuda.count:
            return None
        try:
            capability = cuda.capability(index)
        except Exception:  # a device that broke down is no device
            return None
        known = next((arch for arch in ARCHITECTURES if arch.arch == capability), None)
        return Target("nvidia", known) if known is not None else None

    def count(self) -> int:
        from gluon_nvidia import driver

        cuda = driver.find()
        return cuda.count if cuda is not None else 0

    def current(self) -> int:
        from gluon_nvidia import driver

        return driver.driver().current_device()

    def scope(self, index: int) -> ContextManager[Any]:
        from gluon_nvidia import driver

        return driver.device_scope(index)

    def stream_getter(self) -> Callable[[int], int]:
        from gluon_nvidia import driver

        return driver.stream_getter()

    def launcher(self, compiled: Any) -> Callable[..., Any]:
        from gluon_nvidia.launcher import make_launcher

        return make_launcher(compiled)


NVIDIA = Backend(
    "nvidia",
    ARCHITECTURES,
    compiler=NvidiaCompiler(),
    device=NvidiaDevice(),
    language=Language(
        namespace="gluon_nvidia.language",
        host="gluon_nvidia.host",
        exports={
            name: f"gluon_nvidia.layouts:{name}"
            for name in ("NVMMADistributedLayout", "NVMMASharedLayout")
        },
        reference="gluon_nvidia.reference",
        lowerings=LOWERINGS,
        descriptors={
            "tensordesc": "gluon_nvidia.language.tma:tensor_descriptor_type",
            "tensordesc_im2col": "gluon_nvidia.language.tma:tensor_descriptor_im2col_type",
        },
    ),
)
