"""The reference of transposed."""


def run(x):
    return x.t().contiguous()
