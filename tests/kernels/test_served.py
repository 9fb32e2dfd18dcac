"""Kernels for serving: groups of rows, 8-bit floats with scales, packed sequences, the largest few."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.registry.load import registry
from gluon_report.example import Arrays
from tests.kernels import cases

SM90 = registry().target("sim:sm_90")


def module(name):
    return cases.module(name)


packed = module("varlen")


def run(example, args, **choices):
    example.launch(args, example.configure(SM90, **choices), target=SM90)
    problem = example.difference(args[example.output].astype(np.float32), example.reference(args))
    assert problem is None, problem
    return args


def product_of_groups(
    counts, box=None, n=72, k=40, file="grouped_gemm_hopper", target=SM90, **choices
):
    (example,) = module(file).EXAMPLES
    args = example.arguments(Arrays(target), False, list(counts), n, k, box)
    wanted = example.reference({**args, "c": np.zeros(args["c"].shape)})
    example.launch(args, example.configure(target, **choices), target=target)
    inside = np.zeros(len(wanted), dtype=bool)
    for start, count in zip(args["starts"], args["counts"]):
        inside[start : start + count] = True
    got = args["c"].astype(np.float64)
    assert np.isnan(got[~inside]).all()
    np.testing.assert_allclose(got[inside], wanted[inside], atol=4e-3 * np.abs(wanted).max())
    return args


COUNTS = [((0, 0), None), ((1,), None), ((7, 0, 129), None), ((3, 0, 130, 64), 136)]


@pytest.mark.sampled(4)
@pytest.mark.once
@pytest.mark.parametrize("counts, box", COUNTS)
@pytest.mark.parametrize(
    "file, spec",
    [
        ("grouped_gemm_hopper", "sim:sm_90"),
        ("grouped_gemm", "sim:sm_90"),
        ("grouped_gemm", "sim:gfx942"),
    ],
)
def test_groups_of_any_size(counts, box, file, spec):
    product_of_groups(counts, box, file=file, target=registry().target(spec))


@gluon.jit
def place(starts, counts, out, MOST: gl.constexpr):
    flat: gl.constexpr = packed.in_each_warp(MOST, gl.num_warps(), gl.target.warp_size())
    groups = packed.groups_of(starts, counts, MOST, 64, flat, (64, 64, 32), MOST)
    group, row, _, _ = packed.group_tile_at(gl.program_id(0), groups, 64, (64, 64, 32), 8)
    gl.store(out, group + row)


@pytest.mark.once
@pytest.mark.parametrize("arch, barrier", [("sm_90", "bar.sync"), ("gfx942", "s_barrier")])
def test_a_tile_of_many_groups_is_found_in_each_warp(arch, barrier):
    signature = {name: "*i32" for name in ("starts", "counts", "out")}
    compiled = gluon.compile(
        place, arch, {"num_warps": 8}, signature=signature, constexprs={"MOST": 256}
    )
    assert barrier not in compiled.asm["ptx" if arch == "sm_90" else "amdgcn"]


@pytest.mark.once
@pytest.mark.parametrize("k", [8, 40, 72])
def test_tiles_of_fewer_steps_than_are_copied_ahead(k):
    """The copy is for a later tile than the next one."""
    product_of_groups((70, 0, 129), k=k, file="grouped_gemm")


@pytest.mark.once
@pytest.mark.parametrize(
    "file, spec",
    [("grouped_gemm_wgrad_hopper", "sim:sm_90"), ("grouped_gemm_wgrad", "sim:gfx942")],
)
def test_rows_that_no_group_has_are_in_no_matrix(file, spec):
    """Neither those behind a group's last, nor a step that is whole, nor one of a group without rows."""
    (example,), target = module(file).EXAMPLES, registry().target(spec)
    args = example.arguments(Arrays(target), False, [7, 0, 64], 72, 40, 72)
    for name in ("a",) if example.requires else ("a", "b"):
        args[name][7:144] = args[name][208:] = np.nan
    example.launch(args, example.configure(target), target=target)
    problem = example.difference(args["c"].astype(np.float32), example.reference(args))
    assert problem is None, problem


@pytest.mark.once
def test_a_group_does_not_depend_on_the_others():
    """The same bits, wherever its rows lie and whatever else there is."""
    args = product_of_groups([5, 200, 31], group=1)
    (example,) = module("grouped_gemm_hopper").EXAMPLES
    alone = example.arguments(Arrays(SM90), False, [31], 72, 40)
    alone.update(a=args["a"][205:], b=args["b"][2:])
    example.launch(alone, example.configure(SM90), target=SM90)
    assert (alone["c"] == args["c"][205:]).all()


