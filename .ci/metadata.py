"""Fail where a wheel or a source distribution cannot be published: it needs a path, or holds what another one holds."""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from pathlib import Path


def metadata(path: Path) -> tuple[str, list[str]]:
    """Return the metadata of a distribution and the names of its files."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            (info,) = (name for name in names if name.endswith(".dist-info/METADATA"))
            return wheel.read(info).decode(), names
    with tarfile.open(path) as source:
        names = source.getnames()
        (info,) = (name for name in names if re.fullmatch(r"[^/]+/PKG-INFO", name))
        file = source.extractfile(info)
        assert file is not None
        return file.read().decode(), names


def problems(path: Path) -> list[str]:
    """Return the reasons why an index would refuse the distribution."""
    text, names = metadata(path)
    needed = re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE)
    reasons = [f"{path.name}: a requirement by path: {line}" for line in needed if "@" in line]
    if path.name.startswith("gluon_core-"):
        held = [name for name in names if re.search(r"(^|/)gluon_(nvidia|amd|sim|emu)/", name)]
        reasons += [f"{path.name}: holds {name} of a plugin" for name in held[:1]]
    return reasons


if __name__ == "__main__":
    refusals = [line for path in map(Path, sys.argv[1:]) for line in problems(path)]
    print("\n".join(refusals) or f"{len(sys.argv) - 1} distributions: no requirement by path")
    sys.exit(bool(refusals))
