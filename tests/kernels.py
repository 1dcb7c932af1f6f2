"""Running kernel files against torch: a sample of one call, the builtin kernels for it, and the comparison."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from forge_tui.cuda.compile import compile_program
from forge_tui.cuda.device import H200, DeviceFacts
from forge_tui.cuda.program import Program
from forge_tui.engine.builtin.catalog import BuiltinKernel
from forge_tui.engine.kernelfile import KernelFile, parse
from forge_tui.engine.operators import bind, canonical, describe, lookup, named_tensors
from forge_tui.specs import Call

if TYPE_CHECKING:
    from forge_tui.cuda.host.target import HostTarget

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Sample:
    """One call with its real arguments and eager's results."""

    call: Call
    arguments: dict[str, Any]
    """By the operator's own parameter names."""
    eager: tuple[torch.Tensor, ...]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(named_tensors(self.arguments))


def sample(function: Callable[..., Any], *args: Any, aliases: Mapping[str, str] | None = None, **kwargs: Any) -> Sample:
    """Call a torch function and record it, as capture would. aliases: results that share an input's memory."""
    torch.set_num_threads(1)
    name = canonical(function)
    assert name is not None, f"{function} is no operator"
    arguments = bind(function, args, kwargs)
    eager = lookup(name).call(arguments)
    if aliases:                         # an in-place result lies where its input lies
        eager = tuple(torch.empty_strided(result.shape, arguments["input"].stride(), dtype=result.dtype).copy_(result)
                      for result in eager)
    return Sample(describe(name, arguments, eager, aliases=aliases), arguments, eager)


def reference(item: Sample) -> tuple[torch.Tensor, ...]:
    """The operator in float64, results as float64."""

    def widen(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.double()
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return torch.float64
        return type(value)(map(widen, value)) if isinstance(value, list | tuple) else value

    return lookup(item.call.operator).call({name: widen(value) for name, value in item.arguments.items()})


@functools.cache
def parsed(text: str, name: str) -> KernelFile:
    return parse(text, f"{name}.cu")


def settings_of(kernel: BuiltinKernel, call: Call, device: DeviceFacts = H200) -> list[dict[str, int]]:
    """Every tuning point for a call. Fails where the file refuses the call it was offered for."""
    file = parsed(kernel.text, kernel.name)
    refusal = file.refusal(call, device)
    assert refusal is None, f"{kernel.name} refuses {call}: {refusal}"
    return list(file.points(call, device))


def corners(points: list[dict[str, int]]) -> list[dict[str, int]]:
    """The first guess, and for each tunable the points where it is extreme: few builds that meet every value's limits."""
    chosen = [points[0]]
    for name, pick in itertools.product(points[0], (min, max)):
        chosen.append(pick(points, key=lambda point, name=name: point[name]))
    return [point for i, point in enumerate(chosen) if point not in chosen[:i]]


def bound(kernel: BuiltinKernel, call: Call, settings: dict[str, int], device: DeviceFacts = H200) -> Program:
    return parsed(kernel.text, kernel.name).bind(call, device, settings)


def build(kernel: BuiltinKernel, call: Call, settings: dict[str, int]) -> str:
    """The PTX of one tuning point."""
    return compile_program(bound(kernel, call, settings), kind="ptx", arch="sm_90").code.decode()


def run(kernel: BuiltinKernel, item: Sample, settings: dict[str, int],
        device: DeviceFacts = H200, target: HostTarget | None = None) -> tuple[torch.Tensor, ...]:
    """Results of one tuning point on the host target, into memory that held NaN (all bits set).

    device: whose figures the plan sees; one multiprocessor makes resident kernels go round more than once.
    target: one whose order of warps is set; None: in step.
    """
    target = target or _host()
    program = bound(kernel, item.call, settings, device)
    written = item.call.aliases.values()
    tensors = {name: _copied(tensor) if name in written else tensor for name, tensor in item.tensors.items()}
    for name, eager in zip(item.call.output_names(), item.eager, strict=True):
        shared = item.call.aliases.get(name)
        tensors[name] = tensors[shared] if shared else _poisoned(eager)
    target.run(program, target.build(program), tensors)
    return tuple(tensors[name] for name in item.call.output_names())


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in memory of their own, laid out alike, gaps included."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    whole = tensor.as_strided((size,), (1,), 0).clone()
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _poisoned(like: torch.Tensor) -> torch.Tensor:
    """The memory of `like` in shape and strides, aligned as the launcher's allocator promises (256 bytes)."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    size = like.element_size()
    storage = torch.full(((span if like.numel() else 0) * size + 256,), 255, dtype=torch.uint8)
    start = -storage.data_ptr() % 256
    return storage[start:start + storage.numel() - 256].view(like.dtype).as_strided(like.shape, like.stride())


@functools.cache
def _host() -> HostTarget:
    from forge_tui.cuda.host.target import HostTarget

    return HostTarget()


def assert_right(got: tuple[torch.Tensor, ...], item: Sample, what: str) -> None:
    """Every result equals float64 to a few times eager's own worst error, two units in its last place and one of the
    largest result; and is NaN or infinite exactly where eager or float64 is (eager's vectorized erf on CPUs has
    gelu(inf) = NaN in float32 and bfloat16, infinity in float16)."""
    for mine, eager, exact in zip(got, item.eager, reference(item), strict=True):
        assert (mine.shape, mine.dtype, mine.stride()) == (eager.shape, eager.dtype, eager.stride()), what
        if not eager.is_floating_point():
            assert torch.equal(mine, eager), what
            continue
        narrow = exact.to(eager.dtype)
        usual = torch.isfinite(eager) & torch.isfinite(narrow)
        other = [torch.equal(_marks(mine[~usual]), _marks(side[~usual])) for side in (eager, narrow)]
        assert any(other), f"{what}: NaN or infinity moved"
        assert torch.isfinite(mine[usual]).all(), f"{what}: NaN or infinity appeared"
        if not usual.any():
            continue
        exact = exact[usual]
        own = (eager[usual].double() - exact).abs().max()
        eps = torch.finfo(eager.dtype).eps
        allowed = 3 * own + 2 * eps * exact.abs() + torch.finfo(torch.float32).eps * exact.abs().max()
        error = (mine[usual].double() - exact).abs()
        worst = int((error - allowed).argmax())
        assert error[worst] <= allowed[worst], (
            f"{what}: got {mine[usual][worst]:g}, exact {exact[worst]:g}, eager {eager[usual][worst]:g}")


def _marks(values: torch.Tensor) -> torch.Tensor:
    """Which values are NaN, infinity, minus infinity, or a number."""
    return torch.nan_to_num(torch.where(torch.isfinite(values), 0.0, values.float()), nan=1.0, posinf=2.0, neginf=3.0)


def check(kernels: list[BuiltinKernel], item: Sample, every_corner: bool = False, device: DeviceFacts = H200) -> int:
    """Run each kernel on the sample at its first guess, or at every corner of its settings. Returns how many ran."""
    count = 0
    for kernel in kernels:
        points = settings_of(kernel, item.call, device)
        for settings in corners(points) if every_corner else points[:1]:
            assert_right(run(kernel, item, settings, device), item, f"{kernel.name} {settings} on {item.call}")
            count += 1
    return count


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal values, the same for the same seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def dtypes_and(cases: Mapping[str, Any]) -> Iterator[tuple[torch.dtype, str]]:
    """For parametrize: every case in every float type."""
    yield from itertools.product(FLOATS, cases)
