"""The requirements and extras of gluon-core: from the folders of a checkout, or from an index by name.

`pip install ".[all]"` in a checkout takes the plugins that it holds. A source distribution holds none,
so builds of it name them, as does everything while `GLUON_RELEASE` is set: an index takes no metadata
with paths.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


def extras(config: dict[str, Any], root: Path) -> dict[str, list[str]]:
    """Return extra -> requirements, with paths below `root` where the plugins are there.

    Args:
        config: `packages`, extra -> (folder, requirement by name, `with` the extras of packages that it
            requires by name); `others`, extra -> requirements; `all`, the extras that the extra of this
            name stands for.
    """
    by_extra = {
        extra: [_local(root / package["folder"], package["name"]) or package["name"]]
        for extra, package in config["packages"].items()
    }
    for extra, package in config["packages"].items():
        for other in package.get("with", "").split():
            by_extra[extra] += by_extra[other]
    by_extra |= config["others"]
    by_extra["all"] = [*dict.fromkeys(need for extra in config["all"] for need in by_extra[extra])]
    return by_extra


def _local(folder: Path, requirement: str) -> str | None:
    if os.environ.get("GLUON_RELEASE") or not (folder / "pyproject.toml").is_file():
        return None
    name = requirement.partition(">")[0]
    return f"{name} @ {folder.resolve().as_uri()}"


def needs(config: dict[str, Any], root: Path) -> list[str]:
    """Return the requirements; an extra of `packages` stands for its own."""
    known = extras(config, root)
    return [one for needed in config["needs"] for one in known.get(needed, [needed])]


class Requirements(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        metadata["dependencies"] = needs(self.config, Path(self.root))
        metadata["optional-dependencies"] = extras(self.config, Path(self.root))


class SourceDistribution(BuildHookInterface):
    """A source distribution names the plugins, wherever it is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "sdist":
            return
        names = self.metadata.core.optional_dependencies
        config = self.metadata.hatch.metadata.hook_config["custom"]
        self.metadata.core.dependencies[:] = needs(config, Path(self.root, "nowhere"))
        names.update(
            {
                extra: sorted(needed)
                for extra, needed in extras(config, Path(self.root, "nowhere")).items()
            }
        )
