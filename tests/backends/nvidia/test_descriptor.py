"""Host-side TMA descriptors: their checks, and how kernels see them."""

import copy
import re

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
    LayoutError,
    ShapeError,
)
from gluon_core.launch import arguments
from gluon_core.nvidia import NVMMASharedLayout, blackwell, hopper
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_core.testing import MockTensor
from gluon_nvidia import launcher as launcher_module
from gluon_nvidia.driver import Driver
from tests.backends.fake_cuda import FakeCuda
from tests.backends.nvidia.descriptors import (
    BYTES,
    FLOAT,
    HALF,
    IMAGES,
    L128,
    describe,
    facts,
    images,
    offset,
    on_gpu,
)

TRITON = tuple(map(int, triton.__version__.split(".")[:2]))

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
    "padding": (ArgumentError, "unsupported padding", lambda: describe(padding="one")),
    "nan of ints": (
        DtypeError,
        "floating",
        lambda: describe(BYTES, layout=NVMMASharedLayout(64, 8, 2), padding="nan"),
    ),
    "tf32 of halves": (DtypeError, "float32", lambda: describe(round_f32_to_tf32=True)),
    "bool": (
        DtypeError,
        "does not support this element type",
        lambda: describe(BYTES.bool(), layout=NVMMASharedLayout(64, 8, 2)),
    ),
    "complex": (
        DtypeError,
        "does not support this element type",
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
def test_wrong_descriptors_name_the_mistake(case):
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
    """Return the specialization of an argument on Triton's own launch path."""
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
    tensor = torch.zeros([1] * (len(block) - 1) + [128], dtype=dtype)
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
    assert len(facts.dispatcher.forms) == 1
    facts.prepare(describe(), (1, other), out, 16, grid=1)(describe(HALF[:8]), (1, other), out, 16)
    assert out.tolist() == [8, 64, 64, 23]


def test_one_kernel_takes_torch_tensors_and_numpy_arrays_in_turn(simulated):
    out = torch.zeros(4, dtype=torch.int32)
    array = np.zeros((24, 64), np.float16)
    for base in (HALF, array, HALF, array):
        facts[1](describe(base), (1, describe(base)), out, 16)
        assert out.tolist() == [len(base), 64, 64, len(base) + 16]


@pytest.mark.once
def test_dependencies_of_the_code_make_another_kernel(simulated):
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
        assert len(facts.dispatcher.forms) == count
    facts[1](d, (1, d), out, 16)
    assert len(facts.dispatcher.forms) == count + 1
    d.padding = "nan"
    facts[1](d, (1, d), out, 16)
    assert len(facts.dispatcher.forms) == count + 1


def test_equal_layouts_make_one_kernel(simulated):
    out = torch.zeros(4, dtype=torch.int32)
    for _ in range(3):
        d = describe(layout=NVMMASharedLayout(128, 16, 2))
        facts[1](d, (1, d), out, 16)
    assert len(facts.dispatcher.forms) == 1


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
    fields = []
    for align, kind, count in re.findall(
        r"\.param (?:\.align (\d+) )?\.(\w+)[^\n]*?(?:\[(\d+)\])?,?\n",
        ptx[start : ptx.index("{", start)],
    ):
        size = {"b8": 1, "u32": 4, "u64": 8}[kind]
        fields.append((size * int(count or 1), int(align or size)))
    return fields


@pytest.mark.once
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_passed_arguments_are_those_of_the_compiled_kernel(target):
    other = describe(FLOAT[None].contiguous(), (1, 8, 32), NVMMASharedLayout(128, 32, 3))
    args = (describe(), (1, other), torch.zeros(4, dtype=torch.int32), 16)
    compiled = facts.warmup(*args, grid=1, target=target)
    types = compiled.signature_types()
    sizes = [size for size, _ in parameters_of(compiled.asm["ptx"])]
    fake = FakeCuda(sizes)
    launch = launcher_module.generate(types, compiled.metadata, 0x30, Driver(fake), 0)
    launch((1, 1, 1), 0, *args)
    ((first, *parameters),) = [launched.parameters for launched in fake.launches]
    second = parameters.pop(4)
    numbers = [int.from_bytes(value, "little") for value in parameters]
    shapes = [*args[0].shape, *args[0].strides, *other.shape, *other.strides]
    assert sizes == [128, 4, 4, 8, 8, 128, *[4] * 3, *[8] * 3, 8, 4, 8, 8]
    assert (first, second) == (fake.map_bytes(1), fake.map_bytes(2))
    assert numbers == [*shapes, args[2].data_ptr(), 16, 0, 0]
    kinds = launcher_module.map_kinds("facts", types, compiled.metadata)
    assert [(k.rank, k.swizzle, k.element_type, k.element_bytes, k.box) for k in kinds] == [
        (2, 3, 6, 2, (64, 64)),
        (3, 3, 7, 4, (1, 8, 32)),
    ]


@gluon.jit
def says_its_box(d, out):
    gl.store(out, d.block_shape[1])


@pytest.mark.once
def test_a_descriptor_names_its_type_in_a_signature():
    text = "tensordesc<fp16[64, 32],NVMMASharedLayout(64, 16, 2)>"
    layout = NVMMASharedLayout(64, 16, 2)
    array = np.zeros((64, 64), np.float16)
    for argument in (array, torch.zeros(64, 64, dtype=torch.float16)):
        descriptor = TensorDescriptor.from_tensor(argument, [64, 32], layout)
        compiled = gluon.compile(says_its_box, "hopper", signature={"d": descriptor, "out": "*i32"})
        same = gluon.compile(says_its_box, "hopper", signature={"d": text, "out": "*i32"})
        assert compiled.asm["ttgir"] == same.asm["ttgir"]
