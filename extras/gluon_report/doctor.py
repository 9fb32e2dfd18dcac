"""`gluon doctor`: check an installation, and print the command that fixes it."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Iterator, Optional

from rich.markup import escape

from gluon_cli.output import Exit, console, print_json
from gluon_cli.packages import absent, install_line
from gluon_core.errors import GluonError

__all__ = ["Finding", "examine", "show"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        subject: such as "triton" or "cache".
        state: `ok`; `note`, of a state that may be intended; or `failed`.
        text: the finding.
        remedy: command that fixes it, None where there is nothing to do.
    """

    subject: str
    state: str
    text: str
    remedy: Optional[str] = None


def show(json: bool) -> int:
    findings = list(examine())
    failed = [one for one in findings if one.state == "failed"]
    code = Exit.UNAVAILABLE if failed else Exit.OK
    if json:
        print_json({"exit": code, "findings": [asdict(one) for one in findings]})
        return code
    out = console()
    colour = {"ok": "green", "note": "yellow", "failed": "bold red"}
    for one in findings:
        head = f"[{colour[one.state]}]{one.state:6}[/] {escape(one.subject)}: {escape(one.text)}"
        out.print(head, highlight=False)
        if one.remedy:
            out.print(f"        {escape(one.remedy)}", highlight=False, soft_wrap=True)
    count = len(failed)
    summary = f"{count} failed" if count else "all checks passed"
    out.print(summary, highlight=False)
    return code


def examine() -> Iterator[Finding]:
    """Check everything, dependencies first."""
    yield _python()
    triton = _triton()
    yield triton
    yield from _torch()
    yield from _plugins()
    yield _cache()
    if triton.state != "failed":
        yield from _devices()
        yield from _trials()


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    wanted = _of_the_core("Requires-Python") or ">=3.10,<3.14"
    low, high = (tuple(map(int, v.split("."))) for v in re.findall(r"(\d+\.\d+)", wanted)[:2])
    if sorted((low, high))[0] <= sys.version_info[:2] < sorted((low, high))[1]:
        return Finding("python", "ok", version)
    remedy = "python3.12 -m venv .venv && . .venv/bin/activate && pip install gluon-core"
    return Finding("python", "failed", f"{version}, and gluon-core needs {wanted}", remedy)


def _of_the_core(field: str) -> Optional[str]:
    try:
        return metadata.metadata("gluon-core")[field]
    except (metadata.PackageNotFoundError, KeyError):
        return None


def _triton() -> Finding:
    needs = [r for r in _requirements("gluon-core") if r.startswith("triton")]
    range_of_it = needs[0] if needs else "triton>=3.6,<3.10"
    remedy = f"pip install {_pinned() or repr(range_of_it)}"
    try:
        from gluon_core import _triton
    except GluonError as error:
        return Finding("triton", "failed", str(error), remedy)
    except Exception as error:  # a build that does not load says so in many ways
        text = f"cannot be imported: {type(error).__name__}: {error}"
        return Finding("triton", "failed", text, f"{remedy} --force-reinstall")
    return Finding("triton", "ok", _triton.VERSION_TEXT)


def _requirements(name: str) -> list[str]:
    try:
        return list(metadata.requires(name) or ())
    except metadata.PackageNotFoundError:
        return []


def _pinned() -> Optional[str]:
    """Return the Triton that the installed torch pins, as pip's argument."""
    for line in _requirements("torch"):
        pin = re.match(r"(?:pytorch-)?triton\s*\(?(==\s*[\w.+]+)", line)
        if pin:
            return f"triton{pin[1].replace(' ', '')}"
    return None


def _torch() -> Iterator[Finding]:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        text = "not installed; the simulator needs none, a GPU does"
        yield Finding("torch", "note", text, "pip install torch")
        return
    try:
        import torch  # noqa: F401
    except Exception as error:
        text = f"{version} cannot be imported: {type(error).__name__}: {error}"
        yield Finding("torch", "failed", text, "pip install --force-reinstall torch")
        return
    pinned = _pinned()
    try:
        have = metadata.version("triton")
    except metadata.PackageNotFoundError:
        have = None
    if pinned and have and pinned.partition("==")[2] != have.partition("+")[0]:
        text = f"{version} pins {pinned}, and triton {have} is installed"
        yield Finding("torch", "failed", text, f"pip install {pinned}")
    else:
        yield Finding("torch", "ok", version)


