"""Builds the launch engine `c/engine.c` into the wheel where a C compiler is there, and goes on where not.

The extension uses the stable ABI of Python 3.10, so one wheel serves every later Python. Without
it the package is pure Python and launches through ctypes. `GLUON_BUILD_NATIVE=0` leaves it out,
`=1` makes a failure an error.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "_engine.abi3.so"


class Engine(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get("GLUON_BUILD_NATIVE", "")
        if self.target_name != "wheel" or wanted == "0" or not sys.platform.startswith("linux"):
            return
        root = Path(self.root)
        try:
            self._build(root / "c" / "engine.c", root / "gluon_runtime" / NAME)
        except (OSError, subprocess.CalledProcessError) as error:
            if wanted == "1":
                raise
            self.app.display_warning(f"no launch engine in C: {error}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp310-abi3-{platform}"
        build_data["artifacts"].append(f"gluon_runtime/{NAME}")

    @staticmethod
    def _build(source: Path, output: Path) -> None:
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        include = sysconfig.get_paths()["include"]
        built = output.with_name(f".{os.getpid()}{output.suffix}")  # two builds may run at a time
        command = [
            *compiler,
            "-O2",
            "-falign-functions=32",  # the time of a launch does not depend on the code before it
            "-shared",
            "-fPIC",
            f"-I{include}",
            str(source),
            "-o",
            str(built),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
            built.replace(output)
        finally:
            built.unlink(missing_ok=True)
