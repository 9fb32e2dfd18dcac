"""A compiler facet over one of Triton's compilers, and a device facet over one of its drivers.

A vendor names the compiler class and its options class; options are checked, stages run, and
limits are refused here, the same way for each.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Callable, Mapping, Optional

from gluon_core.errors import BackendError, LimitError, OptionError
from gluon_core.features import Feature
from gluon_core.plugin.compiler import Compiler, Stage
from gluon_core.plugin.device import Device
from gluon_core.plugin.options import check_given, check_precision
from gluon_core.plugin.paths import load_path
from gluon_core.plugin.targets import Architecture, Target

__all__ = ["TritonCompiler", "TritonDevice", "check_limits"]

StageFunction = Callable[[Any, "dict[str, Any]"], Any]


def _triton() -> Any:
    """Return the door to Triton, which importing a plugin leaves closed."""
    from gluon_core import _triton

    return _triton


class TritonCompiler(Compiler):
    """A compiler of Triton's; it compiles with no device present.

    Attributes:
        architectures: of the backend.
        path: of the compiler class, such as `"triton.backends.x.compiler:XBackend"`.
        options_path: of the dataclass of its options.
        ops_path: of a class with further ops of the builder, which are made of those that Triton's has.
    """

    architectures: tuple[Architecture, ...]
    path: str
    options_path: str
    ops_path: Optional[str] = None
    isolate = True  # MLIR and LLVM abort on some inputs

    def options(self, target: Target, requested: Mapping[str, Any]) -> Any:
        known = load_path(self.options_path).__dataclass_fields__
        check_given(target, requested, tuple(known))
        chosen = dict(requested)
        if chosen.get("enable_fp_fusion") is None and "enable_fp_fusion" in known:
            # Triton 3.9 warns, on behalf of its next release, where its default is left to it.
            chosen["enable_fp_fusion"] = _triton().knobs.language.default_fp_fusion
        try:
            options = self.of(target).parse_options(chosen)
        except (AssertionError, TypeError, ValueError, OSError) as error:
            listed = ", ".join(f"{key}={value!r}" for key, value in chosen.items())
            message = f"illegal compile options for {target}: {error}"
            raise OptionError(message, got=listed) from error
        check_precision(options)
        return options

    def of(self, target: Target) -> Any:
        """Return Triton's compiler for `target`."""
        return _compiler(self.path, target)

    def builder_arch(self, target: Target) -> str:
        """Return the name of the architecture for the builder of Triton 3.8 and later."""
        return str(target.architecture.arch)

    def builder(self, context: Any, target: Target) -> Any:
        more = load_path(self.ops_path) if self.ops_path else None
        return _triton().op_builder(context, self.builder_arch(target), more)

    def codegen(self, target: Target, options: Any) -> Mapping[str, Any]:
        functions: Mapping[str, Any] = self.of(target).get_codegen_implementation(options)
        return functions

    def module_map(self, target: Target) -> Mapping[str, Any]:
        modules: Mapping[str, Any] = self.of(target).get_module_map()
        return modules

    def around(
        self, target: Target, options: Any
    ) -> Mapping[str, Callable[[StageFunction], StageFunction]]:
        """Return functions that take a stage of Triton's and return the one to run, by stage."""
        return {}

    @staticmethod
    def recording(options: Any) -> Optional[tuple[int, bool]]:
        """Return the number of events that each warp keeps and True for automatic scopes, if kernels with these options
        record a timeline (`instrumentation_mode` is `timeline` or `timeline:auto`, maybe with `:N` events), else None.

        Raises:
            OptionError: another mode, or a number of events that is no power of two.
        """
        mode = str(getattr(options, "instrumentation_mode", None) or "")
        if not mode.startswith("timeline"):
            return None
        parts = re.fullmatch(r"timeline(:auto)?(?::(\d+))?", mode)
        events = int(parts[2] or 256) if parts else 0
        if events < 2 or events & (events - 1):
            known = "'timeline' or 'timeline:auto', and ':N' with a power of two of events per warp"
            message, name = "unknown recording", "instrumentation_mode"
            raise OptionError(message, argument=name, expected=known, got=repr(mode))
        return events, ":auto" in mode

    @staticmethod
    def has(feature: Feature) -> bool:
        """Return True if the installed Triton has `feature`."""
        return bool(_triton().has(feature))

    @staticmethod
    def knobs() -> Any:
        """Return Triton's settings."""
        return _triton().knobs

    @staticmethod
    def run_passes(module: Any, *passes: str) -> None:
        """Run passes over a module; each is named with its dialect, as in `gluon.add_inliner`."""
        _triton().run_passes(module, *passes)

    @staticmethod
    def tool(name: str) -> str:
        """Return the path of a program of Triton's wheel, such as `cuobjdump`.

        Raises:
            BackendError: there is no such program.
        """
        path: Optional[str] = _triton().tool(name)
        if path is None:
            raise BackendError(f"the installed Triton ships no {name}")
        return path

    def disassembled(self, code: bytes) -> str:
        """Return machine code as Triton shows it."""
        from gluon_core._triton import disassembled
        from gluon_core._triton.capture import captured

        with captured() as warned:
            text = disassembled(code)
        warned.text()
        return text

    def load_dialects(self, context: Any) -> None:
        arch = self.architectures[0]  # the dialects are the same for all
        self.of(Target(arch.backend, arch)).load_dialects(context)

    def pipeline(self, target: Target, options: Any) -> tuple[Stage, ...]:
        around = self.around(target, options)
        stages = _triton().gluon_stages(self.of(target), options)
        stages["llir"] = _limited(target, stages["llir"])
        return tuple(
            Stage(name, around[name](run) if name in around else run)
            for name, run in stages.items()
        )

    def version(self, target: Target) -> str:
        return str(self.of(target).hash())


