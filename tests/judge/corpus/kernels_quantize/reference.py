"""The reference of kernels_quantize."""

import torch


def run(x):
    largest = x.abs().amax(-1)
    scale = torch.where(largest > 0, largest / 448, 1.0).to(torch.float32)
    return (x / scale[:, None]).to(torch.float8_e4m3fn), scale
