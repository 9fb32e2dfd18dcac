"""Write the page of the error classes: the smallest program that raises each, its message, and the fix.

The programs are sections (see `sections.py`) of the files in docs/reference/errors; a section's title
is the fix.
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
EXTRAS = ("bundle", "distributed", "torch", "tune")  # `gluon_core.errors` offers theirs, too


def files() -> list[Path]:
    return [FOLDER / f"{stem}.py" for stem in FILES]


def classes() -> set[str]:
    """Return the names of the errors and warnings of all modules."""
    modules = {*(module for _, module in FILES.values()), *(f"gluon_{e}.errors" for e in EXTRAS)}
    return {
        name
        for module in modules
        for name, value in vars(importlib.import_module(module)).items()
        if inspect.isclass(value)
        and issubclass(value, BaseException)
        and value.__module__ == module
    }


def shown() -> set[str]:
    """Return the names that have a program here."""
    return {name for file in files() for section in sections.sections(file) for name in section.names}


def page() -> str:
    shared = (FOLDER / "show_error.py").read_text().strip()
    out = [
        "# Error classes\n",
        "Each with the smallest program that raises it, its message, and the fix. Where the mistake is in a "
        "kernel, the message goes on with the kernel's line and a caret; [Errors](../errors.md) shows one whole.\n",
    ]
    out.append(f"All of them print the message so:\n\n```python\n# show_error.py\n{shared}\n```\n")
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
            out.append(f"Fix: {section.title}.\n")
    return "\n".join(out)
