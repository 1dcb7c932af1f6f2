"""One kernel of the set: source, launches, tensors, and what torch says must come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from forge_tui.cuda.program import Argument, Launch, Program, Workspace

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Kernel:
    """A program and its reference."""

    name: str
    kind: str
    """`gemm`, `attention`, `scan`, `sort`, `histogram`, `quantization`, `rotary`, `top-k`, `convolution`, `norm`, `reduction`, ..."""
    source: str
    launches: tuple[Launch, ...]
    tensors: Callable[[], Tensors]
    """Inputs, and outputs filled with what must be overwritten."""
    want: Callable[[Tensors], Mapping[str, torch.Tensor]]
    """Results by name, from the inputs, in float64 or exact integers."""
    tolerance: float = 1e-5
    """Relative to the largest value; 0: equal."""
    workspaces: tuple[Workspace, ...] = ()
    aliases: dict[str, str] = field(default_factory=dict)

    def program(self, outputs: tuple[str, ...], inputs: tuple[str, ...]) -> Program:
        return Program(f"{self.name.replace(' ', '_')}.cu", self.source, (), self.launches, self.workspaces, inputs, outputs, self.aliases)

    def difference(self, target: object) -> float:
        """Run it; the largest difference from the reference over the reference's largest value. Raises CandidateFault."""
        tensors = self.tensors()
        want = dict(self.want(tensors))
        program = self.program(tuple(want), tuple(name for name in tensors if name not in want))
        target.run(program, target.build(program), tensors)      # type: ignore[attr-defined]
        return max(_apart(tensors[name], value) for name, value in want.items())


def _apart(got: torch.Tensor, want: torch.Tensor) -> float:
    if got.shape != want.shape:
        return float("inf")
    difference = (got.double() - want.double()).abs()
    if bool(difference.isnan().any()):
        return float("inf")
    return float(difference.max()) / max(1e-30, float(want.double().abs().max())) if got.numel() else 0.0


def launch(kernel: str, grid: int | tuple[int, ...], block: int | tuple[int, ...], *args: object, shared: int = 0,
           cooperative: bool = False) -> Launch:
    """args: a str is a tensor's name, an int 32 bits, a float float32."""
    return Launch(kernel, _three(grid), _three(block), tuple(_argument(value) for value in args), shared, cooperative=cooperative)


def _three(size: int | tuple[int, ...]) -> tuple[int, int, int]:
    sizes = size if isinstance(size, tuple) else (size,)
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _argument(value: object) -> Argument:
    if value is None or isinstance(value, str):
        return Argument("pointer", value)
    if isinstance(value, float):
        return Argument("float32", value=value)
    assert isinstance(value, int)
    return Argument("int32", value=value)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole(high: int, *shape: int, dtype: torch.dtype = torch.int32, seed: int = 0, low: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def blank(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An output that shows when it was not written."""
    return torch.full(shape, float("nan") if dtype.is_floating_point else 77).to(dtype)
