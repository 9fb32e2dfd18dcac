"""Functions in branches, and other names of functions of Triton, as libraries for several releases have them."""

import os

import triton
import triton.language as tl

FAST = os.environ.get("PORTED_FAST_OPS", "0") == "1"

if FAST:

    @triton.jit
    def exp2(x):
        return tl.exp2(x)

    @triton.jit
    def log2(x):
        return tl.log2(x)

else:

    @triton.jit
    def exp2(x):
        return tl.exp2(x.to(tl.float32))

    @triton.jit
    def log2(x):
        return tl.log2(x.to(tl.float32))


if not hasattr(tl, "gather"):

    @triton.jit
    def gather(src, index, axis):
        return None

else:
    gather = tl.gather

if hasattr(tl, "make_tensor_descriptor"):
    make_tensor_descriptor = tl.make_tensor_descriptor
else:
    make_tensor_descriptor = tl._experimental_make_tensor_descriptor
