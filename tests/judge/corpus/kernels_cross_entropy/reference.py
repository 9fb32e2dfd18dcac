"""The reference of kernels_cross_entropy."""

import torch


def run(x, labels):
    return torch.nn.functional.cross_entropy(x, labels, reduction="none")
