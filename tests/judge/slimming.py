"""Slim the synchronization of every operator of gluon_kernels, and print a table.

python -m tests.judge.slimming                       # all operators, for Hopper
python -m tests.judge.slimming attention matmul --within 120 --json FILE

The launches are those of the corpus (tests/judge/corpus), gradients included where an operator has some.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict

import torch

from gluon_core.simulation.evidence import Proved
from gluon_judge.cases import arguments, cases_of
from gluon_judge.problem import read
from gluon_judge.slim import slimmed
from gluon_judge.source import load
from gluon_judge.workplace import on_target, simulated
from gluon_sim.launcher import proving
from gluon_sim.settings import using
from tests.judge.candidates import called, candidates

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
    values = arguments(problem, cases_of(problem, 0)[0], outputs=True)
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--within", type=float, default=120.0)
    parser.add_argument("--json")
    chosen = parser.parse_args()
    on_target(str(simulated("hopper")))
    kept, seen = {}, set()
    print(
        "| operator | kernel | verdict | unnecessary | needed | open |\n| --- | --- | --- | ---: | ---: | ---: |"
    )
    for operators, path in launches():
        if chosen.operators and operators not in chosen.operators:
            continue
        for name, one in slim(path, operators in GRADIENTS, chosen.within).items():
            if name in seen:
                continue
            seen.add(name)
            kept[name] = asdict(one)
            counts = Counter(change.verdict for change in one.changes)
            columns = [operators, f"`{name}`", one.verdict]
            columns += [str(counts[kind]) for kind in ("unnecessary", "needed", "open")]
            print(f"| {' | '.join(columns)} |", flush=True)
            for change in one.changes:
                if change.verdict != "needed":
                    place = f"{change.file.rpartition('gluon_kernels/')[2]}:{change.line}"
                    print(
                        f"    {change.verdict}: {change.op} {change.change}, {place}: {change.source}: {change.lines[0]}",
                        flush=True,
                    )
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump(kept, file, indent=1)


if __name__ == "__main__":
    main()
