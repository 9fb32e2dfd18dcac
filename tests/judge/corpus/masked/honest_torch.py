"""honest: torch with another formula"""

import torch


def run(x, keep):
    largest = x.masked_fill(~keep, -1e30).amax(-1, keepdim=True)
    value = torch.where(keep, torch.exp(x - largest), 0.0)
    return value / value.sum(-1, keepdim=True).clamp(min=1e-30)
