"""Compile examples on `gl.portable` for every architecture: registers, spills, and the busiest loop
next to that of an example that is written for the architecture.

No GPU is needed. `python benchmarks/one_source.py` prints tables for RESULTS.md; names of files or of
targets behind it choose. `--json FILE` keeps the numbers, and goes on where an earlier run ended.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import triton  # noqa: E402

from gluon_core.errors import GluonError  # noqa: E402
from gluon_core.registry.load import registry  # noqa: E402
from gluon_report.example import Example  # noqa: E402
from tests.kernels import cases  # noqa: E402

FILES = ("matmul", "matmul_stream_k", "matmul_batch_invariant", "matmul_split_k", "attention")
TARGETS = (
    "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1200",
    "gfx1250",
)  # fmt: skip
# A portable example, one for the architecture, the target.
PAIRS = (
    ("matmul", "matmul, warp-specialized", "sm_90"),
    ("matmul", "matmul, Blackwell, warp-specialized", "sm_100"),
    ("matmul", "matmul, CDNA3, bf16", "gfx942"),
    ("matmul", "matmul, CDNA4, bf16", "gfx950"),
    ("matmul", "matmul, RDNA4", "gfx1200"),
    ("matmul", "matmul by TDM", "gfx1250"),
    ("attention", "attention, CDNA", "gfx942"),
    ("attention", "attention, CDNA", "gfx950"),
)
UNITS = ("v_mfma", "v_wmma", "HGMMA", "QGMMA", "HMMA", "UTCHMMA", "UTCQMMA", "IMMA")
SHARED = ("ds_read", "ds_load", "LDS", "LDSM")
MEMORY = ("global_load", "buffer_load", "LDG", "LDGSTS", "UTMALDG", "tensor_load")
MOVES = ("v_mov", "v_accvgpr", "MOV", "v_perm", "PRMT")


def of(mix: dict[str, int], names: tuple[str, ...]) -> int:
    return sum(n for name, n in mix.items() if name.startswith(names))


def busiest(report: Any) -> dict[str, int]:
    """Return the instruction mix of the loop with most matrix instructions; else that of the whole
    kernel."""
    mixes = [dict(loop.instruction_mix) for loop in report.loops]
    busiest = max(mixes, key=lambda mix: of(mix, UNITS), default={})
    return busiest if of(busiest, UNITS) else dict(report.instruction_mix)


def compiled(example: Example, target: str) -> dict[str, Any]:
    """Return the facts of the machine code of an example's large case, or the reason why there is none."""
    try:
        kernel = example.compile(registry().target(target))
        report = kernel.report()
        mix = busiest(report)
    except GluonError as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    return {
        "registers": report.registers,
        "spills": report.spills,
        "scratch": report.scratch,
        "shared": report.shared_memory,
        "warps": kernel.metadata.num_warps,
        "matrix": of(mix, UNITS),
        "unit": max((name for name in mix if name.startswith(UNITS)), key=mix.get, default=""),
        "shared reads": of(mix, SHARED),
        "loads": of(mix, MEMORY),
        "moves": of(mix, MOVES),
        "all": sum(mix.values()),
    }


def cell(facts: dict[str, Any]) -> str:
    if "error" in facts:
        return "no"
    spilled = f" ({facts['spills']})" if facts["spills"] else ""
    return f"{facts['registers']}{spilled}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="files and targets")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    examples = cases.load_cases()
    by_name = {example.name: example for example in examples.values()}
    files = [name for name in FILES if name in chosen.only] or FILES
    targets = [name for name in TARGETS if name in chosen.only] or TARGETS
    known: dict[str, Any] = {}
    if chosen.json and chosen.json.exists():
        known = json.loads(chosen.json.read_text())

    def ask(example: Example, target: str) -> dict[str, Any]:
        key = f"{example.name} for {target}"
        if key not in known:
            known[key] = compiled(example, target)
            print(key, cell(known[key]), file=sys.stderr, flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps(known, indent=1))
        facts: dict[str, Any] = known[key]
        return facts

    print(f"Triton {triton.__version__}: registers of a thread, spilled ones in brackets\n")
    print("| example | " + " | ".join(targets) + " |\n| --- |" + " ---: |" * len(targets))
    for (file, _), example in examples.items():
        if file in files:
            cells = [cell(ask(example, target)) for target in targets]
            print(f"| {example.name} | " + " | ".join(cells) + " |")
    print("\nThe busiest loop, for each matrix instruction\n")
    print(
        "| target | example | matrix instructions | reads of shared memory | loads | moves | all |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for *names, target in PAIRS:
        if target in targets:
            for name in names:
                facts = ask(by_name[name], target)
                if "error" in facts or not facts["matrix"]:
                    print(f"| {target} | {name} | {facts.get('error', 'none')} | - | - | - | - |")
                    continue
                counts = [
                    facts[n] / facts["matrix"] for n in ("shared reads", "loads", "moves", "all")
                ]
                cells = " | ".join(f"{count:.2f}" for count in counts)
                print(f"| {target} | {name} | {facts['matrix']} {facts['unit']} | {cells} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
