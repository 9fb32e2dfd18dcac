"""The reference of kernels_linear_cross_entropy."""

import torch


def run(x, weight, labels):
    return torch.nn.functional.cross_entropy(x @ weight.mT, labels, reduction="none")
