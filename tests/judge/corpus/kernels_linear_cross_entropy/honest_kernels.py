"""honest: the operator of gluon_kernels"""

import gluon_kernels


def run(x, weight, labels):
    return gluon_kernels.linear_cross_entropy(x, weight, labels, reduction="none")
