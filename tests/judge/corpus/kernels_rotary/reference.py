"""The reference of kernels_rotary."""

import torch


def run(x, cos, sin):
    wide = torch.promote_types(x.dtype, torch.float32)
    left, right = x.to(wide).chunk(2, dim=-1)
    cos, sin = cos[:, None].to(wide), sin[:, None].to(wide)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1).to(x.dtype)
