"""`gl.target`: a kernel asks what it is compiled for; the answers are compile-time values."""

from __future__ import annotations

from typing import Any

from gluon_core._triton import constexpr, unwrap
from gluon_core.builtin import builtin, check_capabilities

__all__ = ["target"]


class _Target:
    """`if gl.target.has("vendor.feature"):` is a compile-time branch; the dead side is not traced."""

    __triton_builtin__ = True  # so that `from gluon_core.language import target` may be used, too

    @staticmethod
    @builtin(name="gl.target.has")
    def has(capability: Any, _semantic: Any = None) -> Any:
        """Whether the target has `capability`, such as the names that `gluon info` lists."""
        return constexpr(_semantic.target.has(unwrap(capability)))

    @staticmethod
    @builtin(name="gl.target.require")
    def require(*capabilities: Any, _semantic: Any = None) -> None:
        """The kernel is for targets with these capabilities; first in a kernel, it makes all others
        a `CapabilityError` that says so."""
        check_capabilities(_semantic, "the kernel", [unwrap(c) for c in capabilities])

    @staticmethod
    @builtin(name="gl.target.name")
    def name(_semantic: Any = None) -> Any:
        """`backend:architecture`."""
        return constexpr(_semantic.target.name)

    @staticmethod
    @builtin(name="gl.target.warp_size")
    def warp_size(_semantic: Any = None) -> Any:
        """Threads of one warp."""
        return constexpr(_semantic.target.warp_size)

    @staticmethod
    @builtin(name="gl.target.shared_memory")
    def shared_memory(_semantic: Any = None) -> Any:
        """Bytes of shared memory that one block can use at most."""
        return constexpr(_semantic.target.limits.shared_memory)


target = _Target()
