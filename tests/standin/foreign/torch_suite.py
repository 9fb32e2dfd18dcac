"""Host code that asks torch for its device in all the ways that libraries do."""

import inspect
import io
import pickle
import threading
import types
import warnings

import numpy
import pytest
import torch
from torch.cuda import Event as ImportedEvent
from torch.cuda import is_available as imported_is_available


def test_each_function_is_one_object_with_its_own_signature():
    import torch._dynamo  # noqa: F401  # it refuses functions that are the same object

    named = ("synchronize", "set_device", "empty_cache", "init", "memory_allocated", "ipc_collect")
    functions = [getattr(torch.cuda, name) for name in named]
    assert len(set(map(id, functions))) == len(named)
    for name, function in zip(named, functions):
        assert function.__name__ == name and isinstance(function, types.FunctionType)
    assert list(inspect.signature(torch.cuda.synchronize).parameters) == ["device"]
    assert "peak" in torch.cuda.max_memory_allocated.__doc__


def test_names_that_were_imported_before_answer_too():
    assert imported_is_available()
    assert isinstance(torch.cuda.Event(), ImportedEvent)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend):
    def body(x, weight):
        return (
            torch.sin(x @ weight) + torch.ones(x.shape, device="cuda") + torch.cuda.current_device()
        )

    x, weight = torch.randn(4, 4, device="cuda"), torch.randn(4, 4).cuda()
    torch._dynamo.reset()
    compiled = torch.compile(body, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x, weight), body(x, weight))


def test_events_keep_their_rules():
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(ValueError, match="recorded"):
        first.elapsed_time(second)
    first.record()
    second.record()
    assert first.elapsed_time(second) > 0 > second.elapsed_time(first)
    assert second.query()
    with pytest.raises(ValueError, match="enable_timing"):
        first.elapsed_time(torch.cuda.Event())


def test_streams():
    stream = torch.cuda.Stream(priority=-1)
    assert stream.priority == -1 and stream != torch.cuda.default_stream()
    assert isinstance(stream, torch.Stream) and torch.accelerator.current_stream() != stream
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
        torch.ones(3, device="cuda").record_stream(stream)
        stream.record_event().synchronize()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.ExternalStream(123).cuda_stream == 123
    torch.cuda.set_stream(stream)
    assert torch._C._cuda_getCurrentRawStream(0) == stream.cuda_stream
    torch.cuda.set_stream(torch.cuda.default_stream())


def test_memory_is_counted():
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    large = torch.empty(1 << 18, device="cuda")
    view = large[5:]
    host = torch.empty(1 << 18)
    assert torch.cuda.memory_allocated() - before == 1 << 20
    free, total = torch.cuda.mem_get_info()
    assert total - free == torch.cuda.memory_allocated()
    del large
    assert torch.cuda.memory_allocated() - before == 1 << 20  # the view holds it
    del view, host
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= before + (1 << 20)
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.peak"] == torch.cuda.max_memory_allocated()
    assert "Peak Usage" in torch.cuda.memory_summary()
    address = torch.cuda.caching_allocator_alloc(1000)
    assert torch.cuda.memory_allocated() == before + 1024
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == before


def test_device_and_properties():
    properties = torch.cuda.get_device_properties("cuda:0")
    assert (properties.major, properties.minor) == torch.cuda.get_device_capability()
    assert properties.name == torch.cuda.get_device_name(torch.device("cuda", 0))
    assert properties.multi_processor_count > 0 and properties.total_memory > 1 << 30
    assert properties.L2_cache_size > 1 << 20
    if torch.version.hip:
        assert properties.gcnArchName.startswith("gfx") and torch.version.cuda is None
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.get_device_properties(1)
    with torch.cuda.device(0):
        assert torch.cuda.current_device() == 0
    assert torch.device("cuda").type == "cuda"
    assert torch.accelerator.current_accelerator().type == "cuda"


