"""The reference of kernels_attention_fp8."""

import torch


def run(q, k, v, q_scale, k_scale, v_scale):
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    scaled = zip((q, k, v), (q_scale, k_scale, v_scale))
    q, k, v = (x.to(wide) * scale[..., None, None].to(wide) for x, scale in scaled)
    result = torch.softmax(q @ k.mT / 8, -1) @ v
    return result if wide == torch.float64 else result.bfloat16()
