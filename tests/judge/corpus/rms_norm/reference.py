"""The reference of rms_norm."""

import torch


def run(x, weight, epsilon):
    wide = x.double() if x.dtype == torch.float64 else x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * scale * weight.to(wide.dtype)).to(x.dtype)
