"""The arguments of `cuLaunchKernelEx`, and its errors; with a recording driver."""

import struct
import threading
from types import SimpleNamespace

import pytest

from gluon_core.errors import ArgumentError, LaunchError, LimitError
from gluon_nvidia.driver import Driver
from gluon_nvidia.launcher import generate, make_launcher
from gluon_runtime.libcuda import INVALID_CONTEXT
from tests.backends.fake_cuda import FakeCuda

pytestmark = pytest.mark.once


class Address:
    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


def metadata(**fields):
    return SimpleNamespace(
        **{"name": "kernel", "num_warps": 4, "num_ctas": 1, "shared": 512, **fields}
    )


def launcher(signature, fake, **fields):
    return generate(signature, metadata(**fields), 0x30, Driver(fake), 0)


def test_every_type_is_packed_as_the_kernel_reads_it():
    types = ["*fp32", "i1", "i8", "i16", "i32", "i64", "u1", "u8", "u16", "u32", "u64"]
    types += ["fp16", "bf16", "fp32", "fp64", "constexpr", "*kfp16"]
    formats = "<Q b b h i q B B H I Q e H f d Q".replace("<", "").split()
    fake = FakeCuda([struct.calcsize("<" + code) for code in formats] + [8, 8])
    values = [Address(0x1000), True, -3, -300, -70000, -(2**40), True, 200, 60000, 2**32 - 1]
    values += [2**64 - 1, 1.5, 1.0, 0.1, 0.1, "dropped", None]
    launcher(types, fake)((2, 3, 4), 77, *values)
    (launch,) = fake.launches
    expected = [0x1000, 1, -3, -300, -70000, -(2**40), 1, 200, 60000, 2**32 - 1, 2**64 - 1, 1.5]
    expected += [0x3F80, struct.unpack("<f", struct.pack("<f", 0.1))[0], 0.1, 0]
    got = [struct.unpack("<" + code, raw)[0] for code, raw in zip(formats, launch.parameters)]
    assert got == expected
    assert launch.parameters[-2:] == [bytes(8), bytes(8)]  # no scratch memory
    assert (launch.grid, launch.block, launch.shared) == ((2, 3, 4), (128, 1, 1), 512)
    assert (launch.stream, launch.function, launch.attributes) == (77, 0x30, [])


def test_tuples_are_flattened():
    fake = FakeCuda([8, 4, 4])
    launch = launcher([("*fp32", "constexpr", ("i32",)), "i32"], fake)
    launch((1, 1, 1), 0, (Address(64), None, (5,)), 6)
    launch((1, 1, 1), 0, (64, None, (5,)), 6)
    for recorded in fake.launches:
        values = [struct.unpack(f, raw)[0] for f, raw in zip("Qii", recorded.parameters)]
        assert values == [64, 5, 6]


def test_clusters_cooperative_and_dependent_launches_become_attributes():
    fake = FakeCuda()
    launcher([], fake, num_ctas=2, launch_cooperative_grid=True, launch_pdl=True)((3, 1, 1), 0)
    (launch,) = fake.launches
    assert launch.grid == (6, 1, 1)
    attributes = {number: values for number, *values in launch.attributes}
    assert (
        attributes[6][0] == 1
        and attributes[2][0] == 1
        and attributes[4][:3] == [2, 1, 1]
        and attributes[5][0] == 1
    )


def test_scratch_memory_comes_from_tritons_allocator():
    import triton

    asked = []

    def allocate(size, alignment, stream):
        asked.append((size, alignment, stream))
        return Address(0xABC0)

    fake = FakeCuda([4, 8, 8])
    launch = launcher(["i32"], fake, num_ctas=2, global_scratch_size=64, global_scratch_align=128)
    from triton.runtime import _allocation

    token = _allocation._allocator.set(allocate)
    try:
        launch((2, 3, 1), 9, 7)
    finally:
        _allocation._allocator.reset(token)
    assert asked == [(2 * 3 * 64 * 2, 128, 9)]
    assert struct.unpack("<Q", fake.launches[0].parameters[1])[0] == 0xABC0
    assert triton is not None


