"""The shortest way of operators through torch, in C++: built once for each torch by a compiler of this machine, in the background.

The first call of an operator on a GPU starts the build, which takes about a quarter of a minute of one core; the first call of another shape
after it, and processes that begin later, load the result.
Without it calls go the same way in Python. On an H200 `softmax` took 9.6 us then rather than 7.2, `layer_norm` 10.8 rather than 7.9, `cumsum` 13.2 rather
than 6.6, and `softmax` with its gradient 180 rather than 114: `torch.autograd.Function` looks up each of its methods by name at each call.

    python -m gluon_torch.shortcut      # build now, and print the compiler's errors if it fails

`GLUON_TORCH_SHORTCUT` is the folder of the result, `~/.gluon/torch` unless set; 0 neither builds nor loads.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Optional

__all__ = ["Context", "build", "build_soon", "command", "loaded", "seek", "target", "when_loaded"]

SOURCE = Path(__file__).with_name("shortcut.cpp")
WAIT = 900.0  # seconds after which a build of another process is taken for dead


class Context:
    """Hold tensors that a forward function keeps for the backward function; a part of the context of `torch.autograd.Function`.

    Attributes:
        to_save: a tuple of tensors and None, set by the forward function.
        saved_tensors: these, for the backward function.
        needs_input_grad: for each argument, whether its gradient is wanted.
    """

    __slots__ = ("needs_input_grad", "saved_tensors", "to_save")


def target() -> Optional[Path]:
    """Return the path of the compiled file for this torch and Python; None where the environment wants none."""
    import torch

    chosen = os.environ.get("GLUON_TORCH_SHORTCUT", "")
    if chosen == "0":
        return None
    try:
        folder = Path(chosen) if chosen else Path.home() / ".gluon" / "torch"
    except RuntimeError:  # no home
        return None
    of = (
        torch.__version__,
        torch.version.git_version,
        sys.implementation.cache_tag,
        platform.machine(),
    )
    digest = hashlib.sha256(SOURCE.read_bytes() + repr(of).encode()).hexdigest()
    return folder / f"shortcut-{digest[:16]}.so"


_module: Any = None
_unfit: Optional[Path] = None
_waiting: list[Callable[[Any], None]] = []
_builds: list[Any] = []


def loaded() -> Any:
    """Return the module in C++; None where it is not built yet, or does not fit."""
    global _module, _unfit
    path = target()
    if _module is not None or path is None or path == _unfit or not path.exists():
        return _module
    import torch
    from torch.autograd import forward_ad

    from gluon_torch import checks

    loader = importlib.machinery.ExtensionFileLoader("shortcut", str(path))
    try:
        module: Any = importlib.util.module_from_spec(
            importlib.util.spec_from_loader("shortcut", loader)  # type: ignore[arg-type]
        )
    except ImportError:  # of another machine
        _unfit = path
        return None
    module.watch(torch.nn.Parameter, vars(checks), vars(forward_ad))
    _module = module
    return module


def when_loaded(take: Callable[[Any], None]) -> None:
    """Call `take(module)`, now or once it is loaded."""
    module = loaded()
    if module is None:
        _waiting.append(take)
    else:
        take(module)


def seek() -> None:
    """Load the module if it is there; start its build if that has not been tried."""
    module = loaded()
    if module is None:
        build_soon()
        return
    while _waiting:
        _waiting.pop()(module)


def command(result: Path) -> Optional[list[str]]:
    """Return the command that compiles the file; None without a compiler or the headers of torch."""
    import sysconfig

    import torch

    compiler = shlex.split(os.environ.get("CXX", "")) or ["c++" if shutil.which("c++") else "g++"]
    home = Path(torch.__file__).parent
    headers = [
        home / "include",
        home / "include/torch/csrc/api/include",
        Path(sysconfig.get_paths()["include"]),
    ]
    if (
        not shutil.which(compiler[0])
        or os.name != "posix"
        or not all(path.exists() for path in headers)
    ):
        return None
    abi = int(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True))
    flags = ["-O1", "-std=c++20", "-shared", "-fPIC", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    flags += [f"-I{path}" for path in headers]
    libraries = [f"-L{home / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    return [*compiler, *flags, str(SOURCE), "-o", str(result), *libraries]


def build_soon() -> None:
    """Start a build in the background unless the file is there, another process builds it, or a build has failed before."""
    path = target()
    if path is None or path.exists():
        return
    mark = path.with_suffix(".log")
    try:
        if mark.exists() and (mark.stat().st_size > 0 or time.time() - mark.stat().st_mtime < WAIT):
            return  # it has failed, or is under way
        path.parent.mkdir(parents=True, exist_ok=True)
        compiling = command(_temporary(path))
        if compiling is not None:
            mark.touch()
            build = subprocess.Popen(
                [sys.executable, "-S", __file__, str(path), str(mark), *compiling],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            _builds.append(build)  # else Python complains that it goes on
    except OSError:
        return  # no folder to keep it in


def build() -> str:
    """Build the file now; return the errors, "" if there are none."""
    path = target()
    compiling = None if path is None else command(_temporary(path))
    if path is None or compiling is None:
        return "no C++ compiler (CXX, c++ or g++), no headers of torch or Python, or GLUON_TORCH_SHORTCUT=0"
    path.parent.mkdir(parents=True, exist_ok=True)
    return _compiled(path, path.with_suffix(".log"), compiling)


def _temporary(path: Path) -> Path:
    return path.with_suffix(f".{os.getpid()}.tmp")


def _compiled(path: Path, mark: Path, compiling: list[str]) -> str:
    """Run the compiler; move its result to `path`, or leave its errors in `mark`."""
    temporary = Path(compiling[compiling.index("-o") + 1])
    done = subprocess.run(compiling, capture_output=True, text=True)
    if done.returncode == 0:
        temporary.replace(path)
        mark.unlink(missing_ok=True)
        return ""
    temporary.unlink(missing_ok=True)
    errors = done.stderr[-20_000:] or f"the compiler ended with {done.returncode}"
    mark.write_text(errors)
    return errors


def _main(arguments: list[str]) -> None:
    if arguments:  # in the background
        os.nice(19)
        _compiled(Path(arguments[0]), Path(arguments[1]), arguments[2:])
    else:
        sys.exit(build() or None)


if __name__ == "__main__":
    _main(sys.argv[1:])
