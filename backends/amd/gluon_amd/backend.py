"""The AMD backend: Triton's HIP pipeline behind the contract, compiling with no GPU present."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, ContextManager, Mapping, Optional

from gluon_amd.arch import ARCHITECTURES
from gluon_amd.lowerings import LOWERINGS
from gluon_core.backend import Backend, Report, Stage, load_path
from gluon_core.errors import LimitError, OptionError, did_you_mean
from gluon_core.targets import Target

__all__ = ["AmdBackend"]

_PATH = "gluon_amd.layouts"


class AmdBackend(Backend):
    """AMD GPUs: CDNA and RDNA."""

    name = "amd"
    architectures = ARCHITECTURES
    language = "gluon_amd.language"
    host = "gluon_amd.host"
    exports = {
        "AMDMFMALayout": f"{_PATH}:AMDMFMALayout",
        "AMDWMMALayout": f"{_PATH}:AMDWMMALayout",
    }
    reference = "gluon_amd.reference"
    lowerings = LOWERINGS
    isolate = True
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

        return driver.active.get_current_stream

    # -- compiling ---------------------------------------------------------------------------------

    def options(self, target: Target, given: Mapping[str, Any]) -> Any:
        known = _option_names()
        for key in given:
            if key not in known:
                raise OptionError(
                    f"{self.name} has no compile option {key!r}",
                    argument=key,
                    remedy=did_you_mean(key, known) or f"Options: {', '.join(known)}.",
                )
        _check_options(target, given)
        try:
            return _triton_backend(target).parse_options(dict(given))
        except (AssertionError, TypeError, ValueError, OSError) as error:
            listed = ", ".join(f"{key}={value!r}" for key, value in given.items())
            raise OptionError(
                f"illegal compile options for {target}: {error}", got=listed
            ) from error

    def builder(self, context: Any, target: Target) -> Any:
        from gluon_core import _triton

        return _triton.op_builder(context, str(target.architecture.arch))

    def codegen(self, target: Target, options: Any) -> Mapping[str, Any]:
        return _triton_backend(target).get_codegen_implementation(options)

    def module_map(self, target: Target) -> Mapping[str, Any]:
        return _triton_backend(target).get_module_map()

    def load_dialects(self, context: Any) -> None:
        _triton_backend(Target(self.name, self.architectures[0])).load_dialects(context)

    def pipeline(self, target: Target, options: Any) -> tuple[Stage, ...]:
        from triton.backends.compiler import Language

        stages: dict[str, Callable[[Any, dict], Any]] = {}
        _triton_backend(target).add_stages(stages, options, Language.GLUON)
        # From 3.9 the first stage is the identity on what we trace.
        return tuple(
            Stage(name, _limited(run, target) if name == "llir" else run)
            for name, run in stages.items()
            if name != "glir"
        )

    def pipeline_version(self, target: Target) -> str:
        return str(_triton_backend(target).hash())

    # -- running -----------------------------------------------------------------------------------

    def launcher(self, compiled: Any) -> Callable[..., Any]:
        return load_path("gluon_amd.launcher:make_launcher")(compiled)

    def inspect(self, compiled: Any) -> Report:
        return load_path("gluon_amd.inspect:report")(compiled)


@functools.lru_cache(maxsize=None)
def _triton_backend(target: Target) -> Any:
    from triton.backends.amd.compiler import HIPBackend

    from gluon_core import _triton

    return HIPBackend(_triton.gpu_target(target))


@functools.lru_cache(maxsize=None)
def _option_names() -> tuple[str, ...]:
    from triton.backends.amd.compiler import HIPOptions

    return tuple(HIPOptions.__dataclass_fields__)


def _check_options(target: Target, given: Mapping[str, Any]) -> None:
    limits = target.limits
    for key, most in (("num_warps", limits.max_warps), ("num_ctas", limits.max_ctas_per_cluster)):
        value = given.get(key)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1 or value & (value - 1):
            raise OptionError(
                f"{key} must be a power of two", argument=key, expected=f"1 to {most}", got=repr(value)
            )
        if value > most:
            raise OptionError(
                f"{target} cannot run that many {'waves' if key == 'num_warps' else 'blocks together'}",
                argument=key,
                expected=f"at most {most}",
                got=value,
            )


def _limited(run: Callable[[Any, dict], Any], target: Target) -> Callable[[Any, dict], Any]:
    """The stage `run`, refusing afterwards more LDS than a workgroup has."""

    def stage(source: Any, metadata: dict) -> Any:
        result = run(source, metadata)
        need, most = metadata.get("shared") or 0, target.limits.shared_memory
        if need > most:
            error = LimitError(
                f"the kernel needs more shared memory than a workgroup of {target} has",
                expected=f"at most {most} bytes",
                got=f"{need} bytes",
                remedy="Use smaller blocks, fewer buffers or stages, or a narrower dtype.",
            )
            error.required, error.limit = need, most  # type: ignore[attr-defined]
            error.resource = "shared memory"  # type: ignore[attr-defined]
            raise error
        return result

    return stage
