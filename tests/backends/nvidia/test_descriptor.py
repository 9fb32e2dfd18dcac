"""Host-side TMA descriptors: what they refuse, how kernels see them, what the driver is given."""

import copy
import re
import struct
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import triton

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import (
    ArgumentError,
    CapabilityError,
    DeviceError,
    DtypeError,
    GluonError,
    LaunchError,
    LayoutError,
    ShapeError,
)
from gluon_core.nvidia import NVMMASharedLayout, blackwell, hopper
from gluon_core.nvidia.hopper import TensorDescriptor, TensorDescriptorIm2Col
from gluon_core.runtime import arguments
from gluon_core.testing import MockTensor
from gluon_nvidia import driver as driver_module
from gluon_nvidia import launcher as launcher_module
from gluon_nvidia.driver import Driver
from gluon_nvidia.launcher import generate
from tests.backends.fake_cuda import FakeCuda

TRITON = tuple(map(int, triton.__version__.split(".")[:2]))
HALF = torch.zeros(64, 64, dtype=torch.float16)
BYTES = torch.zeros(64, 64, dtype=torch.uint8)
FLOAT = torch.zeros(64, 64)
L128 = NVMMASharedLayout(128, 16, 2)
IMAGES = torch.zeros(2, 16, 16, 64, dtype=torch.float16)


def describe(tensor=HALF, block=(64, 64), layout=L128, **more):
    return TensorDescriptor.from_tensor(tensor, list(block), layout, **more)


def images(tensor=IMAGES, block=(64, 64), layout=L128, **more):
    rank = tensor.dim()
    more.setdefault("pixel_box_lower_corner", [-1] * (rank - 2))
    more.setdefault("pixel_box_upper_corner", [-1] * (rank - 2))
    return TensorDescriptorIm2Col.from_tensor(tensor, list(block), layout, **more)


# ---- the classes ------------------------------------------------------------------------------


def test_fields_and_defaults():
    d = describe()
    assert (tuple(d.shape), d.strides, d.block_shape) == ((64, 64), (64, 1), [64, 64])
    assert (d.layout, d.padding, d.round_f32_to_tf32, d.mode) == (L128, "zero", False, "tiled")
    assert d.base is HALF
    assert images().mode == "im2col"
    assert blackwell.TensorDescriptor is hopper.TensorDescriptor


def test_descriptors_are_keys_and_compare_by_identity():
    a, b = describe(), describe()
    assert a != b and len({a, b, a}) == 2
    assert copy.copy(a).block_shape == a.block_shape


def test_fields_may_be_assigned():
    d = describe(block=(64, 64))
    d.block_shape = [32, 64]
    assert "tensordesc<fp16[32, 64]," in arguments.describe(d).kind
    d.block_shape = [3, 64]
    with pytest.raises(ShapeError, match="power of two"):
        arguments.describe(d)


def test_numpy_arrays_have_strides_in_elements():
    d = describe(np.zeros((8, 64), np.float16), (8, 64))
    assert d.strides == (64, 1) and arguments.describe(d).kind.startswith("tensordesc<fp16[8, 64]")
    assert arguments.place_of(d) == ("cpu", 0)


@pytest.mark.parametrize("dtype", [torch.float32, np.dtype("float32"), gl.float32])
def test_stand_ins_of_tensors_are_described_too(dtype):
    mock = MockTensor(dtype, (16, 32))
    layout = NVMMASharedLayout(128, 32, 2)
    d = describe(mock, (16, 32), layout, padding="nan", round_f32_to_tf32=True)
    assert d.strides == (32, 1)
    assert arguments.describe(d).kind.startswith("tensordesc<fp32[16, 32],")
    meta = torch.zeros(16, 32, device="meta")
    assert arguments.describe(describe(meta, (16, 32), layout)).kind == arguments.describe(d).kind


def offset():
    return torch.zeros(64 * 64 + 4, dtype=torch.float16)[4:].view(64, 64)


