"""A persistent product by descriptors of the host, whose blocks a hook of the configuration sets."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


def set_blocks(nargs):
    if not isinstance(nargs["a"], TensorDescriptor):
        return
    nargs["a"].block_shape = [nargs["BM"], nargs["BK"]]
    nargs["b"].block_shape = [nargs["BN"], nargs["BK"]]
    nargs["c"].block_shape = [nargs["BM"], nargs["BN"] // 2]


@triton.jit
def place_of(tile, in_group, rows, GROUP: tl.constexpr):
    first = tile // in_group * GROUP
    size = min(rows - first, GROUP)
    return first + tile % size, tile % in_group // size


@triton.autotune(
    [triton.Config({"BM": 64, "BN": 64, "BK": 32, "GROUP": 2}, num_stages=3, pre_hook=set_blocks)],
    key=["M", "N", "K"],
)
@triton.jit
def product_kernel(
    a, b, c, M, N, K, PROGRAMS,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), rows * columns, PROGRAMS, flatten=True):
        row, column = place_of(tile, GROUP * columns, rows, GROUP)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(K, BK)):
            x = a.load([row * BM, k * BK])
            y = b.load([column * BN, k * BK])
            acc = tl.dot(x, y.T, acc)
        left, right = acc.reshape([BM, 2, BN // 2]).permute(0, 2, 1).split()
        c.store([row * BM, column * BN], left.to(tl.float16))
        c.store([row * BM, column * BN + BN // 2], right.to(tl.float16))


def product():
    a, b = (
        torch.randn(n, 96, generator=torch.Generator().manual_seed(n)).half() for n in (200, 136)
    )
    c = torch.empty(200, 136, dtype=torch.float16)
    tiles = (TensorDescriptor.from_tensor(t, [1, 1]) for t in (a, b, c))
    product_kernel[lambda words: (min(3, triton.cdiv(200, words["BM"])),)](*tiles, 200, 136, 96, 3)
    return c, a.float() @ b.float().T
