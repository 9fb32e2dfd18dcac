"""Attention on Hopper, forward and back: what the one keeps is what the other needs."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest

from gluon_core.cli.demo import examples_package
from gluon_core.cli.example import Arrays
from gluon_core.contract.registry import registry

SM90 = registry().target("sim:sm_90")


def module(name):
    return importlib.import_module(f"{examples_package().__name__}.{name}")


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


@pytest.mark.sampled(2)
@pytest.mark.once
@pytest.mark.parametrize("length, causal", [(200, True), (129, False), (1, True)])
def test_gradients_of_what_was_computed(length, causal):
    forward, back = module("attention_hopper"), module("attention_backward_hopper")
    shape = (2, length, 64)
    (example,) = (
        e for e in forward.EXAMPLES if e.name.endswith("head 64") and ("full" in e.name) != causal
    )
    args = example.arguments(Arrays(SM90), False, shape)
    args["logsums"] = np.full(shape[:2], np.nan, np.float32)
    example.launch(args, example.configure(SM90), target=SM90)
    q, k, v, out = wide(args, "q", "k", "v", "out")
    p, logsums = weights(q, k, causal)
    np.testing.assert_allclose(args["logsums"], logsums, atol=1e-2)

    (kind,) = (k for k in ("full", "causal") if (k == "causal") == causal)
    examples = {e.name: e for e in (*back.MORE,)}
    grad = np.random.default_rng(1).normal(size=shape)
    made = {}
    for who in ("keys", "queries"):
        example = examples[f"attention backward, {who}, {kind}, head 64"]
        given = example.arguments(Arrays(SM90), False, shape)
        given.update({name: args[name] for name in ("q", "k", "v", "logsums")})
        given["grad"] = grad.astype(args["q"].dtype)
        given["deltas"] = (given["grad"].astype(np.float64) * out).sum(axis=2).astype(np.float32)
        example.launch(given, example.configure(SM90), target=SM90)
        made.update({name: given[name] for name in given if name.startswith("for_")})
    grad = given["grad"].astype(np.float64)
    change = p * (grad @ v.transpose(0, 2, 1) - (grad * (p @ v)).sum(axis=2, keepdims=True)) / 8
    wanted = {
        "for_queries": change @ k,
        "for_keys": change.transpose(0, 2, 1) @ q,
        "for_values": p.transpose(0, 2, 1) @ grad,
    }
    for name, want in wanted.items():
        error = np.abs(made[name].astype(np.float64) - want).max()
        assert error <= 2e-2 * max(np.abs(want).max(), 0.1), (name, error)


def test_heads_that_share_keys():
    forward = module("attention_hopper")
    example = forward.EXAMPLES[1]
    args = example.arguments(Arrays(SM90), False, (6, 140, 64))
    few = {**args, "k": args["k"][:2], "v": args["v"][:2]}
    example.launch(few, example.configure(SM90, shared=3), target=SM90)
    every = {**args, "k": args["k"][:2].repeat(3, axis=0), "v": args["v"][:2].repeat(3, axis=0)}
    assert example.difference(few["out"].astype(np.float32), example.reference(every)) is None
