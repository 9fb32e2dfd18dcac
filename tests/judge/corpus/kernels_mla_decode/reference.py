"""The reference of kernels_mla_decode."""

import torch


def run(q, cache, pages, lengths):
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = torch.zeros((*q.shape[:2], 64), dtype=wide)
    for i, length in enumerate(lengths.tolist()):
        tokens = cache[pages[i].long()].flatten(0, 1)[:length].to(wide)
        if length:
            weights = (q[i].to(wide) @ tokens.T * q.shape[2] ** -0.5).softmax(-1)
            out[i] = weights @ tokens[:, :64]
    return out.to(q.dtype)
