"""`gluon_kernels.attention_decode` through its public door."""

from __future__ import annotations

import pytest
import torch

from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels import attention, attention_decode, dependent
from gluon_kernels.attention import decode, decode_launches
from gluon_kernels.attention.decode_problem import DECODE
from gluon_kernels.problem import error_of
from tests.kernels.launched import launches_of

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    decode._plans.forget()
    yield
    decode._plans.forget()


def inputs(lengths, heads=2, shared=3, width=64, page=16, dtype="bfloat16"):
    sizes = {"heads": heads * shared, "heads of keys": heads, "width": width, "dtype": dtype}
    return tuple(DECODE.arguments({"lengths": lengths, "page": page, **sizes}, "cpu").values())


reference = DECODE.reference


@pytest.mark.parametrize("target", ["sim:sm_90", "sim:sm_80", "sim:gfx942"])
def test_sequences_of_any_lengths(target, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", target)
    tensors = inputs([70, 1, 0, 150])
    assert error_of(attention_decode(*tensors), reference(*tensors)) < 2e-2


def test_parts_widths_and_strides(monkeypatch):
    monkeypatch.setattr(decode_launches, "multiprocessors", lambda tensor: 4)
    for heads, shared, width, page in ((1, 16, 128, 7), (2, 1, 32, 64)):
        q, k, v, table, lengths = inputs([600, 33], heads, shared, width, page, "float16")
        right = reference(q, k, v, table, lengths)
        wide = torch.cat([table, table], 1)[:, : table.shape[1]]
        apart = q.transpose(0, 1).contiguous().transpose(0, 1)
        assert error_of(attention_decode(apart, k, v, wide, lengths), right) < 1e-2


def test_parts_keep_the_processors_busy():
    splits = [decode_launches.tiles_of(n, 8192, 128, 132).splits for n in (1, 8, 200, 4096)]
    assert splits == [64, 32, 5, 1]  # of two steps at least; 200 programs fill three quarters


def test_parts_of_warps_leave_few_programs_a_processor():
    """A few hundred programs of 132 processors read as fast as more, which would join more parts."""
    sizes = ((256, 700, 64), (20, 21000, 64), (144, 3500, 128), (88, 6000, 128), (1, 100, 64))
    tiles = [decode_launches.tiles_of_warps(*size, 132) for size in sizes]
    assert [tile.splits for tile in tiles] == [1, 11, 1, 2, 1]
    assert all(tile[:2] == (64, 3) for tile in tiles)


@pytest.mark.parametrize("numbers", [0, 1 << 20])
def test_parts_are_joined_in_the_launch_or_after_it(numbers, monkeypatch):
    monkeypatch.setattr(decode_launches, "JOINED", numbers)
    monkeypatch.setattr(decode_launches, "multiprocessors", lambda tensor: 32)
    tensors = inputs([3000, 70])
    assert error_of(attention_decode(*tensors), reference(*tensors)) < 1e-2


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "target, choice", [("sim:sm_90", "tiles_of_warps"), ("sim:gfx942", "tiles_of")]
)
@pytest.mark.parametrize("parts", [3, 11])
def test_any_number_of_parts(target, choice, parts, monkeypatch):
    """The last program of each launch leaves the counters as it found them."""
    monkeypatch.setenv("GLUON_TARGET", target)
    tiles = decode_launches.Tiles(64, 2, parts, 4)
    monkeypatch.setattr(decode_launches, choice, lambda *arguments: tiles)
    tensors = inputs([600, 70])
    result = attention_decode(*tensors)
    assert error_of(result, reference(*tensors)) < 1e-2
    assert torch.equal(attention_decode(*tensors), result)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("numbers", [decode_launches.JOINED, 0])
