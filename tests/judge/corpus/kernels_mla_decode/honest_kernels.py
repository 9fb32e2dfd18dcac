"""honest: the operator of gluon_kernels"""

import gluon_kernels


def run(q, cache, pages, lengths):
    return gluon_kernels.mla_decode(q, cache, pages, lengths, latent=64)
