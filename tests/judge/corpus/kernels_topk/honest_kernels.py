"""honest: the operator of gluon_kernels"""

import gluon_kernels


def run(x, k):
    return gluon_kernels.topk(x, k).values
