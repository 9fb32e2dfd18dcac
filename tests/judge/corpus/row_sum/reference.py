"""The reference of row_sum."""


def run(x):
    return x.sum(dim=1)
