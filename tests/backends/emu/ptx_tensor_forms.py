"""Copies of boxes of tensors by TMA: tensor maps, coordinates and instructions, each as a kernel of one block.

    python -m tests.backends.emu.ptx_tensor_forms FILE.xz       # on a GPU: run them and store their results

A load leaves the shared memory, of one box, as the result, and whether its mbarrier got all bytes; a store or a reduction leaves the
first bytes of the tensor.
"""

from __future__ import annotations

import ctypes
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gluon_emu.ptx.isa.tensor import Box
from gluon_emu.ptx.tensormap import TensorMap

THREADS = 128
WORDS = 16  # of each thread's results
TENSOR = 1 << 16  # bytes of the tensor's memory
HEADER = ".version 8.7\n.target sm_90a\n.address_size 64\n"
# Element types of PTX -> those of the driver.
_DRIVER = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 10, 9: 8, 10: 9, 11: 11, 12: 12}
_NAMES = {0: "u8", 1: "u16", 2: "u32", 3: "s32", 4: "u64", 5: "s64", 6: "f16", 7: "f32", 8: "f32.ftz", 9: "f64",
          10: "bf16", 11: "tf32", 12: "tf32.ftz"}  # fmt: skip


@dataclass(frozen=True)
class TensorForm:
    """A copy.

    Args:
        element: type, as `TensorMap` has it.
        shape: of the tensor, the fastest dimension first; its rows are padded to 16 bytes.
        start: the coordinates.
        operation: "load", "store", or a reduction such as "add".
        lower, upper, offsets: of im2col; `box` is then (channels, pixels).
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
    offsets: tuple[int, ...] = field(default=())

    @property
    def name(self) -> str:
        facts = [self.operation, _NAMES[self.element], "x".join(map(str, self.shape)), "x".join(map(str, self.box)),
                 f"at {self.start}", f"swizzle {self.swizzle}", f"fill {self.fill}"]  # fmt: skip
        if self.steps:
            facts.append(f"steps {self.steps}")
        if self.lower:
            facts.append(f"im2col {self.lower} {self.upper} {self.offsets}")
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
    def bytes(self) -> int:
        return Box(self.map(1 << 20), list(self.start), self.offsets).bytes

    def kernel(self) -> str:
        rank = len(self.shape)
        place = f"[%map, {{{', '.join(map(str, self.start))}}}]"
        mode = "im2col" if self.lower else "tile"
        if self.lower and self.operation != "load":
            mode = "im2col_no_offs"
        if self.operation == "load":
            offsets = f", {{{', '.join(map(str, self.offsets))}}}" if self.lower else ""
            copy = (
                f"@%first mbarrier.arrive.expect_tx.shared.b64 _, [%gate], {self.bytes};"
                f"@%first cp.async.bulk.tensor.{rank}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes "
                f"[%room], {place}, [%gate]{offsets};"
                "mov.u32 %count, 0; $WAIT: mbarrier.try_wait.parity.shared.b64 %done, [%gate], 0; @%done bra $GO;"
                "add.u32 %count, %count, 1; setp.lt.u32 %more, %count, 1000; @%more bra $WAIT; $GO:"
            )
        else:
            opcode = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.{mode}.bulk_group"
            if self.operation != "store":
                opcode = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{self.operation}.{mode}.bulk_group"
            copy = (
                f"@%first {opcode} {place}, [%room]; @%first cp.async.bulk.commit_group;"
                "@%first cp.async.bulk.wait_group 0; setp.eq.u32 %done, 0, 0; fence.proxy.async; bar.sync 0;"
            )
        read = (
            "ld.shared.b32 %word, [%at]"
            if self.operation == "load"
            else "ld.volatile.global.b32 %word, [%far]"
        )
        lines = [HEADER, ".visible .entry copy(.param .u64 map, .param .u64 tensor, .param .u64 out) {",
                 f".shared .align 1024 .b8 room[{THREADS * WORDS * 4}]; .shared .align 8 .b64 gate;",
                 ".reg .b32 %t; .reg .b32 %room; .reg .b32 %gate; .reg .b32 %at; .reg .b32 %word; .reg .b32 %count;",
                 ".reg .b64 %map; .reg .b64 %tensor; .reg .b64 %out; .reg .b64 %far; .reg .b64 %near;",
                 ".reg .pred %first; .reg .pred %done; .reg .pred %more;",
                 "ld.param.u64 %map, [map]; ld.param.u64 %tensor, [tensor]; ld.param.u64 %out, [out];",
                 "mov.u32 %t, %tid.x; mov.u32 %room, room; mov.u32 %gate, gate; setp.eq.u32 %first, %t, 0;",
                 "shl.b32 %at, %t, 2; mul.wide.u32 %far, %t, 4; add.s64 %far, %far, %tensor; mul.wide.u32 %near, %t, 8;",
                 "add.s64 %out, %out, %near; add.u32 %at, %at, %room;"]  # fmt: skip
        for number in range(WORDS):  # what a store copies: the words behind those that are shown
            source = number * THREADS * 4
            fill = f"ld.global.b32 %word, [%far+{TENSOR // 2 + source}];" if self.operation != "load" else "mov.b32 %word, -1;"  # fmt: skip
            lines.append(f"{fill} st.shared.b32 [%at+{source}], %word;")
        lines += ["@%first mbarrier.init.shared.b64 [%gate], 1; fence.mbarrier_init.release.cluster;",
                  "fence.proxy.async; bar.sync 0;", copy]  # fmt: skip
        for number in range(WORDS):
            source = number * THREADS * 4
            lines.append(
                f"{read.replace(']', f'+{source}]')}; st.global.b32 [%out+{number * THREADS * 8}], %word;"
            )
        lines.append(
            f"selp.u32 %word, 1, 0, %done; st.global.b32 [%out+{WORDS * THREADS * 8}], %word; ret; }}"
        )
        return "\n".join(lines)

    def data(self) -> np.ndarray:
        """The tensor's memory: numbers of the element's type, small ones where sums could round."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        name = _NAMES[self.element].partition(".")[0]
        if name in ("f32", "tf32"):
            values = (
                rng.standard_normal(TENSOR // 4) * 2.0 ** rng.integers(-20, 20, TENSOR // 4)
            ).astype("f4")
            values[::37] = np.array(1e-40, "f4")
            return values.view(np.uint8).copy()
        if name == "f16":
            return rng.standard_normal(TENSOR // 2).astype("f2").view(np.uint8).copy()
        if name == "bf16":
            values = rng.standard_normal(TENSOR // 2).astype("f4").view(np.uint32) >> 16
            return values.astype(np.uint16).view(np.uint8).copy()
        return rng.integers(0, 256, TENSOR, np.uint8)


def tensor_forms() -> list[TensorForm]:
    forms = []
    for element, inner in ((0, 128), (1, 64), (2, 32), (3, 32), (4, 16), (5, 16), (6, 64), (7, 32), (8, 32), (9, 16), (10, 64), (11, 32), (12, 32)):  # fmt: skip
        forms.append(
            TensorForm(
                element,
                (inner + 16, 20),
                (inner // 2, 8),
                (3 * inner // 4, 14),
                fill=int(5 < element),
            )
        )
    for swizzle, inner in ((1, 16), (2, 32), (3, 64)):
        for corner in ((0, 0), (inner // 2, 3), (-8, -2), (48, 13)):
            forms.append(TensorForm(6, (80, 20), (inner, 24), corner, swizzle))
        forms.append(TensorForm(6, (80, 20), (inner, 16), (8, 5), swizzle, operation="store"))
    for corner in ((-3,), (90,), (200,)):
        forms.append(TensorForm(6, (100,), (64,), corner))
    forms += [
        TensorForm(7, (12, 6, 5), (8, 4, 3), (-2, 3, 3)), TensorForm(10, (24, 6, 5, 4), (16, 3, 3, 2), (16, -1, 4, 3), 1),
        TensorForm(6, (16, 5, 4, 3, 3), (16, 3, 2, 2, 2), (8, 3, -1, 2, 2), 1, 1),
        TensorForm(7, (40, 20), (16, 12), (3, 2), steps=(1, 3)), TensorForm(7, (40, 20), (16, 12), (-5, 11), steps=(1, 2), fill=1),
        TensorForm(6, (40, 12, 9), (16, 8, 6), (8, 1, 2), 1, steps=(1, 3, 2)), TensorForm(7, (40, 20), (16, 12), (3, 2), steps=(2, 3)),
        TensorForm(6, (80, 20), (64, 16), (-8, 10), 3, operation="store"), TensorForm(7, (40, 20), (16, 12), (30, -4), operation="store"),
    ]  # fmt: skip
    for operation, elements in (("add", (2, 3, 4, 6, 7, 10)), ("min", (2, 3, 4, 5, 6, 10)), ("max", (3, 5, 6, 10)), ("inc", (2,)), ("dec", (2,)),
                                ("and", (2, 4)), ("or", (2,)), ("xor", (4,))):  # fmt: skip
        forms += [TensorForm(e, (32, 12), (16, 8), (8, 6), operation=operation) for e in elements]
    image = (16, 9, 7, 3)  # channels, width, height, images
    for lower, upper, offsets in (((-1, -1), (-1, -1), (0, 0)), ((-1, -1), (-1, -1), (2, 1)), ((0, 0), (-2, -2), (1, 2)), ((-2, -1), (0, -1), (2, 0))):  # fmt: skip
        for corner in ((0, lower[0], lower[1], 0), (8, 2, 1, 0), (0, 4, 3, 1)):
            forms.append(
                TensorForm(6, image, (16, 32), corner, 1, lower=lower, upper=upper, offsets=offsets)
            )
    forms += [
        TensorForm(6, image, (8, 24), (4, 0, 0, 0), steps=(1, 2, 2, 1), lower=(-1, -1), upper=(-1, -1), offsets=(1, 1)),
        TensorForm(6, image, (8, 24), (4, -1, -1, 1), steps=(1, 2, 2, 1), lower=(-1, -1), upper=(-1, -1), offsets=(1, 1), fill=1),
        TensorForm(7, (8, 11, 4), (8, 16), (0, -1, 1), lower=(-1,), upper=(-2,), offsets=(2,)),
        TensorForm(6, (8, 5, 4, 3, 2), (8, 40), (0, 0, 0, 0, 0), lower=(0, -1, 0), upper=(-1, 0, -1), offsets=(1, 1, 0)),
        TensorForm(6, image, (16, 32), (0, -1, -1, 1), 1, operation="store", lower=(-1, -1), upper=(-1, -1)),
    ]  # fmt: skip
    return forms


def _encoded(driver, form, address):
    """The tensor map of the driver."""
    map_, room = form.map(address.value), ctypes.create_string_buffer(256)
    first = -ctypes.addressof(room) % 64
    target = ctypes.c_void_p(ctypes.addressof(room) + first)
    rank = len(form.shape)
    shape = (ctypes.c_uint64 * rank)(*form.shape)
    strides = (ctypes.c_uint64 * rank)(*map_.strides)
    steps = (ctypes.c_uint32 * rank)(*map_.steps)
    kind = _DRIVER[form.element]
    if form.lower:
        lower, upper = ((ctypes.c_int * 3)(*corner) for corner in (form.lower, form.upper))
        driver.call("cuTensorMapEncodeIm2col", target, kind, rank, address, shape, strides, lower, upper,
                    form.box[0], form.box[1], steps, 0, form.swizzle, 0, form.fill)  # fmt: skip
    else:
        box = (ctypes.c_uint32 * rank)(*form.box)
        driver.call("cuTensorMapEncodeTiled", target, kind, rank, address, shape, strides, box, steps, 0, form.swizzle, 0, form.fill)  # fmt: skip
    return room.raw[first : first + 128]


def measure(path):
    from tests.backends.emu.measure_ptx import Driver
    from tests.backends.emu.ptx_forms import save

    driver, results, failed = Driver(), {}, []
    tensor, out, place = driver.allocate(TENSOR), driver.allocate(1 << 16), driver.allocate(256)
    for form in tensor_forms():
        try:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            driver.call("cuModuleLoadData", ctypes.byref(module), form.kernel().encode())
            driver.call("cuModuleGetFunction", ctypes.byref(function), module, b"copy")
            data, raw = form.data(), _encoded(driver, form, tensor)
            driver.call("cuMemcpyHtoD_v2", tensor, data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(TENSOR))  # fmt: skip
            driver.call("cuMemcpyHtoD_v2", place, raw, ctypes.c_size_t(128))
            driver.call("cuMemsetD8_v2", out, 0, ctypes.c_size_t(1 << 16))
            arguments = (place, tensor, out)
            pointers = (ctypes.c_void_p * 3)(*map(ctypes.addressof, arguments))
            driver.call("cuLaunchKernel", function, 1, 1, 1, THREADS, 1, 1, 0, None, pointers, None)
            driver.call("cuCtxSynchronize")
            words = np.zeros((WORDS + 1, THREADS), np.uint64)
            driver.call("cuMemcpyDtoH_v2", words.ctypes.data_as(ctypes.c_void_p), out, ctypes.c_size_t(words.nbytes))  # fmt: skip
            results[form.name] = words
        except RuntimeError as error:
            failed.append(f"{form.name}: {error}")
            if "cuCtxSynchronize" in str(error):
                break
    save(Path(path), driver.name, results)
    print(
        f"{driver.name}: {len(results)} copies; {len(failed)} failed", *failed, sep="\n", flush=True
    )


if __name__ == "__main__":
    measure(*sys.argv[1:])
