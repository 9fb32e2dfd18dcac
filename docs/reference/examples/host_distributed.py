import numpy as np

import gluon_core as gluon
from gluon_core import distributed
from gluon_core import language as gl

ROW = gl.BlockedLayout([1], [32], [1], [0])


@gluon.jit
def scale(x, out, factor):
    i = gl.arange(0, 32, ROW)
    gl.store(out + i, factor * gl.load(x + i))


# -- gluon.distributed.simulate, gluon.distributed.Group, gluon.distributed.Symmetric, gluon.distributed.Multicast: several ranks on a CPU, and memory that all of them reach
def body(group: distributed.Group):
    x = group.empty(32, np.float32)
    scale[(1,)](np.full(32, group.rank + 1, np.float32), x.local, 10.0, num_warps=1)
    group.barrier()
    own = np.empty(32, np.float32)
    scale[(1,)](x.peers[1 - group.rank], own, 1.0, num_warps=1)
    every = group.multicast(x)  # for gl.nvidia.hopper.multimem
    kinds = isinstance(x, distributed.Symmetric), isinstance(every, distributed.Multicast)
    return group.rank, group.world, own[0].item(), kinds


for line in distributed.simulate(body, world=2, target="sim:hopper"):
    print(line)
#> (0, 2, 20.0, (True, True))
#> (1, 2, 10.0, (True, True))

# -- gluon.distributed.group, gluon.distributed.symmetric: the ranks of torch.distributed's process group; memory of all of them
for ask in (distributed.group, lambda: distributed.symmetric(np.zeros(32, np.float32))):
    try:
        ask()
    except gluon.errors.GroupError as error:
        print(error.message, error.remedy, sep="; ")
#> torch.distributed is not initialized; Call torch.distributed.init_process_group first, or simulate ranks with gluon_core.distributed.simulate.
#> torch.distributed is not initialized; Call torch.distributed.init_process_group first, or simulate ranks with gluon_core.distributed.simulate.
