"""Attention pooling, sixteen slots over strips of an image: CDNA3, tiles of three and four dimensions that
become operands by permuting and reshaping, softmax along a dimension."""

import ml_dtypes
import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd.cdna3 import mfma
from tests.programs import Launch

HIGH, ACROSS = gl.constexpr(4), gl.constexpr(8)  # pixels of a patch
SLOTS = gl.constexpr(16)
SUMS = gl.constexpr(gl.amd.AMDMFMALayout(3, [16, 16, 16], True, [1, 4]))
# Strips, lines of a channel, patches of a strip, pixels of a line.
PIXELS = gl.constexpr(gl.BlockedLayout([1, 1, 1, 8], [1, 4, 16, 1], [1, 4, 1, 1], [3, 2, 1, 0]))
# Strips, features, patches of a strip.
FEATURES = gl.constexpr(gl.BlockedLayout([1, 1, 8], [2, 16, 2], [1, 4, 1], [2, 1, 0]))
ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 16], warps_per_cta=[4, 1], order=[1, 0]))


@gluon.constexpr_function
def axis(layout, kept):
    """The layout of indices along one dimension of `layout`."""
    for other in reversed(range(layout.rank)):
        if other != kept:
            layout = gl.SliceLayout(other, layout)
    return layout


@gluon.jit
def pooled(
    slots,
    image,
    features,
    chosen,
    out,
    sharpness,
    STRIPS: gl.constexpr,
    PATCHES: gl.constexpr,
    CHANNELS: gl.constexpr,
    WIDTH: gl.constexpr,
):
    """The lines of `image` are stored by channel, `features` by strip, feature and patch."""
    LINES: gl.constexpr = HIGH * CHANNELS
    SIZE: gl.constexpr = LINES * ACROSS
    me = gl.program_id(0)
    strip = gl.load(chosen + me * STRIPS + gl.arange(0, STRIPS, layout=axis(PIXELS, 0)))
    line = gl.arange(0, LINES, layout=axis(PIXELS, 1))
    patch = gl.arange(0, PATCHES, layout=axis(PIXELS, 2))
    pixel = gl.arange(0, ACROSS, layout=axis(PIXELS, 3))
    lines = strip[:, None, None, None] * LINES + line[None, :, None, None]
    along = patch[None, None, :, None] * ACROSS + pixel[None, None, None, :]
    tile = gl.load(image + lines * (PATCHES * ACROSS) + along)
    patches = gl.reshape(gl.permute(tile, [1, 3, 0, 2]), [SIZE, STRIPS * PATCHES])

    wants = gl.arange(0, SLOTS, layout=gl.SliceLayout(1, ROWS))[:, None] * SIZE
    wants = gl.load(
        slots
        + me * SLOTS * SIZE
        + wants
        + gl.arange(0, SIZE, layout=gl.SliceLayout(0, ROWS))[None, :]
    )
    logits = mfma(
        gl.convert_layout(wants, gl.DotOperandLayout(0, SUMS, 4)),
        gl.convert_layout(patches, gl.DotOperandLayout(1, SUMS, 4)),
        gl.zeros([SLOTS, STRIPS * PATCHES], gl.float32, SUMS),
    )
    logits = logits * (sharpness / 0.6931472)
    powers = gl.exp2(logits - gl.max(logits, axis=1)[:, None])

    strip = gl.load(chosen + me * STRIPS + gl.arange(0, STRIPS, layout=axis(FEATURES, 0)))
    feature = gl.arange(0, WIDTH, layout=axis(FEATURES, 1))
    patch = gl.arange(0, PATCHES, layout=axis(FEATURES, 2))
    features += strip[:, None, None] * (WIDTH * PATCHES)
    tile = gl.load(features + feature[None, :, None] * PATCHES + patch[None, None, :])
    values = gl.reshape(gl.permute(tile, (0, 2, 1)), (STRIPS * PATCHES, WIDTH))
    sums = mfma(
        gl.convert_layout(powers.to(gl.bfloat16), gl.DotOperandLayout(0, SUMS, 4)),
        gl.convert_layout(values, gl.DotOperandLayout(1, SUMS, 4)),
        gl.zeros([SLOTS, WIDTH], gl.float32, SUMS),
    )
    sums = sums / gl.sum(powers, axis=1)[:, None]
    down = (me * SLOTS + gl.arange(0, SLOTS, layout=gl.SliceLayout(1, SUMS)))[:, None] * WIDTH
    across = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, SUMS))
    gl.store(out + down + across[None, :], sums.to(out.type.element_ty))


def data(rng):
    bf16 = ml_dtypes.bfloat16
    strips, patches, channels, width = 20, 16, 4, 128
    slots = rng.standard_normal((2, 16, 128)).astype(bf16)
    image = rng.standard_normal((strips, 4, channels, patches, 8)).astype(bf16)
    features = rng.standard_normal((strips, width, patches)).astype(bf16)
    chosen = rng.permutation(strips)[:16].reshape(2, 8).astype(np.int32)
    wanted = []
    for mine, of_me in zip(slots.astype(float), chosen):
        seen = image[of_me].astype(float).transpose(0, 3, 1, 2, 4).reshape(8 * patches, 128)
        powers = np.exp(mine @ seen.T * 0.1)
        values = features[of_me].astype(float).swapaxes(1, 2).reshape(8 * patches, width)
        wanted.append(powers @ values / powers.sum(1, keepdims=True))
    out = np.zeros((2, 16, width), bf16)
    return [slots, image, features, chosen, out, 0.1], {"out": np.stack(wanted)}


LAUNCHES = [
    Launch(
        pooled,
        "gfx942",
        data,
        grid=(2,),
        constants={"STRIPS": 8, "PATCHES": 16, "CHANNELS": 4, "WIDTH": 128, "num_warps": 4},
        tolerance=5e-3,
    )
]
