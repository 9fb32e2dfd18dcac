"""Import each family, so that its instructions are in the table."""

from gluon_emu.ptx.isa import (  # noqa: F401
    barrier,
    bulk,
    control,
    cp_async,
    matrix_memory,
    mbarrier,
    memory,
    mma,
    warp,
    wgmma,
)
