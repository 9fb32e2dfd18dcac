"""Put the output of commands into pages where it is missing or no longer true.

    python -m tests.docs.fill docs/learn.md ...

A Python block gets no output but where a `text` block is below it.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

from tests.docs import test_docs as pages


def fill(page: Path, folder: Path) -> str:
    (folder / "examples").symlink_to(pages.ROOT / "examples")
    common = {k: v for k, v in os.environ.items() if k != "GLUON_TARGET"} | pages.SAME

    def same(shown: str, output: str) -> bool:
        try:
            pages.check(shown, output, "")
        except AssertionError:
            return False
        return bool(shown)

    def block(match: re.Match[str]) -> str:
        kind, text, printed = match.groups()
        if kind == "python":
            name = re.match(r"# (\w+\.py)", text)
            file = folder / (name.group(1) if name else "block.py")
            file.write_text(text)
            _, output = pages.run([file], folder, dict(common))
            if printed is None or same(printed, output):
                return match[0]
            return f"```python\n{text}```\n\n```text\n{output.strip()}\n```"
        lines = []
        for line, shown in pages.commands(text):
            environment = dict(common)
            command = pages.command_line(line[2:], environment)
            _, output = pages.run(command, folder, environment)
            lines += [line, shown if same(shown, output) else output.strip()]
        return "```console\n" + "\n".join(filter(None, lines)) + "\n```"

    return pages.BLOCK.sub(block, page.read_text())


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            text = fill(Path(argument), Path(folder))
        Path(argument).write_text(text)
