"""Check the changelog's fragments: `changelog.d/+SLUG.TYPE.md`, of a type of pyproject's, one paragraph each.

`python .ci/fragments.py [FOLDER]` names each that is wrong.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]


def problems(folder: Path) -> list[str]:
    """Name each fragment that towncrier would skip or misplace."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    types = [each["directory"] for each in settings["type"]]
    name = re.compile(rf"(\+[a-z0-9][a-z0-9-]*|\d+)\.({'|'.join(types)})\.md")
    result = []
    for file in sorted(folder.iterdir()):
        text = file.read_text().strip()
        if file.name == ".gitignore":
            continue
        if not name.fullmatch(file.name):
            result.append(f"{file.name}: expected +SLUG.TYPE.md, TYPE one of {', '.join(types)}")
        elif not text:
            result.append(f"{file.name}: is empty")
        elif "\n\n" in text or text.startswith(("-", "#")):
            result.append(f"{file.name}: expected one paragraph, without a bullet or a heading")
    return result


if __name__ == "__main__":
    lines = problems(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "changelog.d")
    print(*lines, sep="\n", end="\n" if lines else "")
    sys.exit(1 if lines else 0)
