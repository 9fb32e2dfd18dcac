"""honest: the operator of gluon_kernels"""

import gluon_kernels


def run(x, labels):
    return gluon_kernels.cross_entropy(x, labels, reduction="none")
