"""result.wrong: draws from the library's generator"""

import torch


def run(x, seed):
    return torch.nn.functional.dropout(x, 0.25)
