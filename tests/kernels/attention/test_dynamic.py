"""Attention and linear attention in `torch.compile` with sizes that change: one graph, no break."""

from __future__ import annotations

import pytest
import torch

import gluon_kernels as kernels

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")


def dense(length):
    return [torch.randn(1, 2, length, 64).bfloat16() for _ in "qkv"]


def packed(length):
    lists = torch.tensor([0, 10, length], dtype=torch.int32)
    return [*(torch.randn(length, 2, 64).bfloat16() for _ in "qkv"), lists]


def linear(length):
    q, k, v = (torch.randn(1, length, 1, 64).bfloat16() / 8 for _ in "qkv")
    return q, k, v, -torch.rand(1, length, 1), torch.rand(1, length, 1)


CALLS = {
    "attention": (lambda *t: kernels.attention(*t, causal=True), dense),
    "window": (lambda *t: kernels.attention(*t, window=(9, 0), softcap=5.0), dense),
    "attention_varlen": (lambda *t: kernels.attention_varlen(*t, causal=True), packed),
    "gated_delta_rule": (kernels.gated_delta_rule, linear),
    "kda": (lambda q, k, v, g, b: kernels.kda(q, k, v, g[..., None].expand_as(k), b), linear),
    "gated_linear_attention": (lambda *t: kernels.gated_linear_attention(*t[:4]), linear),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CALLS)
def test_one_graph_serves_all_lengths(name):
    call, inputs = CALLS[name]
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(call, backend=counted, dynamic=True, fullgraph=True)
    for length in (40, 70, 90):
        tensors = inputs(length)
        assert torch.equal(compiled(*tensors), call(*tensors))
    assert len(graphs) == 1
