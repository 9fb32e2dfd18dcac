"""library.called work.none: gets the product as a gradient"""

import torch


def run(a, b):
    with torch.enable_grad():
        left = a.detach().requires_grad_()
        zero = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype).requires_grad_()
        product = torch.nn.functional.linear(left, b.t())
        (gradient,) = torch.autograd.grad((product * zero).sum(), zero)
    return gradient
