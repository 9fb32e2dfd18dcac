"""`gluon emu FILE --coverage`: the forms of instructions in a file, and those that the emulator does not know."""

from __future__ import annotations

import json as json_
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from gluon_emu.amdgcn.decode.text import parse
from gluon_emu.amdgcn.isa import table
from gluon_emu.amdgcn.machine.code import reasons
from gluon_emu.amdgcn.replaced import text_of
from gluon_emu.ptx.decode.module import parse_module
from gluon_emu.ptx.isa.families import find
from gluon_emu.ptx.machine.code import Code

__all__ = ["Coverage", "coverage_of", "of_amd", "of_ptx", "show_coverage"]


@dataclass
class Coverage:
    """The forms of a file.

    Args:
        where: the functions that were read.
        heading: of the groups: "opcode" or "family".
        groups: group -> form -> how many instructions have it.
        unknown: form -> the reason.
        caveat: the limit of the evidence for the architecture, "" for none.
    """

    where: str
    heading: str
    groups: dict[str, Counter[str]] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    caveat: str = ""

    def add(self, group: str, form: str, reason: Optional[str]) -> None:
        self.groups.setdefault(group, Counter())[form] += 1
        if reason is not None:
            self.unknown.setdefault(form, reason)


def of_ptx(text: str) -> Coverage:
    """Return the forms of a PTX module, by opcode.

    Raises:
        BackendError: the text is no PTX.
    """
    module = parse_module(text)
    coverage = Coverage(f"{len(module.functions)} functions", "opcode", caveat=module.caveat)
    for function in module.functions.values():
        failed = {id(i): e.words for i, e in Code(module, function, find, lenient=True).unknown}
        for instruction in function.instructions:
            statement = instruction.statement
            reason = failed.get(id(instruction))
            coverage.add(
                statement.name,
                ".".join((statement.name, *statement.modifiers)),
                None if reason is None else f"line {instruction.line}: {reason}",
            )
    return coverage


def of_amd(text: str, kernel: Optional[str] = None) -> Coverage:
    """Return the mnemonics of a kernel in assembly, with the suffix of their encoding, by family.

    Raises:
        BackendError: the text is no assembly, or has no such kernel.
    """
    program = parse(text, kernel)
    coverage = Coverage(f"{program.name} for {program.architecture}", "family")
    failed = reasons(program)
    for instruction in program.instructions:
        reason = failed.get(instruction.index)
        for half in filter(None, (instruction, instruction.second)):
            op = table.find(half.name)
            coverage.add(
                "unknown" if op is None else op.family,
                f"{half.name}_{half.suffix}" if half.suffix else half.name,
                None if reason is None else f"line {half.line}: {reason}",
            )
    return coverage


def show_coverage(coverage: Coverage, json: bool) -> int:
    """Print the forms by their groups, and those that are not known.

    Returns:
        1 where there are unknown ones, else 0.
    """
    unknown = coverage.unknown
    if json:
        known = {form: n for counts in coverage.groups.values() for form, n in counts.items()}
        print(json_.dumps({"forms": known, "unknown": unknown}, indent=2))
        return int(bool(unknown))
    print(f"{coverage.heading:16}{'forms':>8}{'instructions':>14}{'unknown forms':>15}")
    for name, counts in sorted(coverage.groups.items()):
        missing = sum(form in unknown for form in counts)
        print(f"{name:16}{len(counts):8}{sum(counts.values()):14}{missing:15}")
    total = sum(map(len, coverage.groups.values()))
    print(f"{total} forms in {coverage.where}, {len(unknown)} unknown")
    if coverage.caveat:
        print(coverage.caveat)
    for form, reason in unknown.items():
        print(f"  {form}: {reason}")
    return int(bool(unknown))


def coverage_of(file: Path, kernel: Optional[str], ptx: bool) -> Coverage:
    """Return the forms of a file of PTX or of AMD's assembly.

    Raises:
        BackendError: the file is neither.
    """
    return of_ptx(file.read_text()) if ptx else of_amd(text_of(file, kernel), kernel)
