"""`gluon_kernels.matmul` and `bmm` through their public door: shapes, layouts, epilogues, gradients, errors, plans."""

from __future__ import annotations

import gc
import re
import weakref
from dataclasses import replace

import pytest
import torch

import gluon_kernels
from gluon_core.errors import (
    ArgumentError,
    CapabilityError,
    DtypeError,
    LimitError,
    ShapeError,
)
from gluon_core.testing import TRITON_VERSION
from gluon_kernels.gemm import choice, fp8, ops, tilings
from gluon_kernels.gemm.call import checked
from gluon_kernels.gemm.hopper import boxes
from gluon_kernels.gemm.problem import BMM, MATMUL, MATMUL_FP8, PROBLEMS
from gluon_kernels.problem import error_of
from tests.kernels.routes import plain, route

pytestmark = [pytest.mark.once, pytest.mark.sampled(20)]

CASES = [pytest.param(p, s, id=f"{p.name}-{i}") for p in PROBLEMS for i, s in enumerate(p.small)]


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    ops.plans.forget()
    yield
    ops.plans.forget()


def matrices(*sizes, dtype=torch.bfloat16):
    return [torch.randn(*size).to(dtype) for size in sizes]


@pytest.mark.parametrize("problem, shape", CASES)
def test_every_form_of_a_product(problem, shape):
    assert problem.check(shape, "cpu") is None


