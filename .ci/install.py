"""Install packages into this environment with pip.

    python .ci/install.py FOLDER PACKAGE...

Environments that need torch have the same packages and are set up at once. The first of them unpacks these below
FOLDER, and each links the files to its own place, which takes two seconds; pip takes forty.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

SHARED_FOR = 900.0  # seconds: releases of packages come later
DATA = {("etc",), ("include",), ("share",)}  # that packages keep outside of their modules


def pip(*words: str) -> int:
    """Run pip's installation, and return its exit code."""
    command = [sys.executable, "-I", "-m", "pip", "install", "--no-compile", *words]
    return subprocess.run(command, check=False).returncode


def unpacked(folder: Path, packages: list[str]) -> tuple[int, Path]:
    """Return pip's exit code and the folder with the packages, which another environment may have filled."""
    words = "\n".join([sys.version, *sorted(packages)])
    place = folder / hashlib.sha256(words.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{place.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = place / ".done"
        if done.is_file() and time.time() - done.stat().st_mtime < SHARED_FOR:
            return 0, place
        shutil.rmtree(place, ignore_errors=True)
        code = pip("--target", str(place), *packages)
        if code == 0:
            done.touch()
        return code, place


def link(source: Path, site: Path, prefix: Path) -> None:
    """Link the files of a folder to those of modules, and data below the prefix. Scripts name their interpreter and stay."""
    for path, folders, files in os.walk(source):
        here = Path(path).relative_to(source)
        if not here.parts:
            folders[:] = [name for name in folders if name != "bin"]
            files = [name for name in files if name != ".done"]
        place = (prefix if here.parts[:1] in DATA else site) / here
        place.mkdir(parents=True, exist_ok=True)
        for name in files:
            target = place / name
            target.unlink(missing_ok=True)
            try:
                os.link(Path(path, name), target)
            except OSError:  # another file system
                shutil.copy2(Path(path, name), target)


def main() -> int:
    folder, *packages = sys.argv[1:]
    if not any(name.startswith("torch") for name in packages):
        return pip(*packages)
    code, place = unpacked(Path(folder), packages)
    if code == 0:
        link(place, Path(sysconfig.get_path("purelib")), Path(sys.prefix))
    return code


if __name__ == "__main__":
    sys.exit(main())
