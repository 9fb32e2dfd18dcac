"""Prepare the gradients of varlen attention: for each query, the logarithm of its sum of weights, and the sum
of its result times the result's gradient. And the gradients in float64."""

import math

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.tune import numpy_of
from tests.kernels.cases.attention_paged import placed


@gluon.jit
def room(begin, sequence, UNIT: gl.constexpr):
    """Where a sequence's statistics begin: those of UNIT rows are of one sequence."""
    return (begin + UNIT * sequence) // UNIT * UNIT


@gluon.jit
def tokens_at(base, near, lists, count, MOST: gl.constexpr, UNIT: gl.constexpr):
    """The tokens that have the statistics from `base` on, and where those of their sequence end."""
    index = gl.arange(0, MOST, near.type.layout)
    ends = gl.load(lists + index + 1, mask=index < count, other=0)
    past = (index < count) & (room(ends, index + 1, UNIT) <= base)
    sequence = gl.sum(past.to(gl.int32), 0)
    begin = gl.load(lists + sequence, mask=sequence < count, other=0)
    end = gl.load(lists + sequence + 1, mask=sequence < count, other=0)
    return begin + base + near - room(begin, sequence, UNIT), end


@gluon.jit
def prepare(
    out, grad, logsums, statistics, sums, lists, count, heads, D: gl.constexpr, MOST: gl.constexpr,
    UNIT: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Statistics are [heads, rows / UNIT, 2, UNIT]: of each query the logarithm of its sum, and the sum of
    `out * grad`; infinite and 0 where there is none. `out` and `grad` are [tokens, heads, D], `logsums` [tokens,
    heads], `lists` where the sequences begin. `sums`, [heads, rows, D], become 0, if not None."""
    base = gl.program_id(0) * UNIT
    head = gl.program_id(1)
    near = gl.arange(0, UNIT, gl.SliceLayout(1, LAYOUT))
    line, end = tokens_at(base, near, lists, count, MOST, UNIT)
    there = line < end
    place = line.to(gl.int64) * heads + head
    column = gl.arange(0, D, gl.SliceLayout(0, LAYOUT))
    at = place[:, None] * D + column[None, :]
    x = gl.load(out + at, mask=there[:, None], other=0.0).to(gl.float32)
    y = gl.load(grad + at, mask=there[:, None], other=0.0).to(gl.float32)
    logsum = gl.load(logsums + place, mask=there, other=float("inf"))
    rows = gl.num_programs(0) * UNIT
    to = statistics + 2 * (head * rows + base) + near
    gl.store(to, logsum)
    gl.store(to + UNIT, gl.sum(x * y, 1))
    if sums is not None:
        at = (head * rows + base + near).to(gl.int64)[:, None] * D + column[None, :]
        gl.store(sums + at, gl.zeros_like(x))


@gluon.jit
def finish(
    sums, result, lists, count, heads, scale, D: gl.constexpr, MOST: gl.constexpr,
    UNIT: gl.constexpr, LAYOUT: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """Of each 64 x 64 elements of the sums: bring them back into their order, scale them, and store those that
    a token has."""
    ACROSS: gl.constexpr = D // 64
    tile = gl.program_id(0)
    head = gl.program_id(1)
    first = (head * gl.num_programs(0) + tile).to(gl.int64) * 4096
    x = gl.load(sums + first + gl.arange(0, 4096, LAYOUT)) * scale
    x = x.reshape([8, 4, 8, 4, 2, 2]).permute((1, 4, 2, 0, 3, 5)).reshape([64, 64])
    x = gl.convert_layout(x.to(result.dtype.element_ty), OUT)
    inside = tile // ACROSS * 64 % UNIT + gl.arange(0, 64, gl.SliceLayout(1, OUT))
    line, end = tokens_at(tile // ACROSS * 64 // UNIT * UNIT, inside, lists, count, MOST, UNIT)
    column = tile % ACROSS * 64 + gl.arange(0, 64, gl.SliceLayout(0, OUT))
    at = (line.to(gl.int64) * heads + head)[:, None] * D + column[None, :]
    gl.store(result + at, x, mask=(line < end)[:, None])


def rows_of(tokens, sequences, unit=64):
    """How many rows the statistics of so many have."""
    return (tokens // unit + sequences) * unit


def rows_at(args, unit=64):
    """Where each token's statistics are."""
    begins = np.asarray(args["of_queries"])
    index = np.arange(len(begins) - 1)
    each = (begins[:-1] + unit * index) // unit * unit - begins[:-1]
    return np.repeat(each, np.diff(begins)) + np.arange(begins[-1])


def statistics_of(new, args, unit=64):
    """Any for the queries that are there."""
    (tokens, heads, _), sequences = args["q"].shape, args["of_queries"].shape[0] - 1
    statistics = np.zeros((heads, rows_of(tokens, sequences, unit) // unit, 2, unit), np.float32)
    statistics[:, :, 0] = np.inf
    if hasattr(args["of_queries"], "__getitem__"):
        at = rows_at({"of_queries": numpy_of(args["of_queries"])}, unit)
        drawn = np.random.default_rng(0).standard_normal((tokens, heads, 2))
        statistics[:, at // unit, :, at % unit] = drawn
    return placed(new, statistics.reshape(-1))


def gradients(args, unit=64):
    """Of queries, keys and values in float64, sequence by sequence, for the statistics that are given."""
    q, k, v, grad = (args[name].astype(np.float64) for name in ("q", "k", "v", "grad"))
    statistics = args["statistics"].astype(np.float64).reshape(q.shape[1], -1, 2, unit)
    at = rows_at(args, unit)
    logsums, deltas = statistics[:, at // unit, :, at % unit].transpose(2, 1, 0)
    shared, (left, right), cap = q.shape[1] // k.shape[1], args["window"], args["cap"]
    scale = 1 / math.sqrt(q.shape[2])
    gradients = [np.zeros_like(x) for x in (q, k, v)]
    ends = [list(zip(args[name], args[name][1:])) for name in ("of_queries", "of_keys")]
    for (begin, end), (first, last) in zip(*ends):
        own, theirs = slice(begin, end), slice(first, last)
        of_k, of_v = (t[theirs].repeat(shared, axis=1) for t in (k, v))
        score = np.einsum("qhd,khd->hqk", q[own], of_k) * scale
        slope = 1.0
        if cap:
            slope = 1 - np.tanh(score / cap) ** 2
            score = cap * np.tanh(score / cap)
        place = np.arange(end - begin)[:, None] + (last - first) - (end - begin)
        away = np.arange(last - first) - place
        seen = away >= (-left if left is not None else -np.inf)
        seen &= away <= (right if right is not None else np.inf)
        power = np.where(seen, score * math.log2(math.e) - logsums[:, own, None], -np.inf)
        p = np.exp2(power)
        change = np.einsum("qhd,khd->hqk", grad[own], of_v) - deltas[:, own, None]
        change = p * slope * change * scale
        gradients[0][own] = np.einsum("hqk,khd->qhd", change, of_k)
        for to, weights, of in ((1, change, q), (2, p, grad)):
            whole = np.einsum("hqk,qhd->khd", weights, of[own])
            gradients[to][theirs] = whole.reshape(last - first, -1, shared, q.shape[2]).sum(axis=2)
    return dict(zip(("for_queries", "for_keys", "for_values"), gradients))
