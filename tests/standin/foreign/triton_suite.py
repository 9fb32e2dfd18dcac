"""Plain Triton kernels, as machine code or in Triton's interpreter."""

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

DEVICE = "cuda"


@triton.jit
def add(first, second):
    return first + second


@triton.jit
def fold_kernel(x_ptr, out_ptr, count_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x_ptr + offsets)
    running = tl.associative_scan(values, 0, add) + tl.cumsum(values, 0)
    whole = tl.reduce(values, 0, add)
    largest, index = tl.max(values, 0, return_indices=True)
    tl.atomic_add(count_ptr, 1)
    tl.store(out_ptr + offsets, running + whole + largest + index.to(tl.float32) + tl.sort(values))


def test_reductions_scans_and_atomics():
    x, out = torch.randn(16, device=DEVICE), torch.empty(16, device=DEVICE)
    count = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    fold_kernel[(2,)](x, out, count, BLOCK=16)
    expected = 2 * x.cumsum(0) + x.sum() + x.max() + x.argmax() + x.sort().values
    torch.testing.assert_close(out, expected)
    assert count.item() == 2


@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, K, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, K, BLOCK):
        steps = start + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + rows[:, None] * K + steps[None, :])
        b = tl.load(b_ptr + steps[:, None] * K + columns[None, :])
        total = tl.dot(a, b, total)
    c = total.to(c_ptr.dtype.element_ty)
    tl.store(c_ptr + rows[:, None] * K + columns[None, :], c + c)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_products(dtype):
    a, b = (torch.randn(32, 32, device=DEVICE).to(dtype) for _ in range(2))
    c = torch.empty_like(a)
    grid = lambda meta: (triton.cdiv(32, meta["BLOCK"]), triton.cdiv(32, meta["BLOCK"]))
    kernel = product_kernel[grid](a, b, c, 32, BLOCK=16)
    expected = 2 * (a.float() @ b.float()).to(dtype)
    torch.testing.assert_close(c, expected, rtol=2e-2, atol=2e-2)
    assert 0 < kernel.n_regs < 512 and kernel.n_spills == 0
    assert "ttgir" in kernel.asm and kernel.metadata.shared >= 0


@triton.jit
def narrow_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    larger = tl.where(x > 0.25, x * 3, x - 1.5)
    tl.store(out_ptr + offsets, larger + x.sum() * 0)


def test_narrow_numbers_round_to_the_nearest():
    x = torch.randn(64, device=DEVICE, dtype=torch.bfloat16)
    out = torch.empty_like(x)
    narrow_kernel[(1,)](x, out, BLOCK=64)
    assert torch.equal(out, torch.where(x > 0.25, x * 3, x - 1.5))


def test_warmup_compiles_alone():
    x = torch.randn(64, device=DEVICE, dtype=torch.bfloat16)
    out = torch.zeros_like(x)
    kernel = narrow_kernel.warmup(x, out, BLOCK=64, grid=(1,))
    assert kernel.metadata.num_warps == 4 and not out.any()


@triton.jit
def descriptor_kernel(x, out_ptr, rows, columns, BLOCK: tl.constexpr):
    out = tl.make_tensor_descriptor(out_ptr, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    out.store([0, 0], x.load([0, 0]) + 1)


def test_descriptors_of_host_and_kernel():
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device=DEVICE))
    x, out = torch.randn(16, 16, device=DEVICE), torch.zeros(16, 16, device=DEVICE)
    descriptor_kernel[(1,)](TensorDescriptor.from_tensor(x, [8, 8]), out, 16, 16, BLOCK=8)
    torch.testing.assert_close(out[:8, :8], x[:8, :8] + 1)
    assert not out[8:].any()


@triton.jit
def loop_kernel(x_ptr, n):
    for i in tl.range(0, n):
        tl.store(x_ptr + i, i)


def test_an_operator_of_triton():
    @torch.library.triton_op("triton_suite::count", mutates_args={})
    def count(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        torch.library.wrap_triton(loop_kernel)[(1,)](out, x.numel())
        return out

    x = torch.zeros(5, dtype=torch.int32, device=DEVICE)
    assert count(x).tolist() == [0, 1, 2, 3, 4]


def test_the_driver_answers():
    driver = triton.runtime.driver.active
    target = driver.get_current_target()
    assert target.backend == ("hip" if torch.version.hip else "cuda")
    assert driver.get_active_torch_device() == torch.ones(1, device=DEVICE).device
    assert driver.utils.get_device_properties(0)["max_shared_mem"] > 0
    triton.runtime.driver.reset_active()
    assert triton.runtime.driver.active is driver
