"""Random calls of the operators of `gluon_kernels` on strange but legal tensors, compared with torch's operators in float64.

    python -m tests.kernels.stress --seed 1 --seconds 30 [--device cuda] [--only matmul,softmax]

Sizes are 0, 1, and numbers around the powers of two; tensors are slices, transposed, expanded, or begin at an odd element. Calls come
with `out=` of any strides, with gradients, under autocast, and compiled with dynamic shapes. `CASES` has a function for each
operator that draws one call.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

import gluon_kernels as kernels

SIZES = (0, 1, 1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 63, 64, 65, 72, 100, 128, 129, 136)
HALF = (torch.float16, torch.bfloat16)
FLOATS = (*HALF, torch.float32)
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 2e-2, torch.float32: 2e-5}


@dataclass
class Draw:
    """A source of random choices and tensors.

    Args:
        random: of everything but the elements.
        device: of the tensors.
        notes: a line for each tensor, for reports.
    """

    random: random.Random
    device: str
    notes: list[str] = field(default_factory=list)

    def size(self, least: int = 0, most: int = 200) -> int:
        return self.random.choice([size for size in SIZES if least <= size <= most])

    def shape(self, dims: int, least: int = 0, most: int = 40) -> tuple[int, ...]:
        return tuple(self.size(least, most) for _ in range(dims))

    def coin(self, share: float = 0.5) -> bool:
        return self.random.random() < share

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, expand: bool = True) -> Tensor:
        """Return a tensor of random elements and, in two of three cases, of strange strides."""
        kind = self.random.choice(
            ("plain", "plain", "transposed", "sliced", "stepped", "shifted", "expanded")
        )
        if kind == "transposed" and len(shape) > 1:
            order = list(range(len(shape)))
            self.random.shuffle(order)
            base = self._plain(tuple(shape[i] for i in order), dtype)
            tensor = base.permute([order.index(i) for i in range(len(shape))])
        elif kind == "sliced" and shape:
            before, after = self.random.choice((0, 1, 3, 8)), self.random.choice((0, 1, 5, 8))
            wide = (*shape[:-1], shape[-1] + before + after)
            tensor = self._plain(wide, dtype)[..., before : before + shape[-1]]
        elif kind == "stepped" and shape:
            dim = self.random.randrange(len(shape))
            wide = [n * 2 if i == dim else n for i, n in enumerate(shape)]
            tensor = self._plain(tuple(wide), dtype)[(slice(None),) * dim + (slice(None, None, 2),)]
        elif kind == "shifted":
            count = 1
            for size in shape:
                count *= size
            shift = self.random.choice((1, 2, 4))
            tensor = self._plain((count + shift,), dtype)[shift:].view(shape)
        elif kind == "expanded" and expand and shape:
            dim = self.random.randrange(len(shape))
            narrow = tuple(1 if i == dim else n for i, n in enumerate(shape))
            tensor = self._plain(narrow, dtype).expand(shape)
        else:
            tensor = self._plain(shape, dtype)
        assert tuple(tensor.shape) == tuple(shape)
        self.notes.append(
            f"{dtype} {list(shape)} strides {list(tensor.stride())} offset {tensor.storage_offset()}"
        )
        return tensor

    def _plain(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        generator = torch.Generator().manual_seed(self.random.randrange(1 << 30))
        return torch.randn(shape, generator=generator).to(dtype).to(self.device)


@dataclass
class Call:
    """A call of ours and the same of torch in float64.

    Args:
        ours: `f(*tensors, **options)`.
        right: `f(*tensors) -> result`, of float64 tensors.
        tensors: floating-point ones, which may have gradients.
        dtype: of the result.
        options: of `ours`.
        out: its shape, where `ours` takes one.
        gradients: of which tensors; none of the others has one.
        casts: True if autocast changes the dtype of the operands as that of products.
        loose: of the tolerance.
    """

    ours: Callable[..., Any]
    right: Callable[..., Tensor]
    tensors: tuple[Tensor, ...]
    dtype: torch.dtype
    options: dict[str, Any] = field(default_factory=dict)
    out: Optional[tuple[int, ...]] = None
    gradients: tuple[int, ...] = ()
    casts: bool = False
    loose: float = 1.0


def matmul(draw: Draw) -> Call:
    dtype = draw.random.choice(FLOATS)
    m, n, k = (draw.size() for _ in range(3))
    front = draw.shape(draw.random.randrange(3), 1, 3)
    kind = draw.random.choice(("matrices", "matrices", "rows", "batches", "vector", "broadcast"))
    a_shape, b_shape = (m, k), (k, n)
    if kind == "rows":
        a_shape = (*front, m, k)
    elif kind == "batches":
        a_shape, b_shape = (*front, m, k), (*front, k, n)
    elif kind == "vector":
        a_shape, b_shape = draw.random.choice((((k,), (k, n)), ((m, k), (k,)), ((k,), (k,))))
    elif kind == "broadcast":
        a_shape, b_shape = draw.random.choice(
            (((3, 1, m, k), (2, k, n)), ((m, k), (2, k, n)), ((1, m, k), (3, k, n)))
        )
    a, b = draw.tensor(a_shape, dtype), draw.tensor(b_shape, dtype)
    tensors, options = [a, b], {}
    columns = b_shape[-1] if len(b_shape) > 1 else None
    biased = columns is not None and draw.coin(0.3)
    if biased:
        tensors.append(draw.tensor((columns,), draw.random.choice((dtype, torch.float32))).contiguous())  # fmt: skip
    activation = draw.random.choice((None, None, "relu", "silu", "gelu", "gelu_tanh"))
    result = dtype if draw.coin(0.7) else draw.random.choice(FLOATS)
    if result != dtype:
        options["out_dtype"] = result

    def ours(a: Tensor, b: Tensor, bias: Optional[Tensor] = None, **more: Any) -> Tensor:
        return kernels.matmul(a, b, bias=bias, activation=activation, **options, **more)

    def right(a: Tensor, b: Tensor, bias: Optional[Tensor] = None) -> Tensor:
        value = torch.matmul(a, b)
        return activated(value if bias is None else value + bias, activation)

    shape = tuple(torch.matmul(torch.empty(a_shape), torch.empty(b_shape)).shape)
    return Call(ours, right, tuple(tensors), result, out=shape, gradients=tuple(range(len(tensors))), casts=True)  # fmt: skip


def activated(x: Tensor, name: Optional[str]) -> Tensor:
    if name is None:
        return x
    if name.startswith("gelu"):
        return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")
    return F.relu(x) if name == "relu" else F.silu(x)


def bmm(draw: Draw) -> Call:
    dtype = draw.random.choice(FLOATS)
    batch, (m, n, k) = draw.random.choice((0, 1, 2, 5)), (draw.size(0, 129) for _ in range(3))
    tensors = draw.tensor((batch, m, k), dtype), draw.tensor((batch, k, n), dtype)
    return Call(kernels.bmm, torch.bmm, tensors, dtype, out=(batch, m, n), gradients=(0, 1), casts=True)  # fmt: skip


def linear(draw: Draw) -> Call:
    dtype = draw.random.choice(FLOATS)
    n, k = draw.size(), draw.size()
    shape = (*draw.shape(draw.random.randrange(3), 0, 17), k)
    tensors = [draw.tensor(shape, dtype), draw.tensor((n, k), dtype)]
    if draw.coin():
        tensors.append(draw.tensor((n,), dtype).contiguous())
    return Call(
        kernels.linear, F.linear, tuple(tensors), dtype, out=(*shape[:-1], n),
        gradients=tuple(range(len(tensors))), casts=True,
    )  # fmt: skip


def quantized(draw: Draw) -> Call:
    from gluon_kernels.quant.problem import restored

    dtype = draw.random.choice(FLOATS)
    format = draw.random.choice(("int4", "int8", "e4m3", "mxfp4"))
    group = 32 if format == "mxfp4" else draw.random.choice((0, 32, 64, 96))
    n, k = draw.size(1), 32 * draw.random.choice((1, 2, 6))
    group = group if group and k % group == 0 else (32 if format == "mxfp4" else 0)
    x = draw.tensor((draw.random.choice((1, 3, 17, 65, 129, 200)), k), dtype)
    generator = torch.Generator().manual_seed(draw.random.randrange(1 << 30))
    if format in ("int4", "mxfp4"):
        weight = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=generator)
    elif format == "int8":
        weight = torch.randint(-127, 128, (n, k), dtype=torch.int8, generator=generator)
    else:
        weight = torch.randn(n, k, generator=generator).to(torch.float8_e4m3fn)
    size = (n, k // group) if group else (n,)
    scales = torch.rand(size, generator=generator) / 64 + 1e-3
    scales = scales.to(draw.random.choice(FLOATS))
    if format == "mxfp4":
        scales = torch.randint(120, 130, size, dtype=torch.uint8, generator=generator)
    weight, scales = weight.to(draw.device), scales.to(draw.device)
    draw.notes.append(f"{format}, groups of {group}, N {n}")
    wide = restored(weight, scales, torch.float64).to(draw.device)
    # Weights in registers are rounded to the dtype of x.
    return Call(
        lambda x, **more: kernels.linear(x, weight, scales=scales, **more),
        lambda x: F.linear(x, wide), (x,), dtype, out=(x.shape[0], n), gradients=(0,), casts=True,
        loose=1.0 if dtype != torch.float32 else 4.0,
    )  # fmt: skip


def fp8(draw: Draw) -> Call:
    m, n, k = (draw.size(0, 136) for _ in range(3))
    a, b = (draw.tensor(shape, torch.float8_e4m3fn) for shape in ((m, k), (n, k)))
    a_scale, b_scale = (
        torch.rand((), device=draw.device).reshape(1) + 0.5 if draw.coin() else torch.rand(size, device=draw.device) + 0.5
        for size in (m, n)
    )  # fmt: skip
    if m == 0:
        a_scale = a_scale[:1] if a_scale.numel() else torch.ones(1, device=draw.device)
    if n == 0:
        b_scale = b_scale[:1] if b_scale.numel() else torch.ones(1, device=draw.device)
    right = (a.double() * a_scale.double().reshape(-1, 1)) @ (b.double() * b_scale.double().reshape(-1, 1)).mT  # fmt: skip
    exact = {"fast_accum": False} if draw.coin(0.3) else {}
    return Call(
        lambda **more: kernels.matmul_fp8(a, b.mT, a_scale, b_scale, **exact, **more),
        lambda: right, (), torch.bfloat16, out=(m, n), loose=1.0 if exact else 2.0,
    )  # fmt: skip


def grouped(draw: Draw) -> Call:
    dtype = draw.random.choice(HALF)
    groups, rows = draw.random.choice((1, 3, 5)), draw.size(1, 129)
    n, k = (8 * draw.random.choice((1, 2, 5, 9, 17)) for _ in range(2))
    ends = sorted(draw.random.randint(0, rows) for _ in range(groups - 1)) + [rows]
    offs = torch.tensor(ends, dtype=torch.int32, device=draw.device)
    b = draw.tensor((groups, n, k), dtype, expand=False).contiguous()
    b = b.mT if draw.coin() else b.reshape(groups, k, n)
    draw.notes.append(f"ends {ends}, b {list(b.shape)} {list(b.stride())}")

    def right(a: Tensor, b: Tensor) -> Tensor:
        parts = [a[i:j] @ b[g] for g, (i, j) in enumerate(zip([0, *ends], ends))]
        return torch.cat(parts)

    return Call(
        lambda a, b, **more: kernels.grouped_matmul(a, b, offs, **more), right,
        (draw.tensor((rows, k), dtype), b), dtype, out=(rows, n), gradients=(0, 1), casts=True,
    )  # fmt: skip


def softmax(draw: Draw) -> Call:
    dtype = draw.random.choice(FLOATS)
    x = draw.tensor(draw.shape(draw.random.randrange(1, 4)), dtype)
    dim = draw.random.randrange(-x.ndim, x.ndim)
    return Call(
        lambda x, **more: kernels.softmax(x, dim, **more), lambda x: torch.softmax(x, dim), (x,), dtype,
        out=tuple(x.shape), gradients=(0,),
    )  # fmt: skip


def norm(draw: Draw) -> Call:
    dtype = draw.random.choice(FLOATS)
    shape = (*draw.shape(draw.random.randrange(3), 0, 17), draw.size(1))
    layer = draw.coin()
    tensors = [draw.tensor(shape, dtype)]
    if draw.coin(0.7):
        tensors += [draw.tensor(shape[-1:], draw.random.choice((dtype, torch.float32))) for _ in range(1 + layer)]  # fmt: skip

    def right(x: Tensor, *vectors: Tensor) -> Tensor:
        if layer:
            return F.layer_norm(x, shape[-1:], *vectors, eps=1e-5)
        return F.rms_norm(x, shape[-1:], *vectors, eps=1e-6)

    return Call(
        kernels.layer_norm if layer else kernels.rms_norm, right, tuple(tensors), dtype, out=shape,
        gradients=tuple(range(len(tensors))), loose=2.0,
    )  # fmt: skip


def cross_entropy(draw: Draw) -> Call:
    dtype = draw.random.choice(FLOATS)
    rows, classes = draw.size(0), draw.size(1)
    labels = torch.tensor([draw.random.choice((-100, draw.random.randrange(classes))) for _ in range(rows)], dtype=torch.int64)  # fmt: skip
    labels = labels.to(draw.device)
    reduction = draw.random.choice(("none", "sum", "mean"))
    return Call(
        lambda x: kernels.cross_entropy(x, labels.to(torch.int32) if reduction == "sum" else labels, reduction=reduction),
        lambda x: F.cross_entropy(x, labels, reduction=reduction),
        (draw.tensor((rows, classes), dtype),), torch.float32, gradients=(0,), loose=50.0,
    )  # fmt: skip


def swiglu(draw: Draw) -> Call:
    dtype = draw.random.choice(FLOATS)
    shape = draw.shape(draw.random.randrange(1, 4))
    tensors = draw.tensor(shape, dtype), draw.tensor(shape, dtype)
    return Call(kernels.swiglu, lambda g, u: F.silu(g) * u, tensors, dtype, gradients=(0, 1))


def topk(draw: Draw) -> Call:
    dtype = draw.random.choice(FLOATS)
    x = draw.tensor(draw.shape(draw.random.randrange(1, 4)), dtype)
    dim, largest = draw.random.randrange(-x.ndim, x.ndim), draw.coin()
    k = draw.random.randint(0, x.shape[dim])
    return Call(
        lambda x: kernels.topk(x, k, dim, largest).values, lambda x: torch.topk(x, k, dim, largest).values,
        (x,), dtype,
    )  # fmt: skip


def cumsum(draw: Draw) -> Call:
    dtype = draw.random.choice(FLOATS)
    x = draw.tensor(draw.shape(draw.random.randrange(1, 4)), dtype)
    dim = draw.random.randrange(-x.ndim, x.ndim)
    return Call(lambda x: kernels.cumsum(x, dim), lambda x: torch.cumsum(x, dim), (x,), dtype, gradients=(0,), loose=2.0)  # fmt: skip


CASES: dict[str, Callable[[Draw], Call]] = {
    "matmul": matmul,
    "bmm": bmm,
    "linear": linear,
    "quantized": quantized,
    "matmul_fp8": fp8,
    "grouped_matmul": grouped,
    "softmax": softmax,
    "norm": norm,
    "cross_entropy": cross_entropy,
    "swiglu": swiglu,
    "topk": topk,
    "cumsum": cumsum,
}


def close(got: Tensor, right: Tensor, dtype: torch.dtype, loose: float, least: float = 1e-3) -> Optional[str]:  # fmt: skip
    """Return how a result differs from the right one; None where it does not. Errors are relative to the largest number, and to `least`."""
    if tuple(got.shape) != tuple(right.shape):
        return f"shape {list(got.shape)} instead of {list(right.shape)}"
    if not got.numel():
        return None
    got, right = got.detach().double().cpu(), right.detach().double().cpu()
    if not torch.equal(got.isnan(), right.isnan()):
        return f"{int(got.isnan().sum())} NaN instead of {int(right.isnan().sum())}"
    got, right = got.nan_to_num(), right.nan_to_num()
    scale = max(float(right.abs().max()), least)
    error = float((got - right).abs().max()) / scale
    bound = TOLERANCE[dtype] * loose
    return None if error <= bound else f"off by {error:.3g}, at most {bound:.3g}"


def compared(name: str, number: int, device: str) -> Optional[str]:
    """Draw one call and make it; return a report where it fails."""
    draw = Draw(random.Random(number), device)
    way = "plain"
    try:
        call = CASES[name](draw)
        ways = ["plain", "plain"]
        if call.out is not None:
            ways.append("out")
        if call.gradients:
            ways += ["gradients", "gradients"]
        if call.casts:
            ways.append("autocast")
        way = draw.random.choice(ways)
        problem = _made(call, way, draw)
    except Exception as error:
        problem = f"{type(error).__name__}: {str(error)[:300]}"
    if problem is None:
        return None
    return f"{name} {number} ({way}): {problem}; " + "; ".join(draw.notes)


def _made(call: Call, way: str, draw: Draw) -> Optional[str]:
    wide = [t.detach().double().requires_grad_(i in call.gradients) for i, t in enumerate(call.tensors)]  # fmt: skip
    right = call.right(*wide)
    lowest = max((TOLERANCE[t.dtype], t.dtype.itemsize, t.dtype) for t in (*call.tensors, torch.empty((), dtype=call.dtype)))[2]  # fmt: skip
    if way == "plain":
        got = call.ours(*call.tensors, **call.options)
        if got.dtype != call.dtype:
            return f"{got.dtype} instead of {call.dtype}"
        return close(got, right, lowest, call.loose)
    if way == "out":
        assert call.out is not None
        out = draw.tensor(call.out, call.dtype, expand=False)
        with torch.no_grad():
            got = call.ours(*call.tensors, out=out, **call.options)
        if got is not out:
            return "returns another tensor than out"
        return close(out, right, lowest, call.loose)
    if way == "autocast":
        with torch.autocast(draw.device, torch.bfloat16):
            got = call.ours(*call.tensors, **call.options)
        return close(got, right, torch.bfloat16, 2 * call.loose)
    wanted = [i for i in call.gradients if draw.coin(0.7)] or [call.gradients[0]]
    inputs = [t.detach().requires_grad_(i in wanted) for i, t in enumerate(call.tensors)]
    got = call.ours(*inputs, **call.options)
    generator = torch.Generator().manual_seed(1)
    by = torch.randn(got.shape, generator=generator).to(got.dtype).to(got.device)
    if draw.coin(0.3) and by.ndim:
        by = by[..., :1].expand(by.shape)
    grads = torch.autograd.grad(got, [inputs[i] for i in wanted], by)
    rights = torch.autograd.grad(right, [wide[i] for i in wanted], by.double())
    for i, grad, want in zip(wanted, grads, rights):
        if grad.dtype != inputs[i].dtype:
            return f"gradient {i} is {grad.dtype}"
        problem = close(
            grad, want, lowest, 2 * call.loose, 0.3
        )  # gradients of equal numbers cancel
        if problem:
            return f"gradient {i} {problem}"
    return close(got.detach(), right.detach(), lowest, call.loose)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--number", type=int, help="this call alone")
    chosen = parser.parse_args()
    names, begin, count, wrong = chosen.only.split(","), time.time(), 0, 0
    number = chosen.seed * 1_000_000
    while time.time() - begin < chosen.seconds:
        name = names[count % len(names)]
        report = compared(name, number + count if chosen.number is None else chosen.number, chosen.device)  # fmt: skip
        count += 1
        if report:
            wrong += 1
            print(report, flush=True)
        if chosen.number is not None:
            break
    print(f"{count} calls, {wrong} wrong", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
