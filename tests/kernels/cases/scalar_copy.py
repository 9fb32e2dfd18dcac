"""Copy one number: the smallest kernel."""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example


@gluon.jit
def scalar_copy(src, dst):
    gl.store(dst, gl.load(src))


EXAMPLES = [
    Example(
        name="scalar copy",
        kernel=scalar_copy,
        arguments=lambda new, large: {"src": new.random(1), "dst": new.empty(1)},
        grid=lambda args, config: (1,),
        config=lambda warp_size: {"num_warps": 1},
        reference=lambda args: args["src"],
        output="dst",
    )
]