def test_copies_are_copies():
    host = torch.randn(4)
    there = host.cuda()
    there.add_(1)
    assert not torch.equal(there, host)
    assert there.is_cuda and not host.is_cuda and (there + 1).is_cuda
    assert there.cuda() is there and there.to("cuda:0") is there and there.to(0) is there
    for back in (there.cpu(), there.to("cpu"), there.to(device="cpu")):
        back.zero_()
        assert not back.is_cuda and back.get_device() == -1 and there.abs().sum() > 0
    array = numpy.zeros(3, numpy.float32)
    torch.from_numpy(array).cuda().add_(1)
    assert not array.any()
    unknown = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(torch.ones(3)))
    unknown.cpu().zero_()
    assert unknown.is_cuda and unknown.all()
    assert torch.eye(2).to_sparse().cuda().cpu().is_sparse
    module = torch.nn.Linear(2, 2)
    weight = module.weight.data
    module.cuda().weight.data.zero_()
    assert weight.abs().sum() > 0


def test_factories():
    for one in (
        torch.empty(2, device="cuda"),
        torch.zeros(2, device=torch.device("cuda", 0)),
        torch.tensor([1], device="cuda:0"),
        torch.arange(3, device="cuda"),
        torch.empty_like(torch.ones(2), device="cuda"),
    ):
        assert one.is_cuda
    with torch.device("cuda"):
        assert torch.ones(2).is_cuda
    torch.set_default_device("cuda")
    assert torch.ones(2).is_cuda and torch.get_default_device().type == "cuda"
    torch.set_default_device(None)
    assert not torch.ones(2).is_cuda and torch.get_default_device().type == "cpu"


def test_threads_see_the_device():
    results = []
    thread = threading.Thread(target=lambda: results.append(torch.ones(2, device="cuda")))
    thread.start()
    thread.join()
    assert results[0].is_cuda


def test_random_numbers():
    torch.cuda.manual_seed(3)
    state = torch.cuda.get_rng_state()
    first = torch.rand(4, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(first, torch.rand(4, device="cuda"))
    with torch.random.fork_rng(devices=[0]):
        torch.rand(4, device="cuda")
    generator = torch.Generator(device="cuda").manual_seed(1)
    assert isinstance(generator, torch.Generator)
    torch.rand(2, device="cuda", generator=generator)


def test_mixed_precision():
    module = torch.nn.Linear(4, 4).to("cuda")
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    before = module.weight.detach().clone()
    with torch.autocast("cuda", dtype=torch.float16):
        assert torch.is_autocast_enabled("cuda")
        out = module(torch.ones(2, 4, device="cuda"))
    assert out.dtype == torch.float16 and not torch.is_autocast_enabled("cuda")
    scaler.scale(out.float().sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.is_enabled() and not torch.equal(before, module.weight)


def test_operators_for_the_device():
    @torch.library.custom_op("torch_suite::square", mutates_args=(), device_types="cuda")
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    x = torch.randn(4, device="cuda")
    torch.testing.assert_close(square(x), x * x)
    library = torch.library.Library("torch_suite_old", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + 100, "CPU")
    library.impl("twice", lambda x: x * 2, "CUDA")
    torch.testing.assert_close(torch.ops.torch_suite_old.twice(x), x * 2)


def test_files_and_loaders():
    x = torch.randn(4, device="cuda")
    assert torch.equal(pickle.loads(pickle.dumps(x)), x)
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, map_location="cuda"), x)
    data = torch.utils.data.TensorDataset(torch.arange(8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = list(torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True))
    assert [one.cuda(non_blocking=True).sum().item() for (one,) in batches] == [6, 22]


def test_ranges_and_flags():
    depth = torch.cuda.nvtx.range_push("outer")
    with torch.cuda.nvtx.range("inner"):
        pass
    assert torch.cuda.nvtx.range_pop() == depth - 1
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.enable_flash_sdp(True)
