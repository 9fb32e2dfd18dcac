"""Time inside kernels: marks become LLVM IR that writes the clock to a ring buffer in global memory.

`gl.scope` leaves inline assembly in the IR, a comment. While a timeline is recorded (the compile option
`instrumentation_mode` names it), the stage that writes LLVM IR replaces the comment of a begin by a read of the clock,
and that of an end by code that appends a span to the ring of its wave. The buffer is Triton's scratch memory for
profiles. Automatic scopes enclose barriers, waits and the issue of asynchronous copies.

The clock of spans is `llvm.readcyclecounter` (`s_memtime`, SHADER_CYCLES from gfx12 on), that which all units share
`llvm.readsteadycounter` (`s_memrealtime`, 100 MHz). LLVM keeps the state of a wave, on its stack in the
IR, in registers.

The layout of the buffer, and of the entry `timeline` in the metadata, is documented in `gluon_nvidia.timeline`; a
wave is a warp there. The number of the unit is made of the fields of HW_ID and XCC_ID.

Sources: AMD Instinct MI300 (CDNA3) ISA: S_MEMTIME, S_MEMREALTIME, HW_ID, XCC_ID; RDNA4 ISA: SHADER_CYCLES, HW_ID1; LLVM, User
Guide for AMDGPU Backend.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Callable

from gluon_core.plugin.triton_compiler import TritonCompiler

__all__ = ["Marks", "instrumented", "keep_spills"]

_MAGIC = 0x6C676C75
_HEADER = 64  # bytes of a wave in front of the rings
_SLOT = 8  # bytes of a span
_PERIOD = 10  # nanoseconds of the steady counter

_Run = Callable[[Any, "dict[str, Any]"], Any]

_MARK = re.compile(r'asm sideeffect "; gluon\.scope (begin|end) (\d+) ([^"]*)"')
_KERNEL = re.compile(r"^define amdgpu_kernel void @([\w.$]+)\((.*)\)(.*)\{[^\n]*\n", re.M)
_THREADS = re.compile(r'"amdgpu-flat-work-group-size"="\d+,(\d+)"')
_NODE = re.compile(r"^(!\d+) = (?:distinct )?!(DI\w+)\((.*)\)$", re.M)
_ABSENT = re.compile(
    r'"amdgpu-no-(?:workgroup-id-[xyz]|workitem-id-x|implicitarg-ptr)"(?:="[^"]*")? ?'
)

_LIBRARY = re.compile(r"[/\\](?:gluon_core|triton)[/\\]")

#: Automatic scopes: an instruction, and the name.
_AUTOMATIC: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"@llvm\.amdgcn\.s\.barrier(?:\.wait)?\("), "barrier"),
    (re.compile(r"@llvm\.amdgcn\.s\.(?:waitcnt|wait\.\w+cnt|wait\.asyncmark)\("), "memory wait"),
    (re.compile(r"@llvm\.amdgcn\.(?:raw\.ptr\.buffer\.load\.(?:async\.)?lds|global\.load\.(?:async\.to\.)?lds)\b"),
     "copy issue"),
    (re.compile(r"@llvm\.amdgcn\.tensor\.(?:load|store)"), "copy issue"),
)  # fmt: skip


class Marks:
    """The marks of scopes, for Triton's builder."""

    create_inline_asm: Callable[..., Any]  # Triton's builder has it
    get_int32_ty: Callable[[], Any]
    options: Any

    def mark_scope(self, name: str, begins: bool, line: int) -> None:
        if TritonCompiler.recording(self.options) is not None:
            text = f"; gluon.scope {'begin' if begins else 'end'} {line} {name.replace('$', '$$')}"
            self.create_inline_asm(text, "=v", [], [self.get_int32_ty()], False, 1)


def instrumented(run: _Run, recording: tuple[int, bool], warp_size: int, arch: str) -> _Run:
    """Return the stage `run`, which writes LLVM IR, with code that records the timeline.

    Args:
        recording: see `TritonCompiler.recording`; a wave is a warp there.
        arch: LLVM's name of the architecture.
    """

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        return _Writer(*recording, warp_size, arch).written(run(source, metadata), metadata)

    return stage


