"""Attention on Hopper, forward and back: the backward pass reads the saved values of the forward pass."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from gluon_core.registry.load import registry
from gluon_report.example import Arrays
from tests.kernels import cases

SM90 = registry().target("sim:sm_90")


def module(name):
    return cases.module(name)


def weights(q, k, causal):
    score = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
    if causal:
        score = np.where(np.tri(score.shape[1], dtype=bool), score, -np.inf)
    largest = score.max(axis=2, keepdims=True)
    p = np.exp(score - largest)
    total = p.sum(axis=2, keepdims=True)
    return p / total, (largest + np.log(total))[..., 0] / math.log(2)


def wide(args, *names):
    return [args[name].astype(np.float64) for name in names]


def of_two_kernels(args, causal):
    back = module("attention_backward_deterministic_hopper")
    kind = "causal" if causal else "full"
    examples = {e.name: e for e in (*back.MORE,)}
    deltas = (args["grad"].astype(np.float64) * args["out"].astype(np.float64)).sum(axis=2)
    results = {}
    for who in ("keys", "queries"):
        example = examples[f"attention backward, {who}, {kind}, head {args['q'].shape[2]}"]
        arguments = example.arguments(Arrays(SM90), False, args["q"].shape)
        arguments.update({name: args[name] for name in ("q", "k", "v", "grad", "logsums")})
        arguments["deltas"] = deltas.astype(np.float32)
        example.launch(arguments, example.configure(SM90), target=SM90)
        results.update({name: arguments[name] for name in arguments if name.startswith("for_")})
    return results


def of_one_kernel(args, causal):
    adding = module("attention_backward_atomic_hopper")
    names = ("for_queries", "for_keys", "for_values")
    outputs = {name: np.full(args["q"].shape, np.nan, args["q"].dtype) for name in names}
    shapes = adding.kept(args["q"].shape).items()
    room = {name: np.full(shape, np.nan, np.float32) for name, shape in shapes}
    adding.launch({**args, **outputs, **room}, causal, target=SM90)
    return outputs


@pytest.mark.sampled(4)
@pytest.mark.once
@pytest.mark.parametrize("make", [of_two_kernels, of_one_kernel])
@pytest.mark.parametrize(
    "length, causal, depth", [(200, True, 64), (129, False, 128), (1, True, 64)]
)
def test_gradients_of_what_was_computed(length, causal, depth, make):
    forward = module("attention_hopper")
    shape = (2, length, depth)
    kind = f"{'causal' if causal else 'full'}, head {depth}"
    (example,) = (e for e in forward.EXAMPLES if e.name.endswith(kind))
    args = example.arguments(Arrays(SM90), False, shape)
    args["logsums"] = np.full(shape[:2], np.nan, np.float32)
    example.launch(args, example.configure(SM90), target=SM90)
    q, k, v = wide(args, "q", "k", "v")
    p, logsums = weights(q, k, causal)
    np.testing.assert_allclose(args["logsums"], logsums, atol=1e-2)

    args["grad"] = np.random.default_rng(1).normal(size=shape).astype(args["q"].dtype)
    gradients = make(args, causal)
    grad = args["grad"].astype(np.float64)
    change = p * (grad @ v.transpose(0, 2, 1) - (grad * (p @ v)).sum(axis=2, keepdims=True))
    change /= math.sqrt(depth)
    wanted = {
        "for_queries": change @ k,
        "for_keys": change.transpose(0, 2, 1) @ q,
        "for_values": p.transpose(0, 2, 1) @ grad,
    }
    for name, want in wanted.items():
        error = np.abs(gradients[name].astype(np.float64) - want).max()
        assert error <= 2e-2 * max(np.abs(want).max(), 0.1), (name, error)


@pytest.mark.once
@pytest.mark.parametrize("make", [of_two_kernels, of_one_kernel])
def test_keys_that_are_not_there_weigh_nothing(make):
    """For keys that do not exist the power of two of its score would be infinite."""
    shape = (1, 100, 64)
    args = {name: np.ones(shape, ml_dtypes.bfloat16) for name in ("v", "grad", "out")}
    args["v"][0, ::3] = 3
    args["q"], args["k"] = args["out"] * 4, args["out"] * -4  # scores of -128
    args["logsums"] = np.full(shape[:2], math.log2(100) - 128 / math.log(2), np.float32)
    gradients = make(args, False)
    change = (64 * args["v"][0, :, 0].astype(np.float64) - 64) / 100
    wanted = -4 * change.sum() / 8
    np.testing.assert_allclose(gradients["for_queries"].astype(np.float64), wanted, rtol=2e-2)


def test_heads_that_share_keys():
    forward = module("attention_hopper")
    example = forward.EXAMPLES[1]
    args = example.arguments(Arrays(SM90), False, (6, 140, 64))
    few = {**args, "k": args["k"][:2], "v": args["v"][:2]}
    example.launch(few, example.configure(SM90, shared=3), target=SM90)
    every = {**args, "k": args["k"][:2].repeat(3, axis=0), "v": args["v"][:2].repeat(3, axis=0)}
    assert example.difference(few["out"].astype(np.float32), example.reference(every)) is None
