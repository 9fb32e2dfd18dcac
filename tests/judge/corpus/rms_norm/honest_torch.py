"""honest: torch, written into the output"""

import torch


def run(x, weight, epsilon, y):
    y.copy_(torch.nn.functional.rms_norm(x.float(), (x.shape[1],), weight.float(), epsilon))