@pytest.mark.parametrize("target", ["sim:sm_80", "sim:gfx942"])
def test_the_portable_kernel_elsewhere(target, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", target)
    assert MATMUL.check(MATMUL.small[1], "cpu") is None
    assert BMM.check(BMM.small[1], "cpu") is None


# One of each kernel, more tiles than programs, an odd number of tiles, and parts of K.
# Tiles of clusters, which Triton 3.6 has.
CLUSTERS = ((128, 160, 64), (256, 32, 128), (256, 80, 64), (256, 384, 64)) if TRITON_VERSION < (3, 7) else ()  # fmt: skip
TILINGS = [
    name
    for name in tilings.TILINGS
    if name
    in (
        "pingpong 128x192x32 s8",
        "pingpong 64x128x64 s8",
        "cooperative 256x128x64 s4",
        "split_k 128x128x64 s6/2",
        "split_k 64x64x128 s6",
        "split_k 16x64x128 s6/4",
        "cooperative 192x192x64 s3",
        "cooperative 128x304x64 s3 swapped",
        "stream_k 128x128x64 s6",
        "stream_k 128x96x64 s6 swapped",
        "direct 128x128x64 s4/2",
        "direct 16x128x64 s4",
        "direct 128x32x64 s4",
        "split_k 64x32x128 s6/2",
        "stream_k 128x304x32 s6 swapped",
        "pingpong 64x176x64 s6",
        "cooperative_k 128x128x64 s6/3",
        "cooperative_k 256x112x64 s4 swapped/2",
        "cooperative 256x96x64 s5 swapped pair",
        "cooperative 192x192x64 s5 1by2",
        *(t.name for t in tilings.TILINGS.values() if t.block == (128, 144, 64) and t.groups == 0),
        *(t.name for t in tilings.TILINGS.values() if (t.blocks, t.block) == (2, (128, 128, 64))),
        *(t.name for t in tilings.TILINGS.values() if t.blocks > 2 and t.block in CLUSTERS),
    )
]


@pytest.mark.sampled(32)
@pytest.mark.parametrize("stored", ["NN", "TT"])
@pytest.mark.parametrize("name", TILINGS)
def test_every_kernel_multiplies_any_orientation(name, stored, monkeypatch):
    from gluon_kernels.gemm import launches

    monkeypatch.setattr(launches, "choose", lambda size: tilings.TILINGS[name])
    monkeypatch.setattr(launches, "multiprocessors", lambda tensor: 3)
    shape = {"M": 136, "N": 208, "K": 520, "dtype": "bfloat16", "stored": stored, "bias": True}
    assert MATMUL.check({**shape, "activation": "silu"}, "cpu") is None
    assert len(TILINGS) == (33 if CLUSTERS else 26)


def test_accumulators_have_few_columns_in_vain():
    assert boxes(112) == ((128, 112),)
    assert boxes(304) == ((256, 256), (64, 48))
    assert boxes(96) == ((64, 64), (32, 32))  # a third in vain
    assert boxes(224, 2) == ((128, 128), (64, 64), (32, 32))  # blocks of a cluster divide them
    for columns in range(16, 400, 16):
        for box, used in boxes(columns):
            assert used <= box and box & (box - 1) == 0
        assert sum(used for _, used in boxes(columns)) == columns
        assert sum(box - used for box, used in boxes(columns)) * 7 <= columns


@pytest.mark.parametrize("name", ["direct 64x64x64 s4", "split_k 64x64x64 s4"])
def test_small_products_are_stored_16_bytes_at_a_time(name, monkeypatch):
    from gluon_kernels.gemm import launches

    texts = []

    def compiled(kernel, grid, arguments, tensors, **options):
        texts.append(kernel.warmup(*arguments, grid=grid, **options).asm["ptx"])
        return lambda *tensors: None

    monkeypatch.setenv("GLUON_TARGET", "emu:sm_90")
    monkeypatch.setattr(launches.gluon.torch, "prepare", compiled)
    a, b = matrices((3, 63, 72), (3, 72, 136))  # 8 divides the strides of C, 16 does not
    launches.plan(checked("bmm", a, b, None, None, None), None, tilings.TILINGS[name])
    stores = re.findall(r"st\.global\S*", texts[0])
    assert stores and set(stores) == {"st.global.v4.b32"}


@pytest.mark.parametrize("columns, shared, sharers", [(456, 3, 6), (640, 6, 9)])
def test_few_programs_share_the_tiles_of_the_last_round(columns, shared, sharers, monkeypatch):
    """With 12 tiles, 6 of 9 programs share 3, two each; with 15, all 9 share 6, each two thirds of one."""
    from gluon_kernels.gemm import launches

    monkeypatch.setattr(launches, "multiprocessors", lambda tensor: 9)
    tiling = tilings.TILINGS["stream_k 128x128x64 s6"]
    a, b = matrices((384, 520), (520, columns))
    size = tilings.Size(1, 384, columns, 520, processors=9)
    assert tilings.fits(tiling, size)
    assert (tiling.shared_tiles(size), tiling.sharers(size), tiling.programs(size)) == (
        shared,
        sharers,
        9,
    )
    run = launches.plan(checked("matmul", a, b, None, None, None), None, tiling)
    first = run(a, b, None, None)
    assert error_of(first, a.double() @ b.double()) < 5e-3
    assert torch.equal(first, run(a, b, None, None))


def test_a_long_product_of_few_rows_occupies_the_processors(monkeypatch):
    """As small as it is, it counts as larger than the measured ones; a round of whole tiles would leave most of 12 processors idle."""
    from gluon_kernels.gemm import launches

    monkeypatch.setattr(choice, "LARGE", 1e6)
    monkeypatch.setattr(launches, "multiprocessors", lambda tensor: 12)
    chosen = []
    monkeypatch.setattr(launches, "choose", lambda size: chosen.append(size) or choice.choose(size))
    a, b = matrices((136, 4104), (4104, 256))
    run = launches.plan(checked("matmul", a, b, None, None, None), None)
    assert error_of(run(a, b, None, None), a.double() @ b.double()) < 5e-3
    tiling = choice.choose(chosen[0])
    assert chosen[0].processors == 12 and tiling.busy(chosen[0]) >= choice.MANY_BUSY


@pytest.mark.parametrize("name, k", [("split_k 64x64x128 s3/3", 900), ("direct 64x64x64 s7/5", 1003), ("split_k 8x64x128 s6/12", 3300), ("split_k 32x64x128 s4/7", 1900), ("cooperative_k 128x32x128 s5 swapped/5", 1400)])  # fmt: skip
def test_any_number_of_programs_shares_a_tile(name, k):
    from gluon_kernels.gemm import launches

    a, b = matrices((7, k), (k, 72))
    run = launches.plan(checked("matmul", a, b, None, None, None), None, tilings.TILINGS[name])
    first = run(a, b, None, None)
    assert error_of(first, a.double() @ b.double()) < 5e-3
    for _ in range(3):  # the counters go on
        assert torch.equal(run(a, b, None, None), first)


# The last one has no registers for the scales of columns next to its sums.
@pytest.mark.parametrize(
    "name", ["split_k 16x64x128 s6/2", "split_k 64x64x128 s6", "cooperative_k 128x192x64 s5/2", "cooperative 128x96x64 s6 swapped", "cooperative 128x112x64 s6", "pingpong 128x192x64 s4"]
)  # fmt: skip
@pytest.mark.parametrize("by_rows", [False, True])
def test_products_of_8_bits_with_few_rows(name, by_rows, monkeypatch):
    from gluon_kernels.gemm import launches

    a, b = (torch.randn(*size).to(torch.float8_e4m3fn) for size in ((20, 1056), (72, 1056)))
    scales = [torch.rand(n if by_rows else 1) + 0.5 for n in (20, 72)]
    tiling = tilings.TILINGS[name]
    *sides, depth = tiling.block
    monkeypatch.setattr(
        launches, "_of_eight_bits", lambda size: [replace(tiling, block=(*sides, 2 * depth))]
    )
    out = torch.empty(72, 20, dtype=torch.bfloat16).mT  # columns are contiguous
    matmul_fp8 = gluon_kernels.matmul_fp8
    fp8.plans.forget()
    results = [matmul_fp8(a, b.mT, *scales), matmul_fp8(a, b.mT, *scales, out=out)]
    fp8.plans.forget()
    right = (a.double() @ b.double().mT) * scales[0].reshape(-1, 1) * scales[1]
    assert all(error_of(result, right) < 5e-3 for result in results)


def test_a_plan_serves_all_calls_of_its_key():
    a, b = matrices((40, 64), (64, 48))
    first = gluon_kernels.matmul(a, b)
    more, other = matrices((40, 64), (64, 48))
    assert error_of(gluon_kernels.matmul(more, other), more.double() @ other.double()) < 5e-3
    assert torch.equal(gluon_kernels.matmul(a, b), first)  # equal inputs, equal bits
    assert len(ops.plans) == 1
    gluon_kernels.matmul(a, b, bias=torch.zeros(48))
    assert len(ops.plans) == 2


@pytest.mark.parametrize("shape", MATMUL.small[-4:])
def test_a_plan_holds_no_tensor(shape):
    arguments = MATMUL.arguments(shape, "cpu")
    result = MATMUL.op(**arguments)
    alive = [weakref.ref(x) for x in (*arguments.values(), result) if isinstance(x, torch.Tensor)]
    del arguments, result
    gc.collect()
    assert not any(reference() is not None for reference in alive)


def test_results_in_memory_of_the_caller():
    a, b = matrices((40, 64), (64, 48))
    right = a.double() @ b.double()
    whole = torch.zeros(40, 96).bfloat16()
    for out in (whole[:, 48:], torch.zeros(48, 40).bfloat16().mT, whole[:, ::2]):
        assert gluon_kernels.matmul(a, b, out=out) is out
        assert error_of(out, right) < 5e-3
    joint = torch.randn(40, 112).bfloat16()
    out = joint[:, 64:]  # aside of the operand, in the same rows
    right = joint[:, :64].double() @ b.double()
    assert error_of(gluon_kernels.matmul(joint[:, :64], b, out=out), right) < 5e-3
    with pytest.raises(ArgumentError, match="shares memory"):
        gluon_kernels.matmul(a, torch.randn(64, 64).bfloat16(), out=a)


def test_more_dimensions_are_rows_or_batches():
    a, b = matrices((2, 3, 8, 16), (16, 24))
    assert error_of(gluon_kernels.matmul(a, b), a.double() @ b.double()) < 5e-3
    batch = torch.randn(2, 3, 16, 24).bfloat16()
    assert error_of(gluon_kernels.matmul(a, batch), a.double() @ batch.double()) < 5e-3


@pytest.mark.parametrize("activation", [None, "relu", "silu", "gelu", "gelu_tanh"])
def test_gradients(activation):
    inputs = [x.requires_grad_() for x in matrices((24, 16), (16, 40), (40,), dtype=torch.float32)]
    a, b, bias = inputs
    result = gluon_kernels.matmul(a, b, bias=bias, activation=activation)
    grads = torch.autograd.grad(result.square().sum(), inputs)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    right = ops.activated(wide[0] @ wide[1] + wide[2], activation)
    for grad, wanted in zip(grads, torch.autograd.grad(right.square().sum(), wide)):
        assert error_of(grad, wanted) < 1e-5


@pytest.mark.parametrize("way", ["operator", "function"])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_gradients_have_gradients(activation, way, monkeypatch):
    if way == "function":  # calls with gradients on a GPU
        monkeypatch.setattr(ops, "route", lambda *tensors: 2 * torch.is_grad_enabled())
    inputs = [x.requires_grad_() for x in matrices((8, 16), (16, 24), (24,), dtype=torch.float32)]
    a, b, bias = inputs
    wide = [x.detach().double().requires_grad_() for x in inputs]

    def twice(value, tensors):
        (first,) = torch.autograd.grad(value.square().sum(), tensors[:1], create_graph=True)
        return torch.autograd.grad(first.square().sum(), tensors)

    mine = twice(gluon_kernels.matmul(a, b, bias=bias, activation=activation), inputs)
    right = twice(ops.activated(wide[0] @ wide[1] + wide[2], activation), wide)
    for grad, wanted in zip(mine, right):
        assert error_of(grad, wanted) < 1e-4


@pytest.mark.parametrize("stored", ["NN", "NT"])
@pytest.mark.parametrize("front", [(), (3,), (2, 2)])
def test_calls_past_the_operators(front, stored, monkeypatch):
    """The way of tensors on a GPU: results, gradients, `out=`."""
    monkeypatch.setattr(ops, "is_plain", plain)
    monkeypatch.setattr(ops, "route", route)
    a, b = matrices((*front, 24, 16), (40, 16) if stored == "NT" else (16, 40), dtype=torch.float32)
    b = b.mT if stored == "NT" else b
    wide = [x.double().requires_grad_() for x in (a, b)]
    right = wide[0] @ wide[1]
    assert error_of(gluon_kernels.matmul(a, b), right.detach()) < 1e-5
    out = torch.empty(right.shape)
    version = out._version
    assert gluon_kernels.matmul(a, b, out=out) is out and out._version > version
    assert error_of(out, right.detach()) < 1e-5
    mine = [x.detach().requires_grad_() for x in (a, b)]
    grad = torch.randn(right.shape)
    results = torch.autograd.grad(gluon_kernels.matmul(*mine), mine, grad)
    for result, wanted in zip(results, torch.autograd.grad(right, wide, grad.double())):
        assert error_of(result, wanted) < 1e-5
    (only,) = torch.autograd.grad(gluon_kernels.matmul(mine[0], b).sum(), mine[:1])
    assert error_of(only, wide[1].sum(1).expand(*front, 24, 16).detach()) < 1e-5
    with torch.autocast("cpu", torch.bfloat16):
        assert gluon_kernels.matmul(a, b).dtype is torch.bfloat16
        assert torch.is_autocast_enabled("cpu")


def test_vectors_and_broadcast_batches_as_in_torch():
    forms = (
        ((16,), (16, 24)), ((8, 16), (16,)), ((16,), (16,)), ((16,), (3, 16, 24)),
        ((2, 1, 8, 16), (3, 16, 24)), ((8, 16), (2, 16, 24)), ((2, 8, 16), (1, 16, 24)),
    )  # fmt: skip
    for a_shape, b_shape in forms:
        a, b = matrices(a_shape, b_shape)
        right = a.double() @ b.double()
        result = gluon_kernels.matmul(a, b)
        assert result.shape == right.shape and error_of(result, right) < 5e-3
        out = torch.empty(*right.shape, 2, dtype=torch.bfloat16)[..., 0]
        assert gluon_kernels.matmul(a, b, out=out) is out
        assert error_of(out, right) < 5e-3


def test_one_graph_serves_all_sizes():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    function = torch.compile(
        lambda a, b: gluon_kernels.matmul(a.sin(), b, activation="relu") + 1,
        backend=backend, fullgraph=True, dynamic=True,
    )  # fmt: skip
    for rows in (8, 24, 40):
        a, b = matrices((rows, 16), (16, 24))
        right = (a.sin().double() @ b.double()).relu() + 1
        assert error_of(function(a, b), right) < 8e-3
    assert len(graphs) == 1


def test_autocast_meta_and_fake():
    a, b = matrices((8, 16), (16, 24), dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert gluon_kernels.matmul(a, b).dtype is torch.bfloat16
    result = gluon_kernels.matmul(a.to("meta"), b.to("meta"), out_dtype=torch.bfloat16)
    assert result.is_meta and result.shape == (8, 24) and result.dtype is torch.bfloat16


WRONG = [
    (lambda a, b: gluon_kernels.matmul(a, b.mT), ShapeError, "b: .*expected 16 rows.*b.mT"),
    (lambda a, b: gluon_kernels.matmul(a[0, 0], b), ShapeError, "a, b: "),
    (lambda a, b: gluon_kernels.matmul(a.expand(2, 8, 16), b.expand(3, 16, 24)), ShapeError, "b: .*broadcast"),
    (lambda a, b: gluon_kernels.bmm(a, b), ShapeError, "a, b: "),
    (lambda a, b: gluon_kernels.matmul(a, b.half()), DtypeError, "a, b: .*same floating-point"),
    (lambda a, b: gluon_kernels.matmul(a.int(), b.int()), DtypeError, "a, b: "),
    (lambda a, b: gluon_kernels.matmul(a, b, bias=a[0]), ShapeError, "bias: "),
    (lambda a, b: gluon_kernels.matmul(a, b, bias=b[0].int()), DtypeError, "bias: "),
    (lambda a, b: gluon_kernels.matmul(a, b, activation="gelo"), ArgumentError, "activation: .*gelu"),
    (lambda a, b: gluon_kernels.matmul(a, b, out=a.clone()), ShapeError, "out: "),
    (lambda a, b: gluon_kernels.matmul(a, b, out_dtype=torch.int8), DtypeError, "out_dtype: "),
    (lambda a, b: gluon_kernels.matmul(a, b.to("meta")), ArgumentError, "b: .*different devices"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, text", WRONG)
def test_wrong_arguments_end_before_a_launch(call, error, text):
    a, b = matrices((8, 16), (16, 24))
    with pytest.raises(error) as raised:
        call(a, b)
    import re

    assert re.search(text, str(raised.value), re.S), raised.value
    assert len(ops.plans) == 0


def test_a_result_with_gradients_cannot_be_given():
    a, b = matrices((8, 16), (16, 24))
    with pytest.raises(ArgumentError, match="out: "):
        gluon_kernels.matmul(a.requires_grad_(), b, out=torch.empty(8, 24).bfloat16())


def test_the_table_knows_every_tiling_and_takes_those_that_fit():
    sizes = [
        (1, 1, 1),
        (17, 8192, 8192),
        (1000, 1000, 1000),
        (16384, 16384, 64),
        (3000, 5000, 2048),
    ]
    for m, n, k in sizes:
        for out_bits in (16, 32):
            size = tilings.Size(1, m, n, k, out_bits=out_bits)
            assert tilings.fits(choice.choose(size), size)
    assert choice.choose(tilings.Size(1, 4, 8192, 8192)).kernel == "split_k"
    assert choice.choose(tilings.Size(1, 8192, 8192, 8192)).kernel != "split_k"


SIZES = [
    tilings.Size(batch, m, n, k, out_bits=bits, pitches=(16, 0), padded=padded, eight=eight)
    for batch, m, n, k in [(1, 75, 6384, 2648), (1, 11614, 288, 1912), (16, 2432, 1856, 1536), (3, 40, 3088, 568), (1, 7, 9, 11), (1, 1984, 784, 15216)]
    for bits, padded, eight in [(16, 0, False), (32, 1000, False), (16, 0, True)]
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size.name} {size.out_bits}")
def test_many_tilings_have_the_quantities_of_each(size):
    every = tilings.columns()
    assert every.fitting(size).tolist() == [tilings.fits(t, size) for t in every.tilings]
    for quantity in ("tiles", "programs", "resident", "shared", "box", "sharers"):
        together = getattr(every, quantity)(size).tolist()
        assert together == [int(getattr(t, quantity)(size)) for t in every.tilings], quantity


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size.name} {size.out_bits}")
def test_the_chosen_tiling_is_the_best_of_all_by_the_model(size):
    fitting = [t for t in tilings.TILINGS.values() if tilings.fits(t, size)]
    times = {
        t.name: time
        + choice.HOST[0] * (size.padded > 0 and t.kernel != "direct")
        + choice.HOST[1] * (t.splits > 1)
        for t, time in zip(fitting, choice.predicted(fitting, size))
        if time is not None
    }
    assert times[choice.choose(size).name] <= 1.01 * min(times.values())


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_the_loss_of_a_linear_layer(reduction, monkeypatch):
    from gluon_kernels.norm import linear_loss

    monkeypatch.setattr(linear_loss, "_AT_ONCE", 1)  # several parts
    torch.manual_seed(0)
    x, weight = (t.requires_grad_() for t in matrices((200, 16), (40, 16), dtype=torch.float32))
    labels = torch.randint(40, (200,))
    labels[::7] = -100
    result = gluon_kernels.linear_cross_entropy(x, weight, labels, reduction=reduction)
    right = torch.nn.functional.cross_entropy(x @ weight.mT, labels, reduction=reduction)
    assert error_of(result, right) < 1e-5
    grads = torch.autograd.grad(result.square().sum(), [x, weight])
    for grad, wanted in zip(grads, torch.autograd.grad(right.square().sum(), [x, weight])):
        assert error_of(grad, wanted) < 1e-5
    with pytest.raises(ArgumentError, match="reduction"):
        gluon_kernels.linear_cross_entropy(x, weight, labels, reduction="median")


def test_products_of_8_bits_elsewhere_and_wrong_ones(monkeypatch):
    arguments = MATMUL_FP8.arguments(MATMUL_FP8.small[1], "cpu")
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_80")
    from gluon_kernels.gemm import fp8

    fp8.plans.forget()
    assert MATMUL_FP8.check(MATMUL_FP8.small[1], "cpu") is None
    fp8.plans.forget()
    with pytest.raises(ShapeError, match="a_scale"):
        gluon_kernels.matmul_fp8(**{**arguments, "a_scale": torch.ones(7)})
    with pytest.raises(DtypeError, match="8-bit"):
        gluon_kernels.matmul_fp8(**{**arguments, "a": torch.ones(40, 80)})


def test_products_of_8_bits_with_scales_of_blocks():
    """The scales of `quantize` go in as they are; results are stored where the caller wants them."""
    from gluon_kernels.gemm import fp8

    fp8.plans.forget()
    x, w = torch.randn(70, 300), torch.randn(140, 300)
    a, a_scale = gluon_kernels.quantize(x, scaling="block")
    b = w.to(torch.float8_e4m3fn)
    b_scale = torch.rand(2, 3) + 0.5
    wide = b.float() * b_scale.repeat_interleave(128, 0)[:140].repeat_interleave(128, 1)[:, :300]
    right = (a.float() * a_scale.repeat_interleave(128, 1)[:, :300]) @ wide.mT
    result = gluon_kernels.matmul_fp8(a, b.mT, a_scale, b_scale.mT, out_dtype=torch.float32)
    assert error_of(result, right) < 1e-4  # sums of float32
    for out in (torch.empty(70, 140), torch.empty(140, 70).mT, torch.empty(70, 280)[:, ::2]):
        assert gluon_kernels.matmul_fp8(a, b.mT, a_scale, b_scale.mT, out=out) is out
        assert torch.equal(out, result)
    with pytest.raises(ShapeError, match="b_scale"):
        gluon_kernels.matmul_fp8(a, b.mT, a_scale, b_scale)
    with pytest.raises(DtypeError, match="out: "):
        gluon_kernels.matmul_fp8(a, b.mT, a_scale, b_scale.mT, out=out, out_dtype=torch.float16)


@pytest.mark.parametrize("error", [LimitError, CapabilityError])
def test_a_tiling_that_does_not_compile_gives_way_to_the_next(error, monkeypatch):
    from gluon_kernels.gemm import launches

    refused, prepare = [], launches.gluon.torch.prepare

    def scarce(kernel, *arguments, **options):
        if len(refused) < 2:
            refused.append(kernel)
            raise error("the kernel needs more than there is")
        return prepare(kernel, *arguments, **options)

    monkeypatch.setattr(launches.gluon.torch, "prepare", scarce)
    assert MATMUL.check(MATMUL.small[0], "cpu") is None
    assert len(refused) == 2


def test_sizes_of_as_many_rows_of_tiles_share_a_choice():
    """Callers change M from call to call; up to 32 rows there are tiles of 8."""
    choice._order.cache_clear()
    rows = [*range(33, 49), 5]
    sizes = [tilings.Size(1, m, 4096, 1024) for m in rows]
    chosen = {choice.choose(size) for size in sizes[:-1]}
    assert len(chosen) == 1
    assert choice._order.cache_info().misses == 1
    assert choice.ranked(sizes[0])[0] in chosen
    choice.choose(sizes[-1])
    assert choice._order.cache_info().misses == 2
    assert all(x.tiles(sizes[0]) == x.tiles(sizes[15]) for x in tilings.TILINGS.values() if x.block[0] % 16 == 0)  # fmt: skip
