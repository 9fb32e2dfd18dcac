"""The plugin as others see it: imports, contract, protocol, recorded programs, kinds of arguments."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import DeviceError, GluonError
from gluon_core.plugin import reference
from gluon_core.registry.load import registry
from gluon_core.testing import triton_at_least

SOURCES = Path(__import__("gluon_sim").__file__).parent
L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


def test_importing_the_plugin_imports_neither_triton_nor_torch():
    code = (
        "import sys, gluon_sim.plugin as p; b = p.gluon_backends()[0]; "
        "assert b.simulates and b.name == 'sim' and not b.architectures; "
        "sys.exit(bool({'triton', 'torch'} & set(sys.modules)))"
    )
    plain = {k: v for k, v in os.environ.items() if k != "GLUON_TARGET"}  # which wants a driver
    assert subprocess.run([sys.executable, "-c", code], check=False, env=plain).returncode == 0


def test_the_simulator_names_no_vendor():
    names = {b.name for b in registry().backends.values()} - {
        "sim",
        "emu",
    }  # the emulator is no vendor
    names |= {"cuda", "hip", "ptx", "rocm", "hopper", "ampere", "blackwell", "cdna"}
    pattern = re.compile("|".join(sorted(names)), re.IGNORECASE)
    vendors = {p.name: pattern.findall(p.read_text()) for p in SOURCES.rglob("*.py")}
    assert {name: hits for name, hits in vendors.items() if hits} == {}


def test_the_machine_offers_the_methods_of_the_contract():
    from gluon_sim.executor.task import Task

    promised = [n for n in vars(reference.Machine) if not n.startswith("_")]
    assert len(promised) > 15
    missing = [n for n in promised if not hasattr(Task, n)]
    assert missing == []
    assert "num_warps" in Task.__init__.__code__.co_names


def test_every_architecture_of_every_plugin_is_a_target():
    for architecture in registry().architectures():
        target = registry().target(f"sim:{architecture.name}")
        assert target.simulated and target.architecture is architecture


@gluon.jit
def scaled(pair, bias, out, scale, BLOCK: gl.constexpr):
    o = gl.arange(0, BLOCK, layout=L1)
    x = gl.load(pair[0] + o) * scale + pair[1]
    if bias is not None:
        x += gl.load(bias + o)
    gl.store(out + o, x)


def test_arguments_may_be_tuples_none_floats_and_kept_apart_from_each_other():
    x, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    scaled[(1,)]((x, 7), None, out, 0.5, 32)
    np.testing.assert_array_equal(out, x * 0.5 + 7)
    scaled[(1,)]((torch.from_numpy(x), 7), x, out, 0.5, 32)
    np.testing.assert_array_equal(out, x * 1.5 + 7)


@gluon.jit
def integers(out, a, b, c):
    gl.store(out, a)
    gl.store(out + 1, b)
    gl.store(out + 2, c)


def test_integers_of_every_width_arrive():
    out = np.zeros(3, np.int64)
    integers[(1,)](out, -5, 2**40, 2**64 - 1)
    assert out.tolist() == [-5, 2**40, -1]


def test_two_arguments_may_share_storage():
    base = torch.arange(64, dtype=torch.float32)
    scaled[(1,)]((base[:32], 1), base[32:], base[32:], 2.0, 32)
    assert torch.equal(base[32:], torch.arange(32) * 2.0 + 1 + torch.arange(32, 64))


def test_tensors_of_another_device_are_refused():
    from gluon_core.simulation.host_memory import storage_of

    with pytest.raises(DeviceError, match="the simulator works on CPU tensors"):
        storage_of("x", torch.empty(4, device="meta"), "simulator")


@gluon.jit
def sums(src, dst, n, BLOCK: gl.constexpr):
    o = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=L1)
    total = gl.zeros((BLOCK,), gl.float32, L1)
    for _ in range(20):
        total += gl.load(src + o)
    gl.store(dst + o, total)


def test_threads_may_launch_the_same_kernel_at_once():
    arrays = [(np.full(512, i, np.float32), np.zeros(512, np.float32)) for i in range(8)]
    errors = []

    def work(src, dst):
        try:
            sums[(4,)](src, dst, 3, 128)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for src, dst in arrays:
        np.testing.assert_array_equal(dst, src * 20)


def test_the_recorded_program_reads_well_and_has_lines():
    src, dst = np.zeros(128, np.float32), np.zeros(128, np.float32)
    compiled = sums[(1,)](src, dst, 3, 128)
    text = compiled.asm["program"].decode()
    assert text.startswith("#blocked0 = BlockedLayout(size_per_thread=[1]")
    assert re.search(r"kernel @sums\(%src: \*fp32.*%dst: \*fp32", text)
    assert re.search(
        r"%total\w* = for %\w+, %\w+, %\w+, \[%\w+\] : tensor<128xfp32, #blocked0>", text
    )
    line = sums.fn.__code__.co_firstlineno + 5
    assert re.search(rf"= load %\w+ : tensor<128xfp32, #blocked0>  # {line}:", text)
    assert "  # " not in compiled.function.str_nodebug()


def test_ops_whose_results_nobody_reads_are_not_run():
    from gluon_sim.executor.compile import _dead_ops

    src, dst = np.zeros(128, np.float32), np.zeros(128, np.float32)
    program = sums[(1,)](src, dst, 3, 128).asm["program"].program
    dead = _dead_ops(program)
    kept = [op.name for op in program.walk_ops() if id(op) not in dead]
    assert "load" in kept and "store" in kept and "icmpSLE" not in kept


@gluon.jit
def handshake(flag, out):
    gl.atomic_store(flag + gl.program_id(0) * 0 + 1, 5)
    if gl.program_id(0) == 0:
        gl.store(out, gl.atomic_poll(flag, 3).to(gl.int32))
        gl.store(out + 1, gl.atomic_load(flag + 1))
    else:
        gl.atomic_store(flag, 3)


@gluon.jit
def gives_up(flag, out):
    gl.store(out, gl.atomic_poll(flag, 3, timeout_ns=1000).to(gl.int32))


@pytest.mark.skipif(not triton_at_least(3, 9), reason="came with Triton 3.9")
def test_polling_waits_for_another_program_or_times_out():
    flag, out = np.zeros(2, np.int32), np.zeros(2, np.int32)
    handshake[(2,)](flag, out)
    assert out.tolist() == [1, 5]
    flag, out = np.zeros(2, np.int32), np.full(1, 7, np.int32)
    gives_up[(1,)](flag, out)
    assert out[0] == 0
    with pytest.raises(GluonError, match="memory to hold the polled value"):
        handshake[(1,)](np.zeros(2, np.int32), np.zeros(2, np.int32))


def test_registered_models_of_inline_assembly_and_library_functions_run(monkeypatch):
    import gluon_nvidia.reference as models

    monkeypatch.setattr(
        models, "INLINE_ASM", {"add.s32 $0, $1, 41;": lambda task, x: x + 41}, raising=False
    )
    out = np.zeros(1, np.int32)
    adds_41[(1,)](out)
    assert out[0] == 41


@gluon.jit
def adds_41(out):
    text: gl.constexpr = "add.s32 $0, $1, 41;"
    x = gl.inline_asm_elementwise(
        text, "=r,r", [gl.program_id(0)], dtype=gl.int32, is_pure=True, pack=1
    )
    gl.store(out, x)
