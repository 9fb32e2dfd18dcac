"""The page of the error classes: of each the smallest program that raises it, what it says, and its mend.

The programs are sections (see `sections.py`) of the files in docs/reference/errors; a section's title is
the mend.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import sections

FOLDER = Path(__file__).parents[1] / "reference" / "errors"

# File -> its title, and the module of its classes.
FILES = {
    "kernels": ("In a kernel", "gluon_core.errors"),
    "host": ("At a launch, of a target, a plugin or a compiler", "gluon_core.errors"),
    "simulator": ("On the simulator", "gluon_sim.errors"),
    "emulator": ("On the emulator", "gluon_emu.errors"),
    "pytorch": ("Of ops of torch", "gluon_core.errors"),
    "bundles": ("Of bundles", "gluon_core.errors"),
}

# What no small program raises, and what it means.
_COMPILER = "a compiler's mistake: report it with the kernel; tests write such code in assembly"
WITHOUT = {
    "gluon_core.errors": {
        "GluonError": "the base of all",
        "BundleError": "the base of those below, and raised where gluon-runtime is not installed: install it",
        "BundleVersionError": "the bundle is of a later release: read it with that one",
        "BundleHashError": "a part of a bundle was exchanged, or it is another than the one asked for: fetch it again",
        "BundleKernelError": "the bundle has no kernel of that name: the message lists those it has",
    },
    "gluon_sim.errors": {"SimulatorError": "the base of those below"},
    "gluon_emu.errors": {
        "EmulatorError": "the base of those below",
        "MissingWaitError": _COMPILER,
        "RaceError": "two waves use one place of LDS without a barrier: put `gl.barrier()` between; without such a place in the kernel, "
        + _COMPILER,
        "HazardError": _COMPILER,
        "DeadlockError": "waves wait at barriers that others never reach: let every wave go there",
        "TrapError": "the kernel trapped, as `gl.debug_trap` does: look what led there",
        "TimeLimitError": "the launch took longer than `GLUON_EMU_TIMEOUT`: raise it, or look for a loop without end",
        "UnknownInstructionError": "the emulator cannot execute these instructions yet: run the kernel on the simulator",
    },
}


def files() -> list[Path]:
    return [FOLDER / f"{stem}.py" for stem in FILES]


def classes(module: str) -> set[str]:
    """The names of the errors and warnings of a module."""
    found = importlib.import_module(module)
    return {
        name
        for name, value in vars(found).items()
        if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ == module
    }


def shown(module: str) -> set[str]:
    """The names of a module that have a program here."""
    stems = [stem for stem, (_, of) in FILES.items() if of == module]
    return {
        name
        for stem in stems
        for section in sections.sections(FOLDER / f"{stem}.py")
        for name in section.names
    }


def page() -> str:
    out = [
        "# Error classes\n",
        "Each with the smallest program that raises it, what it says, and what to do. Where the mistake is in a "
        "kernel, the message goes on with the kernel's line and a caret; [Errors](../errors.md) shows one whole.\n",
    ]
    told: set[str] = set()
    for stem, (title, module) in FILES.items():
        file = FOLDER / f"{stem}.py"
        out.append(f"## {title}\n\nThe programs have in common:\n")
        out.append(f"```python\n{sections.preamble(file)}\n```\n")
        for section in sections.sections(file):
            (name,) = section.names
            kind = getattr(importlib.import_module(module), name)
            out.append(f"### {module}.{name}\n\n{(inspect.getdoc(kind) or '').splitlines()[0]}\n")
            out.append(f"```python\n{section.code}\n```\n\nsays\n\n```text\n{section.output}\n```\n")
            out.append(f"What to do: {section.title}.\n")
        if module not in told and WITHOUT.get(module):
            told.add(module)
            out.append("| without a program | what it means, and what to do |\n| --- | --- |")
            out += [f"| `{name}` | {text} |" for name, text in WITHOUT[module].items()]
            out.append("")
    return "\n".join(out)
