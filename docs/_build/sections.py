"""The examples of the language reference: files of sections, each with the output that it has.

A section starts with a line `# -- name, name: title`, ends where the next one starts, and
holds its output as lines `#> ...`. The text before the first section is common to all. Where
the title ends in `from Triton 3.9 on`, older releases skip the section, and newer ones, too, where it
ends in `from Triton 3.7 to 3.8`.

    python docs/_build/sections.py [--write] [FILE ...]

runs the files and compares their output with the recorded one; `--write` puts the
former into the files.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

from gluon_core import _triton

FOLDER = Path(__file__).parents[1] / "reference" / "examples"
_SINCE = re.compile(r"from Triton (\d)\.(\d) (?:on|to (\d)\.(\d))$")
_HEAD = re.compile(r"# -- ([^:]+)(?:: (.*))?$")


@dataclass(frozen=True)
class Section:
    """Hold an example: its title, its code, its output, and its first and last line."""

    file: Path
    names: tuple[str, ...]
    title: str
    code: str
    output: str
    first: int
    last: int


def files() -> list[Path]:
    return sorted(FOLDER.glob("*.py"))


def preamble(file: Path) -> str:
    """Return the lines that the sections of a file share."""
    lines = file.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if _HEAD.match(line))
    return "\n".join(lines[:first]).strip()


def sections(file: Path) -> list[Section]:
    lines = file.read_text().splitlines()
    heads = [i for i, line in enumerate(lines) if _HEAD.match(line)]
    parts = []
    for start, stop in zip(heads, [*heads[1:], len(lines)]):
        names, title = _HEAD.match(lines[start]).groups()  # type: ignore[union-attr]
        body = lines[start + 1 : stop]
        code = "\n".join(line for line in body if not line.startswith("#>")).strip()
        output = "\n".join(line[3:] for line in body if line.startswith("#>"))
        every = tuple(name.strip() for name in names.split(","))
        parts.append(Section(file, every, title or "", code, output, start + 1, stop))
    return parts


def has(section: Section) -> bool:
    """Return True if the installed Triton is one that the section is for."""
    releases = _SINCE.search(section.title)
    if releases is None:
        return True
    first, last = releases.group(1, 2), releases.group(3, 4)
    below = last[0] is None or tuple(map(int, last)) >= _triton.VERSION[:2]
    return tuple(map(int, first)) <= _triton.VERSION[:2] and below


def run(file: Path) -> Iterator[tuple[Section, str]]:
    """Run a file; return each section with its output."""
    tree = ast.parse(file.read_text(), str(file))
    module = types.ModuleType(f"reference_{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # where classes look up their annotations
    space = vars(module)
    parts = sections(file)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # files that those of a folder share

    def execute(low: int, high: int) -> str:
        body = [node for node in tree.body if low <= node.lineno <= high]
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(ast.Module(body, []), str(file), "exec"), space)
        return output.getvalue().rstrip()

    execute(1, parts[0].first)
    for section in parts:
        if not has(section):
            continue
        printed = execute(section.first, section.last)
        yield section, "\n".join(line.rstrip() for line in printed.splitlines())


def write(file: Path) -> None:
    """Write the output of the sections into their file."""
    text = [preamble(file), ""]
    came = {section: printed for section, printed in run(file)}
    for section in sections(file):
        printed = came.get(section, section.output)
        head = f"# -- {', '.join(section.names)}" + (f": {section.title}" if section.title else "")
        text += ["", head, section.code]
        text += [f"#> {line}".rstrip() for line in printed.splitlines()]
    file.write_text("\n".join(text) + "\n")


def main(arguments: list[str]) -> int:
    wrong = 0
    for file in [Path(a).resolve() for a in arguments if a != "--write"] or files():
        if "--write" in arguments:
            write(file)
            continue
        for section, printed in run(file):
            if printed != section.output:
                wrong += 1
                print(f"{file}:{section.first}: prints\n{printed}\nand not\n{section.output}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
