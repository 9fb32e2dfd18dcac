"""The F2 algebra by itself."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest

from gluon_core.errors import LayoutError
from gluon_core.layouts import BlockedLayout, LinearLayout

pytestmark = pytest.mark.once  # layouts know no Triton

TILE = BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0], [[1, 0]]).to_linear([64, 64])


def random_invertible(rng, bits):
    rows = [1 << i for i in range(bits)]
    for _ in range(4 * bits):
        i, j = rng.sample(range(bits), 2)
        rows[i] ^= rows[j]
    rng.shuffle(rows)
    cut = rng.randint(0, bits)
    low = bits // 2
    images = [[row & ((1 << low) - 1), row >> low] for row in rows]
    return LinearLayout(
        {"a": images[:cut], "b": images[cut:]}, {"x": 1 << low, "y": 1 << bits - low}
    )


def identity(sizes):
    product = LinearLayout.empty()
    for dim, size in sizes.items():
        product = product * LinearLayout.identity_1d(size, dim, dim)
    return product


def test_blocked_tile_places_register_lane_warp_block():
    assert TILE.apply(register=3, lane=5, warp=1, block=1) == {"dim0": 36, "dim1": 27}
    assert TILE.in_dims == {"register": 16, "lane": 32, "warp": 4, "block": 2}
    assert TILE.out_dims == {"dim0": 64, "dim1": 64}


def test_apply_arrays_and_table_agree_with_apply():
    lanes = np.arange(32)
    images = TILE.apply_arrays(register=2, lane=lanes[:, None], warp=np.arange(4)[None], block=0)
    table = TILE.table()
    for lane in (0, 7, 31):
        for warp in range(4):
            one = TILE.apply(register=2, lane=lane, warp=warp, block=0)
            for dim, value in one.items():
                assert images[dim][lane, warp] == value == table[dim][2, lane, warp, 0]


def test_inverse_undoes():
    rng = random.Random(1)
    for _ in range(50):
        layout = random_invertible(rng, rng.randint(2, 9))
        back = layout.inverse()
        for _ in range(5):
            ins = {dim: rng.randrange(size) for dim, size in layout.in_dims.items()}
            assert back.apply(**layout.apply(**ins)) == ins
        there = layout.compose(back)
        assert there == identity(layout.in_dims)
        assert back.inverse() == layout


def test_pseudo_inverse_takes_zero_for_free_bits():
    layout = LinearLayout({"register": [[1], [0]], "lane": [[2], [1]]}, {"x": 4})
    assert layout.pseudo_inverse().apply(x=3) == {"register": 1, "lane": 1}
    kernel = layout.kernel()
    assert {tuple(k.items()) for k in kernel} == {
        (("register", 2), ("lane", 0)),
        (("register", 1), ("lane", 2)),
    }
    assert all(set(layout.apply(**k).values()) == {0} for k in kernel)


def test_invert_and_compose_finds_the_way_between_layouts():
    other = BlockedLayout([4, 1], [8, 4], [2, 2], [0, 1], [[0, 1]]).to_linear([64, 64])
    way = TILE.invert_and_compose(other)
    assert way.compose(other) == TILE
    assert way.out_dims == other.in_dims


def test_product_stacks():
    a = LinearLayout.identity_1d(4, "register", "x")
    b = LinearLayout({"register": [[1, 0]], "lane": [[0, 1], [2, 0]]}, {"x": 4, "y": 2})
    product = a * b
    assert product.bases == {"register": [[1, 0], [2, 0], [4, 0]], "lane": [[0, 1], [8, 0]]}
    assert product.out_dims == {"x": 16, "y": 2}


def test_product_of_nothing_is_neutral():
    assert LinearLayout.empty() * TILE == TILE == TILE * LinearLayout.empty()


def test_rank_and_kind():
    zeros = LinearLayout.zeros_1d(8, "lane", "x", 2)
    assert zeros.rank == 0 and not zeros.is_surjective()
    assert TILE.is_invertible() and TILE.is_surjective()
    wide = LinearLayout({"a": [[1], [2], [3]]}, ["x"])
    assert wide.out_dims == {"x": 4} and wide.is_surjective() and not wide.is_invertible()


def test_reshape_flattens_the_first_dim_as_the_most_minor():
    layout = LinearLayout({"a": [[1, 0], [0, 1]], "b": [[2, 0]]}, {"x": 4, "y": 2})
    assert layout.flatten_outs("f").bases == {"a": [[1], [4]], "b": [[2]]}
    assert layout.reshape_outs({"p": 2, "q": 4}).bases == {"a": [[1, 0], [0, 2]], "b": [[0, 1]]}
    assert layout.reshape_outs({"p": 2, "q": 4}).reshape_outs({"x": 4, "y": 2}) == layout


def test_transpose_rename_sublayout():
    layout = LinearLayout({"a": [[1, 0], [0, 1]], "b": [[2, 0]]}, {"x": 4, "y": 2})
    assert layout.transpose_outs(["y", "x"]).bases == {"a": [[0, 1], [1, 0]], "b": [[0, 2]]}
    assert layout.rename(ins={"a": "c"}, outs={"y": "z"}).bases == {
        "c": [[1, 0], [0, 1]],
        "b": [[2, 0]],
    }
    assert layout.sublayout(["b"], ["x"]) == LinearLayout({"b": [[2]]}, {"x": 4})
    padded = LinearLayout({"a": [[1, 0], [0, 1]], "b": [[2, 0], [0, 0]]}, {"x": 4, "y": 2})
    assert padded.without_zero_bases("b") == layout


def test_it_is_a_value():
    again = LinearLayout(TILE.bases, TILE.out_dims)
    assert again == TILE and hash(again) == hash(TILE) and again is not TILE
    assert pickle.loads(pickle.dumps(TILE)) == TILE
    assert eval(repr(TILE)) == TILE
    TILE.bases["register"][0][0] = 99
    assert TILE.bases["register"][0][0] == 0
    assert "lane=1 -> (0, 2)" in str(TILE)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LinearLayout({"a": [[4]]}, {"x": 4}),
        lambda: LinearLayout({"a": [[1]]}, {"x": 3}),
        lambda: LinearLayout({"a": [[1, 2]]}, {"x": 4}),
        lambda: LinearLayout({"a": [[-1]]}, ["x"]),
        lambda: LinearLayout({"a": [[1]]}, ["x", "x"]),
        lambda: LinearLayout.identity_1d(6, "a", "x"),
        lambda: LinearLayout.zeros_1d(4, "a", "x").inverse(),
        lambda: LinearLayout.zeros_1d(4, "a", "x", 2).pseudo_inverse(),
        lambda: TILE.apply(register=16, lane=0, warp=0, block=0),
        lambda: TILE.apply(register=1),
        lambda: TILE.apply(thread=1),
        lambda: TILE.apply_arrays(register=[16], lane=0, warp=0, block=0),
        lambda: TILE.compose(TILE),
        lambda: TILE.invert_and_compose(LinearLayout.identity_1d(64, "a", "dim0")),
        lambda: TILE.reshape_outs({"x": 64}),
        lambda: TILE.transpose_outs(["dim0"]),
        lambda: TILE.sublayout(["thread"], ["dim0"]),
    ],
)
def test_mistakes_are_layout_errors(make):
    with pytest.raises(LayoutError):
        make()