@pytest.mark.parametrize("target", ["sim:sm_90", "sim:gfx942"])
def test_sequences_past_the_second_axis_of_a_grid(target, numbers, monkeypatch):
    """Several launches share the sequences; one that joins parts has them, times heads, along the first axis."""
    monkeypatch.setenv("GLUON_TARGET", target)
    monkeypatch.setattr(decode_launches, "GRID", 17)
    monkeypatch.setattr(decode_launches, "JOINED", numbers)
    for choice in ("tiles_of", "tiles_of_warps"):
        tiles = decode_launches.Tiles(64, 2, 2, 4)
        monkeypatch.setattr(decode_launches, choice, lambda *arguments, tiles=tiles: tiles)
    tensors = inputs([130, 3, 0, *range(1, 33)], heads=1, shared=2)
    right = reference(*tensors)
    result = []
    launches = launches_of(lambda: result.append(attention_decode(*tensors)), target)
    decoding = [x.grid[1] for x in launches if x.kernel.fn.__name__ != "join"]
    assert decoding == [16, 16, 3]
    assert len(launches) == (6 if numbers == 0 else 3)
    assert all(size <= 17 for x in launches for size in x.grid[1:])
    assert error_of(result[0], right) < 1e-2


def test_few_queries_of_sequences_past_the_second_axis_of_a_grid(monkeypatch):
    monkeypatch.setattr(decode_launches, "GRID", 17)
    q, k, v = (torch.randn(18, 2, 1 if n == "q" else 40, 64).bfloat16() for n in "qkv")
    right = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    launches = launches_of(lambda: attention(q, k, v), "sim:sm_90")
    assert [x.grid[1] for x in launches] == [16, 2]
    assert error_of(attention(q, k, v), right) < 1e-2


def kernel_of(call):
    """Return the name of the first kernel that a call launches."""
    return launches_of(call, "sim:sm_90")[0].kernel.fn.__name__


def test_warps_share_no_keys_where_copies_of_16_bytes_begin_at_multiples():
    q, k, v, table, lengths = inputs([150, 33])
    right = reference(q, k, v, table, lengths)
    for begin, kernel in ((0, "attention_of_warps"), (1, "paged_attention")):
        tensors = [q]
        for cache in (k, v):
            memory = torch.empty(cache.numel() + 8, dtype=cache.dtype)
            tensors.append(memory[begin:][: cache.numel()].view(cache.shape).copy_(cache))
        call = lambda tensors=tensors: attention_decode(*tensors, table, lengths)  # noqa: E731
        assert error_of(call(), right) < 1e-2
        assert kernel_of(call) == kernel


def test_few_queries_of_keys_and_values_with_rows_of_their_own():
    """In a row each: those of keys are 128 elements apart, those of values 64 or, no multiple of 16, 72."""
    q, k = torch.randn(2, 4, 1, 64).bfloat16(), torch.randn(2, 2, 90, 128).bfloat16()[..., :64]
    for step, kernel in ((64, "attention_of_warps"), (72, "paged_attention")):
        v = torch.randn(2, 2, 90, step).bfloat16()[..., :64]
        right = torch.nn.functional.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), enable_gqa=True
        )
        call = lambda v=v: attention(q, k, v)  # noqa: E731
        assert error_of(call(), right) < 1e-2
        assert kernel_of(call) == kernel


@pytest.mark.parametrize("longest", [40, 600])
def test_pages_behind_the_end_are_not_read(longest, monkeypatch):
    """The table holds no page there, with one part of a sequence and with several."""
    monkeypatch.setattr(decode_launches, "multiprocessors", lambda tensor: 4)
    lengths = [longest, 0, 21]
    q, k, v, table, known = inputs(lengths)
    right = reference(q, k, v, table, known)
    page = k.shape[1]
    starts = torch.arange(0, table.shape[1] * page, page)
    for nowhere in (-1, 1 << 20):
        empty = table.masked_fill(starts >= known[:, None], nowhere)
        assert error_of(attention_decode(q, k, v, empty, known), right) < 1e-2


@pytest.mark.parametrize("target", ["sim:sm_90", "sim:gfx942"])
def test_pages_before_the_window_are_not_read(target, monkeypatch):
    """The cache need not keep them: it may have short pages."""
    monkeypatch.setenv("GLUON_TARGET", target)
    q, k, v, table, lengths = inputs([130, 20], page=4)
    right = attention_decode(q, k, v, table, lengths, window=(20, 0))
    ends = torch.arange(4, 4 * table.shape[1] + 4, 4)
    for nowhere in (-1, 1 << 20):
        empty = table.masked_fill(ends < lengths[:, None] - 20, nowhere)
        assert not torch.equal(empty, table)
        assert torch.equal(attention_decode(q, k, v, empty, lengths, window=(20, 0)), right)


