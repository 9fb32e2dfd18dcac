"""The AMD backend: Triton's HIP pipeline behind the contract, compiling with no GPU present."""

from __future__ import annotations

import sys
from functools import partial, reduce
from typing import Any, Callable, ContextManager, Mapping, Optional, Sequence

from gluon_amd.arch import ARCHITECTURES, properties
from gluon_amd.features import (
    ALL_PRELOADED,
    ANY_TARGET_FP8,
    AWAITED_WRITEBACKS,
    CONVERGENT_WMMA,
    RESOLVES_COALESCED,
    SCALAR_CAS_WAITS,
    VOLATILE_LOADS,
)
from gluon_amd.lowerings import LOWERINGS
from gluon_amd.releases import awaited_by_all
from gluon_amd.timeline import instrumented, keep_spills
from gluon_amd.workarounds import (
    anchored_products,
    awaited_writebacks,
    fewer_preloaded,
    signed_extremes,
    split_waits,
    warned_of_volatile,
)
from gluon_core.plugin import machine_code
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.compiler import Report
from gluon_core.plugin.language import Language
from gluon_core.plugin.targets import Target
from gluon_core.plugin.triton_compiler import TritonCompiler, TritonDevice

__all__ = ["AMD"]


class AmdCompiler(TritonCompiler):
    """Triton's HIP compiler."""

    architectures = ARCHITECTURES
    path = "triton.backends.amd.compiler:HIPBackend"
    options_path = "triton.backends.amd.compiler:HIPOptions"
    listings = ("amdgcn", "ttgir")
    ops_path = "gluon_amd.timeline:Marks"
    pointer_range_bits = 32

    def process(self, target: Target) -> str:
        return "" if self.has(ANY_TARGET_FP8) else target.architecture.name

    def around(self, target: Target, options: Any) -> Mapping[str, Callable[..., Any]]:
        around: dict[str, Callable[..., Any]] = {}
        if not self.has(RESOLVES_COALESCED):
            around["ttgir"] = _coalesced
        arch = str(target.architecture.arch)
        llir: list[Callable[..., Any]] = []
        amdgcn: list[Callable[..., Any]] = []
        if not self.has(VOLATILE_LOADS):
            llir.append(warned_of_volatile)
        if arch == "gfx1250" and not self.has(ALL_PRELOADED):
            llir.append(fewer_preloaded)
        if arch == "gfx1250" and not self.has(SCALAR_CAS_WAITS):
            llir.append(split_waits)
        if arch in ("gfx942", "gfx950"):
            llir.append(signed_extremes)
        if not self.has(CONVERGENT_WMMA):
            llir.append(anchored_products)
        if not self.has(AWAITED_WRITEBACKS):
            amdgcn.append(awaited_writebacks)
        if arch.startswith("gfx9") and int(options.num_warps) > 1:
            llir.append(awaited_by_all)
        recording, width = self.recording(options), int(options.warp_size)
        if recording is not None:
            llir.append(lambda run: instrumented(run, recording, width, arch))
            amdgcn.append(keep_spills)
        for name, wrappers in (("llir", llir), ("amdgcn", amdgcn)):
            if wrappers:
                around[name] = partial(reduce, lambda stage, more: more(stage), wrappers)
        return around

    def emitted(self, compiled: Any) -> Sequence[machine_code.Instruction]:
        from gluon_amd.inspect import emitted

        return emitted(self.listing("amdgcn", compiled.asm))

    def inspect(self, compiled: Any) -> Report:
        from gluon_amd.inspect import report

        return report(compiled)


class AmdDevice(TritonDevice):
    """GPUs behind the HIP driver."""

    tensor_device = "cuda"  # torch's name for HIP devices

    def problem(self) -> Optional[str]:
        from gluon_amd import driver

        if not driver.device_count():
            return driver.problem()
        if self.target(0) is None:
            return f"the device is {driver.architecture(0)}, which gluon-amd does not know"
        return None

    def torch_properties(self, target: Target) -> Mapping[str, Any]:
        return {"version": {"cuda": None, "hip": "7.0.0"}, **properties(target.architecture)}

    def target(self, index: int = 0) -> Optional[Target]:
        from gluon_amd import driver

        name = driver.architecture(index)
        known = next((arch for arch in ARCHITECTURES if arch.arch == name), None)
        return Target("amd", known) if known is not None else None

    def count(self) -> int:
        from gluon_amd import driver

        return driver.device_count()

    def current(self) -> int:
        torch = sys.modules.get("torch")
        return torch.cuda.current_device() if torch is not None else 0

    def scope(self, index: int) -> ContextManager[Any]:
        torch = sys.modules.get("torch")
        if torch is None or not self.count():  # the launcher's error names the remedy
            return super().scope(index)
        scope: ContextManager[Any] = torch.cuda.device(index)
        return scope

    def stream_getter(self) -> Callable[[int], int]:
        stream: Callable[[int], int] = self.driver().get_current_stream
        return stream

    def launcher(self, compiled: Any) -> Callable[..., Any]:
        from gluon_amd.launcher import make_launcher

        return make_launcher(compiled)


def _coalesced(
    run: Callable[[Any, dict[str, Any]], Any],
) -> Callable[[Any, dict[str, Any]], Any]:
    """Return a first stage that resolves each CoalescedLayout, which Triton before 3.9 leaves."""

    def stage(module: Any, metadata: dict[str, Any]) -> Any:
        TritonCompiler.run_passes(
            module, "gluon.add_inliner", "gluon.add_infer_coalesced_encodings"
        )
        return run(module, metadata)

    return stage


AMD = Backend(
    "amd",
    ARCHITECTURES,
    compiler=AmdCompiler(),
    device=AmdDevice(),
    language=Language(
        namespace="gluon_amd.language",
        host="gluon_amd.host",
        exports={name: f"gluon_amd.layouts:{name}" for name in ("AMDMFMALayout", "AMDWMMALayout")},
        reference="gluon_amd.reference",
        lowerings=LOWERINGS,
        descriptors={"tensordesc": "gluon_amd.language.descriptor:tensor_descriptor_type"},
    ),
)
