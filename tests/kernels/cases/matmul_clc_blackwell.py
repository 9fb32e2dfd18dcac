"""The cases of `gluon_kernels.gemm.blackwell_scheduled`."""

import triton

from gluon_kernels.gemm.blackwell_scheduled import matmul_scheduled
from tests.kernels.cases.matmul_blackwell import ONE, TWO, example, grid


def scheduled_grid(args, config):
    if not config["CONTROL"]:
        return grid(args, config)
    return (-(-args["M"] // config["BLOCK_M"]) * -(-args["N"] // config["BLOCK_N"]),)


def scheduled(name, ctas, sizes, control):
    return example(
        name, ctas, *sizes, kernel=matmul_scheduled, grid=scheduled_grid, CONTROL=control
    )


EXAMPLES = [scheduled("matmul, Blackwell, static tile scheduler", 1, ONE, False)]


if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 8):
    EXAMPLES += [
        scheduled("matmul, Blackwell, launch control", 1, ONE, True),
        scheduled("matmul, Blackwell, launch control, pairs of blocks", 2, TWO, True),
    ]
