"""Slim the synchronization of every operator of gluon_kernels, and print a table.

python -m tests.judge.slimming                       # all operators, for Hopper
python -m tests.judge.slimming attention matmul --within 120 --json FILE
python -m tests.judge.slimming --page docs/slimming.md --read FILE FILE

The launches are those of the corpus (tests/judge/corpus), gradients included where an operator has some.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import torch

from gluon_core.simulation.evidence import Proved
from gluon_judge.cases import arguments, cases_of, outputs
from gluon_judge.problem import read
from gluon_judge.slim import slimmed
from gluon_judge.source import load
from gluon_judge.workplace import on_target, simulated
from gluon_sim.launcher import proving
from gluon_sim.settings import using
from tests.judge.candidates import called, candidates

KINDS = ("unnecessary", "needed", "open")
GRADIENTS = {
    "attention",
    "rms_norm",
    "layer_norm",
    "cross_entropy",
    "linear_cross_entropy",
    "softmax",
}


def launches():
    """Yield the operators and a function that launches the kernels of each."""
    for one in candidates():
        if one.kind == "honest" and one.path.stem.startswith("honest_kernels"):
            names = called(one.path)
            yield "+".join(sorted(names)), one.path


def launch(path, gradients):
    problem = read(path.parent / "problem.toml")
    case = cases_of(problem, 0)[0]
    values = [*arguments(problem, case), *outputs(problem, case)]
    floating = [
        x
        for x in values
        if isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.float32)
    ]
    run = load(str(path))["run"]
    run(*values)
    if gradients and not problem.outputs:
        for x in floating:
            x.requires_grad_()
        result = run(*values)
        if isinstance(result, torch.Tensor) and result.requires_grad:
            result.float().square().sum().backward()


def slim(path, gradients, within):
    """Return the outcomes for the kernels that a candidate launches, each once."""
    outcomes = {}

    def prover(one):
        name = one.kernel.entry.name
        if name not in outcomes:
            outcomes[name] = slimmed(one, within)
        outcome = outcomes[name]
        return Proved(outcome.verdict, outcome.kernel, 0, 0.0, outcome.lines), None

    with proving(prover), using(prove="*", within=within):
        launch(path, gradients)
    return outcomes


PAGE = """# Synchronization of gluon_kernels

The results of [`gluon slim`](judge.md#slimming-synchronization) for the kernels of `gluon_kernels` on Hopper: each fence, wait and barrier is removed or weakened, one at a
time. `python -m tests.judge.slimming` repeats them; the launches are those of the judge's corpus, gradients included.

- **unnecessary**: the prover shows the kernel right without it, for every trip count, every schedule and every program;
- **needed**: a counterexample, with the schedule in which the simulator reports it;
- **open**: neither within the time, or outside of the prover's model.

A proof says nothing about the order of accesses to global memory. Code stays as it is where a GPU shows no gain: the ratios of the slimmed forms are
in `benchmarks/RESULTS.md`, from `benchmarks/slimmed.py`.
"""


def page(kernels):
    """Return the page of the outcomes, given as plain data."""
    lines = [
        PAGE,
        "| kernel | verdict | unnecessary | needed | open |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for one in kernels.values():
        counts = Counter(change["verdict"] for change in one["changes"])
        cells = [one["kernel"], one["verdict"], *(str(counts[kind]) for kind in KINDS)]
        lines.append(f"| {' | '.join(cells)} |")
    for one in kernels.values():
        if one["changes"] or one["verdict"] != "proved":
            lines += ["", f"## {one['kernel'].partition(' ')[0]}", ""]
            lines += [f"{one['verdict'].capitalize()}: {one['lines'][0]}." if one["lines"] else ""]
            lines += section(one["changes"])
    return "\n".join(lines) + "\n"


def section(changes):
    """Yield a table of changes, those that are needed last."""
    if not changes:
        return
    yield "\n| place | change | verdict | evidence |\n| --- | --- | --- | --- |"
    for change in sorted(changes, key=lambda one: KINDS.index(one["verdict"])):
        place = f"{change['file'].rpartition('gluon_kernels/')[2]}:{change['line']}"
        evidence = change["lines"]
        if change["verdict"] == "unnecessary":
            text = "; ".join(line for line in evidence[:2])
        elif change["verdict"] == "open":
            text = "; ".join(evidence[:2])
        else:
            text = ": ".join(evidence[:2])
        text = text.replace("|", "\\|").replace(str(Path.cwd()) + "/", "")[:220]
        source = change["source"].replace("|", "\\|")
        yield f"| {place} `{source}` | `{change['op']}` {change['change']} | {change['verdict']} | {text} |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--within", type=float, default=120.0)
    parser.add_argument("--json")
    parser.add_argument("--page")
    parser.add_argument("--read", nargs="*", default=[])
    chosen = parser.parse_args()
    kept = {}
    for file in chosen.read:
        kept.update(json.loads(Path(file).read_text()))
    if not chosen.read:
        kept = slim_operators(chosen.operators, chosen.within, chosen.json)
    if chosen.page:
        Path(chosen.page).write_text(page(dict(sorted(kept.items()))))


def slim_operators(wanted, within, path):
    """Return the outcomes for the kernels of operators as plain data, written to a file as they come."""
    on_target(str(simulated("hopper")))
    kept = {}
    print(
        "| operator | kernel | verdict | unnecessary | needed | open |\n| --- | --- | --- | ---: | ---: | ---: |"
    )
    for operators, file in launches():
        if wanted and operators not in wanted:
            continue
        for name, one in slim(file, operators in GRADIENTS, within).items():
            if name in kept:
                continue
            kept[name] = asdict(one)
            counts = Counter(change.verdict for change in one.changes)
            columns = [operators, f"`{name}`", one.verdict, *(str(counts[kind]) for kind in KINDS)]
            print(f"| {' | '.join(columns)} |", flush=True)
        if path:
            Path(path).write_text(json.dumps(kept, indent=1))
    return kept


if __name__ == "__main__":
    main()
