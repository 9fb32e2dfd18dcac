"""Child process of the `oracle` fixture: layout calls in on stdin, their linear layouts out.

One line of JSON per request. The process ends without cleaning up, so that binding libraries do
not report what is still alive; it may also abort, which the parent reads as an answer.
"""

from __future__ import annotations

import json
import os
import sys

from triton._C.libtriton import amd, gluon_ir, ir, nvidia

# The compiler prints on its own; answers go to a descriptor that nothing else writes to.
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

context = ir.context()
ir.load_dialects(context)
nvidia.load_dialects(context)
amd.load_dialects(context)
try:
    builder = gluon_ir.GluonOpBuilder(context)
except TypeError:
    builder = gluon_ir.GluonOpBuilder(context, "sm_90")


def make(node):
    if isinstance(node, dict):
        return getattr(builder, node["call"])(*[make(arg) for arg in node["args"]])
    return node


FIELDS = {
    "register": "reg_bases",
    "lane": "lane_bases",
    "warp": "warp_bases",
    "block": "block_bases",
    "offset": "offset_bases",
}

for request in json.load(sys.stdin):
    try:
        linear = builder.to_linear_layout(make(request["layout"]), request["shape"])
        answer = {k: getattr(linear, f) for k, f in FIELDS.items() if hasattr(linear, f)}
    except Exception as error:
        answer = {"error": repr(error)}
    out.write(json.dumps(answer) + "\n")
    out.flush()
os._exit(0)
