"""All families of instructions; importing this fills the table."""

from __future__ import annotations

from gluon_emu.amdgcn.isa import (
    atomics,
    compare,
    control,
    convert,
    convert8,
    lane,
    lds,
    mbarrier,
    memory,
    mfma,
    packed,
    salu,
    salu_bits,
    salu_float,
    smem,
    smfmac,
    tdm,
    trig,
    valu,
    valu_bytes,
    valu_float,
    wmma,
)

__all__ = ["modules"]

modules = (
    salu, salu_bits, salu_float, valu, valu_bytes, valu_float, compare, convert, convert8, packed, lane, smem, memory,
    atomics, lds, mfma, smfmac, wmma, mbarrier, tdm, trig, control,
)  # fmt: skip
