"""Measure AMD's examples without an AMD GPU: their machine code next to that of the same kernels on
upstream's Gluon, and on the simulator their error against float64 and their time.

    python benchmarks/amd.py upstream
    python benchmarks/amd.py simulator

Prints a table for RESULTS.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Iterator, Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402
import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402

from benchmarks.upstream import load, source_of, to_upstream, without_our_own  # noqa: E402
from gluon_amd.inspect import instructions  # noqa: E402
from gluon_core.compiler import GluonASTSource, compile  # noqa: E402
from gluon_core.registry.load import registry  # noqa: E402
from gluon_report.example import Arrays, Example, Placeholders  # noqa: E402

# File -> the targets that its examples are for.
FILES = {
    "memcpy_cdna": ("gfx942", "gfx950"),
    "matmul_cdna": ("gfx942", "gfx950"),
    "attention_cdna": ("gfx942", "gfx950"),
    "matmul_rdna4": ("gfx1201",),
    "matmul_tdm": ("gfx1250",),
}
REPEATS = 5


def examples() -> Iterator[tuple[str, int, Example, Any]]:
    """(file, index in it, example, target) of each that the target can take."""
    for file, names in FILES.items():
        examples = load(f"ours_{file}", source_of(file)).EXAMPLES
        for index, example in enumerate(examples):
            for name in names:
                target = registry().target(name)
                # CDNA4 also runs the examples for CDNA3; those get no row of their own.
                own = name == "gfx942" or "CDNA3" not in example.name
                if own and not example.lacks(target):
                    yield file, index, example, target


def row(cells: Any) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def head(*cells: str) -> None:
    print(f"Triton {triton.__version__}\n")
    row(cells)
    print("|" + " --- |" * len(cells))


# -- machine code --------------------------------------------------------------------------------


def machine_code(file: str, index: int, target: Any, theirs: bool) -> list[str]:
    """Return the instructions of an example's kernel at its large size, under either package."""
    text = source_of(file)
    warps = load("probe", text).EXAMPLES[index].configure(target, True)["num_warps"]
    text = without_our_own(text, target, warps)
    example = load("example", to_upstream(text) if theirs else text).EXAMPLES[index]
    config = example.configure(target, True)
    assert config["num_warps"] == warps
    source, options = _source(example, config)
    if not theirs:
        kernel = compile(source, target, options)
    else:
        from triton.experimental.gluon._runtime import GluonASTSource as Theirs

        arch = target.architecture
        gpu = GPUTarget(arch.triton_backend, arch.arch, arch.warp_size)
        source = Theirs(example.kernel, source.signature, source.constants, source.attrs)
        kernel = triton.compile(source, target=gpu, options=options)
    return [one.name for one in instructions(kernel.asm["amdgcn"])]


def _source(example: Example, config: Any) -> tuple[GluonASTSource, dict[str, Any]]:
    """Return the known facts of the parameters, for our class of source; upstream's takes its fields."""
    from gluon_core.testing import bind

    values = example.values(example.arguments(Placeholders(), True), config)
    bits = registry().backend("amd").compiler.pointer_range_bits
    return bind(example.kernel, values, config, bits)


def compare() -> None:
    head("kernel", "target", "instructions", "of upstream", "the same, in the same order")
    for file, index, example, target in examples():
        ours: Optional[list[str]] = None
        theirs: Optional[list[str]] = None
        why = ""
        try:
            ours = machine_code(file, index, target, False)
            theirs = machine_code(file, index, target, True)
        except Exception as error:  # of upstream's frontend, of any class
            if ours is None:
                raise
            why = f"upstream refuses it: {str(error).strip().splitlines()[-1]}"
        same = why or ("yes" if ours == theirs else "no")
        cells = [len(counts) if counts is not None else "-" for counts in (ours, theirs)]
        row([example.name, target.architecture.name, *cells, same])


# -- simulator -----------------------------------------------------------------------------------


def simulate() -> None:
    head("example", "target", "sizes", "worst error", "error", "time")
    for _, _, example, target in examples():
        simulated = registry().target(f"sim:{target.architecture.name}")
        args = example.arguments(Arrays(simulated), False)
        config = example.configure(simulated)
        wanted = np.asarray(example.reference(args)).astype(np.float64)
        times = []
        for _ in range(REPEATS + 1):
            started = time.perf_counter()
            example.launch(args, config, target=simulated)
            times.append(time.perf_counter() - started)
        got = args[example.output].astype(np.float64).reshape(wanted.shape)
        worst = np.abs(got - wanted).max() / np.abs(wanted).max()
        error = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
        sizes = [str(v) for k, v in args.items() if isinstance(v, int)]
        if "q" in args:
            sizes = list(map(str, args["q"].shape))
        seconds = statistics.median(times[1:])
        name = target.architecture.name
        row(
            [
                example.name,
                name,
                "x".join(sizes),
                f"{worst:.1e}",
                f"{error:.1e}",
                f"{seconds:.3f} s",
            ]
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("upstream", "simulator"))
    if parser.parse_args().what == "upstream":
        compare()
    else:
        simulate()


if __name__ == "__main__":
    main()
