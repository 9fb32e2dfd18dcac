"""Count instructions, conversions and bank conflicts of kernels without layouts against hand-written ones; no GPU.

Each pair computes the same on the same operands: a kernel of plain Triton as `gluon port` writes it, and the kernels of
gluon_kernels that an operator launches on the target, which chooses its own tile. The numbers are static counts of
the code for the target; conflicts are the extra passes of a program over the banks of the buffers that its source
makes, on the simulator. The compiler chooses the order of the banks of a conversion.

  python benchmarks/layout_free_code.py [--targets gfx942,gfx950,sm_100] [--only WORD]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

HAND = {
    "softmax": "gluon_kernels.softmax(torch.randn(8, 4096).half())",
    "rms norm": "gluon_kernels.rms_norm(torch.randn(8, 4096).half(), torch.randn(4096).half())",
    "layer norm": "gluon_kernels.layer_norm(torch.randn(8, 4096).half(), torch.randn(4096).half(), torch.randn(4096).half())",
    "gemm": "gluon_kernels.matmul(torch.randn(256, 256).half(), torch.randn(256, 256).half())",
    "gemm tiles": "gluon_kernels.matmul(torch.randn(256, 256).half(), torch.randn(256, 256).half())",
    "attention": "gluon_kernels.attention(*(torch.randn(1, 2, 256, 64).half() for _ in range(3)))",
    "attention tiles": "gluon_kernels.attention(*(torch.randn(1, 2, 256, 64).half() for _ in range(3)))",
}
FREE = {
    "softmax": ("rows", "softmax_kernel[(8,)](y, x, 4096, 4096, 4096, BLOCK=4096, num_warps=8)"),
    "rms norm": ("rows", "rms_norm_kernel[(8,)](x, w, y, r, 4096, 1e-6, BLOCK=4096, num_warps=8)"),
    "layer norm": (
        "rows",
        "layer_norm_kernel[(8,)](x, w, w, y, 4096, 1e-5, BLOCK=4096, num_warps=8)",
    ),
    "gemm": (
        "matmul",
        "matmul_kernel[(4,)](a, a, c, 256, 256, 256, 256, 1, 256, 1, 256, 1, BLOCK_M=128, BLOCK_N=128,"
        " BLOCK_K=64, GROUP_M=8, ACTIVATION='', num_warps=4, num_stages=2)",
    ),
    "gemm tiles": (
        "tiles",
        "tile_matmul_kernel[(4,)](a, a, c, 256, 256, 256, BM=128, BN=128, BK=64, GROUP=8, num_warps=4, num_stages=3)",
    ),
    "attention": (
        "products",
        "attention_kernel[(2, 2)](q, q, q, o, 0.125, 256, HEAD=64, BLOCK_M=128, BLOCK_N=64, CAUSAL=False,"
        " num_warps=4, num_stages=2)",
    ),
    "attention tiles": (
        "examples/written/attention_tiles.py",
        "attention[(2, 2)](q, q, q, o, 256, 0.18, D=64, BM=128, BN=64, num_warps=4, num_stages=2)",
    ),
}
TENSORS = """
x, y, w, r = torch.randn(8, 4096).half(), torch.empty(8, 4096).half(), torch.randn(4096).half(), torch.empty(8)
a, c = torch.randn(256, 256).half(), torch.empty(256, 256).half()
q, o = torch.randn(2, 256, 64).half(), torch.empty(2, 256, 64).half()
"""
KINDS = {
    "amd": {
        "matrix": r"v_(s?mfma|wmma)", "global": r"(global|buffer)_(load|store)", "shared": r"ds_",
        "barriers": r"s_barrier",
    },
    "nvidia": {
        "matrix": r"(wgmma\.mma_async|mma\.sync|tcgen05\.mma)",
        "global": r"(ld|st)\.global|cp\.async\.(cg|ca)|cp\.async\.bulk\.tensor",
        "shared": r"(ld|st)\.shared|ldmatrix|stmatrix", "barriers": r"bar\.sync|barrier\.sync",
    },
}  # fmt: skip


def compiled(text: str, target: Any, folder: Path) -> list[Any]:
    """Return the kernels that a program launches, compiled for a target."""
    from gluon_cli.launched import forms
    from gluon_core.compiler.driver import compile_source
    from gluon_core.registry.load import registry

    path = folder / "program.py"
    path.write_text(text)
    backend = registry().backend(target.backend)
    with contextlib.redirect_stdout(io.StringIO()):
        launched = forms(str(path), target, None, {}, {})
    return [
        compile_source(
            form.source, target, backend, backend.compiler.options(target, dict(form.options))
        )
        for form in launched
    ]


def counts(kernel: Any, vendor: str) -> dict[str, int]:
    """Return the numbers of instructions by kind, and of conversions."""
    text = kernel.asm["amdgcn" if vendor == "amd" else "ptx"]
    lines = [line.strip() for line in text.splitlines()]
    code = [re.sub(r"^@!?%p\d+\s+", "", line) for line in lines if re.match(r"[@a-z]\w*", line)]
    numbers = {
        name: sum(bool(re.match(rule, line)) for line in code)
        for name, rule in KINDS[vendor].items()
    }
    return {
        "all": len(code),
        **numbers,
        "conversions": kernel.asm["ttgir"].count("ttg.convert_layout"),
    }


def conflicts(text: str, target: Any, folder: Path) -> float:
    """Return the extra passes over banks of a program's kernels, per program of a launch."""
    path, report = folder / "program.py", folder / "profile.json"
    path.write_text(text)
    command = [sys.executable, "-m", "gluon_cli", "run", str(path), "--profile-json", str(report)]
    twin = f"sim:{target.architecture.name}"
    subprocess.run([*command, "--target", twin], capture_output=True, check=True)
    kernels = json.loads(report.read_text())
    return sum(one["total"]["conflicts"] / max(1, one["programs"]) for one in kernels)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", default="gfx942,gfx950,sm_100")
    parser.add_argument("--only", default="", help="cases whose name has this word")
    asked = parser.parse_args()
    from gluon_core.registry.load import registry
    from gluon_write.porting.port import port

    columns = ("all", "matrix", "global", "shared", "barriers", "conversions")
    shown = (*columns, "conflicts")
    print(f"| target, kernel | {' | '.join(shown)} |\n| --- |{' ---: |' * len(shown)}")
    failed = 0
    names = asked.targets.split(",")
    if len(names) > 1:  # operators keep their plans for the process's target
        command = [sys.executable, __file__, "--only", asked.only, "--targets"]
        for name in names:
            done = subprocess.run([*command, name], capture_output=True, text=True)
            print("\n".join(done.stdout.splitlines()[2:]), flush=True)
            failed |= done.returncode
        return failed
    for name in names:
        target = registry().target(name)
        vendor = target.backend
        for case in filter(lambda case: asked.only in case, HAND):
            file, call = FREE[case]
            if "/" in file:  # a source without layouts
                source, _, _ = (ROOT / file).read_text().partition("\nif __name__")
            else:
                source = (ROOT / "tests" / "write" / "triton_kernels" / f"{file}.py").read_text()
                source = port(source, file).text
            free = f"{source}\nimport torch\n{TENSORS}\n{call}\n"
            hand = f"import torch, gluon_kernels\n{HAND[case]}\n"
            try:
                with tempfile.TemporaryDirectory() as folder:
                    one, other = (
                        [counts(k, vendor) for k in compiled(text, target, Path(folder))]
                        for text in (free, hand)
                    )
                sums = [
                    {c: sum(k[c] for k in kernels) for c in columns} for kernels in (one, other)
                ]
                with tempfile.TemporaryDirectory() as folder:
                    extra = [conflicts(text, target, Path(folder)) for text in (free, hand)]
                cells = [f"{sums[0][c]} / {sums[1][c]}" for c in columns]
                cells.append(f"{extra[0]:.0f} / {extra[1]:.0f}")
                print(f"| {name}, {case} | {' | '.join(cells)} |", flush=True)
            except Exception as error:
                print(
                    f"| {name}, {case} | {type(error).__name__}: {str(error)[:150]} |", flush=True
                )
                failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
