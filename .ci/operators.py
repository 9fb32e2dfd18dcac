"""Run each operator of the installed `gluon_kernels` on small problems, on CPU tensors (simulated) or on a GPU, against its reference.

    python .ci/operators.py [--device cuda]

It runs from any folder and imports installed packages alone. The exit status is 1 if a result is wrong, and 3 if an
operator has no problem here.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import time
from typing import Any, Callable

import torch
import torch.nn.functional as F

import gluon_kernels as kernels
from gluon_kernels.problem import Problem, error_of


def problems() -> list[Problem]:
    """Return the problems that the families of the package have."""
    families = [info.name for info in pkgutil.iter_modules(kernels.__path__) if info.ispkg]
    modules = [importlib.import_module(f"gluon_kernels.{family}.problem") for family in families]
    return [problem for module in modules for problem in module.PROBLEMS]


def linear_cross_entropy(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    x, weight = torch.randn(9, 64, device=device), torch.randn(40, 64, device=device)
    labels = torch.randint(0, 40, (9,), device=device)
    right = F.cross_entropy(x.double() @ weight.double().mT, labels)
    return kernels.linear_cross_entropy(x, weight, labels), right


def matmul_batch_invariant(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = (torch.randn(size, device=device).bfloat16() for size in ((5, 64), (64, 72)))
    return kernels.matmul_batch_invariant(a, b), a.double() @ b.double()


def attention_fp8(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = (torch.randn(1, 2, 128, 64, device=device).to(torch.float8_e4m3fn) for _ in "qkv")
    one = torch.ones(1, 2, device=device)
    right = F.scaled_dot_product_attention(*(x.float() for x in (q, k, v)))
    return kernels.attention_fp8(q, k, v, one, one, one), right


def ssd(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(1, 70, 2, 64, device=device).half()
    b, c = (torch.randn(1, 70, 1, 64, device=device).half() / 8 for _ in "bc")
    steps, rates = torch.rand(1, 70, 2, device=device), -torch.rand(2, device=device)
    state, outputs = torch.zeros(1, 2, 64, 64, device=device, dtype=torch.float64), []
    for t in range(70):
        step = steps[:, t].double()[..., None, None]
        fresh = b[:, t].double()[..., None] * x[:, t].double()[:, :, None]
        state = torch.exp(step * rates.double()[:, None, None]) * state + step * fresh
        outputs.append((c[:, t].double()[..., None] * state).sum(-2))
    return kernels.ssd(x, steps, rates, b, c), torch.stack(outputs, 1)


OTHERS: dict[str, tuple[Callable[[str], Any], float]] = {
    "linear_cross_entropy": (linear_cross_entropy, 1e-2),
    "matmul_batch_invariant": (matmul_batch_invariant, 1e-2),
    "attention_fp8": (attention_fp8, 8e-2),
    "ssd": (ssd, 1e-2),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    torch.manual_seed(0)
    operators = [name for name in kernels.__all__ if name != "TopK"]
    wrong, known = 0, set()
    print(f"gluon_kernels from {kernels.__path__[0]}, torch {torch.__version__}, {device}")
    for problem in problems():
        name = problem.name.split(" and ")[0]
        began = time.perf_counter()
        sized = [shape for shape in problem.small if problem.bytes(shape) > 0]
        reason = problem.check(min(sized, key=problem.bytes), device)
        known.add(name)
        wrong += reason is not None
        print(f"{problem.name:42} {time.perf_counter() - began:5.1f} s  {reason or 'passed'}", flush=True)  # fmt: skip
    for name, (call, tolerance) in OTHERS.items():
        error = error_of(*call(device))
        known.add(name)
        wrong += not error <= tolerance
        print(f"{name:42} error {error:.1e}  {'passed' if error <= tolerance else 'failed'}")
    missing = sorted(set(operators) - known)
    if missing:
        print(f"no problem for {', '.join(missing)}")
    print(f"{len(set(operators) & known)} of {len(operators)} operators, {wrong} failed")
    return 1 if wrong else 3 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
