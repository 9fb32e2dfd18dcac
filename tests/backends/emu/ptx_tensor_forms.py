"""Copies by TMA: boxes of tensors, ranges of bytes, multicasts and reductions, each as a kernel of one cluster.

`python -m tests.backends.emu.measure_ptx FILE.xz tensor` runs them on a GPU. The result has the shared memory of each block after
a load, or the first bytes of the tensor after a store or a reduction, and in its last row whether the mbarrier got all bytes. The
result of a copy that faults is the driver's number of the error.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Optional, Union

import numpy as np

from gluon_emu.ptx.isa.tensor import Box
from gluon_emu.ptx.tensormap import TensorMap

THREADS = 128
WORDS = 16  # of each thread's results
ROOM = THREADS * WORDS * 4  # bytes of shared memory
TENSOR = 1 << 16  # bytes of the tensor's memory
HEADER = ".version 8.7\n.target sm_90a\n.address_size 64\n"
_NAMES = {0: "u8", 1: "u16", 2: "u32", 3: "s32", 4: "u64", 5: "s64", 6: "f16", 7: "f32", 8: "f32.ftz", 9: "f64",
          10: "bf16", 11: "tf32", 12: "tf32.ftz"}  # fmt: skip
_REGISTERS = {
    "b16": "mask", "b32": "t room gate at word count rank peer peer_gate", "b64": "map tensor out far near wide",
    "pred": "first done more mine",
}  # fmt: skip


def _numbers(element: str, name: str) -> np.ndarray:
    """The tensor's memory: numbers of the element's type, from tiny to large."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    element = element.partition(".")[0]
    if element in ("f32", "tf32"):
        normal = rng.standard_normal(TENSOR // 4)
        values = (normal * 2.0 ** rng.integers(-20, 20, TENSOR // 4)).astype("f4")
        values[::37] = np.array(1e-40, "f4")
        return values.view(np.uint8).copy()
    if element == "f16":
        return rng.standard_normal(TENSOR // 2).astype("f2").view(np.uint8).copy()
    if element == "bf16":
        words = rng.standard_normal(TENSOR // 2).astype("f4").view(np.uint32) >> 16
        return words.astype(np.uint16).view(np.uint8).copy()
    return rng.integers(0, 256, TENSOR, np.uint8)


def _kernel(blocks: int, load: bool, before: str, expected: list[int], copies: list[str]) -> str:
    """The kernel of a form.

    Args:
        load: whether the result is shared memory, instead of the tensor.
        before: instructions of all threads before the copies.
        expected: by block, the bytes that its mbarrier gets; all 0 for copies that are waited for by their group.
        copies: by block, the instructions of its first thread.
    """
    cluster = f".explicitcluster .reqnctapercluster {blocks}, 1, 1" if blocks > 1 else ""
    lines = [
        f"{HEADER}.visible .entry copy(.param .u64 map, .param .u64 tensor, .param .u64 out) {cluster} {{",
        f".shared .align 1024 .b8 room[{ROOM}]; .shared .align 8 .b64 gate;",
        *(f".reg .{kind} {', '.join('%' + name for name in names.split())};" for kind, names in _REGISTERS.items()),
        "ld.param.u64 %map, [map]; ld.param.u64 %tensor, [tensor]; ld.param.u64 %out, [out];",
        "mov.u32 %t, %tid.x; mov.u32 %rank, %ctaid.x; mov.u32 %room, room; mov.u32 %gate, gate; setp.eq.u32 %first, %t, 0;",
        "shl.b32 %at, %t, 2; mul.wide.u32 %far, %t, 4; add.s64 %far, %far, %tensor; add.u32 %at, %at, %room;",
        f"mad.lo.u32 %word, %rank, {THREADS}, %t; mul.wide.u32 %near, %word, 8; add.s64 %out, %out, %near;",
    ]  # fmt: skip
    for number in range(WORDS):  # a store copies words of the second half of the tensor
        source = number * THREADS * 4
        fill = f"ld.global.b32 %word, [%far+{TENSOR // 2 + source}];"
        lines.append(f"{'mov.b32 %word, -1;' if load else fill} st.shared.b32 [%at+{source}], %word;")  # fmt: skip
    lines += [
        f"@%first mbarrier.init.shared.b64 [%gate], 1; fence.mbarrier_init.release.cluster; fence.proxy.async; {before}",
        "bar.sync 0; barrier.cluster.arrive; barrier.cluster.wait;",
    ]
    for rank in range(blocks):
        lines += [
            f"setp.eq.u32 %mine, %rank, {rank}; and.pred %mine, %mine, %first;",
            f"@%mine mbarrier.arrive.expect_tx.shared.b64 _, [%gate], {expected[rank]};",
        ]
    lines.append("barrier.cluster.arrive; barrier.cluster.wait;")
    for rank, copy in enumerate(copies):
        lines.append(
            f"setp.ne.u32 %mine, %rank, {rank}; not.pred %done, %first; or.pred %mine, %mine, %done;"
        )
        lines.append(f"@%mine bra $NEXT{rank}; {copy} $NEXT{rank}:")
    lines += [
        "mov.u32 %count, 0; $WAIT: mbarrier.try_wait.parity.shared.b64 %done, [%gate], 0; @%done bra $GO;",
        "add.u32 %count, %count, 1; setp.lt.u32 %more, %count, 1000; @%more bra $WAIT;",
        "$GO: fence.proxy.async; bar.sync 0; barrier.cluster.arrive; barrier.cluster.wait;",
    ]
    for number in range(WORDS):
        source = number * THREADS * 4
        read = "ld.shared.b32 %word, [%at" if load else "ld.volatile.global.b32 %word, [%far"
        lines.append(f"{read}+{source}]; st.global.b32 [%out+{number * THREADS * blocks * 8}], %word;")  # fmt: skip
    lines.append(f"selp.u32 %word, 1, 0, %done; st.global.b32 [%out+{WORDS * THREADS * blocks * 8}], %word; ret; }}")  # fmt: skip
    return "\n".join(lines)


_GROUP = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"


@dataclass(frozen=True)
class TensorForm:
    """A copy.

    Args:
        element: type, as `TensorMap` has it.
        shape: of the tensor, the fastest dimension first; its rows are padded to 16 bytes.
        start: the coordinates.
        operation: "load", "store", or a reduction such as "add".
        lower, upper, offsets: of im2col; `box` is then (channels, pixels).
        masks: by block of the cluster, the blocks that get its multicast; 0 for none.
        prefetch: whether a prefetch of the box comes first.
        fields: of the map that the kernel replaces: (name, ordinal or None, value).
    """

    element: int
    shape: tuple[int, ...]
    box: tuple[int, ...]
    start: tuple[int, ...]
    swizzle: int = 0
    fill: int = 0
    steps: tuple[int, ...] = ()
    operation: str = "load"
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    masks: tuple[int, ...] = ()
    prefetch: bool = False
    fields: tuple[tuple[str, Optional[int], int], ...] = ()

    @property
    def name(self) -> str:
        facts = [self.operation, _NAMES[self.element], "x".join(map(str, self.shape)), "x".join(map(str, self.box)),
                 f"at {self.start}", f"swizzle {self.swizzle}", f"fill {self.fill}"]  # fmt: skip
        if self.steps:
            facts.append(f"steps {self.steps}")
        if self.lower:
            facts.append(f"im2col {self.lower} {self.upper} {self.offsets}")
        facts += [f"multicast {self.masks}"] if self.masks else []
        facts += ["prefetched"] if self.prefetch else []
        facts += [f"with {name} {ordinal} {value}" for name, ordinal, value in self.fields]
        return " ".join(facts).replace("|", "/")

    def map(self, address: int) -> TensorMap:
        size = TensorMap(0, self.element, 0, 0, (), (), (), ()).size
        strides, step = [], size
        for extent in self.shape[:-1]:
            step = -(-extent * step // 16) * 16
            strides.append(step)
        rank = len(self.shape)
        return TensorMap(address, self.element, self.swizzle, self.fill, self.shape, tuple(strides), self.box,
                         self.steps or (1,) * rank, not self.lower, 0, self.lower, self.upper)  # fmt: skip

    @property
    def blocks(self) -> int:
        return max(1, len(self.masks))

    @property
    def bytes(self) -> int:
        """Bytes that a copy brings, by the fields that the kernel puts into the map."""
        map_ = self.map(1 << 20)
        for name, ordinal, value in self.fields:
            if name == "box_dim":
                map_ = replace(map_, box=_with(map_.box, ordinal, value))
            elif name == "element_stride":
                map_ = replace(map_, steps=_with(map_.steps, ordinal, value))
            elif name == "rank":
                parts = {"shape": map_.shape, "box": map_.box, "steps": map_.steps}
                parts = {field: values[: value + 1] for field, values in parts.items()}
                map_ = replace(map_, strides=map_.strides[:value], **parts)
        return Box(map_, list(self.start), self.offsets).bytes

    @property
    def data(self) -> np.ndarray:
        return _numbers(_NAMES[self.element], self.name)

    def kernel(self) -> str:
        rank, load = len(self.start), self.operation == "load"
        place = f"[%map, {{{', '.join(map(str, self.start))}}}]"
        mode = "im2col" if self.lower else "tile"
        if self.lower and not load:
            mode = "im2col_no_offs"
        offsets = f", {{{', '.join(map(str, self.offsets))}}}" if self.lower else ""
        before = "".join(self._replaced(*field) for field in self.fields)
        if before:
            before = (
                f"setp.eq.u32 %mine, %t, 0; {before} fence.proxy.tensormap::generic.release.gpu; bar.sync 0;"
                "fence.proxy.tensormap::generic.acquire.gpu [%map], 128;"
            )
        if self.prefetch:
            opcode = f"cp.async.bulk.prefetch.tensor.{rank}d.L2.global.{mode}"
            before += f"@%first {opcode} {place}{offsets if load else ''};"
        if not load:
            opcode = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.{mode}.bulk_group"
            if self.operation != "store":
                opcode = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{self.operation}.{mode}.bulk_group"
            return _kernel(1, False, before, [0], [f"{opcode} {place}, [%room]; {_GROUP}"])
        opcode = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes"
        if not self.masks:
            copy = f"{opcode} [%room], {place}, [%gate]{offsets};"
            return _kernel(1, True, before, [self.bytes], [copy])
        expected, copies, room = [0] * self.blocks, [], 0
        for mask in self.masks:
            copies.append("")
            if mask:
                copies[-1] = f"mov.b16 %mask, {mask}; {opcode}.multicast::cluster [%room+{room}], {place}, [%gate]{offsets}, %mask;"  # fmt: skip
                room += -(-self.bytes // 1024) * 1024
            for block in range(self.blocks):
                expected[block] += self.bytes * (mask >> block & 1)
        return _kernel(self.blocks, True, before, expected, copies)

    @staticmethod
    def _replaced(name: str, ordinal: Optional[int], value: int) -> str:
        bits = 64 if name in ("global_address", "global_stride") else 32
        operand = str(value)
        before = ""
        if name == "global_address":
            before, operand = f"add.u64 %wide, %tensor, {value};", "%wide"
        elif name in ("rank", "global_dim", "global_stride", "box_dim", "element_stride"):
            register = "%wide" if bits == 64 else "%word"
            before, operand = f"mov.b{bits} {register}, {value};", register
        number = "" if ordinal is None else f"{ordinal}, "
        return f"{before} @%mine tensormap.replace.tile.{name}.global.b1024.b{bits} [%map], {number}{operand};"


def _with(values: tuple[int, ...], ordinal: Optional[int], value: int) -> tuple[int, ...]:
    assert ordinal is not None
    return (*values[:ordinal], value, *values[ordinal + 1 :])


@dataclass(frozen=True)
class BulkForm:
    """Copies of ranges of bytes and words, by the instructions of each block's first thread.

    Args:
        expected: bytes that each block's mbarrier gets.
        copies: the instructions, with `%room`, `%gate` for shared memory, `%peer`, `%peer_gate` for that of block 1, and `%tensor`.
        load: whether the result is shared memory.
    """

    title: str
    expected: tuple[int, ...]
    copies: tuple[str, ...]
    load: bool = True
    element: str = "u32"

    @property
    def name(self) -> str:
        return self.title

    @property
    def blocks(self) -> int:
        return len(self.expected)

    @property
    def data(self) -> np.ndarray:
        return _numbers(self.element, self.name)

    def kernel(self) -> str:
        before = ""
        if self.blocks > 1:
            before = "mapa.shared::cluster.u32 %peer, %room, 1; mapa.shared::cluster.u32 %peer_gate, %gate, 1;"
        # Words of the tensor in shared memory, behind what the copies write.
        fill = "".join(
            f"ld.global.b32 %word, [%far+{number * THREADS * 4}]; st.shared.b32 [%at+{number * THREADS * 4}], %word;"
            for number in range(WORDS)
        )
        before = f"{fill} fence.proxy.async; {before}"
        return _kernel(self.blocks, self.load, before, list(self.expected), list(self.copies))


def bulk_forms() -> list[BulkForm]:
    """Return the copies of ranges of bytes, to and from global memory and a peer's shared memory."""
    done = ".mbarrier::complete_tx::bytes"
    into = f"cp.async.bulk.shared::cluster.global{done}"
    forms = [
        BulkForm("bulk load of 16 bytes", (16,), (f"{into} [%room+48], [%tensor+4096], 16, [%gate];",)),
        BulkForm("bulk loads of 2000 and 48 bytes", (2048,),
                 (f"{into} [%room+16], [%tensor+32], 2000, [%gate]; {into} [%room+4096], [%tensor+16], 48, [%gate];",)),
        BulkForm("bulk load after a prefetch", (1024,),
                 (f"cp.async.bulk.prefetch.L2.global [%tensor+64], 4096; {into} [%room], [%tensor+64], 1024, [%gate];",)),
        BulkForm("bulk load of no bytes", (16,),
                 (f"{into} [%room], [%tensor+64], 0, [%gate]; {into} [%room+32], [%tensor+64], 16, [%gate];",)),
        BulkForm("bulk multicast to blocks 1 and 3", (0, 512, 0, 512), ("", "",
                 f"mov.b16 %mask, 10; {into}.multicast::cluster [%room+256], [%tensor+48], 512, [%gate], %mask;", "")),
        BulkForm("bulk multicasts of each block to both", (1024, 1024), (
                 f"mov.b16 %mask, 3; {into}.multicast::cluster [%room], [%tensor+4096], 512, [%gate], %mask;",
                 f"mov.b16 %mask, 3; {into}.multicast::cluster [%room+512], [%tensor+8192], 512, [%gate], %mask;")),
        BulkForm("bulk store", (0,), (f"cp.async.bulk.global.shared::cta.bulk_group [%tensor+64], [%room+512], 1040; {_GROUP}",), False),
        BulkForm("bulk copy to a peer", (0, 1040),
                 (f"cp.async.bulk.shared::cluster.shared::cta{done} [%peer+64], [%room+512], 1040, [%peer_gate];", "")),
        BulkForm("store of a word to a peer", (0, 4), (
                 "ld.shared.b32 %word, [%room+8]; st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%peer+16], %word, [%peer_gate];", "")),
        BulkForm("store of four words to a peer", (0, 16), (
                 "ld.shared.b32 %word, [%room+8]; st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
                 "[%peer+16], {%word, %t, %word, %room}, [%peer_gate];", "")),
        BulkForm("store of a long word to a peer", (0, 8), (
                 "ld.shared.b64 %wide, [%room+8]; st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%peer+16], %wide, [%peer_gate];", "")),
    ]  # fmt: skip
    kinds = [("add", "u32"), ("add", "s32"), ("add", "u64"), ("min", "u32"), ("min", "s32"), ("max", "u32"), ("max", "s32"),
             ("inc", "u32"), ("dec", "u32"), ("and", "b32"), ("or", "b32"), ("xor", "b32")]  # fmt: skip
    for name, type in kinds:
        opcode = f"cp.reduce.async.bulk.shared::cluster.shared::cta{done}.{name}.{type}"
        copy = f"{opcode} [%peer], [%room+4096], 2048, [%peer_gate];"
        forms.append(BulkForm(f"{name}.{type} of bytes of a peer", (0, 2048), (copy, "")))
    for name, type in kinds:
        size, word = (8, "%wide") if "64" in type else (4, "%word")
        opcode = f"red.async.relaxed.cluster.shared::cluster{done}.{name}.{type}"
        copy = f"ld.shared.b{8 * size} {word}, [%room+4096]; {opcode} [%peer+16], {word}, [%peer_gate];"
        forms.append(BulkForm(f"{name}.{type} of a word of a peer", (0, size), (copy, "")))
    return forms


_PLAIN = TensorForm(6, (80, 20), (16, 8), (8, 3))
_IMAGE = (16, 9, 7, 3)  # channels, width, height, images


# fmt: off
def _tiled() -> list[TensorForm]:
    forms = []
    for element, inner in ((0, 128), (1, 64), (2, 32), (3, 32), (4, 16), (5, 16), (6, 64), (7, 32), (8, 32), (9, 16), (10, 64), (11, 32), (12, 32)):
        forms.append(TensorForm(element, (inner + 16, 20), (inner // 2, 8), (3 * inner // 4, 14), fill=int(5 < element)))
    for swizzle, inner in ((1, 16), (2, 32), (3, 64)):
        for corner in ((0, 0), (inner // 2, 3), (-8, -2), (48, 13)):
            forms.append(TensorForm(6, (80, 20), (inner, 24), corner, swizzle))
        forms.append(TensorForm(6, (80, 20), (inner, 16), (8, 5), swizzle, operation="store"))
    for corner in ((-8,), (80,), (200,)):
        forms.append(TensorForm(6, (100,), (64,), corner))
    forms += [
        TensorForm(7, (12, 6, 5), (8, 4, 3), (-4, 3, 3)), TensorForm(10, (24, 6, 5, 4), (16, 3, 3, 2), (16, -1, 4, 3), 1),
        TensorForm(6, (16, 5, 4, 3, 3), (16, 3, 2, 2, 2), (8, 3, -1, 2, 2), 1, 1),
        TensorForm(7, (40, 20), (16, 12), (4, 2), steps=(1, 3)), TensorForm(7, (40, 20), (16, 12), (-4, 11), steps=(1, 2), fill=1),
        TensorForm(6, (40, 12, 9), (16, 8, 6), (8, 1, 2), 1, steps=(1, 3, 2)), TensorForm(7, (40, 20), (16, 12), (4, 2), steps=(2, 3)),
        TensorForm(6, (80, 20), (64, 16), (24, 10), 3, operation="store"), TensorForm(7, (40, 20), (16, 12), (28, 14), operation="store"),
        TensorForm(6, (16, 5, 4, 3, 3), (16, 3, 2, 2, 2), (8, 3, 1, 2, 2), 1, operation="store"),
        TensorForm(7, (40, 20), (16, 12), (4, 2), steps=(1, 3), operation="store"), TensorForm(7, (40, 20), (16, 12), (4, 2), steps=(1, 2), operation="add"),
    ]
    for operation, elements in (("add", (2, 3, 4, 6, 7, 10)), ("min", (2, 3, 4, 5, 6, 10)), ("max", (3, 5, 6, 10)), ("inc", (2,)), ("dec", (2,)),
                                ("and", (2, 4)), ("or", (2,)), ("xor", (4,))):
        forms += [TensorForm(e, (32, 12), (16, 8), (8, 6), operation=operation) for e in elements]
    for start in ((-8, 4), (72, 17), (0, 0), (80, 3), (-16, 1)):
        forms += [replace(_PLAIN, start=start), replace(_PLAIN, start=start, shape=(77, 20))]
    for shape, box, column in (((128,), 64, 0), ((128,), 64, 8), ((128,), 64, -8), ((128,), 64, -72), ((100,), 64, 0), ((96,), 32, 80),
                               ((104,), 64, 80), ((100,), 64, 96), ((2048,), 256, 2000)):
        forms.append(TensorForm(6, shape, (box,), (column,)))
    forms += [TensorForm(0, (1000,), (256,), (column,)) for column in (16, 896, -240)]
    for swizzle, inner in ((0, 16), (1, 16), (2, 32), (3, 64), (3, 32), (2, 16), (1, 8)):
        forms.append(replace(_PLAIN, swizzle=swizzle, box=(inner, 8), start=(-8, 3), fill=1))
        forms.append(replace(_PLAIN, swizzle=swizzle, box=(inner, 8), start=(40, 15), operation="store"))
    forms += [replace(_PLAIN, prefetch=True), replace(_PLAIN, masks=(2, 0)), replace(_PLAIN, masks=(3, 3)), replace(_PLAIN, masks=(0, 10, 5, 0)),
              replace(_PLAIN, masks=(15, 0, 0, 8), swizzle=1, start=(-8, 15), fill=1),
              TensorForm(7, (40, 20), (8, 8), (4, 2), masks=(3, 1), prefetch=True)]
    return forms


def _images() -> list[TensorForm]:
    forms = []
    for lower, upper, offsets in (((-1, -1), (-1, -1), (0, 0)), ((-1, -1), (-1, -1), (2, 1)), ((0, 0), (-2, -2), (1, 2)), ((-2, -1), (0, -1), (2, 0))):
        for corner in ((0, lower[0], lower[1], 0), (8, 2, 1, 0), (0, 4, 3, 1)):
            forms.append(TensorForm(6, _IMAGE, (16, 32), corner, 1, lower=lower, upper=upper, offsets=offsets))
    plain = TensorForm(6, _IMAGE, (16, 32), (0, -1, -1, 0), 1, lower=(-1, -1), upper=(-1, -1), offsets=(1, 2))
    return [
        *forms,
        TensorForm(6, _IMAGE, (8, 24), (8, 0, 0, 0), steps=(1, 2, 2, 1), lower=(-1, -1), upper=(-1, -1), offsets=(1, 1)),
        TensorForm(6, _IMAGE, (8, 24), (8, -1, -1, 1), steps=(1, 2, 2, 1), lower=(-1, -1), upper=(-1, -1), offsets=(1, 1), fill=1),
        TensorForm(6, _IMAGE, (8, 24), (8, -1, -1, 1), steps=(1, 3, 2, 1), lower=(-1, -1), upper=(-1, -1), offsets=(0, 1)),
        TensorForm(7, (8, 11, 4), (8, 16), (0, -1, 1), lower=(-1,), upper=(-2,), offsets=(2,)),
        TensorForm(7, (8, 11, 4), (8, 16), (4, 3, 3), lower=(0,), upper=(0,), offsets=(0,)),
        TensorForm(6, (8, 5, 4, 3, 2), (8, 40), (0, 0, 0, 0, 0), lower=(0, -1, 0), upper=(-1, 0, -1), offsets=(1, 1, 0)),
        TensorForm(6, (8, 5, 4, 3, 2), (8, 40), (0, -1, 1, 1, 0), lower=(-1, -1, -1), upper=(-1, -1, -1), offsets=(2, 1, 1), fill=1),
        TensorForm(6, _IMAGE, (16, 32), (0, 0, 0, 0), 1, operation="store", lower=(0, 0), upper=(0, 0)),
        replace(plain, masks=(0, 3)), replace(plain, prefetch=True), replace(plain, fill=1), replace(plain, start=(8, 0, 0, 2), box=(16, 64)),
        replace(plain, start=(0, 7, 5, 0)), replace(plain, start=(0, -1, 5, 2), swizzle=0),
    ]


def _replaced() -> list[TensorForm]:
    forms = []
    for fields in ((("global_address", None, 512),), (("global_dim", 0, 50), ("global_dim", 1, 9)), (("global_stride", 0, 96),),
                   (("box_dim", 1, 5),), (("element_stride", 1, 2),), (("elemtype", None, 10), ("fill_mode", None, 1)),
                   (("swizzle_mode", None, 1),), (("fill_mode", None, 1),), (("box_dim", 0, 32), ("swizzle_mode", None, 2))):
        forms.append(replace(_PLAIN, start=(72, 6), fields=fields))
    forms.append(replace(_PLAIN, shape=(80, 20, 3), box=(16, 8, 1), fields=(("rank", None, 1),)))
    return forms


def tensor_forms() -> list[TensorForm]:
    """Return the copies of boxes, each once."""
    forms = [*_tiled(), *_images(), *_replaced()]
    return list({form.name: form for form in forms}.values())


def faulting_forms() -> list[TensorForm]:
    """Return copies that are illegal instructions on a GPU.

    Columns that are no multiple of 16 bytes, stores before the tensor, pixels behind their bounding box, integers filled with NaN.
    """
    columns = [replace(_PLAIN, start=(3, 4)), replace(_PLAIN, start=(-4, 4)), replace(_PLAIN, start=(12, 2), operation="store"),
               TensorForm(6, (100,), (64,), (-3,)), TensorForm(7, (40, 20), (8, 8), (2, 2)), TensorForm(0, (1000,), (256,), (8,)),
               TensorForm(6, _IMAGE, (8, 24), (4, 0, 0, 0), lower=(-1, -1), upper=(-1, -1), offsets=(1, 1))]
    before = [replace(_PLAIN, start=start, operation="store") for start in ((-8, 3), (8, -1))]
    before += [TensorForm(6, _IMAGE, (16, 32), (0, -1, -1, 1), 1, operation=operation, lower=(-1, -1), upper=(-1, -1))
               for operation in ("store", "add")]
    image = TensorForm(6, _IMAGE, (16, 32), (0, 8, 6, 2), 1, lower=(-1, -1), upper=(-1, -1), offsets=(1, 2))
    before += [replace(image, start=(0, 1, 2, 1), offsets=(), operation=operation) for operation in ("store", "add")]
    before.append(replace(image, element=7, operation="add", offsets=(), box=(8, 32), start=(8, 0, 0, 0)))
    fields = ("elemtype", None, 1), ("fill_mode", None, 1)
    return [*columns, *before, image, replace(_PLAIN, start=(72, 6), fields=fields)]
# fmt: on


def copy_forms() -> list[Union[TensorForm, BulkForm]]:
    return [*tensor_forms(), *bulk_forms(), *faulting_forms()]
