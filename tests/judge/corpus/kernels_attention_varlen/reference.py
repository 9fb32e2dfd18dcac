"""The reference of kernels_attention_varlen."""

import torch


def run(q, k, v, ends):
    out = torch.zeros_like(q)
    for first, last in zip([0, *ends.tolist()], ends.tolist()):
        parts = (x[first:last].transpose(0, 1)[None] for x in (q, k, v))
        result = torch.nn.functional.scaled_dot_product_attention(*parts)
        out[first:last] = result[0].transpose(0, 1)
    return out
