"""honest: the operator of gluon_kernels"""

import gluon_kernels


def run(x, weight, epsilon, y):
    y.copy_(gluon_kernels.rms_norm(x, weight, epsilon))
