"""`certify`: a program's launches on the simulator and the emulator of several targets."""

from __future__ import annotations

import hashlib
import platform
import sys
from contextlib import redirect_stdout
from importlib import metadata
from pathlib import Path
from typing import Any, Optional, Sequence

from gluon_certify.certificate import Certificate
from gluon_certify.examine import Examiner, Plan
from gluon_certify.subject import settings_of
from gluon_cli.output import UsageError
from gluon_cli.run import run_file
from gluon_core import __version__, _triton
from gluon_core.errors import GluonError, PluginError
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.simulation import evidence

__all__ = ["Plan", "certify"]


def certify(
    file: str,
    targets: Sequence[str],
    arguments: Sequence[str] = (),
    plan: Optional[Plan] = None,
    kernel: Optional[str] = None,
) -> Certificate:
    """Run `file` once for each target and examine its launches.

    Args:
        targets: architectures, in any spelling; simulated ones stand for their architecture.
        arguments: of the program.
        plan: the extent; by default 10 schedules of 4 launches of each form.
        kernel: the name of the only kernel to examine.

    Raises:
        UsageError: no such file, or a target without a simulator or an emulator.
    """
    plan = plan or Plan()
    simulator = registry().simulator()
    if simulator is None:
        raise PluginError("no simulator is installed", remedy="pip install gluon-sim")
    pairs = [_executors(text, simulator) for text in targets]
    certificate = Certificate(
        file, "", list(arguments), plan.seed, plan.schedules, tools(), _checks(simulator, pairs)
    )
    for target, emulator in pairs:
        examiner = Examiner(plan, target, simulator, emulator, kernel)
        code: Optional[int] = None
        evidence.observers.append(examiner)
        before = sys.path[:]
        try:
            with redirect_stdout(sys.stderr):
                code = run_file(file, str(target), arguments, record=evidence.Record())
        except UsageError:
            raise
        except GluonError as error:
            examiner.part.problem = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        except Exception as error:
            examiner.part.problem = f"{type(error).__name__}: {error}"
        finally:
            evidence.observers.remove(examiner)
            sys.path[:] = before
        if code:
            examiner.part.problem = f"the program ended with exit code {code}"
        examiner.finish()
        certificate.targets.append(examiner.part)
    certificate.digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return certificate


def _executors(text: str, simulator: Backend) -> tuple[Target, Backend]:
    """Return the simulator's target for a spelling, and the backend that executes its machine code."""
    architecture = registry().target(text).architecture
    for backend in registry().backends.values():
        runs = backend.simulation.stands_in_for
        known = runs is None or architecture.backend in runs
        if backend.simulates and backend.simulation.machine_code and known:
            return Target(simulator.name, architecture), backend
    raise UsageError(
        "no emulator executes the machine code of this target",
        argument="--target",
        got=text,
        remedy="pip install gluon-emu",
    )


def _checks(simulator: Backend, pairs: Sequence[tuple[Target, Backend]]) -> dict[str, list[str]]:
    checks = {}
    for backend in [simulator, *(emulator for _, emulator in pairs)]:
        with settings_of(backend)() as settings:
            strict = [name for name, value in type(settings).STRICT.items() if value is True]
            checks[backend.name] = [*type(settings).checks(), *strict]
    return checks


def tools() -> dict[str, str]:
    """Return the versions of everything that the verdict depends on."""
    versions: dict[str, Any] = {
        "gluon-core": __version__,
        "triton": _triton.VERSION_TEXT,
        "triton build": hashlib.sha256(str(_triton.build_stamp()).encode()).hexdigest()[:16],
        "python": platform.python_version(),
    }
    for name in ("numpy", "torch", "gluon-sim", "gluon-emu"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
