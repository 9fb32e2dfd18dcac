"""The reference of kernels_attention_decode."""

import torch


def run(q, k, v, pages, lengths):
    results = []
    for i, length in enumerate(lengths.tolist()):
        keys, values = (
            x[pages[i].long()].flatten(0, 1)[:length].transpose(0, 1).repeat_interleave(2, 0)
            for x in (k, v)
        )
        scores = (
            (q[i][:, None] @ keys.mT).float()
            if q.dtype != torch.float64
            else q[i][:, None] @ keys.mT
        )
        weights = torch.softmax(scores / 8, -1).to(q.dtype)
        results.append((weights @ values)[:, 0] if length else torch.zeros_like(q[i]))
    return torch.stack(results)
