"""The calls that order asynchronous work of AMD's hardware, for the reports of the simulator."""

from __future__ import annotations

from gluon_core.plugin.reference import Remedies

__all__ = ["REMEDIES"]

_COPIES = ("gl.amd.cdna4.async_copy", "gl.amd.gfx1250.async_copy")

REMEDIES = Remedies(
    waits={
        "buffer_load_lds": (
            *(f"{space}.wait_group({{pending}})" for space in _COPIES),
            "gl.portable.wait({pending})",
        ),
        "tensor": ("gl.amd.gfx1250.tdm.async_wait({pending})",),
    },
    commits={
        "buffer_load_lds": (
            *(f"{space}.commit_group()" for space in _COPIES),
            "gl.portable.commit()",
        )
    },
    signals={"buffer_load_lds": ("gl.amd.gfx1250.async_copy.mbarrier_arrive({barrier})",)},
    barrier_waits=("gl.amd.gfx1250.mbarrier.wait({barrier}, phase)",),
    barrier_arrives=("gl.amd.gfx1250.mbarrier.arrive({barrier})",),
)
