"""All families: importing them puts their instructions into the table."""

from gluon_emu.ptx.isa import (  # noqa: F401
    barrier,
    bulk,
    calls,
    clc,
    control,
    cp_async,
    matrix_memory,
    mbarrier,
    memory,
    mma,
    redux_float,
    tcgen05,
    tcgen05_access,
    tcgen05_mma,
    video,
    warp,
    wgmma,
    wmma,
)
from gluon_emu.ptx.isa.table import find

__all__ = ["find"]
