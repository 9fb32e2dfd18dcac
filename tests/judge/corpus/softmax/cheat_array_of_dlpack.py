"""library.host: reads the values through the protocol of arrays"""

import numpy
import torch


def run(x):
    source = numpy.from_dlpack(x.contiguous()).astype("float64")
    if not source.size:
        return torch.empty_like(x)
    power = numpy.exp(source - source.max(-1, keepdims=True))
    return torch.from_dlpack(power / power.sum(-1, keepdims=True)).to(x.dtype)
