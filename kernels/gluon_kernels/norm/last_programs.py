"""Sums over the rows of all programs of a launch, by the programs that come last, so that no second launch adds up their parts.

The last program of a group adds up the parts of the group, and the last group's the sums of all groups. None waits for another, and the order of
sums is always the same.
"""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def groups_of(programs, GROUP: gl.constexpr):
    """Return the number of groups of programs."""
    return (programs + GROUP - 1) // GROUP


@gluon.jit
def parts_of(result, before, sums, columns, GROUP: gl.constexpr):
    """Return a pointer to the parts of a result: in `sums`, after those of the result `before` unless that is None; without `sums` the pointer to the result."""
    parts = result
    if sums is not None:
        if result is not None:
            parts = sums
            if before is not None:
                programs = gl.num_programs(0)
                parts += (programs + groups_of(programs, GROUP)).to(gl.int64) * columns
    return parts


@gluon.jit
def add_rows(src, dst, number, columns, GROUP: gl.constexpr, NEAR: gl.constexpr):
    """Store the sums of the columns of `number` rows, at most GROUP, [number, columns] of float32; NEAR divides the columns."""
    layout: gl.constexpr = gl.BlockedLayout([NEAR], [gl.target.warp_size()], [gl.num_warps()], [0])
    WIDTH: gl.constexpr = NEAR * gl.target.warp_size() * gl.num_warps()
    for start in range(0, columns, WIDTH):
        column = start + gl.arange(0, WIDTH, layout)
        there = column < columns
        total = gl.zeros([WIDTH], gl.float32, layout)
        of_row = src
        for i in gl.static_range(GROUP):
            total += gl.load(of_row + column, mask=there & (i < number), other=0.0)
            of_row += columns
        gl.store(dst + column, total.to(dst.dtype.element_ty), mask=there)


@gluon.jit
def add_up(to_weight, to_bias, sums, arrived, columns, GROUP: gl.constexpr, NEAR: gl.constexpr):
    """Store the sums over all programs of what is at `parts_of` them; all of them call it once they have stored theirs.

    Args:
        to_weight, to_bias: the results, [columns]; None for one that nobody asked for.
        sums: float32 [programs + groups, columns] for each of them.
        arrived: int32 [1 + groups], zeros before the launch and after it.
        GROUP: programs of a group.
        NEAR: columns of a thread, which divide `columns`.
    """
    columns = columns // NEAR * NEAR  # which the compiler knows to be a multiple
    programs = gl.num_programs(0)
    groups = groups_of(programs, GROUP)
    group = gl.program_id(0) // GROUP
    first = group * GROUP
    number = gl.minimum(programs - first, GROUP)
    of_weight = parts_of(to_weight, None, sums, columns, GROUP)
    of_bias = parts_of(to_bias, to_weight, sums, columns, GROUP)
    gl.barrier()
    before = gl.atomic_add(arrived + 1 + group, 1, sem="acq_rel", scope="gpu")
    gl.barrier()
    if before == number - 1:
        gl.atomic_add(arrived + 1 + group, 0 - number, sem="relaxed", scope="gpu")
        begin = first.to(gl.int64) * columns
        end = (programs + group).to(gl.int64) * columns
        if to_weight is not None:
            add_rows(of_weight + begin, of_weight + end, number, columns, GROUP, NEAR)
        if to_bias is not None:
            add_rows(of_bias + begin, of_bias + end, number, columns, GROUP, NEAR)
        gl.barrier()
        before = gl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu")
        gl.barrier()
        if before == groups - 1:
            gl.atomic_add(arrived, 0 - groups, sem="relaxed", scope="gpu")
            begin = programs.to(gl.int64) * columns
            if to_weight is not None:
                add_rows(of_weight + begin, to_weight, groups, columns, GROUP, NEAR)
            if to_bias is not None:
                add_rows(of_bias + begin, to_bias, groups, columns, GROUP, NEAR)