class TritonDevice(Device):
    """Devices whose driver, or whose scratch memory, is Triton's."""

    @staticmethod
    def driver() -> Any:
        """Return Triton's active driver."""
        return _triton().active_driver()

    @staticmethod
    def user_allocator(kind: str) -> Optional[Callable[[int, int, int], Any]]:
        """Return `f(size, alignment, stream)` for scratch memory of launches, None for the vendor's choice.

        A program sets one with `triton.set_allocator`; for profiles newer Tritons bring one, too.

        Args:
            kind: "global" or "profile".
        """
        allocator: Optional[Callable[[int, int, int], Any]] = _triton().user_allocator(kind)
        return allocator


@functools.lru_cache(maxsize=None)
def _compiler(path: str, target: Target) -> Any:
    return load_path(path)(_triton().gpu_target(target))


def _limited(target: Target, run: StageFunction) -> StageFunction:
    """Return the stage `run` followed by a check of the limits, on which later stages would fail."""

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        result = run(source, metadata)
        check_limits(target, metadata)
        return result

    return stage


def check_limits(target: Target, metadata: Mapping[str, Any]) -> None:
    """Raise unless the allocations of the kernel fit the architecture.

    Raises:
        LimitError: too much shared memory, tensor memory or too many warps.
    """
    limits = target.limits
    needs = (
        ("shared memory", "bytes", metadata.get("shared"), limits.shared_memory),
        ("tensor memory", "columns", metadata.get("tmem_size"), limits.tensor_memory_columns),
        ("warps", "warps", metadata.get("num_warps"), limits.max_warps),
    )
    for limited, unit, need, most in needs:
        if need and need > most:
            message = f"the kernel needs more {limited} than a block of {target} has"
            remedy = "Use smaller blocks, fewer buffers or stages, or a narrower dtype."
            if limited == "warps":
                remedy = "Lower num_warps or the warps of the partitions."
            expected, got = f"at most {most} {unit}", f"{need} {unit}"
            error = LimitError(message, expected=expected, got=got, remedy=remedy)
            error.required, error.limit, error.resource = need, most, limited
            raise error
