"""The CUDA programs of the folder `cuda` as clang compiles them, and the kernels of CuTe in `cuda/cute` as nvcc does.

    python -m tests.backends.emu.compilers FILE.xz CLANG CUTLASS

CLANG is a command such as clang++-19, CUTLASS the folder of `cute/tensor.hpp` (the package nvidia-cutlass has it). Files
that clang cannot compile with the installed CUDA are left out. The file is JSON: texts by `COMPILER/FILE`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.backends.emu.cuda_programs import SOURCES, load, save

STORED = Path(__file__).with_name("measured") / "compilers.xz"
CUDA = Path("/usr/local/cuda")
# Headers that clang asks for and CUDA 13 does not have.
_GONE = ("texture_fetch_functions.h", "texture_indirect_functions.h", "curand_mtgp32_kernel.h")


def _compiled(command, source, out):
    done = subprocess.run([*command, source, "-o", out], capture_output=True, text=True)
    if done.returncode:
        print(f"{source.name}: {done.stderr.strip()[:200]}", file=sys.stderr)
        return None
    text = re.sub(r"^\s*//.*\n", "", out.read_text(), flags=re.M)
    return re.sub(r"\.file\t(\d+) \"[^\"]*/", r'.file\t\1 "', text)


def build(path, clang, cutlass):
    """Compile all sources into `path`."""
    version = subprocess.run(
        ["nvcc", "--version"], capture_output=True, text=True, check=True
    ).stdout
    cuda = next((p for p in sorted(CUDA.parent.glob("cuda-*")) if p.name[5:] in version), CUDA)
    texts = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in _GONE:
            (Path(folder) / name).touch()
        out = Path(folder) / "out.ptx"
        by_clang = [clang, "-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_90a", f"--cuda-path={cuda}", "-S",
                    "-O2", "-std=c++17", "-Wno-unknown-cuda-version", f"-I{folder}", f"-I{cuda}/include/cccl"]  # fmt: skip
        by_nvcc = ["nvcc", "-w", "-std=c++17", "-arch=compute_90a", "--expt-relaxed-constexpr", f"-I{cutlass}", "-ptx"]  # fmt: skip
        for kind, command, sources in (("clang", by_clang, SOURCES), ("cute", by_nvcc, SOURCES / "cute")):  # fmt: skip
            for source in sorted(sources.glob("*.cu")):
                text = _compiled(command, source, out)
                if text is not None:
                    texts[f"{kind}/{source.stem}"] = text
    save(path, {"texts": texts})
    print(*texts)


def texts():
    return load(STORED)["texts"]


if __name__ == "__main__":
    build(*sys.argv[1:])
