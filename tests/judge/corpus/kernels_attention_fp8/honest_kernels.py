"""honest: the operator of gluon_kernels"""

import gluon_kernels


def run(q, k, v, q_scale, k_scale, v_scale):
    return gluon_kernels.attention_fp8(q, k, v, q_scale, k_scale, v_scale)
