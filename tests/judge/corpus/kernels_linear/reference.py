"""The reference of kernels_linear."""

import torch


def run(x, weight, bias):
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    product = x.to(wide) @ weight.to(wide).mT + bias.to(wide)
    return torch.relu(product).to(x.dtype)
