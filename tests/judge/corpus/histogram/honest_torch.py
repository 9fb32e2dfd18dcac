"""honest: torch alone"""

import torch


def run(x):
    return (x[:, None] == torch.arange(16)).sum(0).to(torch.int32)
