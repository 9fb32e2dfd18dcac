"""honest: a strided view, copied by torch"""

import torch


def run(x):
    return x.mT.clone(memory_format=torch.contiguous_format)
