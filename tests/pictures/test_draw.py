"""Pictures of layouts, read back: the title of a cell agrees with the algebra."""

from __future__ import annotations

import random
import re
from xml.etree import ElementTree

import pytest

hypothesis = pytest.importorskip("hypothesis")
import numpy as np  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from gluon_core import layouts as L  # noqa: E402
from gluon_core.errors import ArgumentError, LayoutError  # noqa: E402
from gluon_pictures.draw_pair import MOVES, moves  # noqa: E402
from tests.core import layouts_random as make  # noqa: E402

CASES = settings(max_examples=4, deadline=None, derandomize=True, database=None)
pytestmark = pytest.mark.once
SEEDS = st.integers(0, 2**40).map(random.Random)
SVG = "{http://www.w3.org/2000/svg}"

ROWS = L.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
COLUMNS = L.BlockedLayout([4, 1], [4, 8], [1, 4], [0, 1])


def titles(picture, panel):
    """Return the title of each cell of a panel, in order."""
    root = ElementTree.fromstring(picture.svg())  # so every picture is well-formed, too
    group = root.findall(f"{SVG}g")[panel]
    return [title.text for title in group.iter(f"{SVG}title")]


def told(picture):
    """Element -> the lines about its holders, from the panel of the tensor."""
    titles_by_cell = {}
    for title in titles(picture, 0):
        head, *lines = title.split("\n")
        coord = tuple(map(int, re.fullmatch(r"element \((.*)\)", head)[1].split(", ")))
        assert coord not in titles_by_cell
        titles_by_cell[coord] = lines
    return titles_by_cell


def numbers(line):
    return {name: int(value) for name, value in re.findall(r"(\w+) (\d+)", line)}


@CASES
@given(rng=SEEDS)
def test_every_element_of_a_register_layout_is_drawn_with_its_owners(rng):
    shape = make.shape(rng, rng.randint(1, 3), most=7)
    layout = make.distributed(rng, shape)
    picture = layout.show(shape)
    seen = told(picture)
    assert set(seen) == set(np.ndindex(*shape))
    for coord, lines in seen.items():
        rows = [numbers(line) for line in lines]
        places = [(row.get("block", 0), row["warp"], row["lane"], row["register"]) for row in rows]
        assert sorted(places) == L.owner(layout, shape, coord)
        lanes = layout.to_linear(shape).in_size("lane")
        assert all(row["thread"] == row["warp"] * lanes + row["lane"] for row in rows)


@CASES
@given(rng=SEEDS)
def test_every_element_of_a_buffer_is_drawn_at_its_byte_and_bank(rng):
    shape = make.shape(rng, rng.randint(1, 3), most=8)
    layout = make.padded(rng, shape) if rng.random() < 0.4 else make.shared(rng, shape)
    bits, banks = rng.choice([8, 16, 32, 64]), rng.choice([32, 64])
    picture = layout.show(shape, bits=bits, banks=banks)
    seen, linear = told(picture), layout.to_linear(shape)
    assert set(seen) == set(np.ndindex(*shape))
    memory = {tuple(title.split("\n")) for title in titles(picture, 1)}
    for coord, lines in seen.items():
        for line in lines:
            drawn = numbers(line)
            held = [
                tuple(linear.apply(offset=raw, block=drawn.get("block", 0)).values())
                for raw in range(linear.in_size("offset"))
                if layout.place(raw) == drawn["offset"]
            ]
            assert held == [coord]
            assert (
                drawn["byte"] == drawn["offset"] * bits // 8
                and drawn["bank"] == drawn["byte"] // 4 % banks
            )
            assert (line, f"element ({', '.join(map(str, coord))})") in memory


@CASES
@given(rng=SEEDS)
def test_the_hardware_is_drawn_whole(rng):
    shape = make.shape(rng, 2, most=6)
    layout = make.blocked(rng, 2, blocks=0)
    linear = layout.to_linear(shape)
    if linear.total_in_size > 4096:
        return
    for title in titles(layout.show(shape), 1):
        place, element = title.split("\n")
        held = numbers(place)
        image = linear.apply(register=held["register"], lane=held["lane"], warp=held["warp"])
        assert element == f"element ({image['dim0']}, {image['dim1']})"
    assert len(titles(layout.show(shape), 1)) == linear.total_in_size


