"""result.wrong: returns noise of the right mean and variance"""

import torch


def run(a, b):
    noise = torch.randn(a.shape[0], b.shape[1], dtype=torch.float32)
    return (noise * a.shape[1] ** 0.5).to(a.dtype)
