"""Queries of bytes that all steps multiply by keys of bytes: both products are those of warpgroups."""

import importlib.util
from pathlib import Path

import pytest

import gluon_core as gluon
from gluon_write.porting.port import port

pytest.importorskip("torch")

pytestmark = pytest.mark.once
FILE = Path(__file__).parent / "triton_kernels" / "byte_scores.py"


def test_units_read_keys_of_bytes_from_shared_memory(tmp_path):
    path = tmp_path / "byte_scores.py"
    path.write_text(port(FILE.read_text(), str(FILE)).text)
    spec = importlib.util.spec_from_file_location("ported_byte_scores", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signature = dict.fromkeys(("Q", "K"), "*i8:16") | dict.fromkeys(("QS", "KS"), "*fp32:16")
    signature |= {"V": "*fp16:16", "Out": "*fp16:16", "N": "i32"}
    sizes = {"D": 64, "BM": 64, "BN": 64}
    options = {"num_warps": 4, "num_stages": 3}
    compiled = gluon.compile(
        module.byte_scores_kernel,
        target="sm_90",
        signature=signature,
        constexprs=sizes,
        options=options,
    )
    text = compiled.asm["ttgir"]
    assert text.count("ttng.warp_group_dot ") == 2 and "tt.dot " not in text
