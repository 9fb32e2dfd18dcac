"""Programs that take the work of others which have not begun: cluster launch control."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import clc, mbarrier
from tests.programs import Launch


@gluon.jit
def marked(out):
    answer = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    answered = mbarrier.allocate_mbarrier()
    mbarrier.init(answered, count=1)
    work = gl.program_id(0)
    asked = 0
    more = True
    while more:
        mbarrier.expect(answered, 16)
        clc.try_cancel(answer, answered)
        gl.atomic_add(out + work, work + 1)
        mbarrier.wait(answered, asked & 1)
        asked += 1
        taken = clc.load_result(answer)
        more = taken.is_canceled()
        if more:
            work = taken.program_id(0)
    mbarrier.invalidate(answered)


def data(rng):
    return [np.zeros(50, np.int32)], {"out": np.arange(1, 51)}


LAUNCHES = [Launch(marked, "sm_100", data, grid=(50,), since=(3, 8))]