def _plugins() -> Iterator[Finding]:
    from gluon_core.registry.load import registry

    try:
        known = registry()
    except GluonError as error:
        yield Finding("plugins", "failed", str(error), "unset GLUON_PLUGINS")
        return
    for plugin in known.plugins.values():
        backends = ", ".join(backend.name for backend in plugin.backends) or "lowerings only"
        text = f"{plugin.distribution or 'registered by a program'}, {backends}"
        yield Finding(f"plugin {plugin.plugin}", "ok", text)
    for failure in known.failures.values():
        package = (failure.distribution or f"gluon-{failure.name}").split()[0]
        remedy = f"pip install --force-reinstall {package}, or pip uninstall {package}"
        yield Finding(
            f"plugin {failure.name}", "failed", f"does not load: {failure.reason}", remedy
        )
    for clash in known.clashes:
        yield Finding("plugins", "failed", clash.text, clash.remedy)
    for name in sorted(known.skipped):
        yield Finding(f"plugin {name}", "note", "left out by GLUON_PLUGINS", "unset GLUON_PLUGINS")
    missing = absent()
    kinds = {backend.simulates for backend in known.backends.values()}
    if missing:
        lacks = {(): "no plugin is installed", (False,): "there is no simulator"}
        text = lacks.get(tuple(kinds), "there is no vendor's plugin" if len(kinds) < 2 else "")
        message = f"{', '.join(missing)} not installed{f', so {text}' if text else ''}"
        yield Finding("packages", "failed" if text else "note", message, install_line(missing))
    from gluon_cli.types import current

    if known.plugins and not current():
        text = "editors and checkers do not know these plugins"
        yield Finding("types", "note", text, "gluon types")


def _cache() -> Finding:
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or _cache_folder())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"gluon doctor")
            file.flush()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        text = f"{folder} cannot be written: {error.strerror or error}; each run compiles anew"
        return Finding("cache", "failed", text, "export TRITON_CACHE_DIR=/tmp/triton-cache-$USER")
    if free < 2**28:
        text = f"{folder} has {free >> 20} MiB left"
        return Finding("cache", "failed", text, f"rm -r {folder}, or set TRITON_CACHE_DIR")
    return Finding("cache", "ok", str(folder))


def _cache_folder() -> str:
    try:
        from gluon_core import _triton
    except Exception:
        return str(Path.home() / ".triton" / "cache")
    return str(_triton.knobs.cache.dir)


def _devices() -> Iterator[Finding]:
    from gluon_core.registry.load import registry

    for backend in registry().backends.values():
        if backend.simulates:
            continue
        targets = [backend.device.target(i) for i in range(backend.device.count())]
        there = [str(target) for target in targets if target is not None]
        problem = backend.device.problem()
        subject = f"GPU of {backend.name}"
        if there and not problem:
            torch = _torch_reaches(backend)
            if torch:
                yield Finding(subject, "failed", f"{', '.join(there)}, but {torch}", _TORCH)
            else:
                yield Finding(subject, "ok", ", ".join(there))
        elif problem:
            remedy = f"gluon run FILE --target sim:{backend.architectures[0].name} meanwhile"
            yield Finding(subject, "failed", problem, remedy)
        else:
            yield Finding(subject, "note", "no driver and no device; simulating and compiling work")


_TORCH = "pip install --force-reinstall torch, a build for this GPU: https://pytorch.org"


def _torch_reaches(backend: Any) -> Optional[str]:
    """Return the reason why torch has no tensors on the backend's device; None where it has, or is not installed."""
    try:
        import torch
    except ImportError:
        return None
    try:
        torch.empty(1, device=backend.device.tensor_device or "cpu")
    except Exception as error:
        return f"torch cannot use it: {str(error).splitlines()[0]}"
    return None


def _trials() -> Iterator[Finding]:
    """Run a kernel through each compiler, and through the simulator."""
    import numpy

    from gluon_core.registry.load import registry
    from gluon_report.trial import one, source

    known = registry()
    for backend in known.backends.values():
        if backend.simulates or not backend.compiles:
            continue
        arch = backend.architectures[len(backend.architectures) // 2]
        subject = f"compiler of {backend.name}"
        try:
            size = len(source(arch).kernel)
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            yield Finding(subject, "failed", text, "pip install --force-reinstall triton")
        else:
            yield Finding(subject, "ok", f"{size} bytes of machine code for {arch.name}")
    simulator = known.simulator()
    if simulator is None or not known.architectures():
        return
    sums = numpy.zeros(1, numpy.int32)
    try:
        one[(1,)](sums, target=f"{simulator.name}:{known.default_architecture().name}")
    except Exception as error:
        text = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        package = f"gluon-{simulator.name}"
        yield Finding("simulator", "failed", text, f"pip install --force-reinstall {package}")
        return
    right = sums[0] == 1
    text = "ran a kernel" if right else f"a kernel that writes 1 wrote {sums[0]}"
    yield Finding("simulator", "ok" if right else "failed", text)