@pytest.mark.sampled(4)
@pytest.mark.once
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("sizes", [(1, 8, 16), (129, 136, 272), (64, 128, 128)])
def test_scaled_products(which, sizes):
    fp8 = module("matmul_fp8_hopper")
    example = [*fp8.EXAMPLES, *fp8.MORE][which]
    run(example, example.arguments(Arrays(SM90), False, sizes))


@pytest.mark.once
@pytest.mark.parametrize(
    "sizes, block",
    [((1, 8, 16), (8, 64)), ((17, 136, 272), (16, 128)), ((70, 200, 144), (64, 128))],
)
def test_scaled_products_of_few_rows(sizes, block):
    (example,) = module("matmul_fp8_small_m_hopper").EXAMPLES
    run(example, example.arguments(Arrays(SM90), False, sizes), block=block)


@pytest.mark.once
def test_promoted_sums_keep_what_fast_ones_lose():
    """`wgmma` keeps few bits of a sum of 8-bit floats; every 128 of K they go into float32."""
    fp8 = module("matmul_fp8_hopper")
    example = fp8.EXAMPLES[1]
    args = example.arguments(Arrays(SM90), False, (64, 128, 1024))
    args["a"][:], args["b"][:] = 1, 2.0**-6
    args["a"][:, 0], args["b"][:, 0] = 256, 256
    args["a_scales"][:] = args["b_scales"][:] = 1
    run(example, args)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("window", [(None, 0), (0, 0), (5, None)])
def test_sequences_of_any_length(window):
    packed = module("attention_varlen_hopper")
    example = packed.example("any", 64, window, None, 2)
    lengths, keys = [1, 0, 129, 64, 3, 4], [1, 5, 130, 200, 2, 0]
    args = example.arguments(Arrays(SM90), False, lengths, 2, keys)
    args["logsums"] = Arrays(SM90).empty(args["q"].shape[:2])
    run(example, args)
    assert (args["logsums"][-4:] == -np.inf).all() and not np.isnan(args["logsums"]).any()
    q, k = (args[x][0].astype(np.float64) for x in "qk")  # one key alone, which queries share
    wanted = (q * k).sum(1) / 8 * np.log2(np.e)
    np.testing.assert_allclose(args["logsums"][0], wanted, atol=1e-2)


@pytest.mark.once
def test_a_sequence_does_not_depend_on_the_others():
    packed = module("attention_varlen_hopper")
    example = packed.example("alone", 64, (None, 0), None, 1)
    args = run(example, example.arguments(Arrays(SM90), False, [70, 133, 9], 2, [70, 150, 9]))
    alone = example.arguments(Arrays(SM90), False, [133], 2, [150])
    alone.update(q=args["q"][70:203].copy(), **{x: args[x][70:220].copy() for x in "kv"})
    run(example, alone)
    assert (alone["out"] == args["out"][70:203]).all()


@pytest.mark.once
def test_no_sequences():
    packed = module("attention_varlen_hopper")
    example = packed.example("none", 64, (None, 0), None, 1)
    args = example.arguments(Arrays(SM90), False, [8], 1, [8])
    args["of_queries"][:] = 0
    example.launch(args, example.configure(SM90), target=SM90)
    assert np.isnan(args["out"].astype(np.float32)).all()


@pytest.mark.once
def test_scales_of_blocks():
    quantize = module("row_quantize")
    by_128, mx = quantize.MORE[-2:]
    args = run(by_128, by_128.arguments(Arrays(SM90), False, (5, 300)), columns=300)
    blocks, largest = quantize.by_block(args, 128)
    np.testing.assert_allclose(args["scales"].T, largest[..., 0] / 448, rtol=1e-6)
    args = mx.arguments(Arrays(SM90), False, (4, 96))
    args["src"][0, :32] = 0
    args["src"][1, 32:64] = 1e-38
    args["src"][2, 5] = 3e38
    run(mx, args, columns=96)
    _, largest = quantize.by_block(args, 32)
    exponents = np.frexp(largest[..., 0])[1] - 1 - 8 + 127
    wanted = np.where(largest[..., 0] == 0, 0, np.maximum(exponents, 0))
    np.testing.assert_array_equal(args["scales"], wanted)
