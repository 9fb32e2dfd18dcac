"""library.called work.none: hides the library in an operator of its own"""

import torch


@torch.library.custom_op("judged::product", mutates_args=())
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b)


def run(a, b):
    return product(a, b)
