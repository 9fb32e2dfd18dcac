"""Types where users look: what help() and inspect show, what dir() lists, and that what is declared
for checkers is what the installed Triton has."""

from __future__ import annotations

import ast
import inspect
import pydoc
from pathlib import Path

import pytest

import gluon_core as gluon
from gluon_core import _triton, testing
from gluon_core import language as gl
from gluon_core.portable import records, tile_ops
from gluon_core.testing import TRITON_VERSION, MockTensor, run_parser, triton_at_least

HIDDEN = {"_semantic", "_generator"}
# Constructors' arguments that nobody passes by hand.
MADE_OF = {"self", "cls", "builder", "handle", "handles", "kwargs", "args"}

CLASSES = (
    gl.shared_memory_descriptor,
    records.mma_accumulator,
    tile_ops.tile_descriptor,
    tile_ops.tile_pipeline,
    gluon.CompiledKernel,
    gluon.GluonJITFunction,
)


def _ours(value):
    return getattr(inspect.unwrap(value), "__module__", "").startswith("gluon_core")


def _functions():
    """(name, function) of everything public that can be called: ops, methods, host functions."""
    modules = {
        "gl": gl, "gl.portable": gl.portable, "gluon": gluon, "gluon.testing": testing,
    }  # fmt: skip
    if hasattr(gl, "fpsan"):
        modules["gl.fpsan"] = gl.fpsan
    for prefix, module in modules.items():
        for name in dir(module):
            value = getattr(module, name)
            if isinstance(value, _triton.JITCallable) or inspect.isfunction(value):
                if _ours(value):
                    yield f"{prefix}.{name}", value
    for cls in CLASSES:
        for name, value in vars(cls).items():
            if isinstance(value, property):
                value = value.fget
            if inspect.isfunction(value) and (not name.startswith("_") or name == "__getitem__"):
                yield f"{cls.__name__}.{name}", value
    for name in dir(gl.target):
        yield f"gl.target.{name}", getattr(gl.target, name)


FUNCTIONS = dict(_functions())
# Types that depend on the operands, accept everything, or pass on Triton's.
ANY = {
    "gl.map_elementwise: return", "gl.max: return", "gl.min: return", "gl.cdiv: return",
    "gl.inline_asm: return", "gl.inline_asm_elementwise: return", "gl.warp_specialize: return",
    "gl.static_print: file", "gl.to_linear_layout: layout", "gl.aggregate_replace: changes",
}  # fmt: skip


def test_they_are_found():
    assert len(FUNCTIONS) > 150
    assert {"gl.load", "gl.sum", "gl.zeros", "gl.portable.mma", "gluon.compile"} <= set(FUNCTIONS)


@pytest.mark.once
@pytest.mark.parametrize("label", [name for name in FUNCTIONS if name.startswith("gl.")])
def test_an_op_says_its_types(label):
    signature = inspect.signature(FUNCTIONS[label])
    types = {p.name: p.annotation for p in signature.parameters.values() if p.name not in MADE_OF}
    types["return"] = signature.return_annotation
    untyped = {f"{label}: {k}" for k, v in types.items() if v in (signature.empty, "Any")}
    assert untyped <= ANY


@pytest.mark.parametrize("label", [name for name in FUNCTIONS if not name.startswith("gl.")])
def test_a_method_or_host_function_says_its_types(label):
    signature = inspect.signature(FUNCTIONS[label])
    bare = [
        p.name
        for p in signature.parameters.values()
        if p.name not in MADE_OF and p.annotation is signature.empty
    ]
    assert not bare and signature.return_annotation is not signature.empty


@pytest.mark.once
@pytest.mark.parametrize("label", FUNCTIONS)
def test_help_shows_the_parameters_of_users(label):
    function = FUNCTIONS[label]
    text = pydoc.render_doc(function, renderer=pydoc.plaintext)
    assert not [name for name in HIDDEN if name in text]
    assert function.__doc__, "says nothing"
    name = label.rsplit(".", 1)[1]
    assert function.__name__ == name
    assert label.startswith("gl") is False or function.__qualname__.rsplit(".", 1)[-1] == name


# -- dir() -----------------------------------------------------------------------------------------


def test_the_language_lists_the_names_for_kernels():
    names = set(dir(gl))
    assert {"load", "tensor", "float16", "portable", "target", "extra", "nvidia"} <= names
    assert {"NVMMASharedLayout", "AMDMFMALayout", "amd"} <= names, "what plugins export"
    leaked = {"annotations", "Any", "importlib", "tl", "builtin", "open_to_kernels", "control"}
    assert not names & leaked
    assert not [name for name in names if name.startswith("_")]
    assert all(hasattr(gl, name) for name in names)


def test_exports_of_plugins_are_no_names_of_the_host():
    assert gl.NVMMASharedLayout is gl.NVMMASharedLayout
    assert not hasattr(gluon, "NVMMASharedLayout")
    with pytest.raises(AttributeError, match="NVMMASharedLayout"):
        gl.NVMMASharedLayouts


