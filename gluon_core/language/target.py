"""Ask for the target of a kernel in it, `gl.target`; the answers are compile-time values."""

from __future__ import annotations

from gluon_core._triton import constexpr, unwrap
from gluon_core.plugin.ops import builtin, semantic_layer
from gluon_core.plugin.typing import Const

__all__ = ["ANSWERS", "target"]


class _Target:
    """`if gl.target.has("vendor.feature"):` is a compile-time branch; the dead side is not traced."""

    __triton_builtin__ = True  # so that `from gluon_core.language import target` may be used, too

    def __dir__(self) -> list[str]:
        return sorted(name for name in vars(_Target) if not name.startswith("_"))

    @staticmethod
    @builtin(name="gl.target.has")
    def has(capability: Const[str]) -> constexpr:
        """Return True if the target has `capability`, such as the names that `gluon info` lists."""
        return constexpr(semantic_layer().target.has(unwrap(capability)))

    @staticmethod
    @builtin(name="gl.target.require")
    def require(*capabilities: Const[str]) -> None:
        """Restrict the kernel to targets with these capabilities; as its first call, it refuses all
        others with a `CapabilityError`."""
        semantic_layer().check_capabilities("the kernel", [unwrap(c) for c in capabilities])

    @staticmethod
    @builtin(name="gl.target.name")
    def name() -> constexpr:
        """`backend:architecture`; the parentheses may be left out."""
        return constexpr(semantic_layer().target.name)

    @staticmethod
    @builtin(name="gl.target.warp_size")
    def warp_size() -> constexpr:
        """Threads of one warp; the parentheses may be left out."""
        return constexpr(semantic_layer().target.warp_size)

    @staticmethod
    @builtin(name="gl.target.shared_memory")
    def shared_memory() -> constexpr:
        """Bytes of shared memory that one block can use at most; the parentheses may be left out."""
        return constexpr(semantic_layer().target.limits.shared_memory)


# Answers that need no argument: a kernel may write them without parentheses.
ANSWERS = (_Target.name, _Target.warp_size, _Target.shared_memory)
target = _Target()
