"""Score the tokens of documents on scattered pages against those of a query: fp8 operands that CDNA3's
buffer loads bring straight into the layouts of the matrix instruction, through a table of pages."""

import ml_dtypes
import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd.cdna3 import buffer_load, buffer_store, mfma
from tests.programs import Launch

SUMS = gl.constexpr(
    gl.amd.AMDMFMALayout(
        version=3, instr_shape=[16, 16, 32], transposed=False, warps_per_cta=[1, 4]
    )
)
LEFT = gl.constexpr(gl.DotOperandLayout(0, SUMS, 16))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, SUMS, 16))
WORDS = gl.constexpr(gl.SliceLayout(1, SUMS))
TOKENS = gl.constexpr(gl.SliceLayout(0, SUMS))


@gluon.jit
def matched(
    query,
    cache,
    scales,
    importance,
    lengths,
    pages,
    best,
    score,
    page_pitch,
    pitch,
    WORD_COUNT: gl.constexpr,
    WIDTH: gl.constexpr,
    PAGE: gl.constexpr,
    STEP: gl.constexpr,
):
    """`best`: of each token, its largest match with a word; `score`: the sum over the words of their
    largest match with a token, by importance."""
    document = gl.program_id(0)
    words = gl.arange(0, WORD_COUNT, layout=gl.SliceLayout(1, LEFT))
    inner = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LEFT))
    q = buffer_load(query + document * WORD_COUNT * WIDTH, words[:, None] * WIDTH + inner[None, :])
    inner = gl.arange(0, WIDTH, layout=gl.SliceLayout(1, RIGHT))[:, None]
    length = gl.load(lengths + document)
    best_match = gl.full([WORD_COUNT], 0.0, gl.float32, WORDS)
    for start in range(0, length, STEP):
        token = start + gl.arange(0, STEP, layout=gl.SliceLayout(0, RIGHT))
        there = token < length
        page = buffer_load(pages, document * page_pitch + token // PAGE, mask=there, other=0)
        where = page * PAGE + token % PAGE
        d = buffer_load(cache, where[None, :] * WIDTH + inner, mask=there[None, :])
        where, token = gl.convert_layout(where, TOKENS), gl.convert_layout(token, TOKENS)
        scale = buffer_load(scales, where, mask=token < length, other=0.0)
        match = mfma(q, d, gl.zeros([WORD_COUNT, STEP], gl.float32, SUMS)) * scale[None, :]
        buffer_store(
            gl.reduce(match, 0, larger), best, document * pitch + token, mask=token < length
        )
        match = gl.maximum(match, 0.0)
        best_match = larger(best_match, gl.reduce(match, 1, larger))
    weight = gl.load(importance + document * WORD_COUNT + gl.arange(0, WORD_COUNT, layout=WORDS))
    gl.store(score + document, gl.sum(best_match * weight, 0))


@gluon.jit
def larger(one, other):
    return gl.where(one > other, one, other)


def data(rng):
    fp8 = ml_dtypes.float8_e4m3fnuz
    documents, words, width, page, total = 2, 32, 128, 16, 640
    query = rng.standard_normal((documents, words, width)).astype(fp8)
    cache = rng.standard_normal((total, width)).astype(fp8)
    scales = rng.random(total).astype(np.float32)
    importance = rng.random((documents, words)).astype(np.float32)
    lengths = np.array([200, 77], np.int32)
    pages = rng.permutation(total // page)[:32].reshape(documents, 16).astype(np.int32)
    best, wanted = np.zeros((documents, 256), np.float32), np.zeros((documents, 256))
    scores = []
    for i, length in enumerate(lengths):
        places = np.add.outer(pages[i] * page, np.arange(page)).ravel()[:length]
        match = (query[i].astype(float) @ cache[places].astype(float).T) * scales[places]
        wanted[i, :length] = match.max(0)
        scores.append(importance[i].astype(float) @ match.max(1, initial=0))
    arguments = [
        query,
        cache,
        scales,
        importance,
        lengths,
        pages,
        best,
        np.zeros(documents, np.float32),
    ]
    return [*arguments, 16, 256], {"best": wanted, "score": np.array(scores)}


LAUNCHES = [
    Launch(
        matched,
        "gfx942",
        data,
        grid=(2,),
        constants={"WORD_COUNT": 32, "WIDTH": 128, "PAGE": 16, "STEP": 128, "num_warps": 4},
        tolerance=1e-6,
    )
]
