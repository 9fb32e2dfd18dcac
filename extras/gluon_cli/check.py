"""`gluon run --check`: the remarks on a file that passed under all schedules."""

from __future__ import annotations

import io
import os
import runpy
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from gluon_core.errors import ArgumentError, CapabilityError, DeviceError, GluonError, TargetError
from gluon_core.launch.device import device_target
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry

__all__ = ["Verdict", "against_device", "simulated_twin"]


@dataclass
class Verdict:
    """The result of a file on a device, against the simulator.

    Args:
        device: the device's target, or None without one.
        lines: lines to print.
        failed: whether results are wrong there.
    """

    device: Optional[str] = None
    lines: list[str] = field(default_factory=list)
    failed: bool = False


def against_device(file: str, simulated: Target, run: Callable[[], int]) -> Verdict:
    """Compare with the device that is plugged in.

    Where `file` has EXAMPLES, their results there and on the simulator are compared: bits where the
    example wants equality, else within its tolerance. Any other file runs there, and checks itself.

    Args:
        run: runs the file as it ran before, and gives its exit code.
    """
    device = device_target()
    if device is None:
        return Verdict(lines=["not compared with a GPU: there is none on this machine"])
    verdict = Verdict(str(device))
    with redirect_stdout(io.StringIO()):
        examples = _examples(file)
    if examples:
        for example in examples:
            _compare(example, simulated, device, verdict)
        return verdict
    before = os.environ.get("GLUON_TARGET")
    os.environ["GLUON_TARGET"] = str(device)
    try:
        with redirect_stdout(sys.stderr):
            code = run()
        verdict.failed = bool(code)
        verdict.lines.append(f"on {device}: exit code {code}" if code else f"right on {device}")
    except (ArgumentError, CapabilityError, DeviceError, TargetError) as error:
        verdict.lines.append(f"not compared with {device}: {str(error).splitlines()[0]}")
    except Exception as error:
        verdict.failed = True
        verdict.lines.append(f"wrong on {device}: {type(error).__name__}: {error}")
    finally:
        _restore("GLUON_TARGET", before)
    return verdict


def _examples(file: str) -> list[Any]:
    try:
        examples = runpy.run_path(file, run_name="gluon_check").get("EXAMPLES", ())
    except SystemExit:
        return []
    return [one for one in examples if hasattr(one, "compare")]


def _compare(example: Any, simulated: Target, device: Target, verdict: Verdict) -> None:
    lacks = example.lacks(device) or example.lacks(simulated)
    if lacks:
        verdict.lines.append(f"{example.name}: not compared, for it needs {', '.join(lacks)}")
        return
    try:
        differences = example.compare(simulated, device)
    except GluonError as error:
        verdict.failed = True
        verdict.lines.append(f"{example.name}: {type(error).__name__}: {error}")
        return
    for difference in differences:
        problem = _problem(example, difference)
        verdict.failed |= problem is not None
        if problem is not None or difference.name == example.output:
            verdict.lines.append(
                f"{example.name}: {problem or 'as on the simulator'} on {device}: {difference}"
            )


def _problem(example: Any, difference: Any) -> Optional[str]:
    allowed = example.tolerance if difference.name == example.output else 0.0
    return None if difference.within(relative=allowed) else "not as on the simulator"


def _restore(name: str, value: Optional[str]) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def simulated_twin(target: Optional[str]) -> Target:
    """Return the simulator of `target`; of GLUON_TARGET or the device by default, else of its own
    choice."""
    known = registry()
    simulator = known.simulator()
    named = target if target is not None else os.environ.get("GLUON_TARGET")
    chosen = known.target(named) if named else device_target() or known.target(None)
    if simulator is None or chosen.simulated:
        return chosen
    return known.target(f"{simulator.name}:{chosen.architecture.name}")
