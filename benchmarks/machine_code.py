"""The machine code of a compiled kernel, by which two kernels are known to be one."""

from __future__ import annotations

import struct
from typing import Any

__all__ = ["Code", "code_of"]

Code = tuple[tuple[bytes, ...], int, int]


def sections(cubin: bytes) -> tuple[bytes, ...]:
    """Return the instructions of a file of machine code."""
    (table,) = struct.unpack_from("<Q", cubin, 40)  # the section headers of an ELF file of 64 bits
    size, count, names = struct.unpack_from("<3H", cubin, 58)
    headers = [struct.unpack_from("<2I4Q", cubin, table + size * i) for i in range(count)]
    begin = headers[names][4]
    return tuple(
        cubin[offset : offset + length]
        for name, _, _, _, offset, length in headers
        if cubin[begin + name :].startswith(b".text.")
    )


def code_of(kernel: Any) -> Code:
    """Return instructions, bytes of shared memory, and warps of a compiled kernel: all that its speed depends on."""
    metadata = kernel.metadata
    shared, warps = (
        metadata[word] if isinstance(metadata, dict) else getattr(metadata, word)
        for word in ("shared", "num_warps")
    )
    return sections(kernel.asm["cubin"]), shared, warps
