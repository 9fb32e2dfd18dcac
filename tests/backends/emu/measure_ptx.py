"""Run the forms of `ptx_forms`, `ptx_more_forms` or `ptx_tensor_forms` on the GPU of this machine and store their results.

python -m tests.backends.emu.measure_ptx FILE.xz [more | tensor]
"""

from __future__ import annotations

import ctypes
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from tests.backends.emu.ptx_forms import HEADER, forms, inputs, kernel_of, save
from tests.backends.emu.ptx_more_forms import more_forms
from tests.backends.emu.ptx_tensor_forms import THREADS, WORDS, BulkForm, TensorForm, copy_forms

PROCESSES = 8
ROOM = 1 << 20  # bytes of operands, and of results
KINDS = {"": forms, "more": more_forms, "tensor": copy_forms}
# Element types of tensor maps, by the numbers of PTX -> those of the driver.
ELEMENTS = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 10, 9: 8, 10: 9, 11: 11, 12: 12}


class Driver:
    """The few functions of the driver that a launch takes."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(99)
        self.call("cuDeviceGetName", name, 99, device)
        self.name = name.value.decode()

    def call(self, name, *args):
        status = getattr(self.cuda, name)(*args)
        if status:
            raise RuntimeError(f"{name}: {status}")

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def launch(self, text, name, blocks, threads, arguments):
        """Launch a kernel of a text and wait for it.

        Args:
            arguments: ctypes objects.
        """
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        log = ctypes.create_string_buffer(4096)
        options = (ctypes.c_int * 2)(5, 6)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), 4096)
        status = self.cuda.cuModuleLoadDataEx(
            ctypes.byref(module), text.encode(), 2, options, values
        )
        if status:
            raise RuntimeError(f"load {status}: {log.value.decode()[:300]}")
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        size = (blocks, 1, 1, threads, 1, 1, 0)
        self.call("cuLaunchKernel", function, *size, None, pointers, None)
        self.call("cuCtxSynchronize")
        self.call("cuModuleUnload", module)

    def write(self, address, array):
        source = array.ctypes.data_as(ctypes.c_void_p)
        self.call("cuMemcpyHtoD_v2", address, source, ctypes.c_size_t(array.nbytes))

    def read(self, address, shape):
        out = np.zeros(shape, np.uint64)
        target = out.ctypes.data_as(ctypes.c_void_p)
        self.call("cuMemcpyDtoH_v2", target, address, ctypes.c_size_t(out.nbytes))
        return out

    def run(self, form, src, dst, salt=""):
        """The results of a form, (results, threads) of uint64."""
        self.call("cuMemsetD8_v2", dst, 0, ctypes.c_size_t(ROOM))
        if isinstance(form, (TensorForm, BulkForm)):
            return self.copy(form, src, dst)
        self.write(src, inputs(form, salt))
        text = HEADER + kernel_of(form)
        self.launch(text, form.kernel, form.blocks, form.threads, (src, dst))
        return self.read(dst, (len(form.results), form.threads * form.blocks))

    def copy(self, form, src, dst):
        """The results of a copy: the tensor's map is at the start of `src`, its memory 1024 bytes behind."""
        tensor = ctypes.c_uint64(src.value + 1024)
        self.write(tensor, form.data)
        if isinstance(form, TensorForm):
            self.write(src, np.frombuffer(self.encode(form, tensor), np.uint8))
        self.launch(form.kernel(), "copy", form.blocks, THREADS, (src, tensor, dst))
        return self.read(dst, (WORDS + 1, THREADS * form.blocks))

    def encode(self, form, address):
        """The 128 bytes of the driver's tensor map."""
        map_, room = form.map(address.value), ctypes.create_string_buffer(256)
        first = -ctypes.addressof(room) % 64
        target = ctypes.c_void_p(ctypes.addressof(room) + first)
        rank, kind = len(form.shape), ELEMENTS[form.element]
        shape, strides = (
            (ctypes.c_uint64 * rank)(*form.shape),
            (ctypes.c_uint64 * rank)(*map_.strides),
        )
        steps = (ctypes.c_uint32 * rank)(*map_.steps)
        tensor = (target, kind, rank, address, shape, strides)
        modes = (0, form.swizzle, 0, form.fill)
        if form.lower:
            lower, upper = ((ctypes.c_int * 3)(*corner) for corner in (form.lower, form.upper))
            self.call("cuTensorMapEncodeIm2col", *tensor, lower, upper, *form.box, steps, *modes)
        else:
            box = (ctypes.c_uint32 * rank)(*form.box)
            self.call("cuTensorMapEncodeTiled", *tensor, box, steps, *modes)
        return room.raw[first : first + 128]


def some(kind, first, step, repeats):
    """Measure each `step`-th form from `first` on, up to one that faults: this process has no GPU after it.

    Returns:
        The device, the results by name, the failures, and the form to go on with or None.
    """
    chosen = KINDS[kind]()
    driver, results, failed = Driver(), {}, []
    src, dst = driver.allocate(ROOM), driver.allocate(ROOM)
    for number in range(first, len(chosen), step):
        form = chosen[number]
        try:
            results[form.name] = driver.run(form, src, dst)
            for again in range(1, repeats + 1) if "mma" in form.name else ():
                salt = f"#{again}"
                results[form.name + salt] = driver.run(form, src, dst, salt)
        except RuntimeError as error:
            failed.append(f"{form.name}: {error}")
            if "cuCtxSynchronize" in str(error):
                if kind == "tensor":
                    status = int(str(error).rpartition(" ")[2])
                    results[form.name] = np.array([[status]], np.uint64)
                return driver.name, results, failed, number + step
    return driver.name, results, failed, None


def main(path, kind="", repeats=0):
    results, failed, device = {}, [], ""
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:  # fmt: skip
        left = list(range(PROCESSES))
        while left:
            parts = [pool.submit(some, kind, first, PROCESSES, repeats) for first in left]
            left = []
            for part in parts:
                device, more, wrong, rest = part.result()
                results.update(more)
                failed += wrong
                left += [] if rest is None else [rest]
            order = [form.name for form in KINDS[kind]()]
            ordered = sorted(results, key=lambda name: order.index(name.partition("#")[0]))
            save(Path(path), device, {name: results[name] for name in ordered})
            print(f"{device}: {len(results)} forms; {len(failed)} failed", flush=True)
    print(*failed, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
