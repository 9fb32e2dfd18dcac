"""Timelines of kernels: when each warp entered and left the scopes of a launch, measured on the device.

    from gluon_core.timeline import record

    with record() as timeline:
        kernel[grid](...)
    timeline.write_html("timeline.html")

`gl.scope` names the spans; `record(auto=True)` adds waits, barriers, TMA issues and products of the
matrix unit.
"""

from gluon_timeline.decode import Launch, Span
from gluon_timeline.recorder import Timeline, record

__all__ = ["Launch", "Span", "Timeline", "record"]
