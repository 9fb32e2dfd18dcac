"""Instructions by name: those of modules, then those that inline assembly has, too."""

from __future__ import annotations

from typing import Any, Callable, Optional

from gluon_emu.ptx.program import OPCODES

__all__ = ["TABLE", "Step", "find", "instruction"]

# Executes an instruction for a group; see `Machine._step`.
Step = Callable[[Any], Any]
Maker = Callable[[Any], Step]
TABLE: dict[str, Maker] = {}


def instruction(*names: str) -> Callable[[Maker], Maker]:
    """Register what makes a step of an instruction. A name is an opcode with its first modifiers."""

    def mark(make: Maker) -> Maker:
        TABLE.update(dict.fromkeys(names, make))
        return make

    return mark


def find(name: str, modifiers: tuple[str, ...]) -> Optional[Maker]:
    """Return what makes a step of an instruction, the longest name that fits first."""
    for count in range(min(5, len(modifiers)), -1, -1):
        make = TABLE.get(".".join((name, *modifiers[:count])))
        if make is not None:
            return make
    return OPCODES.get(name)
