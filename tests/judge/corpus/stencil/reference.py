"""The reference of stencil."""

import torch


def run(x):
    wide = torch.nn.functional.pad(x, (1, 1))
    return wide[:-2] + 2.0 * x + wide[2:]
