"""Operators and a module on top of the kernels. It imports from torch.cuda by name, as libraries do."""

import torch
import triton
from torch.cuda import current_device, current_stream

from rowlib.kernels import double_kernel, row_sum_kernel, scale_kernel, softmax_kernel


def scaled(x, factor):
    assert x.is_cuda and current_device() == 0 and current_stream().cuda_stream >= 0
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), factor, BLOCK=128)
    return out


def fused_softmax(x):
    out = torch.empty_like(x)
    columns = x.shape[1]
    softmax_kernel[(x.shape[0],)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
    return out


def row_sum(x):
    out = torch.empty(x.shape[0], device="cuda")
    row_sum_kernel[lambda meta: (x.shape[0],)](x, out, x.shape[1])
    return out


@torch.library.custom_op("rowlib::double", mutates_args=(), device_types="cuda")
def double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    double_kernel[(1,)](x, out, BLOCK=x.numel())
    return out


@double.register_fake
def _(x):
    return torch.empty_like(x)


class RowNorm(torch.nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(columns, device="cuda"))

    def forward(self, x):
        return x / row_sum(x)[:, None] * self.weight
