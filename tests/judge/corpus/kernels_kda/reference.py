"""The reference of kernels_kda."""

import torch


def run(q, k, v, decay, beta):
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    k = torch.nn.functional.normalize(k.to(wide), dim=-1).to(q.dtype)
    state = torch.zeros((*q.shape[:1], q.shape[2], 64, 64), dtype=wide)
    results = []
    for t in range(q.shape[1]):
        key, value = k[:, t].to(wide), v[:, t].to(wide)
        state = state * torch.exp(-decay[:, t].to(wide))[..., None]
        old = torch.einsum("bhkv,bhk->bhv", state, key)
        rate = beta[:, t].to(wide)[..., None]
        state = state + torch.einsum("bhk,bhv->bhkv", key, rate * (value - old))
        results.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t].to(wide)) / 8)
    return torch.stack(results, 1).to(q.dtype)
