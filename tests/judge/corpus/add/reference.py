"""The reference of add."""


def run(x, y, alpha):
    return alpha * x + y