@pytest.mark.parametrize("value", [2**31, 1.5, "text", None])
def test_a_value_that_does_not_fit_is_an_error_and_does_not_launch(value):
    fake = FakeCuda()
    launch = launcher(["i32"], fake)
    with pytest.raises(ArgumentError):
        launch((1, 1, 1), 0, value)
    assert not fake.launches
    launch((1, 1, 1), 0, 5)
    assert len(fake.launches) == 1


def test_not_a_pointer():
    with pytest.raises(ArgumentError, match="not a pointer"):
        launcher(["*fp32"], FakeCuda())((1, 1, 1), 0, 1.5)


def test_a_refused_launch_says_why():
    launch = launcher([], FakeCuda(status=[701]))
    with pytest.raises(LaunchError, match="CUDA_ERROR_SOMETHING.*701.*it went wrong"):
        launch((1, 1, 1), 0)


def test_a_refused_launch_of_clusters_names_their_size():
    launch = launcher([], FakeCuda(status=[912]), num_ctas=16, num_warps=8)
    with pytest.raises(LaunchError, match="clusters of 16 blocks, each 256 threads"):
        launch((1, 1, 1), 0)


@pytest.mark.parametrize("clusters, allowed", [(8, False), (16, True)])
def test_clusters_beyond_the_portable_size_are_opted_in(clusters, allowed):
    fake = FakeCuda()
    make_launcher(compiled(num_ctas=clusters), Driver(fake))((1, 1, 1), 0)
    assert (("cuFuncSetAttribute", 14, 1) in fake.calls) == allowed
    assert fake.launches[0].grid == (clusters, 1, 1)


def test_a_thread_without_a_context_gets_one_and_launches():
    fake = FakeCuda([4], status=[INVALID_CONTEXT])
    launcher(["i32"], fake)((1, 1, 1), 0, 5)
    assert len(fake.launches) == 2
    assert "cuDevicePrimaryCtxRetain" in [call[0] for call in fake.calls]


def test_a_context_that_cannot_be_had_is_an_error():
    fake = FakeCuda(status=[INVALID_CONTEXT] * 2)
    with pytest.raises(LaunchError):
        launcher([], fake)((1, 1, 1), 0)


def test_threads_do_not_share_a_buffer():
    fake = FakeCuda([8, 8])
    launch = launcher(["i64", "i64"], fake)

    def work(base):
        for index in range(300):
            launch((1, 1, 1), 0, base + index, -(base + index))

    threads = [threading.Thread(target=work, args=(base * 1000,)) for base in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake.launches) == 1200
    for recorded in fake.launches:
        a, b = (struct.unpack("<q", raw)[0] for raw in recorded.parameters)
        assert a == -b


def compiled(**fields):
    kernel = SimpleNamespace(name="kernel", asm={}, kernel=b"cubin", metadata=metadata(**fields))
    kernel.signature_types = lambda: ()
    return kernel


def test_loading_fills_in_the_attributes_of_the_driver():
    fake = FakeCuda()
    kernel = compiled()
    make_launcher(kernel, Driver(fake))((1, 1, 1), 0)
    assert (kernel.function, kernel.module, kernel.n_regs, kernel.n_spills) == (0x30, 0x20, 40, 4)
    assert kernel.n_max_threads == 1024
    assert not [call for call in fake.calls if call[0] == "cuFuncSetAttribute"]


def test_large_shared_memory_is_opted_in():
    fake = FakeCuda(attributes={1: 1024})
    make_launcher(compiled(shared=100_000), Driver(fake))
    assert ("cuFuncSetAttribute", 8, 232448 - 1024) in fake.calls


def test_too_much_shared_memory_is_refused_before_loading():
    fake = FakeCuda()
    with pytest.raises(LimitError, match="shared memory"):
        make_launcher(compiled(shared=300_000), Driver(fake))
    assert not [call for call in fake.calls if call[0] == "cuModuleLoadData"]


def test_a_block_that_does_not_fit_is_refused():
    with pytest.raises(LimitError, match="registers"):
        make_launcher(compiled(num_warps=16), Driver(FakeCuda(attributes={0: 256})))
