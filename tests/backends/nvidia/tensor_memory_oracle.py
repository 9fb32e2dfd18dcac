"""Child process of the tests of tensor memory: the answers of Triton's own Gluon, a line per request.

It ends without cleaning up, so that binding libraries do not report what is still alive.
"""

from __future__ import annotations

import json
import os
import sys

import triton
from triton._C.libtriton import gluon_ir, ir, nvidia
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell

VERSION = tuple(int(n) for n in triton.__version__.split(".")[:2])
DTYPES = {8: gl.int8, 16: gl.float16, 32: gl.float32}

# The compiler prints on its own; answers go to a descriptor that nothing else writes to.
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
context = ir.context()
ir.load_dialects(context)
nvidia.load_dialects(context)
try:
    builder = gluon_ir.GluonOpBuilder(context)
except TypeError:
    builder = gluon_ir.GluonOpBuilder(context, "sm100")


def layout_of(node):
    old = VERSION < (3, 8)
    cluster = {"cta_split_num": node["split"]} if old else {"cga_layout": node["cga_layout"]}
    if node["class"] == "RubinTensorMemoryScalesLayout":
        from triton.experimental.gluon.language.nvidia import rubin

        order = node["block_rep_order"]
        return rubin.TensorMemoryScalesLayout(block_rep_order=order, **cluster)
    if node["class"] == "TensorMemoryScalesLayout":
        return blackwell.TensorMemoryScalesLayout(**cluster)
    rest = {} if old else {"fp4_padded": node["fp4_padded"]}
    return blackwell.TensorMemoryLayout(
        node["block"], node["col_stride"], two_ctas=node["two_ctas"], **cluster, **rest
    )


def answer(request):
    layout, shape = layout_of(request["layout"]), request["shape"]
    if "linear" in request:
        linear = builder.to_linear_layout(layout._to_ir(builder), shape)
        return [linear.rows, linear.cols]
    dtype, warps, variant = DTYPES[request["bits"]], request["warps"], request["variant"]
    if VERSION < (3, 8):
        linear = blackwell.get_tmem_reg_layout(dtype, shape, layout, warps, variant, request["cga"])
    else:
        kind = blackwell.tensor_memory_descriptor_type(dtype, shape, layout, shape)
        linear = kind.get_reg_layout(warps, variant)
    return [linear.reg_bases, linear.lane_bases, linear.warp_bases, linear.block_bases]


for request in json.load(sys.stdin):
    try:
        line = answer(request)
    except Exception as error:
        line = {"error": str(error)}
    out.write(json.dumps(line) + "\n")
    out.flush()
os._exit(0)
