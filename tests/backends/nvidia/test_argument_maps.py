"""Tensor maps that launches make in place of kernels, with a recording driver."""

import struct

import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.nvidia import NVMMASharedLayout
from gluon_nvidia.argument_maps import described
from gluon_nvidia.driver import Driver
from gluon_nvidia.launcher import make_launcher
from gluon_runtime import native
from tests.backends.fake_cuda import FakeCuda

pytestmark = pytest.mark.once
TILE = NVMMASharedLayout(128, 16, rank=2)
TYPES = {
    "src": "*fp16:16",
    "dst": "*bf16:16",
    "rows": "i32",
    "columns": "i32:16",
    "offset": "i64:16",
}


@gluon.jit
def idle():
    pass


@gluon.jit
def copy(source, result, TILE: gl.constexpr):
    buffer = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    ready = gl.nvidia.hopper.mbarrier.allocate_mbarrier()
    gl.nvidia.hopper.mbarrier.init(ready, 1)
    gl.nvidia.hopper.mbarrier.expect(ready, 64 * 64 * 2)
    gl.nvidia.hopper.tma.async_copy_global_to_shared(source, [0, 0], ready, buffer)
    gl.nvidia.hopper.mbarrier.wait(ready, 0)
    store = buffer._reinterpret(gl.bfloat16, [64, 64], TILE)
    gl.nvidia.hopper.tma.async_copy_shared_to_global(result, [0, 0], store)
    gl.nvidia.hopper.tma.store_wait(0)


@gluon.jit
def move(src, dst, rows, columns, offset, OWN: gl.constexpr, TILE: gl.constexpr):
    """Copy a tile; with OWN each program describes its part of the result."""
    source = gl.nvidia.hopper.tma.make_tensor_descriptor(
        src + offset,
        [max(rows - 1, -5), columns * 2],
        [columns * 2, 1],
        [64, 64],
        TILE,
        padding_option="nan",
    )
    if OWN:
        dst += gl.program_id(0) * rows * columns
    result = gl.nvidia.hopper.tma.make_tensor_descriptor(
        dst, [min(rows, 60), columns], [columns, 1], [64, 64], TILE
    )
    # The machine code has more warps than the launch asked for.
    gl.warp_specialize([(copy, (source, result, TILE)), (idle, ())], [1], [24])


def compiled(own=False):
    constants = {"OWN": own, "TILE": TILE}
    return gluon.compile(move, "nvidia:sm_90", signature=TYPES, constexprs=constants, num_warps=8)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    from gluon_nvidia import driver

    monkeypatch.setattr(driver, "_torch", lambda: None)
    native._numbers.clear()
    return FakeCuda([8, 8, 4, 4, 8, 8, 8, 128, 128])


ARGUMENTS = (0x1000, 0x2000, 100, 64, 32, None, None)


def test_launches_make_the_maps_of_arguments(fake):
    launch = make_launcher(compiled(), Driver(fake))
    launch((2, 1, 1), 0, *ARGUMENTS)
    launch((2, 1, 1), 0, *ARGUMENTS)
    source, result = fake.maps  # the second launch knows them
    assert (source.address, source.shape, source.strides) == (0x1000 + 2 * 32, [128, 99], [256])
    assert (result.address, result.shape, result.strides) == (0x2000, [64, 60], [128])
    assert (source.type, result.type) == (6, 9)  # CU_TENSOR_MAP_DATA_TYPE_FLOAT16, _BFLOAT16
    assert source.box == result.box == [64, 64] and source.steps == [1, 1]
    assert (source.modes, result.modes) == ((0, 3, 2, 1), (0, 3, 2, 0))  # padding
    values = [struct.unpack("<q", each)[0] for each in fake.launches[1].parameters[4:7]]
    assert values == [32, 0, 0]  # no scratch memory
    assert fake.launches[1].parameters[7:] == [fake.map_bytes(1), fake.map_bytes(2)]
    assert not [call for call in fake.calls if call[0] == "cuMemAllocAsync"]


def test_a_map_that_differs_from_program_to_program_stays_in_the_kernel(fake):
    kernel = compiled(own=True)
    assert not described(kernel.asm["ptx"]).alone
    fake.sizes = fake.sizes[:8]
    make_launcher(kernel, Driver(fake))((2, 1, 1), 0, *ARGUMENTS)
    assert [one.address for one in fake.maps] == [0x1000 + 2 * 32]
    assert [call[1] for call in fake.calls if call[0] == "cuMemAllocAsync"] == [2 * 256 + 128]


def test_a_tensor_that_the_driver_refuses_is_described_by_the_kernel(fake):
    kernel = compiled()
    fake.encode_status, sizes = 1, fake.sizes  # an empty one
    fake.sizes = sizes[:7]
    launch = make_launcher(kernel, Driver(fake))
    for _ in range(2):
        launch((1, 1, 1), 0, 0x1000, 0x2000, 0, 64, 32, None, None)
    loaded = [
        call[1].value if hasattr(call[1], "value") else call[1]
        for call in fake.calls
        if call[0] == "cuModuleLoadData"
    ]
    assert len(loaded) == 2 and loaded[1] == kernel.kernel and len(fake.launches) == 2
    fake.encode_status, fake.sizes = 0, sizes
    launch((1, 1, 1), 0, *ARGUMENTS)
    assert fake.launches[-1].parameters[7] == fake.map_bytes(1)


def test_other_descriptions_stay():
    ptx = compiled().asm["ptx"]
    assert described(ptx).ptx.count("@first prefetch.tensormap [map];") == 2
    scratch = ptx.split("cp_fenceproxy")[1].split("[ ")[1].split(" ")[0]
    twice = ptx.replace(
        "cvta.global.u64 \t",
        f"add.s64 \t%rd9990, {scratch}, 8;\n\tcvta.global.u64 \t%rd9991, %rd9990;\n\tcvta.global.u64 \t",
        1,
    )
    assert described(twice) is None  # another address in scratch memory
    stored = f"st.shared.b64 \t[global_smem], {scratch};\n\tcvta.global.u64 \t"
    assert described(ptx.replace("cvta.global.u64 \t", stored, 1)) is None
    assert described(ptx.replace("element_stride", "element_step")) is None
    assert described(ptx.replace(".b1024.", ".b2048.")) is None


def test_an_assembler_that_fails_leaves_the_kernel(fake, monkeypatch):
    kernel = compiled()
    monkeypatch.setattr(type(kernel.backend.compiler), "version", lambda *args: "another")
    monkeypatch.setattr(type(kernel.backend.compiler), "pipeline", lambda *args: [None])
    fake.sizes = fake.sizes[:7]
    make_launcher(kernel, Driver(fake))((1, 1, 1), 0, *ARGUMENTS)
    assert not fake.maps and len(fake.launches) == 1
