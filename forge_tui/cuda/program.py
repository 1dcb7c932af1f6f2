"""A program: one kernel file bound to one call and one tuning point, with every expression already a number.

The engine makes programs out of kernel files; this package compiles and launches them. Nothing here parses TOML.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from msgspec import Struct


class Argument(Struct, frozen=True):
    """One kernel parameter."""

    kind: Literal["pointer", "int32", "int64", "float32", "float64"]
    name: str | None = None
    """The tensor or workspace, for a pointer. None with kind `pointer` is a null pointer (an optional tensor left out)."""
    value: int | float | None = None


class Launch(Struct, frozen=True):
    """One kernel launch. Sizes in blocks and threads, as in CUDA."""

    kernel: str
    grid: tuple[int, int, int]
    """Any zero: the launch is skipped."""
    block: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    shared: int = 0
    """Dynamic shared memory, bytes."""
    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False
    pdl: bool = False
    """Programmatic dependent launch."""


class Workspace(Struct, frozen=True):
    """Scratch memory, 256-byte aligned."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: int | None = None
    """Byte value of a memset at the start of every call (only 0 and 255 keep meaning for wide types); None: garbage."""


class Program(Struct, frozen=True):
    """Everything needed to build and run one candidate on one call."""

    filename: str
    """For messages: faults and compiler errors name `filename:line`."""
    source: str
    """The whole kernel file, plan comment included, so that compiler lines are file lines."""
    macros: tuple[tuple[str, str], ...]
    """`[tune]` settings, `[define]`s, and `DTYPE_<tensor>` element types, in order."""
    launches: tuple[Launch, ...]
    workspaces: tuple[Workspace, ...] = ()
    inputs: tuple[str, ...] = ()
    """Tensors the plan may read, as kernel files name them (`input`, `tensors[0]`)."""
    outputs: tuple[str, ...] = ("out",)
    aliases: dict[str, str] = {}
    """Outputs that share an input's memory (in-place operators)."""

    def build_key(self) -> str:
        """SHA-256 (hex) of what decides the image: source and macros, not the launches."""
        digest = hashlib.sha256()
        for part in (self.source, *(f"{name}={value}" for name, value in self.macros)):
            digest.update(part.encode())
            digest.update(b"\0")
        return digest.hexdigest()


class KernelInfo(Struct, frozen=True):
    """What the compiler says of one kernel. None where this target's compiler does not say."""

    name: str
    registers: int | None = None
    static_shared: int | None = None
    """Bytes."""
    spill_bytes: int | None = None


class Image(Struct, frozen=True):
    """Compiled device code."""

    kind: Literal["ptx", "cubin"]
    arch: str
    """`sm_90`."""
    code: bytes
    key: str
    """SHA-256 (hex) of the code with source paths and line tables left out: same key, same kernel."""
    kernels: tuple[KernelInfo, ...] = ()
    log: str = ""
    """The compiler's own words (warnings)."""
    build_s: float = 0.0
