"""At the edges: latent attention, scores that are changed, top-k of many, weights of few bits, products
side by side and shared, cross entropy of a linear layer."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from gluon_core.registry.load import registry
from gluon_report.example import Arrays
from tests.kernels import cases

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]

SM90, CDNA = registry().target("sim:sm_90"), registry().target("sim:gfx942")


def module(name):
    return cases.module(name)


def examples_of(name):
    return [*module(name).EXAMPLES, *getattr(module(name), "MORE", ())]


def run(example, args, target=SM90, **choices):
    """Run with `args`, and compare all of the result."""
    example.launch(args, example.configure(target, **choices), target=target)
    problem = example.difference(args[example.output].astype(np.float32), example.reference(args))
    assert problem is None, problem
    return args


# sequences, heads, latent and rotated elements, page, longest; tile of heads and of tokens, warps
LATENT = [
    ((1, 1, 64, 32, 1, 1), (16, 32), 4),
    ((2, 16, 64, 32, 64, 129), (16, 16), 2),
    ((2, 70, 64, 32, 16, 70), (64, 64), 8),
]


@pytest.mark.parametrize("shape, block, warps", LATENT)
def test_latent_attention_of_any_shape(shape, block, warps):
    latent = module("attention_mla")
    args = latent.arguments(Arrays(SM90), False, shape)
    args["lengths"][-1] = shape[-1]
    config = latent.config(32, 64, shape[4], 64, block, 2, warps)
    got, wanted = latent.decode(args, config, target=SM90), latent.attention(args)
    assert np.abs(got.astype(np.float64) - wanted).max() <= 1e-2 * np.abs(wanted).max()


def test_a_sequence_without_tokens_is_zero():
    latent = module("attention_mla")
    args = latent.arguments(Arrays(SM90), False)
    args["lengths"][:] = [0, 40, 150]
    args["cache"][args["table"][1][3]] = np.nan  # behind the last token
    got = latent.decode(args, latent.config(32), target=SM90)
    assert (got[0] == 0).all() and np.isfinite(got.astype(np.float32)).all()


@pytest.mark.parametrize("shape", [(2, 1, 1), (2, 3, 200), (4, 65, 65), (2, 70, 71)])
@pytest.mark.parametrize("index", range(5))
def test_scores_that_are_changed(index, shape):
    example = examples_of("attention_score_mod")[index]
    args = example.arguments(Arrays(SM90), False, shape)
    run(example, args, **({"block": (64, 64), "num_warps": 4} if index == 2 else {}))


@pytest.mark.parametrize("kind", ["plain", "equal", "not a number", "single precision"])
def test_the_largest_of_rows(kind):
    """With columns, those of lower columns first among equals; whole and in pieces."""
    topk, draw, new = module("row_topk_radix"), np.random.default_rng(0), Arrays(SM90)
    dtype, bits = ("float32", 32) if kind == "single precision" else ("bfloat16", 16)
    for columns, count, pieces in ((130, 128, 1), (700, 33, 3), (1, 1, 1)):
        args = topk.arguments(new, False, (2, columns), dtype, count)
        if kind == "equal":
            args["src"][:] = draw.integers(0, 3, (2, columns))
            args["src"][:, ::3] *= -1  # zeros of both signs, too
        elif kind == "not a number" and columns > 1:
            args["src"][0, [5, 9]] = np.nan, -np.inf
            args["src"][1, 7] = np.copysign(np.nan, -1)
        if pieces > 1:
            args["src"][:, -(-columns // pieces)] = 9  # the second piece's first, and no other's
        first = topk.between(args, pieces, new) if pieces > 1 else None
        values, indices = topk.top_k(args, topk.config_of(bits, 32), first, target=SM90)
        src = args["src"].astype(np.float64)
        order = np.argsort(-np.where(np.isnan(src), np.inf, src), axis=1, kind="stable")
        assert (indices == order[:, :count]).all()
        wanted = np.take_along_axis(src, order[:, :count], 1)
        assert np.array_equal(values.astype(np.float64), wanted, equal_nan=True)


@pytest.mark.parametrize(
    "format, group, near", [("int8", 32, 0.03), ("int4", 32, 0.5), ("mxfp4", 32, 1.0)]
)
def test_weights_of_few_bits(format, group, near):
    """Return the rounded matrix, and the product with it."""
    quantized = module("matmul_weight_only")
    example = quantized.example(format, group)
    number = np.random.default_rng(0).normal(size=(72, 192))
    weights, scales = quantized.quantized(number, format, group)
    restored = quantized.restored(weights, scales, format, group)
    assert np.abs(restored - number).max() < near
    for target in (SM90, CDNA):
        args = example.arguments(Arrays(target), False, (3, 72, 192), (16, 32), 2)
        args.update(weights=weights, scales=scales)
        run(example, args, target, block=(16, 32, 64), splits=2)
        assert (args["counters"] == 0).all()


@pytest.mark.parametrize("target", [SM90, CDNA], ids=str)
def test_weights_of_fewer_steps_than_parts(target):
    """Some parts have nothing to multiply."""
    example = module("matmul_weight_only").example("int8", 64)
    args = example.arguments(Arrays(target), False, (3, 40, 64), (16, 32), 3)
    run(example, args, target, block=(16, 32, 64), splits=3)


@pytest.mark.parametrize(
    "name, sizes",
    [
        ("matmul_batched", (1, 1, 8, 8)),
        ("matmul_batched", (5, 65, 72, 40)),
        ("matmul_stream_k", (1, 8, 8)),
        ("matmul_stream_k", (130, 72, 616)),
        ("matmul_batch_invariant", (1, 8, 8)),
        ("matmul_batch_invariant", (65, 136, 136)),
    ],
)
def test_products_of_any_size(name, sizes):
    (example,) = examples_of(name)
    args = run(example, example.arguments(Arrays(SM90), False, sizes))
    assert (args.get("counters", np.zeros(1)) == 0).all()


def test_elements_past_a_matrix_do_not_matter():
    """A step along K that is not full ends with zeros, not with the next matrix."""
    (example,) = examples_of("matmul_batched")
    args = example.arguments(Arrays(SM90), False, (2, 16, 16, 40))
    args["a"][1], args["b"][1] = np.nan, np.inf
    example.launch(args, example.configure(SM90), target=SM90)
    wanted = args["a"][0].astype(np.float64) @ args["b"][0].astype(np.float64)
    assert np.abs(args["c"][0].astype(np.float64) - wanted).max() < 0.05


@pytest.mark.parametrize("target", [SM90, CDNA], ids=str)
def test_cross_entropy_of_a_linear_layer(target):
    linear, new = module("fused_linear_cross_entropy"), Arrays(target)
    args = linear.arguments(new, False, (72, 136, 40))
    args["labels"][3] = -100
    config = linear.config(target.warp_size)
    loss, logsum = linear.forward(args, config, new, target=target)
    x, w = (args[name].astype(np.float64) for name in "xw")
    logits, rows = x @ w.T, np.arange(72)
    wanted = np.log(np.exp(logits).sum(axis=1)) - logits[rows, args["labels"]]
    assert loss[3] == 0 and np.abs(np.delete(loss - wanted, 3)).max() < 1e-5
    factor = np.random.default_rng(0).normal(size=72).astype(np.float32)
    factor[3] = 0
    to_x, to_w = linear.backward(args, config, new, logsum, factor, 40, target=target)
    gradient = np.exp(logits - logsum[:, None].astype(np.float64))
    gradient[rows, args["labels"]] -= 1
    gradient *= factor[:, None]
    for got, whole in ((to_x, gradient @ w), (to_w, gradient.T @ x)):
        assert np.abs(got.astype(np.float64) - whole).max() < 1e-2 * np.abs(whole).max()


def test_a_wrong_scale_is_seen():
    """The tests above can fail."""
    example = module("matmul_weight_only").example("int4", 64)
    args = example.arguments(Arrays(SM90), False)
    right = example.reference
    wrong = dataclasses.replace(example, reference=lambda a: right({**a, "scales": twice(a)}))
    with pytest.raises(AssertionError, match="elements are wrong"):
        run(wrong, args)


def twice(args):
    return (args["scales"].astype(np.float32) * 2).astype(ml_dtypes.bfloat16)
