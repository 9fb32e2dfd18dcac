"""honest: a view, and torch"""

import torch


def run(x):
    return torch.einsum("mn->m", x)
