"""Share the code of the benchmarks: contenders measured in turns, sweeps, tables."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gluon_core.errors import GluonError  # noqa: E402
from gluon_core.plugin.targets import Target  # noqa: E402
from gluon_report.example import Example, device_target, measure  # noqa: E402
from tests.kernels import cases  # noqa: E402

__all__ = [
    "Result",
    "device",
    "difference",
    "environment",
    "example_module",
    "host_us",
    "in_turns",
    "markdown",
    "parse_arguments",
    "sweep",
    "write",
]


@dataclass
class Result:
    """One line of a table.

    Args:
        case: the measured case.
        unit: of `ours` and of `rivals`; more is better unless it is a time.
        ours: Gluon Core's value.
        rivals: name -> value.
        ratios: name of a ratio -> value.
        wanted: name of a ratio -> (">=" or "<=", bound).
        config: choice of the sweep.
        error: of `ours`, relative to a reference in higher precision, in the Frobenius norm.
    """

    case: str
    unit: str
    ours: float
    rivals: Mapping[str, float]
    ratios: dict[str, float] = field(default_factory=dict)
    wanted: dict[str, tuple[str, float]] = field(default_factory=dict)
    config: str = ""
    error: Optional[float] = None

    def met(self, name: str) -> Optional[bool]:
        if name not in self.wanted:
            return None
        sign, bound = self.wanted[name]
        return self.ratios[name] >= bound if sign == ">=" else self.ratios[name] <= bound


def device() -> Target:
    """Return the GPU to measure; ends the program where there is none."""
    target = device_target()
    if target is None:
        print("there is no GPU here", file=sys.stderr)
        raise SystemExit(3)
    return target


def example_module(name: str) -> Any:
    """Return a file of the examples."""
    return cases.module(name)


def difference(got: Any, wanted: Any) -> float:
    """Return the relative error in the Frobenius norm, in float32 or the wider type of `wanted`."""
    import torch

    exact = wanted.to(torch.promote_types(wanted.dtype, torch.float32))
    return float((got.to(exact.dtype) - exact).norm() / exact.norm())


def environment() -> dict[str, str]:
    """Date, hardware and versions."""
    facts = {"date": datetime.date.today().isoformat(), "python": platform.python_version()}
    for name in ("torch", "triton", "numpy"):
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "none"
    target = device_target()
    if target is not None:
        import torch

        facts["device"] = torch.cuda.get_device_name(0)
        facts["target"] = str(target)
    return facts


def sweep(
    example: Example,
    args: Mapping[str, Any],
    target: Target,
    choices: Sequence[Mapping[str, Any]],
    **options: Any,
) -> tuple[float, Mapping[str, Any], dict[str, Any]]:
    """Return the fastest of `choices`: seconds, the choice, and the configuration it makes.

    A choice that does not compile is reported on stderr and left out.
    """
    best: Optional[tuple[float, Mapping[str, Any], dict[str, Any]]] = None
    for choice in choices:
        config = example.configure(target, True, **choice)
        try:
            seconds = measure(example.launcher(args, config, **options), target, 10)
        except (GluonError, RuntimeError, ValueError) as error:
            print(f"{example.name} {choice}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        print(f"{example.name} {choice}: {seconds * 1e6:.1f} us", file=sys.stderr)
        if best is None or seconds < best[0]:
            best = seconds, choice, config
    if best is None:
        raise SystemExit(f"{example.name}: no configuration runs")
    return best


def in_turns(
    contenders: Mapping[str, Callable[[], Any]], target: Target, rounds: int = 7, repeats: int = 20
) -> dict[str, float]:
    """Seconds of each contender, measured in turns so that clocks and heat are shared: the median
    of `rounds` medians of `repeats`."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            times[name].append(measure(run, target, repeats))
    return {name: statistics.median(samples) for name, samples in times.items()}


def host_us(
    calls: Mapping[str, Callable[[], Any]], order: random.Random, rounds: int = 40, batch: int = 200
) -> dict[str, float]:
    """Return the microseconds of the host for each call: medians of batches in random order.

    The driver's queue holds a batch, and waiting for the device is not timed.
    """
    import torch

    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in order.sample(sorted(calls), len(calls)):
            call = calls[name]
            call()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(batch):
                call()
            times[name].append((time.perf_counter() - begin) / batch * 1e6)
            torch.cuda.synchronize()
    return {name: statistics.median(samples) for name, samples in times.items()}


def markdown(results: Sequence[Result]) -> str:
    """Return a table of ratios with their bounds."""
    lines = [
        "| case | Gluon Core | rivals | ratio | wanted | met | error | configuration |",
        "| --- | ---: | --- | --- | --- | --- | ---: | --- |",
    ]
    for r in results:
        rivals = "<br>".join(f"{name} {value:.3g}" for name, value in r.rivals.items())
        ratios = "<br>".join(f"{value:.3f} of {name}" for name, value in r.ratios.items())
        wanted = "<br>".join(
            f"{r.wanted[name][0]} {r.wanted[name][1]:g}" if name in r.wanted else ""
            for name in r.ratios
        )
        met = "<br>".join(
            {True: "yes", False: "**no**", None: ""}[r.met(name)] for name in r.ratios
        )
        error = "" if r.error is None else f"{r.error:.2g}"
        lines.append(
            f"| {r.case} | {r.ours:.3g} {r.unit} | {rivals} | {ratios} | {wanted} | {met} | {error} | "
            f"{r.config} |"
        )
    return "\n".join(lines)


def parse_arguments(description: Optional[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    return parser.parse_args()


def write(results: Sequence[Result], path: Optional[Path]) -> int:
    """Print the table; the exit code says whether everything wanted was met."""
    print(markdown(results))
    if path is not None:
        content = {"environment": environment(), "results": [asdict(r) for r in results]}
        path.write_text(json.dumps(content, indent=2))
    return 1 if any(r.met(name) is False for r in results for name in r.ratios) else 0


def main(results: Callable[[str], Sequence[Result]], description: Optional[str]) -> int:
    """Measure the cases that the command line asks for."""
    options = parse_arguments(description)
    return write(results(options.only), options.json)
