"""The AMD backend: Triton's HIP pipeline behind the contract, compiling with no GPU present."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Callable, ContextManager, Mapping, Optional, Sequence

from gluon_amd.arch import ARCHITECTURES, properties
from gluon_amd.features import ANY_TARGET_FP8, RESOLVES_COALESCED
from gluon_amd.lowerings import LOWERINGS
from gluon_core.plugin.backend import Report, Stage, load_path
from gluon_core.plugin.emitted import Emitted
from gluon_core.plugin.targets import Target
from gluon_core.plugin.triton_backend import TritonBackend

__all__ = ["AmdBackend"]

_PATH = "gluon_amd.layouts"


class AmdBackend(TritonBackend):
    """AMD GPUs: CDNA and RDNA."""

    name = "amd"
    architectures = ARCHITECTURES
    language = "gluon_amd.language"
    host = "gluon_amd.host"
    exports = {
        "AMDMFMALayout": f"{_PATH}:AMDMFMALayout",
        "AMDWMMALayout": f"{_PATH}:AMDWMMALayout",
    }
    descriptors = {"tensordesc": "gluon_amd.language.descriptor:tensor_descriptor_type"}
    reference = "gluon_amd.reference"
    lowerings = LOWERINGS
    listings = ("amdgcn", "ttgir")
    compiler = "triton.backends.amd.compiler:HIPBackend"
    compiler_options = "triton.backends.amd.compiler:HIPOptions"
    tensor_device = "cuda"  # what torch calls HIP devices
    pointer_range_bits = 32

    # -- devices -----------------------------------------------------------------------------------

    def device(self) -> Optional[Target]:
        return self.device_target(0)

    def device_problem(self) -> Optional[str]:
        from gluon_amd import driver

        if not driver.device_count():
            return driver.problem()
        if self.device_target(0) is None:
            return f"the device is {driver.architecture(0)}, which gluon-amd does not know"
        return None

    def torch_properties(self, target: Target) -> Mapping[str, Any]:
        return {"version": {"cuda": None, "hip": "7.0.0"}, **properties(target.architecture)}

    def device_target(self, index: int) -> Optional[Target]:
        from gluon_amd import driver

        name = driver.architecture(index)
        found = next((arch for arch in self.architectures if arch.arch == name), None)
        return Target(self.name, found) if found is not None else None

    def device_count(self) -> int:
        from gluon_amd import driver

        return driver.device_count()

    def current_device(self) -> int:
        torch = sys.modules.get("torch")
        return torch.cuda.current_device() if torch is not None else 0

    def device_scope(self, index: int) -> ContextManager[Any]:
        torch = sys.modules.get("torch")
        return torch.cuda.device(index) if torch is not None else super().device_scope(index)

    def stream_getter(self) -> Callable[[int], int]:
        from triton.runtime import driver

        stream: Callable[[int], int] = driver.active.get_current_stream
        return stream

    # -- compiling ---------------------------------------------------------------------------------

    def compiler_process(self, target: Target) -> str:
        from gluon_core import vendor

        return "" if vendor.has(ANY_TARGET_FP8) else target.architecture.name

    def pipeline(self, target: Target, options: Any) -> tuple[Stage, ...]:
        from gluon_core import vendor

        stages = super().pipeline(target, options)
        if vendor.has(RESOLVES_COALESCED):
            return stages
        return (replace(stages[0], run=_coalesced(stages[0].run)), *stages[1:])

    # -- running -----------------------------------------------------------------------------------

    def launcher(self, compiled: Any) -> Callable[..., Any]:
        launch: Callable[..., Any] = load_path("gluon_amd.launcher:make_launcher")(compiled)
        return launch

    def emitted(self, compiled: Any) -> Sequence[Emitted]:
        lines = self.listing("amdgcn", compiled.asm)
        read: Callable[..., Sequence[Emitted]] = load_path("gluon_amd.inspect:emitted")
        return read(lines)

    def inspect(self, compiled: Any) -> Report:
        found: Report = load_path("gluon_amd.inspect:report")(compiled)
        return found


def _coalesced(
    run: Callable[[Any, dict[str, Any]], Any],
) -> Callable[[Any, dict[str, Any]], Any]:
    """The first stage, once every CoalescedLayout is a layout: before 3.9 Triton's own leaves them."""

    def stage(module: Any, metadata: dict[str, Any]) -> Any:
        from gluon_core.vendor import ir, passes

        manager = ir.pass_manager(module.context)
        passes.gluon.add_inliner(manager)
        passes.gluon.add_infer_coalesced_encodings(manager)
        manager.run(module, "gluon_to_ttgir")
        return run(module, metadata)

    return stage
