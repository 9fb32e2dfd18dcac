"""Machine code with one wait, barrier or fence taken away or made weaker, and the emulator's report
of it."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Optional

import numpy as np

from gluon_core.errors import GluonError
from gluon_core.registry.load import registry
from gluon_emu.amdgcn.decode.text import parse
from gluon_emu.amdgcn.launcher import make_launcher
from gluon_emu.settings import using
from gluon_report.example import Arrays, Example

_WAIT = re.compile(
    r"^\s+(s_waitcnt\S*|s_wait_(?:load|store|ds|km|async|tensor)\w*|s_barrier\S*)(\s.*)?$"
)
_FENCE = re.compile(
    r"buffer_(wbl2|inv) sc1|buffer_wbinvl1|buffer_gl1_inv|global_(wb|inv|wbinv) scope:SCOPE_(DEV|SYS)"
)
_COUNT = re.compile(r"(vmcnt|lgkmcnt)\((\d+)\)")


@dataclass(frozen=True)
class Mutant:
    """Assembly in which `line` (from 1) reads `after` instead of `before`."""

    text: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.before!r} -> {self.after!r}"


def distances(text: str) -> Iterator[Mutant]:
    """Each s_nop of a kernel, deleted; but not behind packed arithmetic, where LLVM takes a bit that
    packed instructions use otherwise for a partial write."""
    lines = text.splitlines()
    before = ""
    for number, line in enumerate(lines):
        if ".amdgpu_metadata" in line:
            return
        code = line.split(";")[0].strip()
        if code and not code.startswith(".") and not code.startswith("s_nop"):
            before = code
        if code.startswith("s_nop") and not before.startswith("v_pk_"):
            whole = "\n".join([*lines[:number], *lines[number + 1 :]])
            yield Mutant(whole, number + 1, line.strip(), "")


def dependencies(text: str) -> Iterator[Mutant]:
    """Each wait for the registers of vector and scalar instructions, deleted (RDNA, gfx1250)."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if ".amdgpu_metadata" in line:
            return
        if line.strip().startswith(("s_wait_alu", "s_waitcnt_depctr")):
            whole = "\n".join([*lines[:number], *lines[number + 1 :]])
            yield Mutant(whole, number + 1, line.strip(), "")


def fences(text: str) -> Iterator[Mutant]:
    """Each release and acquire of caches that workgroups do not share, deleted."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if ".amdgpu_metadata" in line:
            return
        code = line.split(";")[0].strip()
        if _FENCE.match(code):
            whole = "\n".join([*lines[:number], "\ts_nop 0", *lines[number + 1 :]])
            yield Mutant(whole, number + 1, code, "s_nop 0")


def mutants(text: str) -> Iterator[Mutant]:
    """Each wait and barrier of a kernel, deleted, and waits weakened by one."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if ".amdgpu_metadata" in line:
            return
        code = line.split(";")[0].rstrip()
        match = _WAIT.match(code)
        if not match or "depctr" in code or "xcnt" in code:
            continue
        changed = ["\ts_nop 0"]
        if _COUNT.search(code):
            changed.append(_COUNT.sub(lambda m: f"{m[1]}({int(m[2]) + 1})", code))
        elif match[1].startswith("s_wait_") and "_" not in match[1][7:]:
            changed.append(f"\t{match[1]} {int(match[2], 0) + 1:#x}")
        if match[1] == "s_barrier_signal":
            continue  # a wait without its signal never ends
        if match[1] == "s_barrier_wait":
            changed = ["\ts_nop 0"]
        for after in changed:
            whole = "\n".join([*lines[:number], after, *lines[number + 1 :]])
            yield Mutant(whole, number + 1, code.strip(), after.strip())


class Subject:
    """An example that was compiled once, and runs with other machine code.

    Args:
        example: of which the small arguments are used.
        target: such as "gfx942".
    """

    def __init__(self, example: Example, target: str):
        self.example, self.target = example, registry().target(f"emu:{target}")
        self.args = example.arguments(Arrays(self.target), False)
        self.config = example.configure(self.target)
        self.before = {
            name: value.copy() for name, value in self.args.items() if isinstance(value, np.ndarray)
        }
        self.values = example.values(self.args, self.config)
        run = example.kernel[example.grid(self.args, self.config)]
        self.compiled = run(*self.values, **self.config, target=self.target)
        self.wanted = self.args[example.output].copy()
        self.grid = example.grid(self.args, self.config)
        self.text = self.compiled.asm["amdgcn"]
        self.counts = self._executed()

    def _executed(self) -> dict[int, int]:
        """Line of the assembly -> how often a wave executed its instruction; 0 for waits that never
        had anything to wait for, which can go."""
        program = parse(self.text)
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/trace"
            with using(trace=path):
                self.run(self.text)
            document = json.loads(Path(path).read_text().splitlines()[-1])
        counts = {i.line: document["counts"][i.index] for i in program.instructions}
        for i, used in zip(program.instructions, document["useful"]):
            if i.name.startswith(("s_waitcnt", "s_wait_")) and not used:
                counts[i.line] = 0
        return counts

    def run(self, text: str) -> Optional[GluonError]:
        """Return the emulator's report on `text`, None if there is none."""
        for name, value in self.before.items():
            self.args[name][...] = value
        compiled = With(self.compiled, text)
        names = self.compiled.src.fn.arg_names
        args = dict(zip(names, self.values))
        arguments = [args.get(name, self.config.get(name)) for name in names]
        size = self.grid(self.config) if callable(self.grid) else self.grid
        size = tuple(size) if isinstance(size, (tuple, list)) else (size,)
        try:
            make_launcher(compiled)(size, 0, *arguments)
        except GluonError as error:
            return error
        return None

    def result(self) -> Any:
        return self.args[self.example.output]


class With:
    """A compiled kernel with other machine code."""

    def __init__(self, compiled: Any, text: str):
        self._compiled = compiled
        self.asm = {**compiled.asm, "amdgcn": text}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)
