"""The reference of kernels_topk."""


def run(x, k):
    return x.topk(k).values
