"""Use a checkout without installing it: `export PYTHONPATH=$(python benchmarks/checkout.py)`.

Plugins are found through the metadata of installed distributions. This writes that metadata, read
from each pyproject.toml, into `build/checkout` and prints the path that makes everything importable.
"""

from __future__ import annotations

import os
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = (
    ROOT,
    *(ROOT / "backends" / name for name in ("nvidia", "amd", "sim", "emu")),
    *(ROOT / name for name in ("runtime", "extras", "kernels")),
)


def write(folder: Path) -> list[Path]:
    """Write the metadata of every distribution into `folder`; return the folders for `sys.path`."""
    for project in PROJECTS:
        settings = tomllib.loads((project / "pyproject.toml").read_text())["project"]
        name, version = settings["name"], settings.get("version", "0.1.0")
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = []
        for group, entries in settings.get("entry-points", {}).items():
            lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()), ""]
        (info / "entry_points.txt").write_text("\n".join(lines))
    return [*PROJECTS, folder]


if __name__ == "__main__":
    paths = [str(path) for path in write(ROOT / "build" / "checkout")]
    print(os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]))
