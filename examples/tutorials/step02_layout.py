"""Step 2: the layout decides the instructions. Four neighbours in a thread are one load of 16 bytes.

New: `size_per_thread`, the module of a kernel, pictures of layouts.
"""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def copy(x, out, BLOCK: gl.constexpr, layout: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    gl.store(out + offsets, gl.load(x + offsets))


LAYOUTS = {
    "one each": gl.BlockedLayout([1], [32], [4], [0]),
    "four each": gl.BlockedLayout([4], [32], [4], [0]),
}


def launch(x, out, BLOCK=1024, layout=LAYOUTS["four each"], **options):
    return copy[(out.shape[0] // BLOCK,)](x, out, BLOCK, layout, **options)


def main():
    for name, layout in LAYOUTS.items():
        compiled = gluon.compile(
            copy,
            target="sm_90",
            signature={"x": "*fp32:16", "out": "*fp32:16"},
            constexprs={"BLOCK": 1024, "layout": layout},
        )
        ptx = compiled.asm["ptx"]
        wide, narrow = ptx.count("ld.global.v4"), ptx.count("ld.global.b32")
        print(f"{name}: {wide} loads of 16 bytes, {narrow} loads of 4")
    # LAYOUTS["four each"].show([512]).save("copy.svg") draws the elements of each thread.
    print(LAYOUTS["four each"].show([512]))


if __name__ == "__main__":
    main()
