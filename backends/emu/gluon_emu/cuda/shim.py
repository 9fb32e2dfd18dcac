"""`libcuda.so.1` of the emulated driver, for code in C that loads it in this process."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from gluon_core.errors import BackendError
from gluon_emu.cuda.driver import library_of

__all__ = ["serve"]

_NAME = "libcuda.so.1"


@lru_cache
def serve(target: str) -> str:
    """See `gluon_emu.cuda.serve`."""
    library = library_of(target)
    loaded = Path("/proc/self/maps")
    if loaded.exists() and "/libcuda.so" in loaded.read_text():
        raise BackendError(
            "the process has loaded NVIDIA's driver",
            argument=_NAME,
            remedy="Serve the emulated driver before anything asks for a GPU.",
        )
    path = _built(library.names)
    shim = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    for name in library.names:
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p)
        ctypes.c_void_p.in_dll(shim, f"gluon_{name}").value = address.value
    return str(path)


def _built(names: tuple[str, ...]) -> Path:
    """Return the library, compiled once for a user.

    Raises:
        BackendError: there is no C compiler, or it fails.
    """
    source = Path(__file__).with_name("shim.c").read_text()
    source += "\n".join(f"FORWARD({name})" for name in names) + "\n"
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = Path(base) / "gluon" / f"cuda-{digest}" / _NAME
    if path.exists():
        return path
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise BackendError(
            "the emulated libcuda.so.1 needs a C compiler",
            remedy="Install gcc or clang, or open the bundle from Python.",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        text, built = Path(folder) / "cuda.c", Path(folder) / _NAME
        text.write_text(source)
        flags = ["-O2", "-shared", "-fPIC", f"-Wl,-soname,{_NAME}"]
        done = subprocess.run(
            [compiler, *flags, str(text), "-o", str(built)], capture_output=True, text=True
        )
        if done.returncode:
            raise BackendError("the emulated libcuda.so.1 does not compile", got=done.stderr)
        built.replace(path)
    return path
