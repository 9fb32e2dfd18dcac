"""The cases of a family of kernels: one `Problem` per op, shared by tests and benchmarks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Mapping, Optional, Sequence

import torch

__all__ = ["Problem", "Shape", "error_of", "with_gradients"]

Shape = Mapping[str, Any]  # size or choice by name, such as {"M": 128, "dtype": "bfloat16"}


@dataclass(frozen=True)
class Problem:
    """An op with the means to check and measure it.

    Args:
        name: of the op.
        op: `op(**arguments)`, its result or a tuple of them.
        arguments: `f(shape, device) -> {parameter: tensor or value}`, random ones.
        reference: `f(**arguments)`, the right results, in float32 or float64.
        draw: `f(random) -> shape`, a random one of those that a GPU is measured with.
        small: shapes that the simulator runs within a second or two; partial blocks included.
        flops: `f(shape) -> floating point operations`; 0 where memory is the bound.
        bytes: `f(shape) -> bytes` that must be read and written.
        tolerance: the largest error, relative to the largest element of the reference.
        rivals: name -> `f(**arguments)`, the same by others, such as torch.
        named: shapes that tables list by themselves.
        compared: `f(result, **arguments)`, what the reference is compared with; the result by default.
    """

    name: str
    op: Callable[..., Any]
    arguments: Callable[[Shape, Any], dict[str, Any]]
    reference: Callable[..., Any]
    draw: Callable[[random.Random], Shape]
    small: Sequence[Shape]
    flops: Callable[[Shape], float]
    bytes: Callable[[Shape], float]
    tolerance: float
    rivals: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    named: Sequence[Shape] = ()
    compared: Optional[Callable[..., Any]] = None

    def results(self, arguments: Mapping[str, Any]) -> Any:
        """Return what the op gives for `arguments`, as the reference is compared with it."""
        result = self.op(**arguments)
        return result if self.compared is None else self.compared(result, **arguments)

    def check(self, shape: Shape, device: Any) -> Optional[str]:
        """Return the reason why the results for random arguments are wrong; None where they are right."""
        arguments = self.arguments(shape, device)
        results, wanted = self.results(arguments), self.reference(**arguments)
        if isinstance(results, torch.Tensor):
            results, wanted = (results,), (wanted,)
        for index, (result, right) in enumerate(zip(results, wanted, strict=True)):
            error = error_of(result, right)
            if not error <= self.tolerance:  # NaN counts as wrong
                return (
                    f"{self.name} {dict(shape)}: result {index} is off by {error:.2g} of its "
                    f"largest element, more than {self.tolerance:.2g}"
                )
        return None


def with_gradients(
    problem: Problem, *names: str, draw: Callable[[random.Random], Shape], tolerance: float = 2e-2
) -> Problem:
    """Return the problem of a call followed by its gradients with respect to the tensors `names`, by torch's autograd.

    Args:
        draw: of smaller shapes, as there are more tensors.
    """

    def arguments(shape: Shape, device: Any) -> dict[str, Any]:
        of_call = problem.arguments(shape, device)
        with torch.no_grad():
            result = problem.op(**of_call)
        leaves = {
            name: of_call[name].detach().requires_grad_() for name in names if name in of_call
        }
        return {**of_call, **leaves, "grad": torch.randn_like(result)}

    def gradients(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(grad: torch.Tensor, **of_call: Any) -> Any:
            result = function(**of_call)
            leaves = [of_call[name] for name in names if name in of_call]
            return torch.autograd.grad(result, leaves, grad.to(result.dtype))

        return run

    return replace(
        problem,
        name=f"{problem.name} and gradients",
        op=gradients(problem.op),
        arguments=arguments,
        reference=gradients(problem.reference),
        rivals={name: gradients(rival) for name, rival in problem.rivals.items()},
        draw=draw,
        small=[shape for shape in problem.small if not shape.get("residual")],  # one result
        bytes=lambda shape: 2.5 * problem.bytes(shape),
        tolerance=tolerance,
    )


def error_of(result: torch.Tensor, right: torch.Tensor) -> float:
    """Return the largest error relative to the largest element of `right`; NaN where only one is."""
    if result.shape != right.shape:
        raise ValueError(f"results have shapes {tuple(result.shape)} and {tuple(right.shape)}")
    if not right.numel():
        return 0.0
    wide = torch.float64 if right.device.type == "cpu" else torch.float32
    result, right = result.detach().to(wide), right.detach().to(wide)
    scale = float(right.abs().max()) or 1.0
    return float((result - right).abs().max()) / scale
