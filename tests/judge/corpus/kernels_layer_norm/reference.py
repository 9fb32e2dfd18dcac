"""The reference of kernels_layer_norm."""

import torch


def run(x, weight, bias):
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias)
