"""The CUDA programs of the folder `cuda`, as PTX, and their results on a GPU.

    python -m tests.backends.emu.cuda_programs build FILE.xz      # with nvcc: the PTX of all programs
    python -m tests.backends.emu.cuda_programs measure FILE.xz    # on a GPU: the same file with the results

The file is JSON: the text of each source file by `FILE.VARIANT`, and the words and the output of each kernel.
"""

from __future__ import annotations

import base64
import ctypes
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SOURCES = Path(__file__).with_name("cuda")
STORED = Path(__file__).with_name("measured") / "cuda.xz"
WORDS = 4096  # of each array of inputs
ROOM = 1 << 14  # words of results
VARIANTS = {"80": ["-arch=compute_80"], "90": ["-arch=compute_90a"], "debug": ["-arch=compute_90a", "-G"]}  # fmt: skip
_LAUNCH = re.compile(
    r"^// launch: (.+)\n(?:KERNEL) (?:__cluster_dims__\(\d+\) )?(\w+)\(ARGS\)", re.M
)


@dataclass(frozen=True)
class Program:
    """A kernel of a source file, with its launch."""

    file: str
    name: str
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (32, 1, 1)
    shared: int = 0
    cooperative: bool = False

    def __str__(self):
        return f"{self.file}/{self.name}"


def programs():
    """All kernels of the folder, by file."""
    listed = []
    for path in sorted(SOURCES.glob("*.cu")):
        for facts, name in _LAUNCH.findall(path.read_text()):
            values = dict(word.split("=") for word in facts.split())
            grid, block = (
                tuple([*map(int, values[key].split(",")), 1, 1][:3]) for key in ("grid", "block")
            )
            shared, together = int(values.get("shared", 0)), "cooperative" in values
            listed.append(Program(path.stem, name, grid, block, shared, together))
    return listed


def inputs():
    """Random words, and floats of which the first are special."""
    rng = np.random.default_rng(27)
    words = rng.integers(0, 1 << 32, WORDS, np.uint32)
    floats = (rng.standard_normal(WORDS) * 3).astype(np.float32)
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3.4e38, -3.4e38, 1e-38, 0.5, 2.0,
               1.5, -2.5, 1e10, -1e10, 88.7, -103.9, 105000.0, 1e-7, 3.1415927, 1.1754944e-38]  # fmt: skip
    floats[: len(special)] = special
    return words, floats


def build(path):
    """Compile all sources with nvcc into `path`."""
    texts = {}
    for source in sorted(SOURCES.glob("*.cu")):
        for variant, options in VARIANTS.items():
            if source.stem == "hopper" and variant != "90" or source.stem in ("groups", "rare") and variant == "debug":  # fmt: skip
                continue
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "out.ptx"
                command = ["nvcc", "-w", "-std=c++17", *options, "-ptx", source, "-o", out]
                subprocess.run(command, check=True)
                text = re.sub(r"^\s*//.*\n", "", out.read_text(), flags=re.M)
                texts[f"{source.stem}.{variant}"] = re.sub(r"\.file\t(\d+) \"[^\"]*/", r'.file\t\1 "', text)  # fmt: skip
    save(path, {"texts": texts, "results": {}, "device": ""})


def save(path, content):
    Path(path).write_bytes(lzma.compress(json.dumps(content).encode(), preset=9 | lzma.PRESET_EXTREME))  # fmt: skip


def load(path=STORED):
    return json.loads(lzma.decompress(Path(path).read_bytes()))


def words_of(stored):
    """The words of a result in the file."""
    words = np.zeros(ROOM, np.uint32)
    kept = np.frombuffer(base64.b64decode(stored["words"]), np.uint32)
    words[: kept.size] = kept
    return words


class _Output:
    """Collect the output of a launch in a file."""

    def __enter__(self):
        self.file, self.before = tempfile.TemporaryFile(), os.dup(1)
        os.dup2(self.file.fileno(), 1)
        return self

    def __exit__(self, *error):
        os.dup2(self.before, 1), os.close(self.before)
        self.file.seek(0)
        self.text = self.file.read().decode()


def _measured(driver, text, program):
    """Run a kernel on the GPU of this process."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuModuleLoadData", ctypes.byref(module), text.encode())
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, program.name.encode())
    arrays = [*inputs(), np.zeros(ROOM, np.uint32)]
    places = [driver.allocate(array.nbytes) for array in arrays]
    for place, array in zip(places, arrays):
        pointer = array.ctypes.data_as(ctypes.c_void_p)
        driver.call("cuMemcpyHtoD_v2", place, pointer, ctypes.c_size_t(array.nbytes))
    arguments = [*places, ctypes.c_int(WORDS)]
    pointers = (ctypes.c_void_p * 4)(*(ctypes.addressof(a) for a in arguments))
    sizes = (*program.grid, *program.block, program.shared, None, pointers)
    with _Output() as output:
        if program.cooperative:
            driver.call("cuLaunchCooperativeKernel", function, *sizes)
        else:
            driver.call("cuLaunchKernel", function, *sizes, None)
        driver.call("cuCtxSynchronize")
    out = arrays[2]
    driver.call("cuMemcpyDtoH_v2", out.ctypes.data_as(ctypes.c_void_p), places[2], ctypes.c_size_t(out.nbytes))  # fmt: skip
    last = int(np.flatnonzero(out)[-1]) + 1 if out.any() else 0
    return {"words": base64.b64encode(out[:last].tobytes()).decode(), "printed": output.text}


def _process(command):
    """Run a process for up to 20 seconds; return everything it prints."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20)  # fmt: skip
        return done.stdout
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode() + "\ntoo slow"


def measure(path, text=None, *names):
    """Run all kernels on the GPU, those of a text in one process until one fails, and add the results to the file."""
    content = load(path)
    if text is not None:
        from tests.backends.emu.measure_ptx import Driver

        driver = Driver()
        own = [p for p in programs() if p.file == text.partition(".")[0] and p.name in names]
        for program in own:
            print(json.dumps([driver.name, program.name, _measured(driver, content["texts"][text], program)]), flush=True)  # fmt: skip
        return
    for text in content["texts"]:
        left = [p.name for p in programs() if p.file == text.partition(".")[0]]
        while left:
            command = [sys.executable, "-m", __spec__.name, "measure", str(path), text, *left]
            done = _process(command)
            for line in done.splitlines():
                if line.startswith("["):
                    content["device"], name, result = json.loads(line)
                    content["results"][f"{text}/{name}"] = result
                    left.remove(name)
            if left:
                print(f"{text}/{left.pop(0)}: {done.strip()[-200:]}", flush=True)
    save(path, content)
    print(f"{content['device']}: {len(content['results'])} results", flush=True)


if __name__ == "__main__":
    {"build": build, "measure": measure}[sys.argv[1]](*sys.argv[2:])
