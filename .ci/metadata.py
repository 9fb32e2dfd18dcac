"""Fail where wheels and source distributions cannot be published: one needs a path, contains files of
another one, or has a version of its own."""

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
    paths = [Path(argument) for argument in sys.argv[1:]]
    refusals = [line for path in paths for line in problems(path)]
    versions = {re.search(r"^Version: (.*)$", metadata(path)[0], re.MULTILINE)[1] for path in paths}
    if len(versions) > 1:
        refusals.append(f"the distributions have several versions: {', '.join(sorted(versions))}")
    print("\n".join(refusals) or f"{len(sys.argv) - 1} distributions: no requirement by path")
    sys.exit(bool(refusals))
