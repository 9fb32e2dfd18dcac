"""Random calls of attention against float64: any lengths, widths, heads, strides, masks, and inputs that need gradients.

python -m tests.kernels.attention.stress --device cuda --seconds 60 --jobs 12
python -m tests.kernels.attention.stress --seed 1234567          # one call again
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from typing import Any, Optional

import torch
from torch import Tensor

from gluon_kernels import attention, attention_varlen
from gluon_kernels.problem import error_of

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 5e-3}
NAMES = ("q", "k", "v", "sinks")
LENGTHS = (1, 2, 3, 63, 64, 65, 127, 128, 129, 191, 192, 193)


# -- cases -----------------------------------------------------------------------------------------


def _length(draw: random.Random, most: int, least: int = 1) -> int:
    if draw.random() < 0.4:
        return max(least, min(draw.choice(LENGTHS), most))
    return draw.randint(least, most)


def _mask(draw: random.Random, most: int) -> dict[str, Any]:
    options: dict[str, Any] = {"causal": draw.random() < 0.5}
    if draw.random() < 0.3:
        sides = [draw.choice((None, -1, 0, draw.randint(0, most))) for _ in range(2)]
        options["window"] = tuple(sides)
    if draw.random() < 0.2:
        options["softcap"] = draw.choice((2.0, 15.0))
    if draw.random() < 0.2:
        options["scale"] = draw.choice((0.05, 0.3))
    return options


def draw_case(draw: random.Random, most: int) -> dict[str, Any]:
    """Return the facts of a call, with lengths up to `most`."""
    shared, of_keys = draw.choice((1, 1, 2, 3, 4, 5, 7)), draw.choice((1, 1, 2, 3))
    width = draw.choice((64, 64, 128, 128, draw.randint(1, 32) * 8, draw.randint(1, 256)))
    case = {
        "heads": shared * of_keys,
        "of_keys": of_keys,
        "width": width,
        "values": width if draw.random() < 0.8 else draw.choice((64, 128, draw.randint(1, 256))),
        "dtype": draw.choice((torch.bfloat16, torch.bfloat16, torch.float16)),
        "strides": [draw.choice(STRIDES) for _ in "qkv"],
        "wanted": [draw.random() < 0.6 for _ in "qkv"],
        "grad": draw.choice(("dense", "expanded", "transposed")),
        **_mask(draw, most),
    }
    if draw.random() < 0.4:
        count = draw.randint(1, 6)
        case["queries"] = [draw.choice((0, _length(draw, most))) for _ in range(count)]
        same = draw.random() < 0.5
        case["keys"] = case["queries"] if same else [_length(draw, most, 0) for _ in range(count)]
    else:
        case["batch"] = draw.choice((1, 1, 2, 3))
        case["queries"] = _length(draw, most)
        case["keys"] = draw.choice((case["queries"], _length(draw, most), 4 * most))
    case["sinks"] = draw.random() < 0.2
    return case


def _dense(x: Tensor) -> Tensor:
    return x


def _heads_inside(x: Tensor) -> Tensor:
    """As a projection leaves it."""
    return x.transpose(-3, -2).contiguous().transpose(-3, -2)


def _columns_first(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


def _part(x: Tensor) -> Tensor:
    """From an odd address on, with rows that are further apart."""
    wide = x.new_zeros(*x.shape[:-1], x.shape[-1] + 3)
    wide[..., 1:-2] = x
    return wide[..., 1:-2]


def _expanded(x: Tensor) -> Tensor:
    """All heads are one."""
    axis = 1
    return x.narrow(axis, 0, 1).expand_as(x)


STRIDES = (_dense, _dense, _heads_inside, _heads_inside, _columns_first, _part, _expanded)


# -- reference -------------------------------------------------------------------------------------


def masked(q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], shift: int, case: dict[str, Any]) -> Tensor:  # fmt: skip
    """Return attention of [heads, length, width] in the dtype of operands, 0 for queries that see no key."""
    k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    score = q @ k.mT * case.get("scale", q.shape[-1] ** -0.5)
    if case.get("softcap"):
        score = case["softcap"] * torch.tanh(score / case["softcap"])
    left, right = (None if side == -1 else side for side in case.get("window") or (None, None))
    right = 0 if case["causal"] else right
    places = torch.arange(q.shape[-2], device=q.device)[:, None] + shift
    away = torch.arange(k.shape[-2], device=q.device) - places
    seen = torch.ones_like(away, dtype=torch.bool)
    if left is not None:
        seen &= away >= -left
    if right is not None:
        seen &= away <= right
    score = score.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        score = torch.cat([score, sinks[:, None, None].expand(*score.shape[:-1], 1)], -1)
    return score.softmax(-1).nan_to_num(0.0)[..., : k.shape[-2]] @ v


def _packed_reference(tensors: list[Tensor], case: dict[str, Any]) -> Tensor:
    results, query, key = [], 0, 0
    for queries, keys in zip(case["queries"], case["keys"]):
        q = tensors[0][query : query + queries].transpose(0, 1)
        k, v = (x[key : key + keys].transpose(0, 1) for x in tensors[1:3])
        results.append(masked(q, k, v, tensors[3], keys - queries, case).transpose(0, 1))
        query, key = query + queries, key + keys
    return torch.cat(results)


# -- runs ------------------------------------------------------------------------------------------


def _tensors(case: dict[str, Any], device: str) -> list[Tensor]:
    heads = (case["heads"], case["of_keys"], case["of_keys"])
    widths = (case["width"], case["width"], case["values"])
    tensors = []
    for i, (count, width) in enumerate(zip(heads, widths)):
        length = case["queries"] if i == 0 else case["keys"]
        if "batch" in case:
            x = torch.randn(case["batch"], count, length, width, device=device)
        else:
            x = torch.randn(sum(length), count, width, device=device)
        x = case["strides"][i](x.to(case["dtype"]))
        tensors.append(x.detach().requires_grad_(case["wanted"][i]))
    return tensors


def _gradient(result: Tensor, form: str) -> Tensor:
    if form == "expanded":
        return torch.randn((), device=result.device, dtype=result.dtype).expand_as(result)
    if form == "transposed":
        return torch.randn_like(result.transpose(0, 1).contiguous()).transpose(0, 1)
    return torch.randn_like(result)


def run(case: dict[str, Any], device: str) -> Optional[str]:
    """Return None, or what is wrong with a call's result or gradients."""
    tensors: list[Any] = [*_tensors(case, device)]
    options = {
        name: case[name] for name in ("causal", "window", "softcap", "scale") if name in case
    }
    sinks = None
    if case["sinks"]:
        sinks = torch.randn(case["heads"], device=device).requires_grad_(case["wanted"][0])
    tensors.append(sinks)
    options["sinks"] = sinks
    wide = [
        None if x is None else x.detach().double().requires_grad_(x.requires_grad) for x in tensors
    ]
    if "batch" in case:
        result = attention(*tensors[:3], **options)
        right = masked(*wide, 0, case)
    else:
        lists = [
            torch.tensor([0, *case[name]]).cumsum(0).int().to(device)
            for name in ("queries", "keys")
        ]
        result = attention_varlen(*tensors[:3], *lists, **options)
        right = _packed_reference(wide, case)
    tolerance = TOLERANCE[case["dtype"]]
    if result.shape != right.shape or result.dtype != case["dtype"]:
        return f"result {result.dtype} {list(result.shape)}"
    error = error_of(result, right)
    if not error < tolerance:
        return f"result off by {error:.2g}"
    leaves = [i for i, x in enumerate(tensors) if x is not None and x.requires_grad]
    if not leaves or not right.requires_grad:
        return None
    grad = _gradient(result, case["grad"])
    ours = torch.autograd.grad(result, [tensors[i] for i in leaves], grad)
    theirs = torch.autograd.grad(right, [wide[i] for i in leaves], grad.double())
    for i, one, other in zip(leaves, ours, theirs):
        error = error_of(one, other)
        if one.shape != other.shape or not error < tolerance:
            return f"gradient of {NAMES[i]} off by {error:.2g}"
    return None


