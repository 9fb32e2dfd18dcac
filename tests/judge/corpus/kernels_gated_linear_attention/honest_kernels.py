"""honest: the operator of gluon_kernels"""

import torch

import gluon_kernels


def run(q, k, v, decay):
    k = torch.nn.functional.normalize(k.float(), dim=-1).to(k.dtype)
    return gluon_kernels.gated_linear_attention(q, k, v, -decay)
