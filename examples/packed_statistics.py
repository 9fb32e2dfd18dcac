"""What the gradients of packed attention need of each query: the logarithm of its sum of weights, and the sum
of its result times the result's gradient. And the gradients in float64."""

import math

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.tune import numpy_of

try:
    from .attention_paged import placed
except ImportError:  # run as a program
    from attention_paged import placed


@gluon.jit
def room(begin, sequence):
    """Where a sequence's statistics begin: those of 64 rows are of one sequence."""
    return (begin + 64 * sequence) // 64 * 64


@gluon.jit
def prepare(
    out, grad, logsums, statistics, lists, count, heads, D: gl.constexpr, MOST: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """Statistics are [heads, rows / 64, 2, 64]: of each query the logarithm of its sum, and the sum of
    `out * grad`; infinite and 0 where there is none. `out` and `grad` are [tokens, heads, D], `logsums` [tokens, heads],
    `lists` where the sequences begin."""
    here: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    base = gl.program_id(0) * 64
    head = gl.program_id(1)
    index = gl.arange(0, MOST, here)
    ends = gl.load(lists + index + 1, mask=index < count, other=0)
    past = (index < count) & (room(ends, index + 1) <= base)
    sequence = gl.sum(past.to(gl.int32), 0)
    begin = gl.load(lists + sequence, mask=sequence < count, other=0)
    end = gl.load(lists + sequence + 1, mask=sequence < count, other=0)
    near = base + gl.arange(0, 64, here)
    line = begin + near - room(begin, sequence)
    there = line < end
    place = line.to(gl.int64) * heads + head
    column = gl.arange(0, D, gl.SliceLayout(0, LAYOUT))
    at = place[:, None] * D + column[None, :]
    x = gl.load(out + at, mask=there[:, None], other=0.0).to(gl.float32)
    y = gl.load(grad + at, mask=there[:, None], other=0.0).to(gl.float32)
    logsum = gl.load(logsums + place, mask=there, other=float("inf"))
    rows = gl.num_programs(0) * 64
    to = statistics + 2 * (head * rows + base) + near - base
    gl.store(to, logsum)
    gl.store(to + 64, gl.sum(x * y, 1))


def rows_of(tokens, sequences):
    """How many rows the statistics of so many have."""
    return (tokens // 64 + sequences) * 64


def rows_at(args):
    """Where each token's statistics are."""
    begins = np.asarray(args["of_queries"])
    index = np.arange(len(begins) - 1)
    each = (begins[:-1] + 64 * index) // 64 * 64 - begins[:-1]
    return np.repeat(each, np.diff(begins)) + np.arange(begins[-1])


def statistics_of(new, args):
    """Any for the queries that are there."""
    (tokens, heads, _), sequences = args["q"].shape, args["of_queries"].shape[0] - 1
    made = np.zeros((heads, rows_of(tokens, sequences) // 64, 2, 64), np.float32)
    made[:, :, 0] = np.inf
    if hasattr(args["of_queries"], "__getitem__"):
        at = rows_at({"of_queries": numpy_of(args["of_queries"])})
        drawn = np.random.default_rng(0).standard_normal((tokens, heads, 2))
        made[:, at // 64, :, at % 64] = drawn
    return placed(new, made.reshape(-1))


def gradients(args):
    """Of queries, keys and values in float64, sequence by sequence, for the statistics that are given."""
    q, k, v, grad = (args[name].astype(np.float64) for name in ("q", "k", "v", "grad"))
    statistics = args["statistics"].astype(np.float64).reshape(q.shape[1], -1, 2, 64)
    at = rows_at(args)
    logsums, deltas = statistics[:, at // 64, :, at % 64].transpose(2, 1, 0)
    shared, (left, right), cap = q.shape[1] // k.shape[1], args["window"], args["cap"]
    scale = 1 / math.sqrt(q.shape[2])
    made = [np.zeros_like(x) for x in (q, k, v)]
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
        made[0][own] = np.einsum("hqk,khd->qhd", change, of_k)
        for to, weights, of in ((1, change, q), (2, p, grad)):
            whole = np.einsum("hqk,qhd->khd", weights, of[own])
            made[to][theirs] = whole.reshape(last - first, -1, shared, q.shape[2]).sum(axis=2)
    return dict(zip(("for_queries", "for_keys", "for_values"), made))
