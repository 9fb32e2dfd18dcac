"""Types of recorded values. Compare with `==`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

__all__ = [
    "BITS",
    "DescriptorType",
    "FunctionType",
    "MemDescType",
    "OpaqueType",
    "PointerType",
    "ScalarType",
    "TensorType",
    "Type",
]


BITS = {
    "i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "i128": 128, "fp16": 16, "bf16": 16,
    "fp32": 32, "fp64": 64, "fp8e4nv": 8, "fp8e4b8": 8, "fp8e4b15": 8, "fp8e5": 8, "fp8e5b16": 8,
}  # fmt: skip


class Type:
    """Base of all types. Compare with `==`."""

    layout: Any  # of tensors and buffers; other types have none

    @property
    def element(self) -> "Type":
        """Return the type of one element; a scalar is its own element."""
        return self

    @property
    def dims(self) -> tuple[int, ...]:
        return ()

    def with_element(self, element: "Type") -> "Type":
        """Return the same shape and layout, other elements."""
        return element

    def get_context(self) -> None:
        return None


@dataclass(frozen=True)
class ScalarType(Type):
    name: str

    @property
    def bits(self) -> int:
        return BITS[self.name]

    @property
    def is_float(self) -> bool:
        return self.name[0] in "fb"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class PointerType(Type):
    pointee: Type
    address_space: Any = 1

    bits = 64

    def __str__(self) -> str:
        return f"*{self.pointee}"


@dataclass(frozen=True)
class TensorType(Type):
    elem: Type
    shape: tuple[int, ...]
    layout: Any = None

    @property
    def element(self) -> Type:
        return self.elem

    @property
    def dims(self) -> tuple[int, ...]:
        return self.shape

    def with_element(self, element: Type) -> Type:
        return replace(self, elem=element)

    def __str__(self) -> str:
        dims = "x".join(map(str, self.shape))
        layout = "" if self.layout is None else f", {self.layout}"
        return f"tensor<{dims}x{self.elem}{layout}>"


@dataclass(frozen=True)
class MemDescType(Type):
    """A buffer in shared (or tensor) memory, or a view of one."""

    elem: Type
    shape: tuple[int, ...]
    layout: Any
    alloc_shape: tuple[int, ...]
    space: str = "shared"

    @property
    def element(self) -> Type:
        return self.elem

    @property
    def dims(self) -> tuple[int, ...]:
        return self.shape

    def __str__(self) -> str:
        dims = "x".join(map(str, self.shape))
        return f"memdesc<{dims}x{self.elem}, {self.layout}, {self.space}>"


@dataclass(frozen=True)
class OpaqueType(Type):
    """A type that only the op that makes it and the ops that take it understand."""

    name: str
    fields: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}<{', '.join(map(str, self.fields))}>" if self.fields else self.name


@dataclass(frozen=True)
class DescriptorType(OpaqueType):
    """A tensor descriptor; `fields` are the type of the box, whether its elements are signed, and
    its layout in shared memory."""

    @property
    def element(self) -> Type:
        box: Type = self.fields[0]
        return box.element


@dataclass(frozen=True)
class FunctionType(Type):
    inputs: tuple[Type, ...]
    outputs: tuple[Type, ...]
