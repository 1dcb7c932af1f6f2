"""What the host target's tests share: one call that compiles CUDA C++ with NVRTC and runs it in the interpreter."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.host.target import HostTarget
from forge_tui.cuda.program import Argument, Launch, Program, Workspace
from forge_tui.cuda.target import RunReport
from forge_tui.cuda.toolchain import find_toolchain
from forge_tui.errors import MissingEnvironment


def _missing_compiler() -> str | None:
    try:
        find_toolchain()
    except MissingEnvironment as error:
        return str(error)
    return None


MISSING = _missing_compiler()
needs_nvrtc = pytest.mark.skipif(MISSING is not None, reason=f"NVRTC is missing: {MISSING}")


def size3(size: int | tuple[int, ...]) -> tuple[int, int, int]:
    sizes = size if isinstance(size, tuple) else (size,)
    return (*sizes, 1, 1)[:3]


def argument(value: object) -> Argument:
    """A str is a tensor's name, an int 32 bits, a float float32; anything else is made by hand."""
    if value is None or isinstance(value, str):
        return Argument("pointer", value)
    if isinstance(value, float):
        return Argument("float32", value=value)
    return value if isinstance(value, Argument) else Argument("int32", value=value)


def launch(kernel: str, grid: int | tuple[int, ...], block: int | tuple[int, ...], *args: object, shared: int = 0,
           cooperative: bool = False, cluster: int | tuple[int, ...] | None = None) -> Launch:
    return Launch(kernel, size3(grid), size3(block), tuple(argument(a) for a in args), shared,
                  None if cluster is None else size3(cluster), cooperative=cooperative)


def run(source: str, tensors: Mapping[str, torch.Tensor], *launches: Launch, outputs: tuple[str, ...] = ("out",),
        workspaces: tuple[Workspace, ...] = (), aliases: Mapping[str, str] | None = None,
        target: HostTarget | None = None) -> RunReport:
    """Compile as `k.cu` and run. Every kernel is called `k` unless a launch says otherwise."""
    program = Program("k.cu", source, (), launches, workspaces, tuple(n for n in tensors if n not in outputs), outputs,
                      dict(aliases or {}))
    target = target or HostTarget()
    return target.run(program, target.build(program), dict(tensors))


def fault(*args: object, **options: object) -> CandidateFault:
    """The fault that `run` raises; fails when it raises none."""
    with pytest.raises(CandidateFault) as caught:
        run(*args, **options)      # type: ignore[arg-type]
    return caught.value


def line_of(source: str, mark: str) -> int:
    """Line of the only line of a source that holds a mark."""
    found = [number for number, text in enumerate(source.splitlines(), 1) if mark in text]
    assert len(found) == 1, f"{mark!r} is on lines {found}"
    return found[0]
