"""The reference of kernels_ssd."""

import torch


def run(x, dt, a, b, c):
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    state = torch.zeros((x.shape[0], x.shape[2], b.shape[3], x.shape[3]), dtype=wide)
    results = []
    for t in range(x.shape[1]):
        step = dt[:, t].to(wide)
        state = state * torch.exp(-step * a.to(wide))[..., None, None]
        change = torch.einsum("bn,bhp->bhnp", b[:, t, 0].to(wide), x[:, t].to(wide))
        state = state + step[..., None, None] * change
        results.append(torch.einsum("bhnp,bn->bhp", state, c[:, t, 0].to(wide)))
    return torch.stack(results, 1).to(x.dtype)
