"""honest: a product with a vector of ones by torch"""

import torch


def run(x):
    return x @ torch.ones(x.shape[1], dtype=x.dtype, device=x.device)
