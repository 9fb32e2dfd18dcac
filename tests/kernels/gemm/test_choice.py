"""The choice of tilings: the table that measured times give, and products that are larger than the measured ones."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks import fit_gemm, tune_gemm
from gluon_kernels.gemm import choice, promoted, tilings

pytestmark = pytest.mark.once

PAIR = ["split_k 64x64x64 s4/2", "split_k 64x64x64 s4/3"]
BARE = {"model": {"split_k": [1.0] * choice.QUANTITIES}, "shapes": {}}


def expected(size, table=None):
    """Return the microseconds of the pair: by the model alone without a table."""
    kinds = [tilings.TILINGS[name] for name in PAIR]
    return choice.predicted(kinds, size, table or fit_gemm.uncorrected(BARE))


@pytest.mark.parametrize(
    "sides", [(8192, 8192, 8192), (6144, 3072, 5120), (16384, 16384, 4096), (5000, 8192, 8192)]
)
def test_large_products_take_tiles_that_reach_the_rate_of_the_library(sides):
    large = choice.choose(tilings.Size(1, *sides))
    m, n, _ = large.block
    assert large.blocks <= 2 and m * n >= 128 * 192 * large.blocks


@pytest.mark.parametrize("rows, columns, across", [(147, 130008, 160), (205, 70000, 256), (271, 57000, 288), (301, 49000, 304), (453, 44000, 512), (497, 33000, 512)])  # fmt: skip
def test_large_products_of_few_rows_have_few_in_vain(rows, columns, across):
    """Sums of tiles as measured: four rounds of tiles take longer than three of tiles a quarter wider."""
    sides = rows, columns, 6144
    chosen = choice.choose(tilings.Size(1, *sides))
    side = chosen.block[1 if chosen.swapped else 0]
    assert -(-rows // side) * side == across
    assert choice.for_few_rows(tilings.Size(1, *sides)) == chosen.name
    for other in (
        tilings.Size(1, rows, 4096, 6144),
        tilings.Size(2, *sides),
        tilings.Size(1, 4 * rows + 80, *sides[1:]),
    ):
        assert choice.for_few_rows(other) is None


@pytest.mark.parametrize("sides", [(430, 2048, 143704), (2048, 500, 120000), (133, 4048, 6976), (500, 500, 65536), (1024, 1024, 200000), (144, 2048, 8192), (300, 3000, 50000)])  # fmt: skip
@pytest.mark.parametrize("facts", [{}, {"out_bits": 32}, {"eight": True}], ids=str)
def test_products_of_long_k_occupy_the_processors(sides, facts):
    """Fewer tiles than processors are shared, or narrower."""
    size = tilings.Size(1, *sides, **facts)
    chosen = choice.choose(size)
    assert chosen.busy(size) >= 0.7
    assert choice.for_few_rows(size) is None
    ranked = choice.ranked(size)
    assert ranked[0] == chosen and len(set(ranked)) == len(ranked)


def test_clusters_that_wait_for_no_others_count_as_busy():
    of_four = tilings.TILINGS["cooperative 512x128x64 s6 4by1"]
    parts = tilings.TILINGS["cooperative_k 128x224x64 s4 swapped/4"]
    shared = tilings.TILINGS["stream_k 128x256x64 s4"]
    assert of_four.busy(tilings.Size(1, 512 * 40, 128, 8192)) == pytest.approx(120 / 132)
    few = tilings.Size(1, 430, 2048, 143704)
    assert parts.busy(few) == pytest.approx(4 * 32 / 132)
    assert shared.busy(few) == pytest.approx(4 * 32 / 132)
    assert tilings.TILINGS["cooperative 128x144x64 s5 swapped"].busy(few) == 48 / 132


@pytest.mark.parametrize("side", ["m", "n", "k"])
def test_sides_beyond_the_measured_ones_are_corrected_like_those(side):
    size = replace(tilings.Size(1, 432, 2048, 2048), **{side: choice.MEASURED})
    kinds, table = tilings.columns(), choice._table()
    for beyond in (2, 12):
        longer = replace(size, **{side: beyond * choice.MEASURED})
        ours, theirs = (
            choice.corrections(kinds, x, table, choice.expected(kinds, x, table))
            for x in (size, longer)
        )
        assert np.array_equal(ours, theirs, equal_nan=True)


def test_a_block_has_room_for_every_tiling():
    size = tilings.Size(1, 4096, 4096, 4096)
    assert [t.name for t in tilings.TILINGS.values() if not t.has_room(size)] == []


@pytest.mark.parametrize(
    "name, clusters",
    [("cooperative 512x128x64 s6 4by1", 30), ("cooperative 512x192x64 s7 4by2", 15)],
)
def test_no_cluster_waits_until_another_one_has_had_all_its_tiles(name, clusters):
    """An H200 of 132 processors runs 30 clusters of four blocks at a time, and 15 of eight."""
    tiling = tilings.TILINGS[name]
    m, n, _ = tiling.block
    for tiles, rounds in ((clusters, 1), (clusters + 1, 2), (2 * clusters, 2)):
        size = tilings.Size(1, tiles * m, n, 1024)
        assert tiling.programs(size) == clusters
        assert choice.features(choice.Columns([tiling]), size)[1] == rounds


@pytest.mark.parametrize("n, kernel", [(64, "direct"), (1024, "cooperative")])
def test_large_operands_are_copied_where_their_product_takes_longer(n, kernel):
    """Rows of 3132 elements begin at multiples of 8 bytes, which TMA does not read."""
    sizes = {"batch": 128, "M": 4096, "N": n, "K": 3132, "stored": "NN"}
    assert choice.choose(tune_gemm.size_of(sizes)).kernel == kernel


def test_measured_times_correct_the_model_for_products_like_theirs():
    """One tiling took longer than expected for all sizes but one, which knows nothing, the other one less."""
    sizes = [tilings.Size(1, m, 512, 4096, pitches=(16, 0)) for m in range(128, 2048, 64)]
    off = dict(zip(PAIR, (1.3, 0.8)))
    times = {
        choice.row_of(size): {name: off[name] * us for name, us in zip(PAIR, expected(size))}
        for size in sizes
    }
    times.pop(choice.row_of(sizes[7]))
    table = choice.read(fit_gemm.corrected(BARE, times, nets=2, epochs=80))
    before, after = expected(sizes[7]), expected(sizes[7], table)
    assert after[0] / before[0] > 1.15 and after[1] / before[1] < 0.9
    direct = [tilings.TILINGS["direct 16x64x128 s4"]]
    assert choice.predicted(direct, sizes[7], table) == [None]


@pytest.mark.parametrize("off, factor", [((0.3, -0.1), 0.1 + choice.UNSURE * 0.2), ((9.0, 9.0), choice.MOST_OFF)])  # fmt: skip
def test_a_tiling_of_which_networks_disagree_is_expected_to_take_longer(off, factor):
    first = np.zeros((2, choice.INPUTS, 4)), np.zeros((2, 1, 4))
    last = np.zeros((2, 4, 1)), np.array(off).reshape(2, 1, 1)
    facts = {"centers": [0.0] * choice.INPUTS, "scales": [1.0] * choice.INPUTS}
    table = choice.read({**BARE, **facts, **choice.packed((first, last))})
    assert [(w.shape, b.shape) for w, b in table.layers] == [((2, choice.INPUTS, 4), (2, 1, 4)), ((2, 4, 1), (2, 1, 1))]  # fmt: skip
    size = tilings.Size(1, 512, 512, 4096)
    longer = [math.exp(factor) * us for us in expected(size)]
    assert expected(size, table) == pytest.approx(longer, rel=2e-3)


def test_times_that_are_added_are_kept_with_those_before(tmp_path):
    """Each time belongs to the tiling and the size that had it; of two, that of the larger run counts, else the later one."""
    sizes = [tilings.Size(1, m, 512, 4096) for m in (16, 512, 4096)]
    times = {choice.row_of(size): {PAIR[0]: 1.5 * m} for m, size in enumerate(sizes, 1)}
    runs = [(16, {PAIR[1]: 8e-6}), (512, {PAIR[0]: 7e-6, PAIR[1]: 5e-6}), (512, {PAIR[0]: 9e-6}), (4096, {PAIR[0]: 6e-6})]  # fmt: skip
    rows = [{"shape": {"M": m, "N": 512, "K": 4096, "stored": "NT"}, "times": {"torch": 1.0, **of}} for m, of in runs]  # fmt: skip
    fit_gemm.add(times, {"rows": rows}, tune_gemm.size_of)
    fit_gemm.write(times, tmp_path / "times.json")
    first, second, third = map(choice.row_of, sizes)
    assert fit_gemm.read(tmp_path / "times.json") == {
        first: {PAIR[0]: 1.5, PAIR[1]: 8.0},
        second: {PAIR[0]: 7.0, PAIR[1]: 5.0},
        third: {PAIR[0]: 6.0},
    }
    assert json.loads((tmp_path / "times.json").read_text())["sizes"][0] == list(first)


def test_few_kernels_are_those_of_most_products():
    """No other kernel is a candidate of more products, and each compiles for a product of its own."""
    shapes, pick = tune_gemm.shapes_of(5, 8)[-10:], tune_gemm.Pick(1.2, 4)
    every = [tune_gemm.form_of(s, t) for s in shapes for t in tune_gemm.candidates(tune_gemm.size_of(s), pick)]  # fmt: skip
    few = tune_gemm.forms(shapes, pick, 6)
    least = min(every.count(form) for form in few)
    assert len(few) == 6 and all(every.count(form) <= least for form in {*every} - {*few})
    assert all(tune_gemm.form_of(*product) == form for form, product in few.items())


def test_the_table_is_that_of_the_measured_times():
    """Its networks take all facts of a product and a tiling, and tell how far the model is off."""
    table = choice._table()
    assert len(table.layers) == len(fit_gemm.WIDTHS) + 1
    assert table.layers[0][0].shape[:2] == (fit_gemm.NETS, choice.INPUTS)
    assert len(table.centers) == len(table.scales) == choice.INPUTS
    times = fit_gemm.read()
    errors = []
    for row, of in list(times.items())[::40]:
        size, kinds, measured = fit_gemm.of_product(row, of)
        guess = choice.expected(kinds, size, table)
        guess = guess * choice.corrections(kinds, size, table, guess)
        errors += [math.log(a / b) for a, b in zip(measured, guess) if b == b]
    assert math.sqrt(sum(e * e for e in errors) / len(errors)) < 0.12


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"vectors": (1, 2), "padded": 4000},
        {"vectors": (4, 8), "pitches": (16, 0)},
        {"pitches": (0, 16), "eight": True},
    ],
)
def test_measured_times_keep_the_facts_of_a_size(facts):
    size = tilings.Size(3, 40, 3088, 568, **facts)
    again = choice.size_of(choice.row_of(size))
    kinds = tilings.columns()
    ours, theirs = (
        [x + np.zeros(len(kinds)) for x in choice.features(kinds, s)] for s in (size, again)
    )
    assert np.array_equal(ours, theirs)
    assert (again.padded > 0) == (size.padded > 0)


@pytest.mark.parametrize("m, k, columns, splits", [(5136, 1536, 64, 1), (4704, 1024, 64, 1), (9000, 1024, 128, 1), (1600, 8448, 128, 10), (1200, 8704, 128, 10)])  # fmt: skip
def test_programs_share_k_of_scaled_blocks_where_their_sums_pay(m, k, columns, splits):
    assert promoted.tiling_for(m, 128, k, 132) == (columns, splits)
