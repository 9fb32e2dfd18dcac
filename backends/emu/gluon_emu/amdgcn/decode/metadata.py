"""The metadata of a code object: kernels and how their arguments lie in memory.

A YAML document of a fixed shape, so a few lines read it; LLVM's "User Guide for AMDGPU Backend",
section "Code Object Metadata", defines the keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Argument", "KernelInfo", "read_metadata"]


@dataclass(frozen=True)
class Argument:
    """An entry of the kernarg segment: offset and size in bytes, and its meaning."""

    offset: int
    size: int
    kind: str  # by_value, global_buffer, hidden_block_count_x, ...


@dataclass
class KernelInfo:
    """The metadata of one kernel; sizes in bytes, `values` holds the rest by key."""

    name: str
    arguments: list[Argument] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)

    def number(self, key: str, default: int = 0) -> int:
        try:
            return int(self.values[key], 0)
        except (KeyError, ValueError):
            return default

    @property
    def wave_size(self) -> int:
        return self.number("wavefront_size", 64)


_ENTRY = re.compile(r"^(\s*)(- )?\.?([\w.]+):\s*(.*)$")


def read_metadata(text: str) -> dict[str, KernelInfo]:
    """Kernel name -> `KernelInfo`, in the order of the text."""
    start = text.find(".amdgpu_metadata")
    end = text.find(".end_amdgpu_metadata")
    entries: list[tuple[list[dict[str, str]], dict[str, str]]] = []
    inside_args = False
    for line in text[start:end].splitlines() if start >= 0 else ():
        entry = _ENTRY.match(line)
        if entry is None:
            continue
        indent, dash, key, value = len(entry[1]), entry[2], entry[3], entry[4].strip()
        if key == "amdhsa.kernels":
            continue
        if indent == 0:
            if entries:
                break
            continue
        if dash and indent <= 2:  # a kernel
            entries.append(([], {}))
            inside_args = False
        if not entries:
            continue
        if key == "args" and indent <= 4:
            inside_args = True
            continue
        if inside_args and indent > 4:
            if dash:
                entries[-1][0].append({})
            entries[-1][0][-1][key] = value
            continue
        inside_args = False
        entries[-1][1][key] = value.strip("'\"")
    kernels = {}
    for arguments, values in entries:
        info = KernelInfo(values["name"], values=values)
        info.arguments = [
            Argument(int(a["offset"], 0), int(a["size"], 0), a["value_kind"]) for a in arguments
        ]
        kernels[info.name] = info
    return kernels
