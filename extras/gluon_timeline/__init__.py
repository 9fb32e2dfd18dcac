"""Timelines of kernels: when each warp entered and left the scopes of a launch, measured on the device.

    from gluon_core.timeline import record

    with record() as timeline:
        kernel[grid](...)
    print(timeline.table())

`gl.scope` names the spans; `record(auto=True)` adds waits, barriers, TMA issues and products of the
matrix unit.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gluon_timeline.decode import Launch, Span
    from gluon_timeline.recorder import Timeline, record

__all__ = ["Launch", "Span", "Timeline", "record"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gluon_timeline import decode, recorder

    return getattr(decode if name in ("Launch", "Span") else recorder, name)
