"""Builds the launch engine `c/engine.c` into the wheel.

The extension uses the stable ABI of Python 3.10, so one wheel serves every later Python. Where PATH has no C compiler, the
build requires the wheel `ziglang`, which brings one.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, Optional

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "_engine.abi3.so"
ZIG = "ziglang"
REMEDY = "Install a C compiler (cc, gcc or clang) and the headers of Python, or a wheel of gluon-runtime."


def compiler() -> Optional[list[str]]:
    """Return the command of the C compiler: `CC`, or the first on PATH; None where there is none."""
    commands = map(shlex.split, (os.environ.get("CC", ""), "cc", "gcc", "clang"))
    return next((words for words in commands if words and shutil.which(words[0])), None)


class Engine(BuildHookInterface):
    def dependencies(self) -> list[str]:
        return [] if compiler() else [ZIG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        build(root / "c" / "engine.c", root / "gluon_runtime" / NAME)
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp310-abi3-{platform}"
        build_data["artifacts"].append(f"gluon_runtime/{NAME}")


def build(source: Path, output: Path) -> None:
    """Compile the engine.

    Raises:
        RuntimeError: there is no compiler, or it fails; the message says how.
    """
    built = output.with_name(f".{os.getpid()}{output.suffix}")  # two builds may run at a time
    command = [
        *(compiler() or [sys.executable, "-m", ZIG, "cc"]),
        "-O3",
        "-fno-plt",  # a launch calls Python some thirty times
        "-falign-functions=64",  # the time of a launch does not depend on the code before it
        "-falign-loops=32",
        "-shared",
        "-fPIC",
        f"-I{sysconfig.get_paths()['include']}",
        str(source),
        "-o",
        str(built),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        built.replace(output)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "") or error
        raise RuntimeError(f"the launch engine was not compiled. {REMEDY}\n{reason}") from error
    finally:
        built.unlink(missing_ok=True)