def test_no_op_of_the_language_is_left_out():
    from gluon_core.language import (
        _standard,
        control,
        dtypes,
        elementwise,
        memory,
        reductions,
        tensors,
    )

    modules = (_standard, control, dtypes, elementwise, memory, reductions, tensors)
    left = {name for module in modules for name in module.__all__} - set(dir(gl))
    for name in left:  # what this release of Triton lacks says so
        with pytest.raises(AttributeError, match=f"gl.{name} needs Triton"):
            getattr(gl, name)
    assert TRITON_VERSION < (3, 9) or not left


@pytest.mark.parametrize(
    "module, some",
    [
        (gluon, {"jit", "compile", "language", "testing", "nvidia"}),
        (gl.portable, {"load", "mma", "pipeline"}),
        *([(gl.fpsan, {"embed"})] if hasattr(gl, "fpsan") else []),
        (gl.target, {"has", "warp_size"}),
        (gl.nvidia, {"hopper", "blackwell"}),
        (gl.nvidia.hopper, {"tma", "mbarrier", "warpgroup_mma"}),
        (gl.nvidia.blackwell.tma, {"async_load", "async_gather"}),
        (gl.amd.cdna4, {"async_copy"}),
        (gluon.nvidia, {"hopper"}),
        (gluon.nvidia.hopper, {"TensorDescriptor"}),
    ],
)
def test_namespaces_list_their_own_names(module, some):
    names = set(dir(module))
    assert some <= names
    assert not names & {"annotations", "Any", "TYPE_CHECKING", "importlib", "builtin", "vendor"}
    assert all(hasattr(module, name) for name in names)


# -- declarations of Triton's values ----------------------------------------------------------


def _declared():
    """class -> its methods by name, as `_triton/declared.py` has them."""
    file = Path(_triton.__file__).with_name("declared.py")
    tree = ast.parse(file.read_text())
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {node.name: _methods(node) for node in classes}


def _methods(cls):
    methods = {node.name: node for node in cls.body if isinstance(node, ast.FunctionDef)}
    for node in cls.body:
        if isinstance(node, ast.Assign):  # `ceil = floor = abs`: declared alike
            methods |= {target.id: methods[node.value.id] for target in node.targets}
    return methods


THEIRS = {
    "constexpr": gl.constexpr, "base_type": gl.base_type, "base_value": gl.base_value,
    "dtype": gl.dtype, "pointer_type": gl.pointer_type, "block_type": gl.block_type,
    "tuple_type": gl.tuple_type, "tuple": gl.tuple, "static_range": gl.static_range,
    "tensor": gl.tensor,
}  # fmt: skip
ANSWERS_CHECKERS = {"__bool__", "__index__", "__int__"}  # there for `min(a, b)`, loops and tests
SET_BY_INIT = {"element_ty", "const", "address_space"}


def test_every_class_is_compared():
    assert set(_declared()) == set(THEIRS)


@pytest.mark.parametrize("name", THEIRS)
def test_methods_that_are_declared_exist_with_their_parameters(name):
    cls = THEIRS[name]
    for called, node in _declared()[name].items():
        if called in ANSWERS_CHECKERS:
            continue
        if called.startswith("_") and not called.startswith("__"):
            continue  # what the code generator calls; not every release has all of it
        method = inspect.getattr_static(cls, called, None)
        assert method is not None or hasattr(cls, called), f"{name}.{called}"
        if called.startswith("__") or isinstance(method, property):
            continue
        mine = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
        theirs = _parameters(method)
        missing = [p for p in mine if p not in theirs and p != "self"]
        newer = {"dtype"} if called in ("cumsum", "cumprod") else set()  # one more in 3.9
        assert not set(missing) - newer, f"{name}.{called} has no {missing}"


# Public names of Triton's classes that are not declared, as kernels of Gluon have no use for them.
UNDECLARED = {
    "dtype": {
        "SINT_TYPES", "UINT_TYPES", "FP_TYPES", "STANDARD_FP_TYPES", "OTHER_TYPES", "SIGNEDNESS", "KIND", "kind",
        "codegen_name", "cache_key_part", "with_element_ty",
    },
    "block_type": {"get_block_shapes", "with_element_ty"},
    "tuple_type": {"name"},
    # Without layouts; the last three came with 3.9, where kernels call the functions of `gl`.
    "tensor": {
        "view", "advance", "histogram", "softmax", "sort", "flip", "item", "atomic_load", "atomic_store",
        "atomic_poll",
    },
}  # fmt: skip
# Parameters of Triton's that are not declared: for block pointers, caches, and Triton's own layouts.
UNUSED = {
    "store": {"boundary_check", "cache_modifier", "eviction_policy"},
    "ravel": {"can_reorder"},
}


def _attributes(name):
    """Return the names that the declaration of a class gives its objects, those of its bases included."""
    tree = ast.parse(Path(_triton.__file__).with_name("declared.py").read_text())
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    own = {node.target.id for node in classes[name].body if isinstance(node, ast.AnnAssign)}
    bases = [base.id for base in classes[name].bases if isinstance(base, ast.Name)]
    return own.union(_declared()[name], *(_attributes(base) for base in bases))


