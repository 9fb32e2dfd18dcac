"""Code objects without their assembly: an ELF file as text that `parse` reads.

Instructions come from LLVM's llvm-objdump, which no Python package brings: from PATH, or from ROCm.
The kernel's descriptor and the metadata say how to run them: LLVM, "User Guide for AMDGPU
Backend", Code Object, Code Object Metadata, Kernel Descriptor.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Iterator, Optional

from gluon_core.errors import BackendError

__all__ = ["assembly_of", "disassemblers"]

_METADATA = 32  # the type of the note
_SECONDS = 60
_LINE = re.compile(r"^\t(.*?)\s*// ([0-9A-F]+): ")
_SOURCE = re.compile(r"^; (.+):(\d+)(?: \(discriminator \d+\))?$")
_FAR = ("s_getpc", "s_get_pc", "s_setpc", "s_swappc", "s_call", "s_swap_pc", "s_set_pc")


def disassemblers() -> Iterator[str]:
    """Paths of llvm-objdump: of ROCm, plain, and with the version in its name, newest first."""
    root = Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
    names = ["llvm-objdump", *(f"llvm-objdump-{n}" for n in range(40, 13, -1))]
    candidates = [
        shutil.which("llvm-objdump", path=str(root / "llvm" / "bin")),
        *map(shutil.which, names),
    ]
    yield from dict.fromkeys(path for path in candidates if path)


def assembly_of(code: bytes, kernel: Optional[str] = None) -> str:
    """Assembly with directives and metadata for the kernel of that name, or the only one.

    Raises:
        BackendError: it is no code object, no tool here reads it, or it calls functions or reads data
            of its own, whose addresses a disassembler does not name.
    """
    symbols, metadata = _read(code)
    kernels = {str(one[".name"]): one for one in metadata["amdhsa.kernels"]}
    name = kernel if kernel in kernels else next(iter(kernels))
    target = re.search(r"gfx[0-9a-f]+", str(metadata.get("amdhsa.target")))
    if target is None:
        raise BackendError("the code object does not say for which architecture it is")
    architecture = target[0]
    try:
        start, size, _ = symbols[name]
        descriptor = symbols[str(kernels[name].get(".symbol", f"{name}.kd"))][2]
    except KeyError as error:
        raise BackendError(f"the code object has no symbol {error}") from None
    lines = [
        f'\t.amdgcn_target "amdgcn-amd-amdhsa--{architecture}"',
        "\t.text",
        f"{name}:",
        *_instructions(_disassembled(code, architecture), start, start + size),
        '\t.section\t.rodata,"a",@progbits',
        f"\t.amdhsa_kernel {name}",
        *(f"\t\t.amdhsa_{k} {v}" for k, v in _descriptor(descriptor, architecture).items()),
        "\t.end_amdhsa_kernel",
        "\t.amdgpu_metadata",
        "---",
        "amdhsa.kernels:",
        *_shown(kernels[name]),
        "...",
        "\t.end_amdgpu_metadata",
    ]
    return "\n".join(lines) + "\n"


def _descriptor(data: bytes, architecture: str) -> dict[str, int]:
    """Directives of a kernel descriptor of 64 bytes."""
    group, private, kernarg = struct.unpack_from("<3I", data)
    first, second, properties, preload = struct.unpack_from("<2I2H", data, 48)
    count = 63 if architecture.startswith("gfx125") else 31
    flags = ("private_segment_buffer", "dispatch_ptr", "queue_ptr", "kernarg_segment_ptr",
             "dispatch_id", "flat_scratch_init", "private_segment_size")  # fmt: skip
    return {
        "group_segment_fixed_size": group,
        "private_segment_fixed_size": private,
        "kernarg_size": kernarg,
        "user_sgpr_count": second >> 1 & count,
        **{f"user_sgpr_{flag}": properties >> i & 1 for i, flag in enumerate(flags)},
        "user_sgpr_kernarg_preload_length": preload & 0x7F,
        "user_sgpr_kernarg_preload_offset": preload >> 7,
        "enable_private_segment": second & 1,
        **{f"system_sgpr_workgroup_id_{axis}": second >> 7 + i & 1 for i, axis in enumerate("xyz")},
        "system_sgpr_workgroup_info": second >> 10 & 1,
        "system_vgpr_workitem_id": second >> 11 & 3,
        "float_round_mode_32": first >> 12 & 3,
        "float_round_mode_16_64": first >> 14 & 3,
        "float_denorm_mode_32": first >> 16 & 3,
        "float_denorm_mode_16_64": first >> 18 & 3,
    }


# -- the tool --------------------------------------------------------------------------------------


def _disassembled(code: bytes, architecture: str) -> str:
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.hsaco"
        path.write_bytes(code)
        for tool in disassemblers():
            command = [
                tool,
                "-d",
                "-l",
                "--triple=amdgcn-amd-amdhsa",
                f"--mcpu={architecture}",
                str(path),
            ]
            try:
                done: Any = subprocess.run(
                    command, capture_output=True, text=True, timeout=_SECONDS, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                failures.append(f"{tool}: {type(error).__name__}")
                continue
            known = "not a recognized processor" not in done.stderr
            if done.returncode == 0 and known and _LINE.search(_first_code(done.stdout)):
                return str(done.stdout)
            failures.append(f"{tool}: {(done.stderr.strip() or 'nothing').splitlines()[0]}")
    raise BackendError(
        f"no disassembler here reads a code object of {architecture}",
        expected="llvm-objdump with AMDGPU on PATH, or ROCm's",
        got="; ".join(failures) or "none",
    )


def _first_code(text: str) -> str:
    return next((line for line in text.splitlines() if _LINE.match(line)), "")


def _instructions(text: str, start: int, end: int) -> Iterator[str]:
    """Instructions of [start, end) with labels where branches go, and places in the source."""
    listing: list[tuple[int, str, Optional[tuple[str, int]]]] = []
    place: Optional[tuple[str, int]] = None
    for line in text.splitlines():
        source = _SOURCE.match(line)
        if source:
            place = (source[1], int(source[2]))
        code = _LINE.match(line)
        if code and start <= int(code[2], 16) < end:
            if code[1].startswith(_FAR):
                raise BackendError(
                    "a code object that calls functions or reads data of its own needs its assembly",
                    got=f"`{code[1].strip()}`",
                )
            listing.append((int(code[2], 16), code[1].strip(), place))
    targets = {}
    for address, ins, _ in listing:
        branch = re.match(r"(s_branch|s_cbranch_\w+) (\d+)$", ins)
        if branch:
            distance = int(branch[2]) - (int(branch[2]) >> 15 << 16)
            targets[address] = address + 4 + 4 * distance
    labels = set(targets.values())
    files: dict[str, int] = {}
    last: Optional[tuple[str, int]] = None
    for address, ins, place in listing:
        if address in labels:
            yield f".L{address:x}:"
        if place is not None and place != last:
            if place[0] not in files:
                files[place[0]] = len(files) + 1
                yield f'\t.file\t{files[place[0]]} "{place[0]}"'
            yield f"\t.loc\t{files[place[0]]} {place[1]} 0"
            last = place
        yield f"\t{ins.split()[0]} .L{targets[address]:x}" if address in targets else f"\t{ins}"


# -- the file --------------------------------------------------------------------------------------


def _read(code: bytes) -> tuple[dict[str, tuple[int, int, bytes]], dict[str, Any]]:
    """(symbol -> its address, size and bytes; the metadata) of an ELF file of 64 bits."""
    if code[:5] != b"\x7fELF\x02":
        raise BackendError("not a code object", expected="an ELF file of 64 bits")
    try:
        offset, _, _, _, _, size, count, _ = struct.unpack_from("<QI6H", code, 40)
        sections = [struct.unpack_from("<2I4Q2I2Q", code, offset + i * size) for i in range(count)]
        metadata: dict[str, Any] = {}
        symbols: dict[str, tuple[int, int, bytes]] = {}
        for _, kind, _, _, start, length, link, _, _, entry in sections:
            if kind == 7:
                metadata.update(_notes(code[start : start + length]))
            elif kind in (2, 11):
                names = sections[link][4]
                for entry_offset in range(start, start + length, entry):
                    name, _, _, index, value, extent = struct.unpack_from(
                        "<I2BH2Q", code, entry_offset
                    )
                    if not 0 < index < count:
                        continue
                    place = sections[index][4] + value - sections[index][3]
                    text = code[names + name : code.index(b"\0", names + name)].decode()
                    symbols[text] = (value, extent, code[place : place + extent])
        if not metadata.get("amdhsa.kernels"):
            raise BackendError("the code object has no metadata of a kernel")
    except (struct.error, IndexError, ValueError) as error:
        raise BackendError(f"the code object is broken: {type(error).__name__}: {error}") from error
    return symbols, metadata


def _notes(data: bytes) -> dict[str, Any]:
    offset = 0
    while offset + 12 <= len(data):
        name, size, kind = struct.unpack_from("<3I", data, offset)
        start = offset + 12 + (name + 3 & ~3)
        if kind == _METADATA and data[offset + 12 : offset + 12 + name].rstrip(b"\0") == b"AMDGPU":
            notes, _ = _unpacked(data, start)
            return dict(notes)
        offset = start + (size + 3 & ~3)
    return {}


_SIZES = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}  # fmt: skip
_LONG = {0xD9: "s1", 0xDA: "s2", 0xDB: "s4", 0xDC: "a2", 0xDD: "a4", 0xDE: "m2", 0xDF: "m4"}
_PLAIN = {0xC0: None, 0xC2: False, 0xC3: True}


def _unpacked(data: bytes, offset: int) -> tuple[Any, int]:
    """Return the value of MessagePack at a place, and the place after it."""
    tag = data[offset]
    offset += 1
    if tag < 0x80 or tag >= 0xE0:
        return tag - (tag >> 7 << 8), offset
    if tag in _PLAIN:
        return _PLAIN[tag], offset
    if tag in _SIZES:
        (value,) = struct.unpack_from(_SIZES[tag], data, offset)
        return value, offset + struct.calcsize(_SIZES[tag])
    if tag in _LONG:
        form, size = _LONG[tag][0], int(_LONG[tag][1])
        count = int.from_bytes(data[offset : offset + size], "big")
        offset += size
    elif tag < 0xC0:
        form, count = ("m", tag & 15) if tag < 0x90 else ("a", tag & 15) if tag < 0xA0 else ("s", tag & 31)  # fmt: skip
    else:
        raise ValueError(f"MessagePack with {tag:#x}")
    if form == "s":
        return data[offset : offset + count].decode(), offset + count
    values = []
    for _ in range(count * (2 if form == "m" else 1)):
        value, offset = _unpacked(data, offset)
        values.append(value)
    return (dict(zip(values[::2], values[1::2])) if form == "m" else values), offset


def _shown(kernel: dict[str, Any]) -> Iterator[str]:
    """Yield the metadata of a kernel as lines in the form of the assembly."""
    yield "  - .args:"
    for argument in kernel.get(".args", ()):
        mark = "      - "
        for key, value in argument.items():
            yield f"{mark}{key}: {value}"
            mark = "        "
    for key, value in kernel.items():
        if not isinstance(value, (list, dict)):
            yield f"    {key}: {value}"
