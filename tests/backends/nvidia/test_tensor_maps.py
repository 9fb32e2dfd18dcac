"""Tensor maps and scratch memory: the arguments of a launch, with a recording driver."""

import struct
from types import SimpleNamespace

import pytest
import torch

from gluon_core.errors import ArgumentError, CapabilityError, GluonError, LaunchError
from gluon_core.nvidia import NVMMASharedLayout
from gluon_nvidia import driver as driver_module
from gluon_nvidia.driver import Driver
from gluon_nvidia.launcher import generate
from gluon_runtime import native
from tests.backends.fake_cuda import FakeCuda, plug_cuda
from tests.backends.nvidia.descriptors import (
    BYTES,
    FLOAT,
    HALF,
    IMAGES,
    L128,
    Address,
    describe,
    facts,
    images,
    offset,
    on_gpu,
)

# ---- arguments of the driver -----------------------------------------------------------------

META = {"swizzle": 3, "elem_size": 2, "elem_type": 6, "block_size": [64, 64], "fp4_padded": False}
KIND = f"tensordesc<fp16[64, 64],{L128!r}>"


# A launch from Python, else one of the engine that is bound to its grid.
_DIRECT = {"launch": False}


@pytest.fixture(params=["python", "native"])
def form(request, monkeypatch):
    monkeypatch.setitem(_DIRECT, "launch", request.param == "python")
    monkeypatch.setattr(driver_module, "_torch", lambda: None)  # whose memory it would be on a GPU
    native._numbers.clear()  # maps of other tests are of other kinds
    return request.param


def prepared(fake, signature, meta, **fields):
    entries = {"name": "kernel", "num_warps": 4, "num_ctas": 1, "shared": 0, **fields}
    metadata = SimpleNamespace(**entries, tensordesc_meta=meta)
    launch = generate(signature, metadata, 0x30, Driver(fake), 0)
    engine = launch.engine
    if _DIRECT["launch"]:
        return launch

    def launch_in_c(sizes, stream, *arguments):
        def in_python(*values):
            """Report a mistake, which is all that C leaves to Python here."""
            launch(sizes, stream, *values)
            pytest.fail("the launch came to Python")

        native.engine.bind(engine, sizes, lambda device: stream, in_python)(*arguments)

    return launch_in_c


def test_a_descriptor_is_a_map_then_shape_and_strides(form):
    fake = FakeCuda([4, 128, 4, 4, 8, 8, 4, 128, 4, 4, 8, 8, 8, 8])
    launch = prepared(fake, ["i32", KIND, ("constexpr", ("i32", KIND)), "*i32"], [META, META])
    a, b = describe(), describe(HALF[:40, :32], padding="nan")
    launch((1, 1, 1), 0, 7, a, (None, (8, b)), 0x1000)
    (launched,) = fake.launches
    assert launched.parameters[1] == fake.map_bytes(1) and launched.parameters[7] == fake.map_bytes(
        2
    )
    rest = [
        struct.unpack("<i" if len(p) == 4 else "<q", p)[0]
        for p in launched.parameters
        if len(p) < 99
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


@pytest.mark.once
def test_many_tensors_all_find_their_own_map(form):
    fake = FakeCuda([128, 4])
    launch = prepared(fake, [KIND], [META])
    room = torch.zeros(3000, 64, dtype=torch.float16)
    for turn in range(2):
        for row in range(0, 2900, 3):
            launch((1, 1, 1), 0, describe(room[row : row + 64]))
            number = struct.unpack("<I", fake.launches[-1].parameters[0][:4])[0]
            assert fake.maps[number - 1].address == room[row].data_ptr()


@pytest.mark.once
@pytest.mark.parametrize("form", ["native"], indirect=True)
def test_the_engine_forgets_maps_before_there_are_too_many(form):
    fake = FakeCuda([128, 4])
    launch = prepared(fake, [KIND], [META])
    room = torch.zeros(64 + 4200, 64, dtype=torch.float16)
    for row in (*range(4200), 4199, 0):
        launch((1, 1, 1), 0, describe(room[row : row + 64]))
    assert len(fake.maps) == 4201  # that of the latest row is known, that of row 0 was forgotten
    assert fake.maps[-1].address == room.data_ptr()
    assert fake.launches[-1].parameters[0] == fake.map_bytes(4201)


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
    (tensor_map,) = fake.maps
    assert tensor_map.shape == shape[::-1] and tensor_map.box == block[::-1]
    assert tensor_map.strides == [2 * s for s in tensor.stride()[::-1][1:]]
    words = [int.from_bytes(p, "little") for p in fake.launches[0].parameters[1:]]
    assert words == [*shape, *tensor.stride()]


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
    (tensor_map,) = fake.maps
    assert (tensor_map.shape, tensor_map.strides) == ([64, 16, 16, 2], [128, 2048, 32768])
    assert (tensor_map.lower, tensor_map.upper, tensor_map.box, tensor_map.steps) == (
        [-2, -1],
        [-1, -1],
        [64, 64],
        [1, 3, 2, 1],
    )
    assert fake.launches[-1].parameters[0] == fake.map_bytes(1)
    launch((1, 1, 1), 0, images(room))
    assert fake.maps[-1].lower == [-1, -1] and fake.maps[-1].steps == [1, 1, 1, 1]


def test_a_refusal_of_the_driver_shows_the_description(form):
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


def test_many_maps():
    fake = FakeCuda([128])
    launch = prepared(fake, [KIND] * 17, [META] * 17)
    launch((1, 1, 1), 0, *[describe()] * 17)
    assert len(fake.launches) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a real driver is there")
def test_the_whole_way_from_the_kernel_to_the_driver(form, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("GLUON_TARGET", raising=False)
    fake = FakeCuda([128, 4, 4, 8, 8, 128, 4, 4, 8, 8, 8, 4, 8, 8])
    plug_cuda(monkeypatch, fake)
    facts.forget()
    out = Address(torch.int32, 1 << 21)
    try:
        for _ in range(3):
            facts_of_map = facts[5](describe(on_gpu()), (1, describe(on_gpu())), out, 32)
        handle = facts.prepare(describe(on_gpu()), (1, describe(on_gpu())), out, 32, grid=5)
        handle(describe(on_gpu()), (1, describe(on_gpu())), out, 48)
        facts_of_map[(5, 1, 1)](describe(on_gpu()), (1, describe(on_gpu())), out, 32)
    finally:
        facts.forget()
    assert len(fake.launches) == 5 and str(facts_of_map.target) == "nvidia:sm_90"
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
    words = [int.from_bytes(p, "little") for p in fake.launches[0].parameters]
    assert words == [7, 0x7080, 0]
    allocations = [call for call in fake.calls if call[0].startswith("cuMem")]
    assert allocations == [
        ("cuMemAllocAsync", 2 * 3 * 2 * 128 + 128, 9),
        ("cuMemFreeAsync", 0x7001, 9),
    ]


def test_scratch_memory_with_descriptors_and_of_two_kinds(form):
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