def tried(seed: int, device: str, most: int) -> Optional[str]:
    """Run the call of a seed; return None, or its facts and what is wrong."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    case = draw_case(draw, most)
    try:
        wrong = run(case, device)
    except Exception as error:
        wrong = f"{type(error).__name__}: {str(error)[:300]}"
    if wrong is None:
        return None
    shown = {**case, "strides": [f.__name__ for f in case["strides"]]}
    return f"seed {seed}: {wrong}: {shown}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=1, help="of the seeds")
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--most", type=int, default=300, help="the longest sequence")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.seed is not None:
        print(tried(chosen.seed, chosen.device, chosen.most) or "passed")
        return 0
    end = time.time() + chosen.seconds
    if chosen.jobs > 1:
        command = [
            sys.executable,
            "-m",
            "tests.kernels.attention.stress",
            "--device",
            chosen.device,
        ]
        command += ["--most", str(chosen.most), "--seconds", str(chosen.seconds)]
        jobs = [
            subprocess.Popen(
                [*command, "--first", str(chosen.first + i), "--step", str(chosen.jobs)]
            )
            for i in range(chosen.jobs)
        ]
        return max(job.wait() for job in jobs)
    count, failed, seed = 0, 0, chosen.first
    while time.time() < end:
        wrong = tried(seed, chosen.device, chosen.most)
        if wrong:
            print(wrong, flush=True)
            failed += 1
        count, seed = count + 1, seed + chosen.step
    print(f"{count} calls from seed {chosen.first} by {chosen.step}, {failed} failed", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