def keep_spills(run: _Run) -> _Run:
    """Return the stage `run`, which writes assembly, with a warning where a timeline makes a kernel spill registers."""

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        result = run(source, metadata)
        spilled = _spilled(result)
        if spilled:
            plain = "\n".join(line for line in source.split("\n") if "%gt." not in line)
            alone = _spilled(run(plain, dict(metadata)))
            if spilled > alone:
                metadata.setdefault("warnings", []).append(
                    f"recording a timeline spills {spilled} registers, {alone} are spilled without: the recorded times "
                    "are too long. Open fewer scopes at once, or ask for fewer waves of a SIMD: waves_per_eu."
                )
        return result

    return stage


def _spilled(assembly: str) -> int:
    """Return the number of scalar and vector registers of a wave that assembly spills."""
    return sum(map(int, re.findall(r"\.[sv]gpr_spill_count: *(\d+)", assembly)))


@dataclass
class _Writer:
    """Writes the recording code of one module.

    Args:
        events: spans that a wave keeps.
        automatic: adds scopes around barriers, waits and copies.
        lanes: of a wave.
        arch: such as "gfx942".
    """

    events: int
    automatic: bool
    lanes: int
    arch: str
    scopes: dict[tuple[str, int], int] = field(default_factory=dict)  # name and line -> number
    files: list[str] = field(default_factory=list)  # of each scope
    nodes: dict[str, tuple[str, str]] = field(default_factory=dict)  # of debug information
    marks: int = 0
    serial: int = 0  # of the values of a mark
    whole: int = 0  # number of the scope of the whole kernel, where there is one

    def written(self, module: str, metadata: dict[str, Any]) -> str:
        kernel = _KERNEL.search(module)
        if kernel is None:
            return module
        closing = module.index("\n}", kernel.end())
        self.nodes = {name: (kind, text) for name, kind, text in _NODE.findall(module)}
        lines = module[kernel.end() : closing].split("\n")
        body = [text for line in lines for text in self._line(line)]
        if not self.scopes and self.automatic:  # nothing waits: the time of the waves is left
            self.whole = self._number("kernel", self._place(kernel[0])[1], kernel[0])
            body = [self._begin(self.whole), *(text for line in lines for text in self._line(line))]
        if not self.scopes:
            return module
        threads = _THREADS.search(module)
        warps = -(-int(threads[1] if threads else 1024) // self.lanes)
        columns = 1 << (warps - 1).bit_length()
        pitch = columns * _SLOT
        first = -(-warps * _HEADER // pitch) * pitch
        size = -(-(first + self.events * pitch) // 128) * 128
        bits = len(self.scopes).bit_length()
        numbers = {
            "mask": self.events * pitch - 1, "pitch": pitch, "first": first, "size": size, "bits": bits,
            "lanes": self.lanes, "lane": self.lanes - 1, "shift": self.lanes.bit_length() - 1, "magic": _MAGIC,
            "period": _PERIOD, "header": _HEADER,
        }  # fmt: skip
        metadata["profile_scratch_size"] = size
        metadata["profile_scratch_align"] = 128
        metadata["timeline"] = {
            "scopes": [[*scope, file] for scope, file in zip(self.scopes, self.files)],
            "events": self.events,
            "spare": 0,
            "warps": warps,
            "columns": columns,
            "rows": first,
            "bits": bits,
        }
        outside = len(_MARK.findall(module)) - self.marks
        if outside:
            metadata.setdefault("warnings", []).append(
                f"{outside} marks of scopes are in functions that are not inlined: a timeline does not "
                "show them. Remove noinline=True."
            )
        parameters, buffer = _last_parameter(kernel[2])
        head = f"define amdgpu_kernel void @{kernel[1]}({parameters}){kernel[3]}{{\n"
        state = "".join(_STATE.format(number=number) for number in self.scopes.values())
        begin = state + _BEGIN + self._unit(self.arch) + _MAGIC_WORD + self._stores(_BEGINS, 0)
        text = _filled(begin, {**numbers, "buffer": buffer}) + _filled("\n".join(body), numbers)
        code = module[: kernel.start()] + head + text + module[closing:]
        return _declared(_ABSENT.sub("", code))

    def _line(self, line: str) -> list[str]:
        mark = _MARK.search(line)
        if mark:
            self.marks += 1
            number = self._number(mark[3].replace("$$", "$").strip(), int(mark[2]), line)
            event = self._end(number) if mark[1] == "end" else self._begin(number)
            # The result of the mark stays defined: values without names are numbered.
            return [event, line.replace(mark[0], 'asm sideeffect "v_mov_b32 $0, 0"')]
        if line.strip().split(",")[0] == "ret void":
            before = self._end(self.whole) + "\n" if self.whole else ""
            self.serial += 1
            return [
                before + _END.format(serial=self.serial) + self._stores(_ENDS, self.serial),
                line,
            ]
        for pattern, name in _AUTOMATIC if self.automatic else ():
            if pattern.search(line):
                number = self._number(name, self._place(line)[1], line)
                return [self._begin(number), line, self._end(number)]
        return [line]

    def _number(self, name: str, line: int, text: str) -> int:
        if (name, line) not in self.scopes:
            self.scopes[name, line] = len(self.scopes) + 1
            self.files.append(self._place(text)[0])
        return self.scopes[name, line]

    def _begin(self, number: int) -> str:
        self.serial += 1
        return _CLOCK.format(serial=self.serial) + _FROM.format(serial=self.serial, number=number)

    def _end(self, number: int) -> str:
        self.serial += 1
        return _CLOCK.format(serial=self.serial) + _SPAN.format(serial=self.serial, number=number)

    def _place(self, line: str) -> tuple[str, int]:
        """Return the file and the line of an instruction: the caller's, where a function of the language was inlined."""
        match = re.search(r"!dbg (!\d+)", line)
        file, number = "", 0
        while match is not None:
            kind, text = self.nodes.get(match[1], ("", ""))
            known = re.search(r"line: (\d+)", text)
            file, number = self._file(kind, text), int(known[1]) if known else 0
            match = re.search(r"inlinedAt: (!\d+)", text) if _LIBRARY.search(file) else None
        return file, number

    def _file(self, kind: str, text: str) -> str:
        while kind and kind != "DIFile":
            follow = re.search(r"file: (!\d+)", text) or re.search(r"scope: (!\d+)", text)
            kind, text = self.nodes.get(follow[1], ("", "")) if follow else ("", "")
        names = dict(re.findall(r'(filename|directory): "([^"]*)"', text))
        return os.path.join(names.get("directory", ""), names.get("filename", ""))

    @staticmethod
    def _stores(words: tuple[tuple[int, str], ...], serial: int) -> str:
        """Return the code that writes 64-bit words of a wave's header at their offsets."""
        return "".join(
            _STORE.format(serial=serial, offset=offset, value=value.format(serial=serial))
            for offset, value in words
        )

    @staticmethod
    def _unit(arch: str) -> str:
        """Return the code that sets %gt.unit: of HW_ID the fields from CU_ID on, and XCC_ID above it."""
        if not arch.startswith("gfx9"):
            return _FIELD.format(name="gt.unit", register=_hwreg(23, 10, 11))
        text = _FIELD.format(name="gt.hw", register=_hwreg(4, 8, 8))
        if arch in ("gfx940", "gfx941", "gfx942", "gfx950"):
            return text + _FIELD.format(name="gt.xcc", register=_hwreg(20, 0, 4)) + _BOTH
        return text + "  %gt.unit = or i32 %gt.hw, 0\n"


def _hwreg(number: int, offset: int, bits: int) -> int:
    return number | offset << 6 | (bits - 1) << 11


def _last_parameter(parameters: str) -> tuple[str, str]:
    """Return the parameters of the kernel with one that may be written last, and its name."""
    before, comma, last = parameters.rpartition(",")
    name = last.split()[-1]
    return before + comma + re.sub(r"\breadnone\b|\breadonly\b", "", last), name


def _filled(text: str, numbers: dict[str, Any]) -> str:
    return re.sub(r"\$\{gt\.(\w+)\}", lambda match: str(numbers[match[1]]), text)


def _declared(module: str) -> str:
    """Return the module with declarations of the intrinsics that it uses."""
    used = [line for line in _DECLARATIONS if f"@{_intrinsic(line)}(" in module]
    missing = [
        line
        for line in used
        if not re.search(rf"^declare .*@{re.escape(_intrinsic(line))}\(", module, re.M)
    ]
    return module + "\n" + "\n".join(missing) + "\n"


def _intrinsic(declaration: str) -> str:
    return declaration.split("@")[1].split("(")[0]


_DECLARATIONS = (
    "declare i64 @llvm.readcyclecounter()",
    "declare i64 @llvm.readsteadycounter()",
    "declare i32 @llvm.amdgcn.workgroup.id.x()",
    "declare i32 @llvm.amdgcn.workgroup.id.y()",
    "declare i32 @llvm.amdgcn.workgroup.id.z()",
    "declare i32 @llvm.amdgcn.workitem.id.x()",
    "declare i32 @llvm.amdgcn.readfirstlane.i32(i32)",
    "declare ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()",
    "declare i32 @llvm.amdgcn.s.getreg(i32 immarg)",
    "declare void @llvm.masked.store.v1i64.p1(<1 x i64>, ptr addrspace(1), i32 immarg, <1 x i1>)",
)

# `gt` begins the names of the recorder's values. A wave's first lane writes.
_STATE = "  %gt.from.{number} = alloca [2 x i32], align 4, addrspace(5)\n"
_BEGIN = """\
  %gt.next = alloca [2 x i32], align 4, addrspace(5)
  store i32 0, ptr addrspace(5) %gt.next, align 4
  %gt.sizes = call ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
  %gt.size.x = load i32, ptr addrspace(4) %gt.sizes, align 4
  %gt.sizes.y = getelementptr i8, ptr addrspace(4) %gt.sizes, i64 4
  %gt.size.y = load i32, ptr addrspace(4) %gt.sizes.y, align 4
  %gt.x = call i32 @llvm.amdgcn.workgroup.id.x()
  %gt.y = call i32 @llvm.amdgcn.workgroup.id.y()
  %gt.z = call i32 @llvm.amdgcn.workgroup.id.z()
  %gt.zy = mul i32 %gt.z, %gt.size.y
  %gt.row = add i32 %gt.zy, %gt.y
  %gt.rowx = mul i32 %gt.row, %gt.size.x
  %gt.block = add i32 %gt.rowx, %gt.x
  %gt.thread = call i32 @llvm.amdgcn.workitem.id.x()
  %gt.lane = and i32 %gt.thread, ${gt.lane}
  %gt.isfirst = icmp eq i32 %gt.lane, 0
  %gt.first = insertelement <1 x i1> poison, i1 %gt.isfirst, i64 0
  %gt.wave.lanes = lshr i32 %gt.thread, ${gt.shift}
  %gt.wave = call i32 @llvm.amdgcn.readfirstlane.i32(i32 %gt.wave.lanes)
  %gt.column = shl i32 %gt.wave, 3
  %gt.wide = zext i32 %gt.block to i64
  %gt.offset = mul i64 %gt.wide, ${gt.size}
  %gt.base = getelementptr i8, ptr addrspace(1) ${gt.buffer}, i64 %gt.offset
  %gt.rows = getelementptr i8, ptr addrspace(1) %gt.base, i64 ${gt.first}
  %gt.wave.wide = zext i32 %gt.wave to i64
  %gt.head.offset = mul i64 %gt.wave.wide, ${gt.header}
  %gt.head = getelementptr i8, ptr addrspace(1) %gt.base, i64 %gt.head.offset
  %gt.ticks = call i64 @llvm.readsteadycounter()
  %gt.ns = mul i64 %gt.ticks, ${gt.period}
  %gt.cycles = call i64 @llvm.readcyclecounter()
"""
_BEGINS = ((0, "%gt.magic"), (8, "%gt.ns"), (24, "%gt.cycles"))
_ENDS = ((32, "%gt.spans.wide.{serial}"), (40, "%gt.ns.{serial}"), (56, "%gt.cycles.{serial}"))
_MAGIC_WORD = """\
  %gt.unit.wide = zext i32 %gt.unit to i64
  %gt.unit.high = shl i64 %gt.unit.wide, 32
  %gt.magic = or i64 %gt.unit.high, ${gt.magic}
"""
_END = """\
  %gt.cycles.{serial} = call i64 @llvm.readcyclecounter()
  %gt.ticks.{serial} = call i64 @llvm.readsteadycounter()
  %gt.ns.{serial} = mul i64 %gt.ticks.{serial}, ${{gt.period}}
  %gt.last.{serial} = load i32, ptr addrspace(5) %gt.next, align 4
  %gt.spans.{serial} = udiv i32 %gt.last.{serial}, ${{gt.pitch}}
  %gt.spans.wide.{serial} = zext i32 %gt.spans.{serial} to i64
"""
_STORE = """\
  %gt.word.{serial}.{offset} = insertelement <1 x i64> poison, i64 {value}, i64 0
  %gt.to.{serial}.{offset} = getelementptr i8, ptr addrspace(1) %gt.head, i64 {offset}
  call void @llvm.masked.store.v1i64.p1(<1 x i64> %gt.word.{serial}.{offset}, ptr addrspace(1) %gt.to.{serial}.{offset}, i32 8, <1 x i1> %gt.first)
"""
_FIELD = "  %{name} = call i32 @llvm.amdgcn.s.getreg(i32 {register})\n"
_BOTH = "  %gt.xcc.high = shl i32 %gt.xcc, 8\n  %gt.unit = or i32 %gt.hw, %gt.xcc.high\n"
_CLOCK = """\
  %gt.time.{serial} = call i64 @llvm.readcyclecounter()
  %gt.low.{serial} = trunc i64 %gt.time.{serial} to i32
"""
_FROM = "  store i32 %gt.low.{serial}, ptr addrspace(5) %gt.from.{number}, align 4"
_SPAN = """\
  %gt.from.{serial}.{number} = load i32, ptr addrspace(5) %gt.from.{number}, align 4
  %gt.shifted.{serial} = shl i32 %gt.low.{serial}, ${{gt.bits}}
  %gt.word.{serial} = or i32 %gt.shifted.{serial}, {number}
  %gt.high.{serial} = zext i32 %gt.word.{serial} to i64
  %gt.upper.{serial} = shl i64 %gt.high.{serial}, 32
  %gt.lower.{serial} = zext i32 %gt.from.{serial}.{number} to i64
  %gt.both.{serial} = or i64 %gt.upper.{serial}, %gt.lower.{serial}
  %gt.span.{serial} = insertelement <1 x i64> poison, i64 %gt.both.{serial}, i64 0
  %gt.next.{serial} = load i32, ptr addrspace(5) %gt.next, align 4
  %gt.ring.{serial} = and i32 %gt.next.{serial}, ${{gt.mask}}
  %gt.slot.{serial} = or i32 %gt.ring.{serial}, %gt.column
  %gt.slot.wide.{serial} = zext i32 %gt.slot.{serial} to i64
  %gt.place.{serial} = getelementptr i8, ptr addrspace(1) %gt.rows, i64 %gt.slot.wide.{serial}
  call void @llvm.masked.store.v1i64.p1(<1 x i64> %gt.span.{serial}, ptr addrspace(1) %gt.place.{serial}, i32 8, <1 x i1> %gt.first)
  %gt.after.{serial} = add i32 %gt.next.{serial}, ${{gt.pitch}}
  store i32 %gt.after.{serial}, ptr addrspace(5) %gt.next, align 4"""
