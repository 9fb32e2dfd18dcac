"""Write PTX kernels that time a loop: every warp stores its clocks before and after the loop."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Loop", "assemble", "text"]

_HEAD = """\
.version 8.4
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 memory[];
.visible .entry timed(.param .u64 out, .param .u32 rounds, .param .u64 p0, .param .u64 p1, .param .u64 p2,
    .param .align 64 .b8 map[128])
.reqntid {threads}{cluster}
{{
    .reg .b32 %n, %i, %me, %lane, %warp, %block, %t<16>, %x<320>;
    .reg .b64 %out, %a, %b, %c, %map, %d<24>, %begin, %end, %ns0, %ns1;
    .reg .f32 %f<320>;
    .reg .b16 %h<16>;
    .reg .f64 %g<16>;
    .reg .pred %p<16>, %more, %first, %never;
    ld.param.u64 %out, [out];
    ld.param.u32 %n, [rounds];
    ld.param.u64 %a, [p0];
    ld.param.u64 %b, [p1];
    ld.param.u64 %c, [p2];
    mov.b64 %map, map;
    cvta.param.u64 %map, %map;
    mov.u32 %me, %tid.x;
    and.b32 %lane, %me, 31;
    shr.u32 %warp, %me, 5;
    mov.u32 %block, %ctaid.x;
    setp.eq.u32 %first, %lane, 0;
    setp.eq.u32 %never, %n, 0xffffffff;
{setup}
    bar.sync 0;
    mov.u64 %ns0, %globaltimer;
    mov.u64 %begin, %clock64;
    mov.u32 %i, 0;
LOOP:
{body}
    add.u32 %i, %i, 1;
    setp.lt.u32 %more, %i, %n;
    @%more bra LOOP;
{drain}
    mov.u64 %end, %clock64;
    mov.u64 %ns1, %globaltimer;
    mad.lo.u32 %t15, %block, {warps}, %warp;
    mad.wide.u32 %out, %t15, 32, %out;
    @%first st.global.v2.u64 [%out], {{%begin, %end}};
    @%first st.global.v2.u64 [%out+16], {{%ns0, %ns1}};
{sink}
    ret;
}}
"""


@dataclass(frozen=True)
class Loop:
    """A kernel that repeats a body and reads the clocks of each warp around the repetitions.

    Args:
        body: PTX of one round. Registers: `%i` the round, `%me`, `%lane`, `%warp`, `%block`, `%a` to `%c` the three
            64-bit parameters, `%f*`, `%x*` (32 bits), `%d*` (64 bits), `%h*` (16), `%g*` (float64), `%p*`.
        setup: PTX in front of the loop, of all warps.
        drain: PTX behind the loop, in front of the second clock.
        kept: registers that the body computes, so that the assembler does not remove it.
        warps: of a block.
        cluster: blocks of a cluster.
        shared: bytes of dynamic shared memory, at `memory`.
        wide: True for a kernel of an architecture-specific target (`sm_90a`).
    """

    body: str
    setup: str = ""
    drain: str = ""
    kept: tuple[str, ...] = ()
    warps: int = 1
    cluster: int = 1
    shared: int = 0
    wide: bool = False


def text(loop: Loop, capability: int) -> str:
    """Return the PTX of a loop for a compute capability, such as 90."""
    kinds = {"%f": "f32", "%x": "b32", "%d": "b64", "%h": "b16", "%g": "f64"}
    sink = "\n".join(
        f"    @%never st.global.{kinds[register[:2]]} [%out], {register};" for register in loop.kept
    )
    return _HEAD.format(
        target=f"sm_{capability}{'a' if loop.wide else ''}",
        threads=32 * loop.warps,
        cluster=f"\n.reqnctapercluster {loop.cluster}" if loop.cluster > 1 else "",
        warps=loop.warps,
        setup=loop.setup,
        body=loop.body,
        drain=loop.drain,
        sink=sink,
    )


def assemble(ptx: str, capability: int, wide: bool) -> bytes:
    """Return the cubin that Triton's assembler makes.

    Raises:
        RuntimeError: the assembler refuses the text.
    """
    import subprocess
    import tempfile
    from pathlib import Path

    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "loop.ptx"), Path(folder, "loop.cubin")
        source.write_text(ptx)
        architecture = f"sm_{capability}{'a' if wide else ''}"
        done = subprocess.run(
            [program, f"-arch={architecture}", "-O3", source, "-o", cubin],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"ptxas: {done.stderr}\n{ptx}")
        return cubin.read_bytes()
