"""The cases of `gluon_kernels.moe.hopper_gather_scatter`."""

from gluon_kernels.moe.hopper_gather_scatter import matmul_gather_scatter
from tests.kernels.cases.grouped_gemm_hopper import configure
from tests.kernels.cases.matmul_cooperative_hopper import describe, programs
from tests.kernels.cases.matmul_gather_scatter import variants


def operands(args, config):
    b_desc = describe(args["b"], [1, config["BLOCK_K"], config["BLOCK_N"]])
    return tuple(b_desc if name == "b" else value for name, value in args.items())


EXAMPLES = variants(
    "grouped GEMM, Hopper",
    kernel=matmul_gather_scatter,
    operands=operands,
    grid=lambda args, config: (programs(args, 12),),
    config=configure((128, 128, 32), 3, 2),
    large_config=configure((128, 256, 64), 4, 8),
    requires=("nvidia.wgmma", "nvidia.tma"),
)
