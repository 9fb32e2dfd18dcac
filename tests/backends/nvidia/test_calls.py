"""Calls answered in C: they launch as Python would, and distinguish calls as it does."""

import ctypes
import gc
import types
import weakref
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, GluonError, LaunchError
from gluon_core.launch.miss import Dispatcher
from gluon_core.nvidia import NVMMASharedLayout
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_core.registry.load import registry
from gluon_nvidia import driver
from gluon_runtime.calls import Calls
from gluon_runtime.rules import RULES
from tests.backends.fake_cuda import FakeCuda, plug_cuda

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(
        not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
        reason="torch has no table of functions for DLPack",
    ),
]
L = gl.BlockedLayout([1], [32], [4], [0])
ROWS = NVMMASharedLayout(128, 16, 2)


@gluon.jit
def scale(x, y, n, factor, BLOCK: gl.constexpr, LAYOUT: gl.constexpr, name: gl.constexpr = "a"):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, LAYOUT)
    gl.store(y + i, gl.load(x + i, mask=i < n) * factor, mask=i < n)


@gluon.jit(do_not_specialize=["m"], do_not_specialize_on_alignment=["y", "k"])
def anything(x, y, n, m, k, C: gl.constexpr, t, d=None, *, last=3):
    pass


@gluon.jit
def described(a, pair, out):
    gl.store(out, a.shape[0] + pair[1])


@pytest.fixture
def cuda(monkeypatch, tmp_path):
    """An NVIDIA device that records launches and takes CPU tensors."""
    fake = FakeCuda([8, 8, 4, 4])
    backend = registry().backend("nvidia")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("GLUON_TARGET", "nvidia:sm_90")
    plug_cuda(monkeypatch, fake)
    monkeypatch.setattr(type(backend.device), "tensor_device", "cpu")
    for kernel in (scale, anything, described):
        kernel.forget()
    yield fake
    for kernel in (scale, anything, described):
        kernel.forget()


class Counted:
    """Counts the calls that come to Python, to be decided (`entry`) or launched (`run`)."""

    def __init__(self, kernel, monkeypatch, door="entry"):
        self.count = 0
        self.door = getattr(kernel.dispatcher, door)
        monkeypatch.setattr(kernel.dispatcher, door, self)

    def __call__(self, *args, **kwargs):
        self.count += 1
        return self.door(*args, **kwargs)


def told(launch):
    """Return the arguments that a launch of `scale` passed to the driver."""
    x, y, n, factor = launch.parameters
    number = ctypes.c_int32.from_buffer_copy(n).value
    return launch.grid, launch.block, x, y, number, ctypes.c_float.from_buffer_copy(factor).value


def test_a_call_that_came_before_does_not_come_to_python(cuda, monkeypatch):
    x, y = torch.ones(256), torch.zeros(256)
    first = scale[(2, 3)](x, y, 64, 1.5, 64, L)
    counted = Counted(scale, monkeypatch)
    again = scale[(4,)](y, x, 96, 2.5, BLOCK=64, LAYOUT=L)
    assert counted.count == 0 and again is first
    assert told(cuda.launches[-1])[0] == (4, 1, 1)
    assert told(cuda.launches[-1])[2:4] == tuple(t.data_ptr().to_bytes(8, "little") for t in (y, x))
    assert told(cuda.launches[-1])[4:] == (96, 2.5)


def test_a_launcher_that_was_kept_from_the_start_does_not_come_to_python_either(cuda, monkeypatch):
    x, y = torch.ones(256), torch.zeros(256)
    launch = scale[(4,)]
    launch(x, y, 64, 1.5, 64, L)
    counted = Counted(scale, monkeypatch)
    launch(y, x, 96, 2.5, 64, L)
    assert counted.count == 0 and told(cuda.launches[-1])[4:] == (96, 2.5)