@pytest.mark.parametrize("target", ["sim:sm_90", "sim:gfx942"])
def test_windows_and_caps(target, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", target)
    monkeypatch.setattr(decode_launches, "multiprocessors", lambda tensor: 4)
    q, k, v, table, lengths = inputs([300, 20])
    result = attention_decode(q, k, v, table, lengths, window=(100, 0), softcap=3.0)
    for i, length in enumerate(lengths.tolist()):
        keys, values = (x[table[i].long()].flatten(0, 1)[:length].double() for x in (k, v))
        keys, values = (x[-101:].repeat_interleave(3, 1) for x in (keys, values))
        score = torch.einsum("hd,khd->hk", q[i].double(), keys) / 8
        weights = (3 * torch.tanh(score / 3)).softmax(-1)
        assert error_of(result[i], torch.einsum("hk,khd->hd", weights, values)) < 1e-2


def test_declaration():
    tensors = inputs([40, 20])
    done = torch.library.opcheck(
        torch.ops.gluon_kernels.attention_decode.default, (*tensors, 0.125)
    )
    assert set(done.values()) == {"SUCCESS"}


def test_mistakes_are_named_before_a_launch():
    q, k, v, table, lengths = inputs([40, 20])
    for call, error, words in (
        (lambda: attention_decode(q.double(), k, v, table, lengths), DtypeError, "q: "),
        (lambda: attention_decode(q, k, v[:1], table, lengths), ShapeError, "v_cache: "),
        (lambda: attention_decode(q[:, :5], k, v, table, lengths), ShapeError, "k_cache: "),
        (lambda: attention_decode(q, k, v, table.long(), lengths), DtypeError, "page_table: "),
        (lambda: attention_decode(q, k, v, table, lengths[:1]), ShapeError, "lengths: "),
        (lambda: attention_decode(q, k, v, table, lengths.to("meta")), ArgumentError, "lengths: "),
        (
            lambda: attention_decode(q, k, v, table, lengths + 2**30),
            ArgumentError,
            "lengths: .*at most",
        ),
        (
            lambda: attention_decode(q, k, v, table + 2**20, lengths),
            ArgumentError,
            "page_table: .*no such page",
        ),
        (lambda: attention_decode(q[0, 0, 0], k, v, table, lengths), ShapeError, "q: "),
        (lambda: attention_decode(q[..., :48], k, v, table, lengths), ShapeError, "q: "),
        (lambda: attention_decode(q, k, v, table, lengths, window=3), ArgumentError, "window: "),
        (lambda: attention_decode(q, k, v, table, lengths, softcap=-1), ArgumentError, "softcap: "),
    ):
        with pytest.raises(error, match=words):
            call()


def test_launches_overlap_those_before_where_keys_are_few(monkeypatch):
    """Programs that begin early leave processors unequal shares; launches overlap if half of the L2 cache holds the keys."""
    tensors = inputs([40, 20])
    for most in (None, 1000):
        if most is not None:
            monkeypatch.setattr(dependent, "SMALL", most)
            decode._plans.forget()
        (launch,) = launches_of(lambda: attention_decode(*tensors), "sim:sm_90")
        assert launch.options.get("launch_pdl", False) == (most is None)


@pytest.mark.parametrize("target", ["sim:sm_90", "sim:gfx942"])
def test_pages_of_one_token_whose_axis_has_any_stride(target, monkeypatch):
    """A contiguous cache may have any stride where its pages have one token."""
    monkeypatch.setenv("GLUON_TARGET", target)
    q, k, v, table, lengths = inputs([40, 9], page=1)
    k, v = (x.as_strided(x.shape, (x.stride(0), x.numel(), *x.stride()[2:])) for x in (k, v))
    assert error_of(attention_decode(q, k, v, table, lengths), reference(q, k, v, table, lengths)) < 1e-2  # fmt: skip
