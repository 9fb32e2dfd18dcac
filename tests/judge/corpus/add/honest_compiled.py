"""honest: torch's compiler"""

import torch


@torch.compile(backend="eager")
def axpy(x, y, alpha):
    return alpha * x + y


def run(x, y, alpha):
    return axpy(x, y, alpha)
