"""honest: changes its input by torch"""

import torch


def run(x, scale):
    torch.mul(x, scale, out=x)
