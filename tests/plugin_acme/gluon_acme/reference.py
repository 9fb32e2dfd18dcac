"""What the Anvil's op means, in NumPy. Named like the builder's method."""

import numpy as np


def acme_add_clamped(a, b, low, high):
    return np.minimum(np.maximum(a + b, low), high)


acme_add_clamped.results = lambda a, b, low, high: a.type
