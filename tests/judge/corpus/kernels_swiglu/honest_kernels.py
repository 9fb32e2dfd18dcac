"""honest: the operator of gluon_kernels"""

import gluon_kernels


def run(gate, up):
    return gluon_kernels.swiglu(gate, up)
