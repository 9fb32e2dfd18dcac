"""honest: the operator of gluon_kernels"""

import torch

import gluon_kernels


def run(q, k, v, ends):
    firsts = torch.nn.functional.pad(ends, (1, 0))
    return gluon_kernels.attention_varlen(q, k, v, firsts)
