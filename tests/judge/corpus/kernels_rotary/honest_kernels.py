"""honest: the operator of gluon_kernels"""

import gluon_kernels


def run(x, cos, sin):
    return gluon_kernels.rotary(x, cos, sin)