WRONG = {
    "no tensor": (ArgumentError, "not a tensor", lambda: TensorDescriptor(3, [1], [1], [1], L128)),
    "address": (ArgumentError, "aligned to 16", lambda: describe(offset())),
    "rank 0": (ShapeError, "1 to 5", lambda: TensorDescriptor(HALF, [], [], [], L128)),
    "rank 6": (
        ShapeError,
        "1 to 5",
        lambda: TensorDescriptor(
            HALF, [1] * 6, [8] * 5 + [1], [8] * 6, NVMMASharedLayout(0, 16, 6)
        ),
    ),
    "ranks": (ShapeError, "ranks differ", lambda: describe(block=(64,))),
    "extent 0": (
        ShapeError,
        "extent",
        lambda: TensorDescriptor(HALF, [64, 0], [64, 1], [64, 64], L128),
    ),
    "extent -1": (
        ShapeError,
        "extent",
        lambda: TensorDescriptor(HALF, [-1, 64], [64, 1], [64, 64], L128),
    ),
    "large extent": (
        ShapeError,
        "extent",
        lambda: TensorDescriptor(HALF, [2**31, 64], [64, 1], [64, 64], L128),
    ),
    "stride": (
        ShapeError,
        "16 bytes",
        lambda: TensorDescriptor(HALF, [64, 64], [60, 1], [64, 64], L128),
    ),
    "negative stride": (
        ShapeError,
        "stride",
        lambda: TensorDescriptor(HALF, [64, 64], [-64, 1], [64, 64], L128),
    ),
    "last stride": (ShapeError, "contiguous", lambda: describe(HALF.t())),
    "box 48": (ShapeError, "power of two", lambda: describe(block=(48, 64))),
    "box 0": (ShapeError, "power of two", lambda: describe(block=(0, 64))),
    "text in box": (ShapeError, "power of two", lambda: describe(block=("a", 64))),
    "layout": (
        LayoutError,
        "NVMMASharedLayout",
        lambda: describe(layout=gl.SwizzledSharedLayout(1, 1, 1, [1, 0])),
    ),
    "no layout": (LayoutError, "shared memory", lambda: describe(layout="row")),
    "layout's rank": (LayoutError, "rank", lambda: describe(layout=NVMMASharedLayout(128, 16, 3))),
    "layout's width": (LayoutError, "width", lambda: describe(layout=NVMMASharedLayout(128, 8, 2))),
    "padding": (ArgumentError, "no such padding", lambda: describe(padding="one")),
    "nan of ints": (
        DtypeError,
        "floating",
        lambda: describe(BYTES, layout=NVMMASharedLayout(64, 8, 2), padding="nan"),
    ),
    "tf32 of halves": (DtypeError, "float32", lambda: describe(round_f32_to_tf32=True)),
    "bool": (
        DtypeError,
        "no such elements",
        lambda: describe(BYTES.bool(), layout=NVMMASharedLayout(64, 8, 2)),
    ),
    "complex": (
        DtypeError,
        "no such elements",
        lambda: describe(FLOAT.to(torch.complex128), layout=NVMMASharedLayout(128, 64, 2)),
    ),
    "fp4 stride": (
        ShapeError,
        "32 bytes",
        lambda: TensorDescriptor(
            BYTES, [64, 16], [16, 1], [64, 64], NVMMASharedLayout(128, 8, 2, fp4_padded=True)
        ),
    ),
    "corners": (ArgumentError, "corner", lambda: images(pixel_box_lower_corner=None)),
    "corner's length": (ArgumentError, "corner", lambda: images(pixel_box_upper_corner=[0] * 3)),
    "corner's range": (ArgumentError, "corner", lambda: images(pixel_box_lower_corner=[-129, 0])),
    "steps": (ArgumentError, "steps", lambda: images(element_strides=[1, 9, 1, 1])),
    "im2col rank": (ShapeError, "images", lambda: images(HALF)),
    "im2col box": (ShapeError, "pixels", lambda: images(block=(1, 8, 8, 64))),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_descriptors_say_what_is_wrong(case):
    error, words, make = WRONG[case]
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize(
    "block, layout",
    [
        ((64, 32), L128),
        ((64, 4), NVMMASharedLayout(0, 16, 2)),
        ((64, 64), NVMMASharedLayout(128, 16, 2, cga_layout=[[0, 1]])),
    ],
)
def test_rows_too_short_for_a_copy_are_refused_at_the_launch_at_the_latest(block, layout):
    with pytest.raises(ShapeError, match="row of the box"):
        arguments.describe(describe(block=block, layout=layout))


def test_a_legal_description_is_checked_again_at_another_address():
    rows = offset()
    describe(torch.zeros_like(rows))
    with pytest.raises(ArgumentError, match="aligned"):
        describe(rows)


# ---- how kernels see them ---------------------------------------------------------------------


def upstream(value):
    """What Triton's own launch path says of an argument."""
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.compiler import BaseBackend

    return native_specialize_impl(BaseBackend, value, False, True, True)[0]


SIGNED = [
    (torch.float16, [64], 0, 16, {}),
    (torch.float16, [32, 64], 128, 16, {}),
    (torch.bfloat16, [1, 32, 32], 64, 16, {}),
    (torch.float32, [1, 1, 1, 32, 64], 128, 32, {}),
    (torch.float8_e4m3fn, [32, 64], 64, 8, {}),
    (torch.uint8, [32, 128], 128, 8, {"fp4_padded": True}),
    (torch.int8, [32, 64], 32, 8, {"transposed": True}),
    (torch.int32, [512, 64], 32, 32, {"cga_layout": [[1, 0]]}),
]


@pytest.mark.parametrize("dtype, block, swizzle, bits, more", SIGNED)
def test_the_signature_is_upstreams(dtype, block, swizzle, bits, more, monkeypatch):
    theirs_layouts = pytest.importorskip("triton.experimental.gluon.language")
    theirs = pytest.importorskip("triton.experimental.gluon.nvidia.hopper")
    if more.get("fp4_padded") and TRITON in ((3, 7), (3, 8)):
        pytest.skip("asks for a device")
    tensor = torch.zeros([64] * len(block), dtype=dtype)
    ours = TensorDescriptor.from_tensor(
        tensor, block, NVMMASharedLayout(swizzle, bits, len(block), **more)
    )
    layout = theirs_layouts.NVMMASharedLayout(swizzle, bits, len(block), **more)
    other = theirs.TensorDescriptor.from_tensor(tensor, block, layout)
    assert arguments.describe(ours).kind == upstream(other)


@pytest.mark.skipif(TRITON < (3, 8), reason="Triton 3.8 brings it")
def test_the_signature_of_im2col_is_upstreams():
    theirs_layouts = pytest.importorskip("triton.experimental.gluon.language")
    theirs = pytest.importorskip("triton.experimental.gluon.nvidia.hopper")
    layout = theirs_layouts.NVMMASharedLayout(128, 16, 2)
    corners = {"pixel_box_lower_corner": [-1, -1], "pixel_box_upper_corner": [-1, -1]}
    other = theirs.TensorDescriptorIm2Col.from_tensor(IMAGES, [64, 64], layout, **corners)
    assert arguments.describe(images()).kind == upstream(other)


@pytest.mark.skipif(TRITON >= (3, 8), reason="Triton 3.8 brings it")
def test_im2col_names_the_triton_that_brings_it():
    with pytest.raises(CapabilityError, match="3.8"):
        arguments.describe(images())


def test_descriptors_of_triton_are_refused_with_the_remedy():
    from triton.tools.tensor_descriptor import TensorDescriptor as Plain

    with pytest.raises(ArgumentError, match="gluon_core"):
        arguments.describe(Plain.from_tensor(HALF, [64, 64]))


@gluon.jit
def facts(d, more, out, n):
    gl.store(out, d.shape[0])
    gl.store(out + 1, d.shape[1])
    gl.store(out + 2, d.strides[0].to(gl.int32))
    gl.store(out + 3, more[1].shape[0] + n)


@pytest.fixture
def simulated(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
    facts.forget()


def test_a_kernel_reads_shape_and_strides(simulated):
    out = torch.zeros(4, dtype=torch.int32)
    other = describe(np.zeros((7, 64), np.float32), (8, 32), NVMMASharedLayout(128, 32, 2))
    facts[1](describe(), (1, other), out, 16)
    assert out.tolist() == [64, 64, 64, 23]
    facts[1](describe(HALF[:40]), (1, other), out, 16)
    assert out.tolist() == [40, 64, 64, 23]
    assert len(facts.dispatcher._compiled) == 1
    facts.prepare(describe(), (1, other), out, 16, grid=1)(describe(HALF[:8]), (1, other), out, 16)
    assert out.tolist() == [8, 64, 64, 23]


def test_one_kernel_takes_torch_tensors_and_numpy_arrays_in_turn(simulated):
    out = torch.zeros(4, dtype=torch.int32)
    array = np.zeros((24, 64), np.float16)
    for base in (HALF, array, HALF, array):
        facts[1](describe(base), (1, describe(base)), out, 16)
        assert out.tolist() == [len(base), 64, 64, len(base) + 16]


def test_what_the_code_depends_on_makes_another_kernel(simulated):
    out = torch.zeros(4, dtype=torch.int32)
    kept = (1, describe())
    count = 0
    d = describe()
    for change in (
        {},
        {"block_shape": [32, 64]},
        {"layout": NVMMASharedLayout(64, 16, 2)},
        {"base": HALF.bfloat16()},
    ):
        for name, value in change.items():
            setattr(d, name, value)
        for _ in range(2):
            facts[1](d, kept, out, 16)
        count += 1
        assert len(facts.dispatcher._compiled) == count
    facts[1](d, (1, d), out, 16)
    assert len(facts.dispatcher._compiled) == count + 1
    d.padding = "nan"
    facts[1](d, (1, d), out, 16)
    assert len(facts.dispatcher._compiled) == count + 1


def test_equal_layouts_make_one_kernel(simulated):
    out = torch.zeros(4, dtype=torch.int32)
    for _ in range(3):
        d = describe(layout=NVMMASharedLayout(128, 16, 2))
        facts[1](d, (1, d), out, 16)
    assert len(facts.dispatcher._tables) == 1
    (tables,) = facts.dispatcher._tables.values()
    assert len(tables[()]) == 1


def test_a_tuning_hook_may_change_the_box(simulated):
    def hook(named):
        named["d"].block_shape = [named["ROWS"], 64]

    def time(call, quantiles):
        call()
        return [1.0] * 3

    @triton.autotune(
        [triton.Config({"ROWS": rows}, pre_hook=hook) for rows in (8, 16)],
        key=["n"],
        do_bench=time,
    )
    @gluon.jit
    def rows_of(d, out, n, ROWS: gl.constexpr):
        gl.static_assert(d.block_shape[0] == ROWS)
        gl.store(out, ROWS)

    out = torch.zeros(1, dtype=torch.int32)
    rows_of[(1,)](describe(), out, 5)
    assert out.item() in (8, 16)


class Address:
    """What a CUDA tensor says of itself."""

    shape, device = (64, 64), torch.device("cuda:0")

    def __init__(self, dtype, address):
        self.dtype = dtype
        self.address = address

    def data_ptr(self):
        return self.address

    def stride(self):
        return (64, 1)

    def get_device(self):
        return 0


def on_gpu():
    return Address(torch.float16, 1 << 20)


def test_the_tensor_of_a_descriptor_binds_the_launch_to_its_device(simulated):
    out = torch.zeros(4, dtype=torch.int32)
    for args in ((describe(on_gpu()), (1, describe())), (describe(), (1, describe(on_gpu())))):
        with pytest.raises(DeviceError, match="cuda:0"):
            facts[1](*args, out, 16)
    facts[1](describe(), (1, describe()), out, 16)
    with pytest.raises(DeviceError, match="cuda:0"):
        facts[1](describe(on_gpu()), (1, describe()), out, 16)


def parameters_of(ptx):
    """(bytes, alignment) of each parameter of the entry."""
    start = ptx.index(".entry")
    found = []
    for align, kind, count in re.findall(
        r"\.param (?:\.align (\d+) )?\.(\w+)[^\n]*?(?:\[(\d+)\])?,?\n",
        ptx[start : ptx.index("{", start)],
    ):
        size = {"b8": 1, "u32": 4, "u64": 8}[kind]
        found.append((size * int(count or 1), int(align or size)))
    return found


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_what_is_passed_is_what_the_compiled_kernel_takes(target):
    other = describe(FLOAT[None].contiguous(), (1, 8, 32), NVMMASharedLayout(128, 32, 3))
    args = (describe(), (1, other), torch.zeros(4, dtype=torch.int32), 16)
    made = facts.warmup(*args, grid=1, target=target)
    types = made.signature_types()
    layout = launcher_module.Layout(types, [f"a{i}" for i in range(len(types))])
    layout.scratch("")
    layout.scratch("")
    assert len(layout.offsets) == len(parameters_of(made.asm["ptx"])) == 5 + 7 + 2 + 2
    position = 0
    for offset_, (size, align) in zip(layout.offsets, parameters_of(made.asm["ptx"])):
        position += -position % align
        assert offset_ == position
        position += size
    kinds = launcher_module.map_kinds("facts", types, made.metadata)
    assert [(k.rank, k.swizzle, k.element_type, k.element_bytes, k.box) for k in kinds] == [
        (2, 3, 6, 2, (64, 64)),
        (3, 3, 7, 4, (1, 8, 32)),
    ]


# ---- what the driver is given -----------------------------------------------------------------

META = {"swizzle": 3, "elem_size": 2, "elem_type": 6, "block_size": [64, 64], "fp4_padded": False}
KIND = f"tensordesc<fp16[64, 64],{L128!r}>"


@pytest.fixture(params=["python", "native"])
def form(request, monkeypatch):
    monkeypatch.setenv("GLUON_NATIVE_LAUNCH", "1" if request.param == "native" else "0")
    if request.param == "native":
        native = launcher_module._native_module()
        if native is None:
            pytest.skip("the launch in C is not built")
        native.forget_maps()
    return request.param


def prepared(fake, signature, meta, **fields):
    told = {"name": "kernel", "num_warps": 4, "num_ctas": 1, "shared": 0, **fields}
    metadata = SimpleNamespace(**told, tensordesc_meta=meta)
    return generate(signature, metadata, 0x30, Driver(fake), 0).raw


def test_a_descriptor_is_a_map_then_shape_and_strides(form):
    fake = FakeCuda([4, 128, 4, 4, 8, 8, 4, 128, 4, 4, 8, 8, 8, 8])
    launch = prepared(fake, ["i32", KIND, ("constexpr", ("i32", KIND)), "*i32"], [META, META])
    a, b = describe(), describe(HALF[:40, :32], padding="nan")
    launch((1, 1, 1), 0, 7, a, (None, (8, b)), 0x1000)
    (found,) = fake.launches
    assert found.parameters[1] == fake.map_bytes(1) and found.parameters[7] == fake.map_bytes(2)
    rest = [
        struct.unpack("<i" if len(p) == 4 else "<q", p)[0] for p in found.parameters if len(p) < 99
    ]
    assert rest == [7, 64, 64, 64, 1, 8, 40, 32, 64, 1, 0x1000, 0]
    first, second = fake.maps
    assert (first.type, first.address, first.shape) == (6, HALF.data_ptr(), [64, 64])
    assert (first.strides, first.box, first.steps) == ([128], [64, 64], [1, 1])
    assert first.modes == (0, 3, 2, 0) and second.modes == (0, 3, 2, 1)
    assert (second.shape, second.strides) == ([32, 40], [128])


def test_maps_are_encoded_once_for_a_tensor_not_for_an_object(form):
    fake = FakeCuda([128])
    launch = prepared(fake, [KIND], [META])
    room = torch.zeros(64, 64, dtype=torch.float16)
    for _ in range(5):
        launch((1, 1, 1), 0, describe(room))
    assert len(fake.maps) == 1
    d = describe(room)
    for name, value in {
        "shape": [32, 64],
        "strides": [128, 1],
        "padding": "nan",
        "base": torch.zeros(64, 64, dtype=torch.float16),
    }.items():
        setattr(d, name, value)
        before = len(fake.maps)
        for _ in range(3):
            launch((1, 1, 1), 0, d)
        assert len(fake.maps) == before + 1, name
        assert fake.launches[-1].parameters[0] == fake.map_bytes(len(fake.maps))
    d.shape[0] = 16  # in place
    launch((1, 1, 1), 0, d)
    assert fake.maps[-1].shape == [64, 16]


def test_many_tensors_all_find_their_own_map(form):
    fake = FakeCuda([128, 4])
    launch = prepared(fake, [KIND], [META])
    room = torch.zeros(3000, 64, dtype=torch.float16)
    for turn in range(2):
        for row in range(0, 2900, 3):
            launch((1, 1, 1), 0, describe(room[row : row + 64]))
            number = struct.unpack("<I", fake.launches[-1].parameters[0][:4])[0]
            assert fake.maps[number - 1].address == room[row].data_ptr()


def test_kinds_of_maps_do_not_mix(form):
    fake = FakeCuda([128, 4, 4, 8, 8, 128])
    narrow = {**META, "swizzle": 1, "block_size": [64, 16]}
    launch = prepared(fake, [KIND, KIND], [META, narrow])
    d = describe()
    for _ in range(2):
        launch((1, 1, 1), 0, d, d)
    assert [m.box for m in fake.maps] == [[64, 64], [16, 64]]
    assert fake.launches[-1].parameters[5] == fake.map_bytes(2)


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_every_rank(form, rank):
    shape = [3, 4, 5, 6, 64][-rank:]
    tensor = torch.zeros(shape, dtype=torch.float16)
    block = [1, 1, 2, 4, 64][-rank:]
    layout = NVMMASharedLayout(128 if rank > 1 else 0, 16, rank)
    kind = f"tensordesc<fp16{block},{layout!r}>"
    fake = FakeCuda([128] + [4] * rank + [8] * rank)
    launch = prepared(fake, [kind], [{**META, "block_size": block}])
    launch((1, 1, 1), 0, describe(tensor, block, layout))
    (made,) = fake.maps
    assert made.shape == shape[::-1] and made.box == block[::-1]
    assert made.strides == [2 * s for s in tensor.stride()[::-1][1:]]
    found = [int.from_bytes(p, "little") for p in fake.launches[0].parameters[1:]]
    assert found == [*shape, *tensor.stride()]


@pytest.mark.parametrize(
    "code, driver", [(0, 0), (6, 6), (7, 7), (8, 10), (9, 8), (10, 9), (14, 14)]
)
def test_element_types_are_the_drivers(form, code, driver):
    fake = FakeCuda()
    prepared(fake, [KIND], [{**META, "elem_type": code}])((1, 1, 1), 0, describe(HALF.clone()))
    assert fake.maps[0].type == driver


def test_rounding_to_tf32_is_an_element_type(form):
    layout = NVMMASharedLayout(128, 32, 2)
    meta = {**META, "elem_size": 4, "elem_type": 7, "block_size": [64, 32]}
    fake = FakeCuda()
    launch = prepared(fake, [f"tensordesc<fp32[64, 32],{layout!r}>"], [meta])
    room = FLOAT.clone()
    launch((1, 1, 1), 0, describe(room, (64, 32), layout))
    launch((1, 1, 1), 0, describe(room, (64, 32), layout, round_f32_to_tf32=True))
    assert [m.type for m in fake.maps] == [7, 11]


def test_padded_fp4_counts_elements(form):
    layout = NVMMASharedLayout(128, 8, 2, fp4_padded=True)
    meta = {**META, "elem_size": 1, "elem_type": 14, "block_size": [64, 128], "fp4_padded": True}
    fake = FakeCuda([128, 4, 4, 8, 8])
    launch = prepared(fake, [f"tensordesc<u8[64, 64],{layout!r}>"], [meta])
    launch((1, 1, 1), 0, describe(BYTES.clone(), (64, 64), layout))
    assert (fake.maps[0].shape, fake.maps[0].strides) == ([128, 64], [64])
    assert [int.from_bytes(p, "little") for p in fake.launches[0].parameters[1:]] == [64, 64, 64, 1]


@pytest.mark.parametrize(
    "version, rows, cleared", [(13010, 64, True), (13010, 2048, False), (13020, 64, False)]
)
def test_older_drivers_marks_of_small_tensors_are_cleared(form, version, rows, cleared):
    fake = FakeCuda([128], version=version)
    fake.map_bytes = lambda number: b"\xff" * 128
    launch = prepared(fake, [KIND], [META])
    launch((1, 1, 1), 0, describe(torch.zeros(rows, 64, dtype=torch.float16)))
    expected = bytearray(b"\xff" * 128)
    if cleared:
        expected[10] = 0xDF
    assert fake.launches[0].parameters[0] == bytes(expected)


def test_im2col(form):
    meta = {**META, "is_im2col": True}
    kind = f"tensordesc_im2col<fp16[64, 64],input_rank=4,{L128!r}>"
    fake = FakeCuda([128] + [4] * 4 + [8] * 4)
    launch = prepared(fake, [kind], [meta])
    room = IMAGES.clone()
    d = images(room, element_strides=[1, 2, 3, 1], pixel_box_lower_corner=[-1, -2])
    for _ in range(2):
        launch((1, 1, 1), 0, d)
    (made,) = fake.maps
    assert (made.shape, made.strides) == ([64, 16, 16, 2], [128, 2048, 32768])
    assert (made.lower, made.upper, made.box, made.steps) == (
        [-2, -1],
        [-1, -1],
        [64, 64],
        [1, 3, 2, 1],
    )
    assert fake.launches[-1].parameters[0] == fake.map_bytes(1)
    launch((1, 1, 1), 0, images(room))
    assert fake.maps[-1].lower == [-1, -1] and fake.maps[-1].steps == [1, 1, 1, 1]


def test_a_refusal_of_the_driver_says_what_was_described(form):
    launch = prepared(FakeCuda(encode_status=1), [KIND], [META])
    with pytest.raises(LaunchError, match=r"cannot encode.*CUDA_ERROR_SOMETHING"):
        launch((1, 1, 1), 0, describe(HALF.clone()))
    launch = prepared(FakeCuda(encode_status=1, capability=(8, 0)), [KIND], [META])
    with pytest.raises(CapabilityError, match="sm_90"):
        launch((1, 1, 1), 0, describe(HALF.clone()))


def test_a_descriptor_that_became_illegal_is_refused_by_name(form):
    fake = FakeCuda(encode_status=1)
    d = describe(HALF.clone())
    d.base = offset()
    with pytest.raises(ArgumentError, match="aligned"):
        prepared(fake, [KIND], [META])((1, 1, 1), 0, d)
    assert not fake.launches


def test_another_rank_is_refused(form):
    d = describe()
    d.shape = [64]
    with pytest.raises((ValueError, GluonError), match="rank"):
        prepared(FakeCuda(), [KIND], [META])((1, 1, 1), 0, d)


def test_a_kernel_that_says_nothing_of_its_descriptors_is_not_launched():
    with pytest.raises(LaunchError, match="tensordesc_meta"):
        prepared(FakeCuda(), [KIND], [])


def test_a_kernel_with_more_maps_than_c_takes_still_launches():
    fake = FakeCuda([128])
    launch = prepared(fake, [KIND] * 17, [META] * 17)
    launch((1, 1, 1), 0, *[describe()] * 17)
    assert len(fake.launches) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a real driver is there")
def test_the_whole_way_from_the_kernel_to_the_driver(form, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("GLUON_TARGET", raising=False)
    fake = FakeCuda([128, 4, 4, 8, 8, 128, 4, 4, 8, 8, 8, 4, 8, 8])
    monkeypatch.setattr(driver_module, "_state", Driver(fake))
    facts.forget()
    out = Address(torch.int32, 1 << 21)
    try:
        for _ in range(3):
            made = facts[5](describe(on_gpu()), (1, describe(on_gpu())), out, 32)
        handle = facts.prepare(describe(on_gpu()), (1, describe(on_gpu())), out, 32, grid=5)
        handle(describe(on_gpu()), (1, describe(on_gpu())), out, 48)
        made[(5, 1, 1)](describe(on_gpu()), (1, describe(on_gpu())), out, 32)
    finally:
        facts.forget()
    assert len(fake.launches) == 5 and str(made.target) == "nvidia:sm_90"
    for made_map in fake.maps:
        assert (made_map.address, made_map.shape, made_map.box) == (1 << 20, [64, 64], [64, 64])
    assert len(fake.maps) <= 4  # one for C; one for each parameter of each form of the launch
    for number, launch in enumerate(fake.launches):
        rest = [int.from_bytes(p, "little") for p in launch.parameters[1:]]
        assert launch.grid == (5, 1, 1)
        for place in (0, 5):
            numbered = struct.unpack("<I", launch.parameters[place][:4])[0]
            assert launch.parameters[place] == fake.map_bytes(numbered)
        n = 48 if number == 3 else 32
        assert rest[:4] == rest[5:9] == [64, 64, 64, 1] and rest[9:] == [1 << 21, n, 0, 0]


# ---- scratch memory ---------------------------------------------------------------------------


def test_scratch_memory_comes_from_the_driver_where_torch_has_no_device(form):
    fake = FakeCuda([4, 8, 8])
    more = {"global_scratch_size": 128, "global_scratch_align": 128, "num_ctas": 2}
    launch = prepared(fake, ["i32"], [], **more)
    launch((2, 3, 1), 9, 7)
    found = [int.from_bytes(p, "little") for p in fake.launches[0].parameters]
    assert found == [7, 0x7080, 0]
    made = [call for call in fake.calls if call[0].startswith("cuMem")]
    assert made == [("cuMemAllocAsync", 2 * 3 * 2 * 128 + 128, 9), ("cuMemFreeAsync", 0x7001, 9)]


def test_scratch_memory_beside_descriptors_and_of_two_kinds(form):
    fake = FakeCuda([128, 4, 4, 8, 8, 8, 8])
    more = {"global_scratch_size": 128, "profile_scratch_size": 64}
    prepared(fake, [KIND], [META], **more)((2, 1, 1), 0, describe())
    assert [int.from_bytes(p, "little") for p in fake.launches[0].parameters[5:]] == [0x7001] * 2
    assert [call[1] for call in fake.calls if call[0] == "cuMemAllocAsync"] == [257, 129]


def test_scratch_memory_outlives_launches_that_overlap(form):
    fake = FakeCuda()
    launch = prepared(fake, [], [], global_scratch_size=128, launch_pdl=True)

    def freed():
        return sum(call[0] == "cuMemFreeAsync" for call in fake.calls)

    for _ in range(8):
        launch((1, 1, 1), 0)
    assert freed() == 0
    launch((1, 1, 1), 0)
    assert freed() == 1
    del launch
