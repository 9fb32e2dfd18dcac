"""The NVIDIA backend: Triton's CUDA pipeline behind the contract, compiling with no GPU present."""

from __future__ import annotations

import functools
from typing import Any, Callable, ContextManager, Mapping, Optional

from gluon_core.backend import Backend, Report, Stage, load_path
from gluon_core.errors import LimitError, OptionError, did_you_mean
from gluon_core.targets import Target
from gluon_nvidia.arch import ARCHITECTURES
from gluon_nvidia.lowerings import LOWERINGS

__all__ = ["NvidiaBackend"]

_PATH = "gluon_nvidia.layouts"


class NvidiaBackend(Backend):
    """NVIDIA GPUs from sm_75 on."""

    name = "nvidia"
    architectures = ARCHITECTURES
    language = "gluon_nvidia.language"
    host = "gluon_nvidia.host"
    exports = {
        "NVMMADistributedLayout": f"{_PATH}:NVMMADistributedLayout",
        "NVMMASharedLayout": f"{_PATH}:NVMMASharedLayout",
    }
    reference = "gluon_nvidia.reference"
    lowerings = LOWERINGS
    isolate = True
    tensor_device = "cuda"
    raw_pointers = True

    # -- devices -----------------------------------------------------------------------------------

    def device(self) -> Optional[Target]:
        return self.device_target(0)

    def device_problem(self) -> Optional[str]:
        from gluon_nvidia import driver

        cuda = driver.find()
        if cuda is None:
            return driver.problem()
        if self.device_target(0) is None:
            return f"the device is sm_{cuda.capability(0)}, which gluon-nvidia does not know"
        return None

    def device_target(self, index: int) -> Optional[Target]:
        from gluon_nvidia import driver

        cuda = driver.find()
        if cuda is None or index >= cuda.device_count:
            return None
        try:
            capability = cuda.capability(index)
        except Exception:  # a device that broke down is no device
            return None
        found = next((arch for arch in self.architectures if arch.arch == capability), None)
        return Target(self.name, found) if found is not None else None

    def device_count(self) -> int:
        from gluon_nvidia import driver

        cuda = driver.find()
        return cuda.device_count if cuda is not None else 0

    def current_device(self) -> int:
        from gluon_nvidia import driver

        return driver.driver().current_device()

    def device_scope(self, index: int) -> ContextManager[Any]:
        from gluon_nvidia import driver

        return driver.device_scope(index)

    def stream_getter(self) -> Callable[[int], int]:
        from gluon_nvidia import driver

        return driver.stream_getter()

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
            raise OptionError(
                f"illegal compile options for {target}: {error}", got=_listed(given)
            ) from error

    def builder(self, context: Any, target: Target) -> Any:
        from gluon_core import _triton

        return _triton.op_builder(context, f"sm{target.architecture.arch}")

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
        """What else the machine code depends on: the version of ptxas."""
        return str(_triton_backend(target).hash())

    # -- running -----------------------------------------------------------------------------------

    def launcher(self, compiled: Any) -> Callable[..., Any]:
        return load_path("gluon_nvidia.launcher:make_launcher")(compiled)

    def derive(self, name: str, asm: Mapping[str, Any]) -> Any:
        if name == "sass" and "cubin" in asm:
            return load_path("triton.tools.disasm:get_sass")(asm["cubin"])
        return super().derive(name, asm)

    def inspect(self, compiled: Any) -> Report:
        return load_path("gluon_nvidia.inspect:report")(compiled)


@functools.lru_cache(maxsize=None)
def _triton_backend(target: Target) -> Any:
    from triton.backends.nvidia.compiler import CUDABackend

    from gluon_core import _triton

    return CUDABackend(_triton.gpu_target(target))


@functools.lru_cache(maxsize=None)
def _option_names() -> tuple[str, ...]:
    from triton.backends.nvidia.compiler import CUDAOptions

    return tuple(CUDAOptions.__dataclass_fields__)


def _listed(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in given.items())


def _check_options(target: Target, given: Mapping[str, Any]) -> None:
    limits = target.limits
    for key, most in (("num_warps", limits.max_warps), ("num_ctas", 16)):
        value = given.get(key)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1 or value & (value - 1):
            raise OptionError(
                f"{key} must be a power of two", argument=key, expected=f"1 to {most}", got=repr(value)
            )
        if value > most:
            raise OptionError(
                f"{target} cannot run that many {'warps' if key == 'num_warps' else 'blocks together'}",
                argument=key,
                expected=f"at most {most}",
                got=value,
            )
    if (given.get("num_ctas") or 1) > 1 and limits.max_ctas_per_cluster == 1:
        raise OptionError(
            f"{target} has no clusters",
            argument="num_ctas",
            expected=1,
            got=given["num_ctas"],
            remedy="Clusters need sm_90 or newer.",
        )
    registers = given.get("maxnreg")
    if registers is not None and not (
        isinstance(registers, int) and 1 <= registers <= limits.max_registers
    ):
        raise OptionError(
            "maxnreg is the most 32-bit registers a thread may have",
            argument="maxnreg",
            expected=f"1 to {limits.max_registers}",
            got=repr(registers),
        )


def _limited(run: Callable[[Any, dict], Any], target: Target) -> Callable[[Any, dict], Any]:
    """The stage `run`, refusing afterwards what ptxas or the driver could only fail on."""

    def stage(source: Any, metadata: dict) -> Any:
        result = run(source, metadata)
        check_limits(target, metadata)
        return result

    return stage


def check_limits(target: Target, metadata: Mapping[str, Any]) -> None:
    """Raise unless what the kernel allocates fits the architecture.

    Raises:
        LimitError: too much shared memory, tensor memory or too many warps.
    """
    limits = target.limits
    needs = (
        ("shared memory", "bytes", metadata.get("shared"), limits.shared_memory),
        ("tensor memory", "columns", metadata.get("tmem_size"), limits.tensor_memory_columns),
        ("warps", "warps", metadata.get("num_warps"), limits.max_warps),
    )
    for what, unit, need, most in needs:
        if need and need > most:
            error = LimitError(
                f"the kernel needs more {what} than a block of {target} has",
                expected=f"at most {most} {unit}",
                got=f"{need} {unit}",
                remedy="Use smaller blocks, fewer buffers or stages, or a narrower dtype."
                if what != "warps"
                else "Lower num_warps or the warps of the partitions.",
            )
            error.required, error.limit, error.resource = need, most, what  # type: ignore[attr-defined]
            raise error


