"""The reference of in_place."""


def run(x, scale):
    x.mul_(scale)
