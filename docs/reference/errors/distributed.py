import sys
from unittest import mock

import numpy as np
from show_error import show_error

from gluon_core import distributed, errors


def ranks(body):
    return distributed.simulate(body, 2, "sim:hopper")


# -- GroupError: initialize torch.distributed in every process, or simulate ranks
show_error(errors.GroupError, distributed.group)
#> GroupError: torch.distributed is not initialized. Call torch.distributed.init_process_group first, or simulate ranks with gluon_core.distributed.simulate.

# -- NotSymmetricError: make the tensor with `group.empty`, on all ranks
show_error(errors.NotSymmetricError, lambda: ranks(lambda group: group.symmetric(np.zeros(4))))
#> NotSymmetricError: tensor: the tensor is not in symmetric memory. Make it with group.empty(shape, dtype).

# -- RankMismatchError: let every rank make the same collective calls
show_error(errors.RankMismatchError, lambda: ranks(lambda group: group.empty(4 + group.rank, np.int32)))
#> RankMismatchError: empty: ranks bring different values; expected ((4,), "<class 'numpy.int32'>"), as on rank 0, got ((5,), "<class 'numpy.int32'>") on rank 1

# -- RankBuildError: run one installation and one checkout on all ranks
class Kernel:
    def __init__(self, text):
        self.__name__, self.cache_key = "scale", text


show_error(errors.RankBuildError, lambda: ranks(lambda group: group.check(Kernel(f"text {group.rank}"))))
#> RankBuildError: kernel scale: ranks are of different builds; expected ..., as on rank 0, got ... on rank 1. Run one installation and one checkout on all ranks.

# -- SymmetricMemoryError: install torch 2.6 or newer with CUDA or ROCm, or simulate ranks
with mock.patch.dict(sys.modules, {"torch": None}):  # as where it is not installed
    show_error(errors.SymmetricMemoryError, distributed.group)
#> SymmetricMemoryError: torch is not installed. Install it, or simulate ranks.

# -- DistributedError: it is the base of all of these; catch it where any of them shall be caught
try:
    ranks(lambda group: group.symmetric(np.zeros(4)))
except errors.DistributedError as error:
    print(type(error).__name__)
#> NotSymmetricError
