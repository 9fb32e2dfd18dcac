"""Cases of a problem: which inputs the judge makes, and how."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any, Iterator, Mapping, Sequence

import torch

from gluon_judge.messages import Case
from gluon_judge.problem import Input, Problem, evaluate

__all__ = ["arguments", "cases_of", "outputs", "permuted"]

DRAWN = 2  # shapes beyond the listed ones
LONGEST = 2  # shapes with one dimension as long as it may be
_LONGER, _LONGEST = (
    2.0,
    16.0,
)  # times the inputs of the largest listed shape, if another dimension can be shorter or not
_LARGE = 1 << 20  # elements: larger tensors are reversed and rotated rather than permuted
_GUARD = 256  # bytes before a view that begins within its storage


def cases_of(problem: Problem, seed: int) -> list[Case]:
    """Return the cases, the listed ones first, then drawn shapes, layouts and special values."""
    names = list(problem.dtypes)
    choices = [dict(zip(names, one)) for one in itertools.product(*problem.dtypes.values())]
    listed = [
        Case(dict(sizes), dtypes, seed=seed) for sizes in problem.shapes for dtypes in choices
    ]
    small = min(listed, key=lambda one: _volume(problem, one))
    drawn = random.Random(seed)
    others = [
        replace(listed[number % len(listed)], sizes=sizes, listed=False, seed=seed + 1 + number)
        for number, sizes in enumerate(
            (*_drawn(problem, small.sizes, drawn), *_longest(problem, listed, drawn))
        )
    ]
    shaped = [replace(small, layout=name, seed=seed + 11) for name in ("offset", "strided")]
    floating = any(one.shape is not None and _floats(one) for one in problem.inputs.values())
    fills = ["zeros", "large", "nan", "infinite", "denormal", "masked"] if floating else []
    if problem.special == "finite":
        fills = [name for name in fills if name not in ("nan", "infinite")]
    special = [replace(small, fill=name, seed=seed + 12) for name in fills]
    empty = [
        replace(small, sizes={**small.sizes, name: 0}, listed=False, seed=seed)
        for name in list(problem.dims)[:1]
    ]
    timed = [
        Case(dict(sizes), dtypes, seed=seed, timed=True)
        for sizes in problem.timed or problem.shapes
        for dtypes in choices
    ]
    return [*listed, *others, *shaped, *special, *empty, *timed]


def _floats(one: Input) -> bool:
    return one.values in ("normal", "uniform", "positive")


def _drawn(
    problem: Problem, small: Mapping[str, int], generator: random.Random
) -> Iterator[dict[str, int]]:
    """Yield sizes that the ranges of the problem admit, about as large as the listed ones."""
    if not problem.dims:
        return
    for number in range(DRAWN):
        sizes = dict(small)
        for name, limits in problem.dims.items():
            largest = max(shape.get(name, 1) for shape in problem.shapes)
            most = max(limits.least, min(limits.most, largest + largest // 2))
            size = generator.randint(limits.least, most) if number else limits.least
            whole = size // limits.multiple * limits.multiple
            sizes[name] = max(whole, limits.least, limits.multiple)
        yield sizes


def _longest(
    problem: Problem, listed: Sequence[Case], generator: random.Random
) -> Iterator[dict[str, int]]:
    """Yield sizes with one dimension as long as the problem admits, the others so short that the inputs stay small."""
    largest = max(_volume(problem, one) for one in listed)
    names = list(problem.dims)
    for name in generator.sample(names, min(LONGEST, len(names))):
        sizes = dict(min(listed, key=lambda one: _volume(problem, one)).sizes)
        sizes[name] = problem.dims[name].most
        for other in (*(one for one in names if one != name), name):
            most = largest * (_LONGER if other != name else _LONGEST)
            fits = sizes[other] * most / max(1.0, _volume(problem, replace(listed[0], sizes=sizes)))
            if fits < sizes[other]:
                limits = problem.dims[other]
                whole = int(fits) // limits.multiple * limits.multiple
                sizes[other] = max(whole, limits.least, limits.multiple)
        if all(sizes != one.sizes for one in listed):
            yield sizes


def _volume(problem: Problem, case: Case) -> float:
    total = 0.0
    for one in problem.inputs.values():
        if one.shape is not None:
            volume = 1.0
            for size in one.shape:
                volume *= evaluate(size, case.sizes)
            total += volume
    return total


# -- values ----------------------------------------------------------------------------------------


def arguments(problem: Problem, case: Case) -> list[Any]:
    """Return the arguments of a case that the candidate reads."""
    generator = torch.Generator().manual_seed(case.seed)
    return [_value(problem, case, one, generator) for one in problem.inputs.values()]


def outputs(problem: Problem, case: Case) -> list[Any]:
    """Return the tensors of a case that the candidate writes, full of zeros."""
    return [
        torch.zeros(_shape(one, case), dtype=_dtype(case, one)) for one in problem.outputs.values()
    ]


def _shape(one: Input, case: Case) -> list[int]:
    return [int(evaluate(size, case.sizes)) for size in one.shape or ()]


def _dtype(case: Case, one: Input) -> Any:
    return getattr(torch, case.dtypes.get(one.dtype, one.dtype))


def _value(problem: Problem, case: Case, one: Input, generator: Any) -> Any:
    if one.shape is None:
        value = evaluate(one.value, case.sizes)
        return value
    shape, dtype = _shape(one, case), _dtype(case, one)
    value = _values(one, case, shape, dtype, generator)
    if _floats(one):
        value = _special(value, case.fill, dtype, generator)
    return _placed(value.to(dtype), case.layout)


def _values(one: Input, case: Case, shape: Sequence[int], dtype: Any, generator: Any) -> Any:
    if one.values == "ones":
        return torch.ones(shape)
    if one.values == "boolean":
        if case.fill == "masked":
            return torch.zeros(shape, dtype=torch.bool)
        return torch.rand(shape, generator=generator) < 0.5
    if one.values == "offsets":
        low, high = (int(evaluate(bound, case.sizes)) for bound in (one.low, one.high))
        ends = torch.randint(low, high + 1, shape, generator=generator).sort(-1).values
        if ends.numel():
            ends[..., -1] = high
        return ends
    if one.values == "integers":
        low, high = (int(evaluate(bound, case.sizes)) for bound in (one.low, one.high))
        if case.fill == "masked":
            return torch.full(shape, low, dtype=torch.int64)
        return torch.randint(low, max(high, low + 1), shape, generator=generator)
    if one.values == "permutation":
        return torch.rand(shape, generator=generator).argsort(-1)
    # Cases that are only timed are large.
    drawn = torch.float32 if case.timed and dtype is not torch.float64 else torch.float64
    if one.values == "uniform":
        return torch.rand(shape, generator=generator, dtype=drawn)
    value = torch.randn(shape, generator=generator, dtype=drawn)
    return value.abs() + 0.01 if one.values == "positive" else value


def _special(value: Any, fill: str, dtype: Any, generator: Any) -> Any:
    """Return floating values as a case wants them."""
    limits = torch.finfo(dtype)
    if fill == "zeros":
        return torch.zeros_like(value)
    if fill == "large":
        return value * min(200.0, float(limits.max) ** 0.25)
    if fill == "denormal":
        return value * (float(limits.tiny) / 16)
    if fill in ("nan", "infinite") and value.numel():
        number = max(1, value.numel() // 50)
        places = torch.randint(0, value.numel(), (number,), generator=generator)
        flat = value.reshape(-1)
        if fill == "nan":
            flat[places] = float("nan")
        else:
            flat[places] = torch.sign(flat[places]) * float("inf")
        return flat.reshape(value.shape)
    return value


def _placed(value: Any, layout: str) -> Any:
    """Return a tensor with these values in a storage of that layout."""
    if layout == "offset":
        guard = max(1, _GUARD // value.element_size())
        storage = torch.zeros(value.numel() + 2 * guard, dtype=value.dtype)
        view = storage[guard : guard + value.numel()].view(value.shape)
    elif layout == "strided" and value.dim() >= 2:
        view = torch.zeros(
            (*value.shape[:-2], value.shape[-1], value.shape[-2]), dtype=value.dtype
        ).transpose(-1, -2)
    elif layout == "strided" and value.dim() == 1:
        view = torch.zeros(2 * value.numel(), dtype=value.dtype)[::2]
    else:
        return value.contiguous()
    view.copy_(value)
    return view


def permuted(problem: Problem, values: Sequence[Any], seed: int) -> list[Any]:
    """Return copies of arguments whose elements are in another order: sums and norms stay.

    Constants keep theirs, as do integers in an order that means something.
    """
    generator = torch.Generator().manual_seed(seed)
    changed = []
    for (name, one), value in zip(problem.inputs.items(), values):
        drawn = one.values in ("normal", "uniform", "positive", "integers", "boolean")
        if not isinstance(value, torch.Tensor):
            changed.append(value)
        elif not drawn or name in problem.constants or value.numel() < 2:
            changed.append(value.clone())
        else:
            raw = value.contiguous().view(-1)
            if value.element_size() == 1:
                raw = raw.view(torch.uint8)
            if raw.numel() > _LARGE:  # a permutation takes seconds
                first = int(torch.randint(1, raw.numel(), (), generator=generator))
                raw = raw.flip(0).roll(first)
            else:
                raw = raw[torch.randperm(raw.numel(), generator=generator)]
            changed.append(raw.view(value.dtype).view(value.shape))
    return changed
