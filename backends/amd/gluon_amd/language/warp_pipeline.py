"""`gl.amd.warp_pipeline_stage`: stages of a loop that two groups of warps take in turns."""

from __future__ import annotations

from typing import Optional

from gluon_amd.features import WARP_PIPELINE
from gluon_core.errors import ArgumentError, NotInKernelError
from gluon_core.plugin.ops import unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const

__all__ = ["warp_pipeline_stage"]

_NAME = "gl.amd.warp_pipeline_stage"


class warp_pipeline_stage:
    """`with gl.amd.warp_pipeline_stage("load", priority=1):` around a part of a loop's body.

    The compiler lets half of the warps run one stage while the others run the next. Stages follow
    each other without code in between. Triton 3.7 and later.

    Args:
        label: name of the stage in the IR; "cluster" by default.
        priority: of the wave during the stage, 0 to 3 (`s_setprio`); unchanged by default.

    Raises:
        ArgumentError: another label or priority.
        CapabilityError: with an older Triton.
    """

    __triton_builtin__ = True
    # Warps do not differ inside a stage, so it is a marker and holds no values.

    def __init__(
        self,
        label: Optional[Const[str]] = None,
        *,
        priority: Optional[Const[int]] = None,
        _semantic: Optional[SemanticLayer] = None,
    ):
        if _semantic is None:
            raise NotInKernelError(
                f"{_NAME} was used outside a kernel",
                remedy="Use it in a function decorated with @gluon.jit.",
            )
        _semantic.require(WARP_PIPELINE, _NAME)
        self.label, self.priority = unwrap(label), unwrap(priority)
        if self.label is not None and not isinstance(self.label, str):
            raise ArgumentError(
                "must be text", argument="label", got=_semantic.describe(self.label)
            )
        if self.priority is not None:
            _semantic.compile_time_int(self.priority, "priority", 0, 3)
        self._semantic = _semantic

    def __enter__(self) -> "warp_pipeline_stage":
        return self

    def __exit__(self, *error: object) -> None:
        label = "cluster" if self.label is None else self.label
        priority = -1 if self.priority is None else self.priority
        self._semantic.builder.create_warp_pipeline_border(label, priority)
