"""Define the source of a compilation: a kernel with the types, constants and attributes of its parameters."""

from __future__ import annotations

import hashlib
from typing import Any, Mapping, NoReturn, Optional, Sequence, Union

from gluon_core import _triton
from gluon_core.compiler.cache import content_hash
from gluon_core.compiler.kernel_text import check_unchanged
from gluon_core.errors import ArgumentError, OptionError, did_you_mean, strict_by_default
from gluon_core.plugin.host_descriptor import HostDescriptor
from gluon_core.registry.load import registry
from gluon_core.values.constants import Identity, identity
from gluon_core.values.descriptors import descriptor_text

__all__ = ["GluonASTSource", "Path", "jit_function", "strictness", "trace_source"]

Path = tuple[int, ...]


def jit_function(fn: Any) -> Any:
    """Return the jit function inside `fn`, which may be wrapped by `autotune` or `heuristics`.

    Raises:
        ArgumentError: there is none.
    """
    inner = fn
    while inner is not None and not isinstance(inner, _triton.JITFunction):
        inner = getattr(inner, "fn", None)
    if inner is None:
        raise ArgumentError(
            "not a kernel",
            argument="fn",
            expected="a function decorated with gluon.jit",
            got=type(fn).__name__,
        )
    return inner


def strictness(kernel: Any, strict: Any = None) -> bool:
    """Return whether a kernel is compiled strictly: as `strict`, else its decorator, else the environment says.

    Raises:
        OptionError: `strict` is not a truth value.
    """
    if strict is None:
        strict = getattr(kernel, "strict", None)
    if strict is None:
        return strict_by_default()
    if not isinstance(strict, (bool, int)) or strict not in (0, 1):
        raise OptionError(
            "must be true or false", argument="strict", expected="True or False", got=repr(strict)
        )
    return bool(strict)


def check_mapping(mapping: Any, argument: str, expected: str) -> None:
    """Raise unless an argument of `compile` is a mapping, or None.

    Raises:
        ArgumentError: it is neither.
    """
    if mapping is not None and not isinstance(mapping, Mapping):
        raise ArgumentError(
            "not a mapping", argument=argument, expected=f"a dict {expected}", got=repr(mapping)
        )


