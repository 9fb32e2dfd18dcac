"""`gluon_kernels.mla_decode` through its public door."""

from __future__ import annotations

import pytest
import torch

from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels import mla_decode
from gluon_kernels.attention import mla
from gluon_kernels.attention.decode_problem import MLA
from gluon_kernels.problem import error_of
from tests.kernels.launched import launches_of

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    mla._plans.forget()
    yield
    mla._plans.forget()


def inputs(lengths, heads=5, latent=64, rotated=32, page=16, dtype="bfloat16"):
    sizes = {"heads": heads, "latent": latent, "rotated": rotated, "dtype": dtype}
    return tuple(MLA.arguments({"lengths": lengths, "page": page, **sizes}, "cpu").values())[:4]


reference = MLA.reference


@pytest.mark.parametrize("target", ["sim:sm_90", "sim:sm_80", "sim:gfx942"])
def test_sequences_of_any_lengths(target, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", target)
    tensors = inputs([70, 1, 0, 150])
    assert error_of(mla_decode(*tensors, latent=64), reference(*tensors, 64)) < 2e-2


def test_width_of_deepseek_and_parts(monkeypatch):
    monkeypatch.setattr(mla, "_chunk", lambda capacity, heads: 64)
    tensors = inputs([100, 37], 17, 512, 64, 7, "float16")
    result = mla_decode(*tensors, scale=192**-0.5)
    stretched = (tensors[0] * (576 / 192) ** 0.5, *tensors[1:])
    assert error_of(result, reference(*stretched, 512)) < 1e-2
    q, cache, table, lengths = tensors
    alone = mla_decode(q[1:], cache, table[1:], lengths[1:], scale=192**-0.5)
    assert torch.equal(alone[0], result[1])


def test_sequences_past_the_second_axis_of_a_grid(monkeypatch):
    monkeypatch.setattr(mla, "GRID", 17)
    tensors = inputs([70, 0, *range(1, 33)], heads=2)
    result = []
    launches = launches_of(lambda: result.append(mla_decode(*tensors, latent=64)), "sim:sm_90")
    assert [x.grid[1] for x in launches] == [16, 16, 16, 16, 2, 2]
    assert error_of(result[0], reference(*tensors, 64)) < 2e-2


def test_declaration():
    tensors = inputs([40, 20])
    op = torch.ops.gluon_kernels.mla_decode.default
    assert set(torch.library.opcheck(op, (*tensors, 64, 0.125)).values()) == {"SUCCESS"}
    compiled = torch.compile(lambda *t: mla_decode(*t, latent=64), backend="eager", fullgraph=True)
    assert torch.equal(compiled(*tensors), mla_decode(*tensors, latent=64))


def test_mistakes_are_named_before_a_launch():
    q, cache, table, lengths = inputs([40, 20])
    for call, error, words in (
        (lambda: mla_decode(q.float(), cache, table, lengths, latent=64), DtypeError, "q: "),
        (lambda: mla_decode(q, cache.half(), table, lengths, latent=64), DtypeError, "cache: "),
        (lambda: mla_decode(q, cache, table, lengths), ShapeError, "latent: "),
        (lambda: mla_decode(q, cache[0], table, lengths, latent=64), ShapeError, "cache: "),
        (lambda: mla_decode(q, cache, table.long(), lengths, latent=64), DtypeError, "page_table: "),
        (lambda: mla_decode(q, cache, table, lengths[:1], latent=64), ShapeError, "lengths: "),
        (lambda: mla_decode(q, cache, table, lengths.to("meta"), latent=64), ArgumentError, "lengths: "),
        (lambda: mla_decode(q, cache[:, ::2], table, lengths, latent=64), ArgumentError, "cache: "),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize(
    "lengths, heads, latent, page", [((70, 1, 0, 300), 5, 256, 64), ((600,), 70, 512, 128)]
)
def test_pages_of_whole_tiles(lengths, heads, latent, page):
    """TMA copies tiles of 64 tokens; memory behind a sequence's last token may hold anything."""
    shape = {"lengths": lengths, "heads": heads, "latent": latent, "rotated": 32, "page": page}
    arguments = MLA.arguments(shape, "cpu")
    right = MLA.reference(**arguments)
    for pages, length in zip(arguments["page_table"].long(), lengths):
        tokens = arguments["cache"][pages].flatten(0, 1)
        tokens[length:] = float("nan")
        arguments["cache"][pages] = tokens.unflatten(0, (-1, page))
    assert error_of(mla_decode(**arguments), right) < 2e-2


def test_programs_share_sequences_so_that_rounds_are_full():
    """On 132 processors: 154 groups of heads, two sequences, and as many groups as fill a round."""
    sizes = ((154, 14), (2, 59), (128, 16))
    assert [mla._shares(groups, parts, 132) for groups, parts in sizes] == [5, 59, 1]


def test_programs_that_share_a_sequence(monkeypatch):
    """Three groups of heads in one round would leave two of five processors idle."""
    monkeypatch.setattr(mla, "multiprocessors", lambda tensor: 5)
    shape = {"lengths": (2100, 600, 1), "heads": 3, "latent": 256, "rotated": 32, "page": 64}
    arguments = MLA.arguments(shape, "cpu")
    (launch, _) = launches_of(lambda: mla_decode(**arguments), "sim:sm_90")
    assert launch.grid == (1, 3, 5)
    assert error_of(mla_decode(**arguments), MLA.reference(**arguments)) < 2e-2
