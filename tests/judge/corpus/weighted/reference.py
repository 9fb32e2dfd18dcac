"""The reference of weighted."""


def run(x, weight):
    return x @ weight