@pytest.mark.parametrize(
    "grid, sizes",
    [
        ((5,), (5, 1, 1)),
        (7, (7, 1, 1)),
        ([2, 3], (2, 3, 1)),
        (lambda meta: (meta["n"] // meta["BLOCK"], 2), (1, 2, 1)),
        (lambda meta: [meta["n"] // 16, 1, 3], (4, 1, 3)),
        ((True, 2), (1, 2, 1)),
    ],
)
def test_grids_of_every_kind(cuda, grid, sizes):
    x, y = torch.ones(256), torch.zeros(256)
    for _ in range(3):
        scale[grid](x, y, 64, 1.5, 64, L)
    assert [told(launch)[0] for launch in cuda.launches] == [sizes] * 3


@pytest.mark.parametrize("grid", [(0,), lambda meta: (0, 2), (3, 0, 1)])
def test_an_empty_grid_launches_nothing(cuda, grid):
    x, y = torch.ones(256), torch.zeros(256)
    compiled = scale[(1,)](x, y, 64, 1.5, 64, L)
    assert scale[grid](x, y, 64, 1.5, 64, L) is compiled
    assert len(cuda.launches) == 1


@pytest.mark.parametrize("grid", [(-1,), (1, 65536), "text", lambda meta: (1.5,), (), (1, 1, 1, 1)])
def test_a_bad_grid_is_refused_as_ever(cuda, grid):
    x, y = torch.ones(256), torch.zeros(256)
    scale[(1,)](x, y, 64, 1.5, 64, L)
    with pytest.raises(LaunchError):
        scale[grid](x, y, 64, 1.5, 64, L)
    assert len(cuda.launches) == 1


def test_a_grid_function_is_asked_once(cuda):
    x, y, asked = torch.ones(256), torch.zeros(256), []
    scale[(1,)](x, y, 64, 1.5, 64, L)
    scale[lambda meta: asked.append(meta) or [2]](x, y, 64, 1.5, 64, L)
    assert len(asked) == 1 and list(asked[0]) == [
        "x",
        "y",
        "n",
        "factor",
        "BLOCK",
        "LAYOUT",
        "name",
    ]
    with pytest.raises(ZeroDivisionError):
        scale[lambda meta: 1 // 0](x, y, 64, 1.5, 64, L)


def test_mistakes_are_reported_by_python(cuda):
    x, y = torch.ones(256), torch.zeros(256)
    scale[(1,)](x, y, 64, 1.5, 64, L)
    for mistake in ({"BLOCK": 64}, {"wrong": 1}):
        with pytest.raises((TypeError, GluonError)):
            scale[(1,)](x, y, 64, 1.5, 64, L, **mistake)
    with pytest.raises(TypeError, match="missing"):
        scale[(1,)](x, y, 64)
    with pytest.raises(ArgumentError):
        scale[(1,)](x, object(), 64, 1.5, 64, L)
    cuda.status = [1, 1]
    with pytest.raises(LaunchError, match="refused the launch"):
        scale[(1,)](x, y, 64, 1.5, 64, L)


def test_options_are_part_of_the_key(cuda, monkeypatch):
    x, y = torch.ones(256), torch.zeros(256)
    wide = gl.BlockedLayout([1], [32], [8], [0])
    scale[(1,)](x, y, 64, 1.5, 64, L)
    scale[(1,)](x, y, 64, 1.5, 64, wide, num_warps=8)
    counted = Counted(scale, monkeypatch)
    scale[(1,)](x, y, 64, 1.5, 64, wide, num_warps=8)
    scale[(1,)](x, y, 64, 1.5, 64, L)
    assert counted.count == 0
    assert [launch.block[0] for launch in cuda.launches] == [128, 256, 256, 128]


def test_hooks_see_every_launch(cuda):
    from triton import knobs

    x, y, seen = torch.ones(256), torch.zeros(256), []
    scale[(1,)](x, y, 64, 1.5, 64, L)
    scale[(1,)](x, y, 64, 1.5, 64, L)
    hook = seen.append
    if hasattr(knobs.runtime.launch_enter_hook, "add"):
        knobs.runtime.launch_enter_hook.add(hook)
    else:
        knobs.runtime.launch_enter_hook = hook
    try:
        scale[(1,)](x, y, 64, 1.5, 64, L)
    finally:
        if hasattr(knobs.runtime.launch_enter_hook, "remove"):
            knobs.runtime.launch_enter_hook.remove(hook)
        else:
            knobs.runtime.launch_enter_hook = None
    scale[(1,)](x, y, 64, 1.5, 64, L)
    assert len(seen) == 1 and len(cuda.launches) == 4


def test_a_hook_that_was_set_before_the_first_launch_sees_every_launch(cuda, monkeypatch):
    from triton import knobs

    x, y, seen = torch.ones(256), torch.zeros(256), []
    with knobs.runtime.scope():
        knobs.runtime.launch_enter_hook = seen.append
        scale.forget()
        for _ in range(3):
            scale[(1,)](x, y, 64, 1.5, 64, L)
    assert len(seen) == 3
    counted = Counted(scale, monkeypatch)
    scale[(1,)](x, y, 64, 1.5, 64, L)
    assert len(seen) == 3 and counted.count == 0 and len(cuda.launches) == 4


def test_forgotten_choices_are_decided_anew(cuda, monkeypatch):
    x, y = torch.ones(256), torch.zeros(256)
    bound = scale[(1,)]
    bound(x, y, 64, 1.5, 64, L)
    scale.dispatcher.forget()
    counted = Counted(scale, monkeypatch)
    scale[(1,)](x, y, 64, 1.5, 64, L)
    assert counted.count == 1
    assert len(cuda.launches) == 2


def test_forgotten_buffers_are_given_back(cuda):
    x, y = torch.ones(256), torch.zeros(256)
    scale[(1,)](x, y, 64, 1.5, 64, L)
    scale[(1,)](x, y, 64, 1.5, 64, L)
    gone = weakref.ref(scale.dispatcher)
    scale.forget()
    gc.collect()
    assert gone() is None


@pytest.fixture
def current(cuda, monkeypatch):
    """The index of the current one of two devices, as the driver tells C."""
    index = ctypes.c_int(0)

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
    def device(out):
        out[0] = index.value
        return 0

    cuda.devices = 2
    cuda.cuCtxGetDevice = device
    plug_cuda(monkeypatch, cuda)
    monkeypatch.setattr(type(registry().backend("nvidia").device), "count", lambda self: 2)
    yield index


def test_another_current_device_is_not_launched_on_from_c(current, monkeypatch):
    x, y = torch.ones(256), torch.zeros(256)
    scale[(1,)](x, y, 64, 1.5, 64, L)
    decided, launched = Counted(scale, monkeypatch), Counted(scale, monkeypatch, "run")
    scale[(1,)](x, y, 64, 1.5, 64, L)
    assert launched.count == 0
    current.value = 1
    scale[(1,)](x, y, 64, 1.5, 64, L)
    assert (decided.count, launched.count) == (0, 1)


def test_a_prepared_launch_on_one_of_several_devices_is_c(cuda, current, monkeypatch):
    scopes = []
    device = type(registry().backend("nvidia").device)
    monkeypatch.setattr(device, "current", lambda self: current.value)
    monkeypatch.setattr(device, "scope", lambda self, index: scopes.append(index) or nullcontext())
    x, y = torch.ones(256), torch.zeros(256)
    handle = scale.prepare(x, y, 64, 1.5, 64, L, grid=1)
    scopes.clear()
    assert isinstance(handle, types.BuiltinFunctionType)
    for constants in ((64, L, "a"), (64, L), ()):  # which the handle does not look at
        handle(x, y, 64, 1.5, *constants)
    assert not scopes and len(cuda.launches) == 3
    assert len({tuple(launch.parameters) for launch in cuda.launches}) == 1
    current.value = 1
    handle(x, y, 64, 1.5, 64, L)
    assert scopes == [0] and len(cuda.launches) == 4


def test_descriptors_and_tuples(cuda, monkeypatch):
    cuda.sizes = [128, 4, 4, 8, 8, 8, 4, 8]
    tensors = [torch.zeros(64 * n, 64, dtype=torch.float16) for n in (1, 2)]
    out = torch.zeros(1, dtype=torch.int32)

    def launch(tensor, number):
        a = TensorDescriptor.from_tensor(tensor, [64, 64], ROWS)
        described[(1,)](a, (tensor, number), out)
        return cuda.launches[-1].parameters

    first = launch(tensors[0], 5)
    counted = Counted(described, monkeypatch)
    second = launch(tensors[1], 6)
    assert counted.count == 0
    numbers = [
        [int.from_bytes(word, "little") for word in launch[1:]] for launch in (first, second)
    ]
    addresses = [tensor.data_ptr() for tensor in tensors]
    assert numbers[0] == [64, 64, 64, 1, addresses[0], 5, out.data_ptr()]
    assert numbers[1] == [128, 64, 64, 1, addresses[1], 6, out.data_ptr()]
    assert first[0] == FakeCuda.map_bytes(1) and second[0] == FakeCuda.map_bytes(2)
    assert [tensor_map.address for tensor_map in cuda.maps] == addresses


def test_a_field_that_was_assigned_is_seen(cuda):
    cuda.sizes = [128, 4, 4, 8, 8, 8, 4, 8]
    tensor, out = torch.zeros(128, 64, dtype=torch.float16), torch.zeros(1, dtype=torch.int32)
    a = TensorDescriptor.from_tensor(tensor, [64, 64], ROWS)
    described[(1,)](a, (tensor, 5), out)
    a.shape = [64, 64]
    described[(1,)](a, (tensor, 5), out)
    assert cuda.maps[-1].shape == [64, 64]
    a.block_shape = [32, 64]
    compiled = described[(1,)](a, (tensor, 5), out)
    assert cuda.maps[-1].box == [64, 32] and "32, 64" in str(compiled.src.signature)


@pytest.mark.parametrize("rounded", [False, True])
def test_a_descriptor_made_again_has_the_fields_of_the_first(cuda, rounded):
    layout = NVMMASharedLayout(128, 32, 2)
    block = [32, 32]
    first, second = torch.zeros(64, 64), torch.zeros(64, 64)
    descriptors = [
        TensorDescriptor.from_tensor(t, block, layout, "nan", rounded)
        for t in (first, second, second)
    ]
    assert (
        descriptors[1].base is second
        and descriptors[1].layout is layout
        and descriptors[1].block_shape is block
    )
    for field in ("shape", "strides", "padding", "round_f32_to_tf32"):
        assert len({repr(getattr(d, field)) for d in descriptors}) == 1
    descriptors[1].shape = (5, 64)
    assert tuple(descriptors[2].shape) == (64, 64)
    assert type(descriptors[2]) is TensorDescriptor


@pytest.mark.parametrize(
    "tensor, block",
    [
        (torch.zeros(64 * 64 + 1)[1:].view(64, 64), [32, 32]),  # misaligned
        (torch.zeros(64, 65)[:, :64], [32, 32]),  # rows of 260 bytes
        (torch.zeros(64, 64, dtype=torch.float64), [32, 32]),  # elements of another width
        (torch.zeros(64, 64), [32, 33]),
        (torch.zeros(64, 64), [32]),
        (torch.zeros(64, 64)[:, ::2], [32, 32]),
    ],
)
def test_an_illegal_descriptor_stays_illegal_after_a_legal_one(tensor, block):
    layout = NVMMASharedLayout(128, 32, 2)
    for _ in range(2):
        TensorDescriptor.from_tensor(torch.zeros(64, 64), [32, 32], layout)
        with pytest.raises(GluonError):
            TensorDescriptor.from_tensor(tensor, block, layout)


# -- keys --------------------------------------------------------------------------------------------

BASE = {
    dtype: torch.zeros(256, dtype=dtype)
    for dtype in (torch.float32, torch.int32, torch.bfloat16, torch.float8_e5m2, torch.bool)
}
PARAMETER = torch.nn.Parameter(torch.zeros(64))
MATRIX = torch.zeros(64, 64, dtype=torch.float16)
LAYOUTS = [ROWS, NVMMASharedLayout(64, 16, 2), NVMMASharedLayout(32, 16, 2)]
DESCRIPTORS = [
    TensorDescriptor.from_tensor(tensor, block, layout)
    for tensor in (MATRIX, MATRIX.view(torch.bfloat16), torch.zeros(128, 64, dtype=torch.float16))
    for block in ([64, 64], [32, 64])
    for layout in LAYOUTS
]
tensors = st.one_of(
    st.builds(
        lambda dtype, start: BASE[dtype][start:], st.sampled_from(list(BASE)), st.integers(0, 20)
    ),
    st.just(PARAMETER),
    st.just(PARAMETER.data),
)
integers = st.one_of(
    st.sampled_from([0, 1, 16, 17, -16, -1, 2**31 - 16, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1]),
    st.sampled_from([2**32, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 16, -(2**63)]),
    st.integers(-(2**64), 2**64),
)
scalars = st.one_of(integers, st.booleans(), st.floats(), st.none())
tuples = st.lists(st.one_of(tensors, scalars), max_size=3).map(tuple)
values = st.one_of(tensors, scalars, tuples, st.sampled_from(DESCRIPTORS))
constants = st.one_of(scalars, st.sampled_from(["a", "b", L, ROWS, gl.float32, gl.bfloat16]))
CALL = st.tuples(values, tensors, values, integers, integers, constants, values, values, integers)


class Door(Calls):
    """Counts the calls that the engine knows; it asks for the others, too."""

    def __init__(self):
        self.known = 0
        super().__init__("anything", Dispatcher(anything).declared, RULES)

    def run(self, hit, grid, stream, values):
        self.known += 1

    def entry(self, grid, *values, **named):
        pass

    def are_one(self, one, other):
        """Return whether calls are one to C; None where it leaves the first to Python."""
        self.forget()
        named = zip([parameter.name for parameter in self.declared], one)
        if not self.remember((None,) * 6, None, None, False, (), **dict(named)):
            return None
        before = self.known
        self.over(None)(*other[:-1], last=other[-1])
        return self.known > before


def decided(call, dispatcher):
    """Return all that Python compiles a call for, and the classes that C distinguishes; None for one that it refuses."""
    try:
        key = dispatcher.specialize(call, {"target": "nvidia:sm_90"}, running=False).key
    except (GluonError, OverflowError):
        return None
    return classes(call), key


def classes(value):
    """Return the class of a value, and those of the items of a tuple: C distinguishes them."""
    return type(value), [classes(item) for item in value] if isinstance(value, tuple) else []


@pytest.fixture(scope="module")
def teller():
    """Tells of two calls of `anything` whether they are one to C, and what Python decides on each."""
    before = driver._state
    driver._state = driver.Driver(FakeCuda())
    try:
        door, dispatcher = Door(), Dispatcher(anything)
        yield lambda *calls: (door.are_one(*calls), *(decided(call, dispatcher) for call in calls))
    finally:
        driver._state = before


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_calls_that_c_takes_for_one_python_takes_for_one(teller, data):
    one = data.draw(CALL)
    other = list(one)
    for place in data.draw(st.lists(st.integers(0, len(one) - 1), max_size=2)):
        other[place] = data.draw(CALL)[place]
    are_one, in_python, in_python_too = teller(one, tuple(other))
    if None in (are_one, in_python, in_python_too) or teller(tuple(other), one)[0] is None:
        return
    if are_one:
        assert in_python == in_python_too
    elif all(a is b for a, b in zip(one, other) if not isinstance(a, (int, float, torch.Tensor))):
        assert in_python != in_python_too or one[5] is not other[5]


F32 = BASE[torch.float32]
ORDINARY = (F32, F32, 3, 2, 4, 64, (F32, 1, None), DESCRIPTORS[0], 3)


@pytest.mark.parametrize(
    "place, one, other, differ",
    [
        (0, F32, F32[4:], False),
        (0, F32, F32[1:], True),  # misaligned
        (1, F32, F32[1:], False),  # which does not matter to y
        (0, F32, BASE[torch.int32], True),
        (0, F32, PARAMETER, True),
        (2, 3, 5, False),
        (2, 3, 1, True),
        (2, 3, 16, True),
        (2, 3, 2**31, True),
        (2, 3, 3.0, True),
        (2, 1, True, True),
        (3, 3, 16, False),  # do_not_specialize
        (3, 3, 1, False),
        (3, 3, 2**31, True),
        (4, 3, 16, False),  # do_not_specialize_on_alignment
        (4, 3, 1, True),
        (5, 64, 65, True),
        (5, 1, 1.0, True),
        (5, 0.0, -0.0, True),
        (5, "a", "b", True),
        (5, L, ROWS, True),
        (6, (F32, 1), (F32, 1, None), True),
        (6, (F32, 3), (F32, 16), True),
        (6, (F32, (3,)), (F32[1:], (3,)), True),
        (7, None, 3, True),
        (7, DESCRIPTORS[0], DESCRIPTORS[1], True),  # another layout
        (7, DESCRIPTORS[0], DESCRIPTORS[3], True),  # another box
        (7, DESCRIPTORS[0], DESCRIPTORS[6], True),  # another dtype
        (7, DESCRIPTORS[0], DESCRIPTORS[12], False),  # another shape
    ],
)
def test_calls_are_distinguished(teller, place, one, other, differ):
    calls = []
    for value in (one, other):
        call = list(ORDINARY)
        call[place] = value
        calls.append(tuple(call))
    are_one, in_python, in_python_too = teller(*calls)
    assert (are_one, in_python != in_python_too) == (not differ, differ)


def test_c_takes_ordinary_calls(teller):
    assert teller(ORDINARY, ORDINARY)[0]
    large = (*ORDINARY[:2], 2**64, *ORDINARY[3:])
    assert teller(large, large)[0] is None


def test_a_class_of_kernels_that_is_not_initialised_once():
    class Bare(Calls):
        def __init__(self):
            pass

    with pytest.raises(TypeError, match="was not called"):
        Bare().over((1,))
    with pytest.raises(TypeError, match="was called before"):
        Door().__init__()
