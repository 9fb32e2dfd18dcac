"""library.called: calls an operator of another namespace of torch"""

import torch


def run(a, b):
    return torch.ops.mkldnn._linear_pointwise(a, b.t().contiguous(), None, "none", [], "")