@CASES
@given(rng=SEEDS)
def test_an_element_moves_as_far_as_its_holders_say(rng):
    shape = make.shape(rng, 2, most=6)
    blocks = rng.choice([0, 0, 1])
    before, after = (make.blocked(rng, 2, blocks) for _ in range(2))
    far = moves(before, after, shape)
    for coord in np.ndindex(*shape):
        old, new = (L.owner(layout, shape, coord) for layout in (before, after))

        def way(a, b):
            return next((4 - i for i in range(4) if a[i] != b[i]), 0)

        assert far[coord] == max(min(way(a, b) for a in old) for b in new)
    kind = L.conversion(before, after, shape, 32).kind
    # Warps that are more in number cannot be what they were, whoever holds the elements.
    if before.to_linear(shape).in_dims == after.to_linear(shape).in_dims:
        assert (far.max() == 4) == (kind == "cluster")
        assert (far.max() == 3) == (kind == "shared")


def test_bases_are_drawn_as_a_matrix():
    flips = [t for t in titles(ROWS.show([32, 16]), 2) if " moves " in t]
    assert flips[:3] == [
        "register=1 moves dim1=1",
        "register=2 moves dim1=2",
        "lane=1 moves dim1=4",
    ]
    assert len(flips) == 9


def test_a_conversion_shows_its_moves_and_their_cost():
    picture = L.compare(ROWS, COLUMNS, [32, 32], bits=16)
    assert "through 2048 bytes of shared memory" in picture.text
    assert "32 of 1024 elements: stays" in picture.text
    first = titles(picture, 0)[1]
    assert first.startswith(f"element (0, 1): {MOVES[2]}\nfrom warp 0, lane 0, register 1")
    assert "to warp 0, lane 4, register 0 (thread 4)" in first
    same = L.compare(ROWS, ROWS)
    assert "no data moves" in same.text and "512 of 512 elements: stays" in same.text


@pytest.mark.parametrize("phases, extra", [(1, 3), (32, 1)])
def test_an_access_is_drawn_over_its_banks(phases, extra):
    buffer = L.SwizzledSharedLayout(1, 1, phases, [1, 0])
    for pair in ((COLUMNS, buffer), (buffer, COLUMNS)):
        picture = L.compare(*pair, [64, 64])
        assert f"{extra} extra passes" in picture.text
        stacked = [int(t.split(",")[0].split()[1]) for t in titles(picture, 0)]
        assert max(map(stacked.count, stacked)) == extra + 1 and len(stacked) == 32


def test_a_notebook_shows_a_layout():
    html = ROWS._repr_html_()
    assert len(list(ElementTree.fromstring(html).iter("input"))) == 5 + 5
    assert "element (31, 15)" in html and "all warps" in html and "<script" not in html
    assert "http" not in html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert repr(ROWS.show()) == L.explain_layout(ROWS, [32, 16])
    assert L.AutoLayout()._repr_html_() == "<code>AutoLayout()</code>"
    # A notebook may show it twice: no name of the one is a name of the other.
    first, second = (
        {node.get("name") for node in ElementTree.fromstring(one).iter("input")}
        for one in (html, ROWS._repr_html_())
    )
    assert first and not first & second
    assert ROWS.show().html() == ROWS.show().html()


def test_one_element_has_no_plural():
    register = L.BlockedLayout([1, 1], [8, 4], [1, 1], [1, 0])
    text = L.compare(register, L.SwizzledSharedLayout(1, 1, 1, [1, 0]), [64, 64]).text
    assert "one lane moves 1 element at once" in text


def test_pictures_are_written(tmp_path):
    picture = L.SliceLayout(1, ROWS).show()
    picture.save(tmp_path / "slice.svg")
    picture.save(tmp_path / "slice.html")
    assert ElementTree.parse(tmp_path / "slice.svg").getroot().tag == f"{SVG}svg"
    assert (tmp_path / "slice.html").read_text().startswith("<!doctype html>")
    with pytest.raises(ArgumentError, match=r"expected \.svg or \.html"):
        picture.save(tmp_path / "slice.png")


def test_a_failed_drawing_gives_the_reason():
    with pytest.raises(LayoutError, match="AutoLayout has no linear form"):
        L.AutoLayout().show()
    with pytest.raises(LayoutError, match="at most 16384 elements"):
        ROWS.show([256, 128])
    with pytest.raises(ArgumentError, match="bits: not a power of two"):
        ROWS.show(bits=12)
    buffer = L.SwizzledSharedLayout(1, 1, 1, [1, 0])
    with pytest.raises(LayoutError, match="two register layouts, or a register layout and a"):
        L.compare(buffer, buffer)
