"""Run the forms of `ptx_forms`, or of `ptx_more_forms`, on the GPU of this machine and store their results.

python -m tests.backends.emu.measure_ptx FILE.xz [more]
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

PROCESSES = 8


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

    def run(self, form, src, dst, words):
        """The results of a form, (results, threads) of uint64."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        text = (HEADER + kernel_of(form)).encode()
        log = ctypes.create_string_buffer(4096)
        options, values = (
            (ctypes.c_int * 2)(5, 6),
            (ctypes.c_void_p * 2)(ctypes.addressof(log), 4096),
        )
        status = self.cuda.cuModuleLoadDataEx(ctypes.byref(module), text, 2, options, values)
        if status:
            raise RuntimeError(f"load {status}: {log.value.decode()[:300]}")
        self.call("cuModuleGetFunction", ctypes.byref(function), module, form.kernel.encode())
        self.call(
            "cuMemcpyHtoD_v2",
            src,
            words.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_size_t(words.nbytes),
        )
        self.call("cuMemsetD8_v2", dst, 0, ctypes.c_size_t(1 << 20))
        pointers = (ctypes.c_void_p * 2)(ctypes.addressof(src), ctypes.addressof(dst))
        self.call(
            "cuLaunchKernel",
            function,
            form.blocks,
            1,
            1,
            form.threads,
            1,
            1,
            0,
            None,
            pointers,
            None,
        )
        self.call("cuCtxSynchronize")
        out = np.zeros((len(form.results), form.threads * form.blocks), np.uint64)
        self.call(
            "cuMemcpyDtoH_v2", out.ctypes.data_as(ctypes.c_void_p), dst, ctypes.c_size_t(out.nbytes)
        )
        self.call("cuModuleUnload", module)
        return out


def some(kind, first, step, repeats):
    """Measure each `step`-th form from `first` on, up to one that faults: this process has no GPU after it.

    Returns:
        The device, the results by name, the failures, and the form to go on with or None.
    """
    chosen = more_forms() if kind == "more" else forms()
    driver, results, failed = Driver(), {}, []
    src, dst = driver.allocate(1 << 20), driver.allocate(1 << 20)
    for number in range(first, len(chosen), step):
        form = chosen[number]
        try:
            results[form.name] = driver.run(form, src, dst, inputs(form))
            for again in range(1, repeats + 1) if "mma" in form.name else ():
                salt = f"#{again}"
                results[form.name + salt] = driver.run(form, src, dst, inputs(form, salt))
        except RuntimeError as error:
            failed.append(f"{form.name}: {error}")
            if "cuCtxSynchronize" in str(error):
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
            order = [form.name for form in (more_forms() if kind == "more" else forms())]
            ordered = sorted(results, key=lambda name: order.index(name.partition("#")[0]))
            save(Path(path), device, {name: results[name] for name in ordered})
    print(f"{device}: {len(results)} forms; {len(failed)} failed", *failed, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