@pytest.mark.parametrize("name", [name for name in THEIRS if name != "constexpr"])
def test_all_that_the_installed_classes_have_is_declared(name):
    """A new method or parameter of Triton's is declared, or listed above with its reason."""
    cls, known = THEIRS[name], _attributes(name) | UNDECLARED.get(name, set())
    if issubclass(cls, gl.dtype):
        known |= UNDECLARED["dtype"]
    public = {n for owner in cls.__mro__ for n in vars(owner) if not n.startswith("_")}
    assert not public - known
    for called, node in _declared()[name].items():
        method = inspect.getattr_static(cls, called, None)
        if called.startswith("_") or method is None or isinstance(method, property):
            continue
        args = node.args
        mine = {a.arg for a in (*args.args, *args.kwonlyargs, args.vararg) if a}
        theirs = [
            p for p in _parameters(method)[1:] if not p.startswith("_")
        ]  # the first is `self`
        assert not set(theirs) - mine - UNUSED.get(called, set()), called


@pytest.mark.once
def test_no_name_is_listed_twice():
    """A name that is declared now is struck from the list."""
    for name, unused in UNDECLARED.items():
        assert not unused & _attributes(name)


def _parameters(method):
    if isinstance(method, _triton.JITCallable):
        return list(method.arg_names)
    return list(inspect.signature(getattr(method, "__func__", method)).parameters)


@pytest.mark.parametrize("name", ["sum", "max", "min", "xor_sum", "reduce_or", "cumsum", "cumprod",
                                  "cdiv", "ravel"])  # fmt: skip
def test_a_library_function_takes_its_declared_arguments(name):
    function = getattr(gl, name)
    mine, theirs = list(inspect.signature(function).parameters), function.arg_names
    original = getattr(_triton.tl, name)
    # It has its name in IR from these; kernels that call it must be Triton's own, word for word.
    assert function.__module__ == original.__module__
    assert function.__qualname__ == original.__qualname__
    newer = {"dtype"} if name == "cumprod" and not triton_at_least(3, 9) else set()
    assert [p for p in mine if p not in newer] == theirs


@gluon.jit
def add(a, b):
    return a + b


@gluon.jit
def methods(p, q, n):
    """Everything that is declared of tensors."""
    rows: gl.constexpr = gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])
    line: gl.constexpr = gl.SliceLayout(0, rows)
    i = gl.arange(0, 16, layout=line)
    f = i.to(gl.float32)
    gl.static_assert(f.dtype == gl.float32 and f.shape[0] == 16 and f.numel == 16)
    g = f.abs() + f.ceil() + f.floor() + f.cos() + f.sin() + f.exp() + f.exp2() + f.log()
    g += f.log2() + f.erf() + f.sqrt() + f.sqrt_rn() + f.rsqrt() + f.sigmoid() + f.cast(gl.float32)
    b = (i > 2).logical_and(i < n).logical_or(i == 0)
    k = -(i + 1 - 2) * 3 // 4 % 5 & 6 | 7 ^ ~i << 1 >> 1
    k = 1 + k - 2 * (3 - k) + k.cdiv(2)
    m = gl.zeros([16, 16], gl.float32, rows) + f.expand_dims(0) + g[None, :]
    t = m.trans() + m.permute(1, 0) + m.T
    r = t.reshape(4, 64).ravel()
    s = m.sum(0) + m.max(1).sum() + m.min(0, keep_dims=True).sum() + m.reduce(0, add)
    s += m.associative_scan(0, add).cumsum(0).cumprod(1).sum(0)
    a = m.argmax(0) + m.argmin(1).sum() + k.xor_sum(0) + k.reduce_or(0) + i.gather(k & 15, 0)
    x, y = gl.join(r, r + 1).split()
    gl.static_assert(f.expand_dims(0).broadcast_to(16, 16).shape[0] == 16)
    gl.device_assert(x.sum() + y.sum() + s.sum() + a.sum() + b.to(gl.int32).sum() > 0)
    (p + i).store(s, mask=b)
    old = (q + i).atomic_add(a) + (q + i).atomic_and(a) + (q + i).atomic_or(a)
    old += (q + i).atomic_xor(a) + (q + i).atomic_max(a) + (q + i).atomic_min(a)
    old += (q + i).atomic_xchg(a) + (q + i).atomic_cas(a, k)
    (q + i).store(old)


def test_methods_that_are_declared_work_in_kernels():
    pointers = MockTensor(gl.float32), MockTensor(gl.int32)
    text = run_parser(methods, (*pointers, 7), {"num_warps": 4}, target="sm_90").str_nodebug()
    assert "atomic_cas" in text or "atomic_rmw" in text
    used = {node.attr for node in ast.walk(methods.parse()) if isinstance(node, ast.Attribute)}
    declared = set(_declared()["tensor"])
    assert not {name for name in declared if not name.startswith("_")} - used
