"""Time kernels whose synchronization `gluon slim` shows unnecessary, without it and with it.

python benchmarks/slimmed.py [--seed 1] [--rounds 31]

Each line removes or weakens one synchronization of gluon_kernels: the source with that change becomes a module of its own, both
forms run in random order on the same tensors, and the ratio of their times comes with a distribution-free interval of 95 %.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import torch

from gluon_judge.gpu import confidence
from gluon_kernels.attention import decode, hopper_backward, hopper_exchange, launches
from gluon_kernels.attention import portable as attention_portable

INNER = 20  # calls of one measurement


@dataclass(frozen=True)
class Change:
    """A change of one kernel.

    Args:
        name: of the synchronization.
        module: with the kernel.
        kernel: its name.
        edits: texts of the module that occur once, and their replacements.
        problem: returns functions that run both forms, given how to choose one.
        place: the module of the texts, if it is not the kernel's.
    """

    name: str
    module: Any
    kernel: str
    edits: tuple[tuple[str, str], ...]
    problem: str
    place: Any = None


LAST_WAIT = "warpgroup_mma_wait(0, deps=[product]), row)\n    tma.store_wait(0)\n"
LANGUAGE = "from gluon_core import language as gl\n"
CHANGES = (
    Change(
        "the store_wait before its results", hopper_backward, "gradients_atomic",
        ((LAST_WAIT, "warpgroup_mma_wait(0, deps=[product]), row)\n"),), "gradients", hopper_exchange,
    ),
    Change(
        "the fences of its waits", attention_portable, "paged_attention",
        (
            (LANGUAGE, LANGUAGE + "from gluon_core.language.nvidia.ampere import async_copy\n"),
            ("gl.portable.wait(STAGES - 2)", "async_copy.wait_group(STAGES - 2)"),
            ("gl.portable.wait(0)", "async_copy.wait_group(0)"),
        ), "decode",
    ),
)  # fmt: skip


def changed(change: Change) -> Any:
    """Return the kernel with the change."""
    place = change.module if change.place is None else change.place
    path = Path(place.__file__)
    text = path.read_text()
    for old, new in change.edits:
        if text.count(old) != 1:
            raise ValueError(f"{path.name} has no place for: {change.name}")
        text = text.replace(old, new)
    other = loaded(f"{path.stem}_slimmed", text)
    if place is change.module:
        return getattr(other, change.kernel)
    # The kernel's module, with the changed one in place of the one that it imports.
    text = Path(change.module.__file__).read_text().replace(place.__name__, other.__name__)
    return getattr(loaded(f"{change.kernel}_slimmed", text), change.kernel)


def loaded(name: str, text: str) -> Any:
    """Return a module of this source."""
    file = Path(tempfile.mkdtemp()) / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def gradients(length: int, width: int, causal: bool) -> tuple[str, Callable[[], Callable[[], Any]]]:
    """Return the name of a problem, and a function that builds its launches."""
    shape = (4, 16, length, width)
    q, k, v, grad = (torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(4))
    scale = width**-0.5
    forward = launches.forward_plan(q, k, v, None, causal, scale, True, None)
    out, logsums = forward(q, k, v, None, None)

    def build() -> Callable[[], Any]:
        run = launches.backward_plan(grad, q, k, v, out, logsums, causal, scale, False)
        return lambda: run(grad, q, k, v, out, logsums)

    return f"length={length} width={width} causal={causal}", build


def paged(sequences: int, length: int) -> tuple[str, Callable[[], Callable[[], Any]]]:
    """Return the name of a problem, and a function that builds its launches."""
    pages = length // 16
    q = torch.randn(sequences, 32, 256, device="cuda", dtype=torch.float16)
    k, v = (
        torch.randn(sequences * pages, 16, 8, 256, device="cuda", dtype=torch.float16) for _ in "kv"
    )
    table = torch.randperm(sequences * pages, device="cuda").reshape(sequences, pages).int()
    lengths = torch.full((sequences,), length, device="cuda", dtype=torch.int32)

    def build() -> Callable[[], Any]:
        plan = decode._build(q, k, v, table, lengths, None, None, 0.0, 256**-0.5)
        return lambda: plan(q, k, v, table, lengths, None)

    return f"sequences={sequences} length={length}", build


PROBLEMS = {
    "gradients": [
        lambda: gradients(2048, 64, False), lambda: gradients(2048, 128, False), lambda: gradients(4096, 128, True),
    ],
    "decode": [lambda: paged(16, 4096), lambda: paged(128, 1024)],
}  # fmt: skip


def seconds(run: Callable[[], Any]) -> float:
    """Return the time of one call, in a row of several."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
    torch.cuda.synchronize()
    begin.record()
    for _ in range(INNER):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / INNER


def measure(change: Change, rounds: int, generator: random.Random) -> None:
    """Print a line for each problem of a change."""
    kernel, slim = getattr(change.module, change.kernel), changed(change)
    for problem in PROBLEMS[change.problem]:
        name, build = problem()
        forms = {}
        for form, one in (("whole", kernel), ("slim", slim)):
            setattr(change.module, change.kernel, one)
            forms[form] = build()
            forms[form]()
        setattr(change.module, change.kernel, kernel)
        ratios = []
        for _ in range(rounds):
            times = {form: seconds(forms[form]) for form in generator.sample(["whole", "slim"], 2)}
            ratios.append(times["whole"] / times["slim"])
        middle, low, high = confidence(ratios)
        whole = 1e6 * seconds(forms["whole"])
        cells = [
            change.kernel,
            change.name,
            name,
            f"{whole:.1f} us",
            f"{middle:.4f}",
            f"{low:.4f} to {high:.4f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=31)
    chosen = parser.parse_args()
    torch.manual_seed(chosen.seed)
    print(f"seed {chosen.seed}, {torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(
        "\n| kernel | without | problem | time | speed of the slim form | interval of 95 % |\n| --- | --- | --- | ---: | ---: | --- |"
    )
    for change in CHANGES:
        try:
            measure(change, chosen.rounds, random.Random(chosen.seed))
        except Exception as error:
            print(f"{change.kernel}: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
