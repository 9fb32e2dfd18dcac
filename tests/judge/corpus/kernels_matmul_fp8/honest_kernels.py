"""honest: the operator of gluon_kernels"""

import gluon_kernels


def run(a, b, a_scale, b_scale):
    return gluon_kernels.matmul_fp8(a, b, a_scale, b_scale)
