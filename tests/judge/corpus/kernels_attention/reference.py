"""The reference of kernels_attention."""

import torch


def run(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)