class GluonASTSource(_triton.ASTSource):  # type: ignore[misc]  # Triton has no types
    """Hold a kernel and the known facts of its parameters; `triton.compile` takes it.

    Args:
        fn: the jit function.
        signature: parameter -> type (`"*fp32"`, `"i32"`, `"constexpr"`, a dtype, an array or a
            descriptor of the host for its type, or a nested tuple of those). A trailing `:16`
            declares an argument divisible by 16, `:1` one that is 1. Parameters annotated
            `constexpr` may be left out.
        constexprs: parameter name, or path `(index, ...)`, -> value.
        attrs: parameter name or path -> list of `[attribute, value]`, or 16; anything empty for none.
        strict: as in `gluon.jit`; None for the kernel's own setting, else the environment.

    Raises:
        ArgumentError: an unknown or missing parameter.
    """

    ext = "ttgir"
    language = _triton.Language.GLUON

    def __init__(
        self,
        fn: Any,
        signature: Mapping[str, Any],
        constexprs: Optional[Mapping[Any, Any]] = None,  # a name or a path -> value
        attrs: Union[Mapping[Any, Any], Sequence[NoReturn], None] = None,
        strict: Optional[bool] = None,
    ):
        self.fn = jit_function(fn)
        self.strict = strictness(self.fn, strict)
        self.name: str = self.fn.__name__
        self.constants: dict[Path, Any] = {}
        self.attrs: dict[Path, list[Any]] = {}
        names = self.fn.arg_names
        mappings = (("signature", signature), ("constexprs", constexprs), ("attrs", attrs or None))
        for argument, mapping in mappings:
            check_mapping(mapping, argument, "from names of parameters to their kinds")
        for key in signature:
            self._index(key, "signature")
        for key, value in (constexprs or {}).items():
            self.constants[self._path(key, "constexprs")] = value
        for key, value in dict(attrs or {}).items():
            pairs = [["tt.divisibility", value]] if isinstance(value, int) else value
            self.attrs[self._path(key, "attrs")] = [list(pair) for pair in pairs]
        self.signature: dict[str, Any] = {}
        missing = []
        for index, name in enumerate(names):
            if name in signature:
                self.signature[name] = self._type(signature[name], (index,))
            elif (index,) in self.constants or index in self.fn.constexprs:
                self.signature[name] = "constexpr"
            else:
                missing.append(name)
            self._default(index, name)
        if missing:
            raise ArgumentError(
                f"{self.name} has parameters without a type",
                argument="signature",
                got=f"none for {', '.join(missing)}",
                remedy="Give each a type such as '*fp32' or 'i32', or a value in constexprs.",
            )
        self._require_constants()

    def _default(self, index: int, name: str) -> None:
        if self.signature.get(name) == "constexpr" and (index,) not in self.constants:
            param = self.fn.params[index]
            if param.has_default:
                self.constants[(index,)] = param.default

    def _require_constants(self) -> None:
        missing = [
            name
            for index, name in enumerate(self.fn.arg_names)
            if self.signature[name] == "constexpr" and (index,) not in self.constants
        ]
        if missing:
            raise ArgumentError(
                f"{self.name} has constexpr parameters without a value",
                argument="constexprs",
                got=f"none for {', '.join(missing)}",
            )

    def _index(self, key: Any, argument: str) -> int:
        names: list[str] = self.fn.arg_names
        if key not in names:
            raise ArgumentError(
                f"{self.name} has no parameter {key!r}",
                argument=argument,
                expected=f"of {', '.join(names)}",
                remedy=did_you_mean(str(key), names),
            )
        return names.index(key)

    def _path(self, key: Union[str, Path, int], argument: str) -> Path:
        if isinstance(key, str):
            return (self._index(key, argument),)
        path = (key,) if isinstance(key, int) else tuple(key)
        if not path or not 0 <= path[0] < len(self.fn.arg_names):
            raise ArgumentError(
                f"{self.name} has no parameter at {key!r}",
                argument=argument,
                expected=f"indices below {len(self.fn.arg_names)}",
            )
        return path

    def _type(self, kind: Any, path: Path) -> Any:
        if isinstance(kind, (tuple, list)):
            items = [self._type(item, (*path, index)) for index, item in enumerate(kind)]
            make: Any = getattr(type(kind), "_make", tuple)  # of tuples whose items have names
            return make(items)
        if isinstance(kind, HostDescriptor):
            element = str(kind.base.dtype).removeprefix("torch.")
            element = _triton.type_names().get(element, element)
            fields = (kind.block_shape, kind.layout, kind.head, kind.input_rank)
            return descriptor_text(element, *fields)
        if not isinstance(kind, type) and hasattr(kind, "shape") and hasattr(kind, "dtype"):
            # An array: a pointer to its elements.
            element = str(kind.dtype).removeprefix("torch.")
            return f"*{_triton.type_names().get(element, element)}"
        if not isinstance(kind, str):
            text = str(kind).removeprefix("torch.")
            return _triton.type_names().get(text, text)
        head, colon, tail = kind.partition(":")
        if not colon or "<" in head:
            return kind
        if tail == "1":
            self.constants.setdefault(path, 1)
            return "constexpr"
        if tail == "16":
            self.attrs.setdefault(path, [["tt.divisibility", 16]])
            return head
        raise ArgumentError(
            "only ':16' and ':1' may follow a type", argument="signature", got=repr(kind)
        )

    # -- attributes that Triton's tools read ------------------------------------------------------

    @property
    def types(self) -> tuple[Any, ...]:
        """Return the type of each parameter in order."""
        return tuple(self.signature[name] for name in self.fn.arg_names)

    def identity(self) -> Identity:
        """Return the identity of the kernel, all that it refers to, and its constants."""
        constants = [
            (path, value.value if isinstance(value, _triton.constexpr) else value)
            for path, value in sorted(self.constants.items(), key=lambda pair: pair[0])
        ]
        return identity((self.fn, constants))

    def hash(self, identity: Optional[Identity] = None) -> str:
        """Return a digest of the kernel, its callees, the known facts of its parameters, and of our code.

        Args:
            identity: `identity()`, where the caller has it.
        """
        check_unchanged(self.fn)
        tops = {type(b).__module__.partition(".")[0] for b in registry().backends.values()}
        writer = (
            registry().offers("service").get("write") if getattr(self.fn, "layouts", None) else None
        )
        parts = (
            content_hash(("gluon_core", *sorted(tops - {"gluon_core"}))),
            (identity or self.identity()).text,
            sorted(self.attrs.items()),
            list(self.signature.items()),
            self.strict,
            writer and content_hash((writer.value.partition(".")[0],)),
            writer and registry().service("write.form")(),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def parse_options(self) -> dict[str, Any]:
        return {}

    def make_ir(
        self,
        target: Any,
        options: Any,
        codegen_fns: Any = None,
        module_map: Any = None,
        context: Any = None,
    ) -> Any:
        """Return the traced module, before any stage."""
        if context is not None:  # Triton's own compiler has loaded its dialects
            chosen = registry().target(target)
            registry().backend(chosen.backend).compiler.load_dialects(context)
        return trace_source(self, target, options, context)


def trace_source(
    source: GluonASTSource, target: Any, options: Any, context: Any = None, **more: Any
) -> Any:
    """Return the module that `source` turns into, before any stage; `more` goes to `frontend.trace`."""
    from gluon_core.frontend import trace

    chosen = registry().target(target)
    backend = registry().backend(chosen.backend)
    pairs = {path: [tuple(pair) for pair in pairs_of] for path, pairs_of in source.attrs.items()}
    return trace(
        source.fn,
        source.signature,
        source.constants,
        pairs,
        backend=backend,
        target=chosen,
        options=options,
        context=context,
        strict=source.strict,
        **more,
    )
