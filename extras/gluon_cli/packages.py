"""Which packages of plugins there are to install, and which are installed."""

from __future__ import annotations

import json
import os
import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Optional
from urllib.parse import unquote, urlsplit

import gluon_core
from gluon_core.registry.load import registry

__all__ = ["absent", "hint", "install_line", "known"]


def known() -> dict[str, str]:
    """Return package -> pip argument: the plugins of the core's checkout, or in the one that
    it was installed from, else those that the metadata of the core names in its extras."""
    root = _checkout()
    if root is not None:
        folders = sorted(path.parent for path in root.glob("backends/*/pyproject.toml"))
        return {name: _spoken(path) for path in folders if (name := _name(path))}
    try:
        wanted = metadata.requires("gluon-core") or ()
    except metadata.PackageNotFoundError:
        return {}
    names = [re.split(r"[^\w-]", line)[0] for line in wanted if "extra ==" in line]
    return {name: name for name in names if name.startswith("gluon-")}


def _checkout() -> Optional[Path]:
    """Return the checkout that this is, or was installed from, if it is still there."""
    places = [Path(gluon_core.__file__).resolve().parents[1]]
    try:
        origin = json.loads(
            metadata.distribution("gluon-core").read_text("direct_url.json") or "{}"
        )
        url = urlsplit(origin.get("url", ""))
        if url.scheme == "file":
            places.append(Path(unquote(url.path)))
    except (metadata.PackageNotFoundError, ValueError):
        pass
    return next(
        (p for p in places if (p / "pyproject.toml").is_file() and (p / "backends").is_dir()), None
    )


def absent() -> dict[str, str]:
    """Those of `known` whose code cannot be found."""
    return {name: how for name, how in known().items() if not _there(name.replace("-", "_"))}


def hint() -> Optional[str]:
    """Return the packages to install where no simulator or no simulated target is; None where both are."""
    backends = registry().backends.values()
    kinds = {backend.simulates for backend in backends}
    missing = absent()
    return (
        f"Not installed: {', '.join(missing)}. To install: {install_line(missing)}"
        if (missing and len(kinds) < 2)
        else None
    )


def install_line(names: dict[str, str]) -> str:
    """Return the command that installs these."""
    return " ".join(["pip install", *names.values()])


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _name(folder: Path) -> str:
    match = re.search(r'^name = "([^"]+)"', (folder / "pyproject.toml").read_text(), re.MULTILINE)
    return match[1] if match else ""


def _spoken(folder: Path) -> str:
    near = os.path.relpath(folder)
    return str(folder) if near.startswith("..") else f".{os.sep}{near}"
