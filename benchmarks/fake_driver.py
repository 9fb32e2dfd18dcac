"""A CUDA driver that does nothing and answers at once, so that launches can be timed without a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["library"]

DRIVER = """
#include <stdint.h>
#include <stddef.h>
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGet(int *device, int index) { return *device = index, 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    return *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 232448, 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = (void *)0xc0, 0; }
int cuCtxGetCurrent(void **context) { return *context = (void *)0xc0, 0; }
int cuCtxGetDevice(int *device) { return *device = 0, 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return 0; }
int cuModuleLoadData(void **module, const void *code) { return *module = (void *)0xd0, 0; }
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    return *function = (void *)0xf0, 0;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) { return *value = 1024, 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int cuFuncSetCacheConfig(void *function, int config) { return 0; }
int cuDriverGetVersion(int *version) { return *version = 13010, 0; }
int launches;
int cuLaunchKernelEx(const void *config, void *function, void **pointers, void **extra)
{
    return launches++, 0;
}
int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *shape,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                           int interleave, int swizzle, int promotion, int fill)
{
    return 0;
}
"""


def library() -> Any:
    """Build the driver and return it as `ctypes` loads it."""
    folder = Path(tempfile.mkdtemp())
    (folder / "driver.c").write_text(DRIVER)
    compiler = shutil.which("cc") or shutil.which("gcc") or sys.exit("needs a C compiler")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", "libdriver.so", "driver.c"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "libdriver.so"))
