"""honest: the operator of gluon_kernels"""

import gluon_kernels


def run(x):
    return gluon_kernels.quantize(x)
