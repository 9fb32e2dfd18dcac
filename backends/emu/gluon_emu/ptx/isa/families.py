"""Import each family, so that its instructions are in the table."""

from gluon_emu.ptx.isa import (  # noqa: F401
    barrier,
    control,
    memory,
    warp,
)
