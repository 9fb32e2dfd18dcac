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
    "tuning": ("Of a search for configurations", "gluon_core.errors"),
    "distributed": ("Of several ranks", "gluon_core.errors"),
}


def files() -> list[Path]:
    return [FOLDER / f"{stem}.py" for stem in FILES]


def classes(module: str) -> set[str]:
    """The names of the errors and warnings of a module."""
    found = importlib.import_module(module)
    return {
        name
        for name, value in vars(found).items()
        if inspect.isclass(value)
        and issubclass(value, BaseException)
        and value.__module__ == module
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
    shared = (FOLDER / "saying.py").read_text().strip()
    out = [
        "# Error classes\n",
        "Each with the smallest program that raises it, what it says, and what to do. Where the mistake is in a "
        "kernel, the message goes on with the kernel's line and a caret; [Errors](../errors.md) shows one whole.\n",
    ]
    out.append(f"All of them print what is said so:\n\n```python\n# saying.py\n{shared}\n```\n")
    for stem, (title, module) in FILES.items():
        file = FOLDER / f"{stem}.py"
        out.append(f"## {title}\n\nThe programs have in common:\n")
        out.append(f"```python\n{sections.preamble(file)}\n```\n")
        for section in sections.sections(file):
            (name,) = section.names
            kind = getattr(importlib.import_module(module), name)
            out.append(f"### {module}.{name}\n\n{(inspect.getdoc(kind) or '').splitlines()[0]}\n")
            out.append(
                f"```python\n{section.code}\n```\n\nsays\n\n```text\n{section.output}\n```\n"
            )
            out.append(f"What to do: {section.title}.\n")
    return "\n".join(out)
