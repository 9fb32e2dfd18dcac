"""library.called: calls the library's product of integers"""

import torch


def run(a, b):
    return torch._int_mm(a, b)
