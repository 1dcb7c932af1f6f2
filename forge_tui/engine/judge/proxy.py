"""Reduced proxies: on the host target a large call is verified on fewer rows or planes, with its inner sizes unchanged.

A proxy stands for the full call only if the plan does the same on both: the same kernels in the same order, with the
same blocks and shared memory. What it cannot show, `Verdict.proxy` says it did not show. Counts are extrapolated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from msgspec import Struct, structs

from forge_tui.cuda.program import Program
from forge_tui.cuda.target import LaunchCounts
from forge_tui.engine.judge.memory import core, lay
from forge_tui.engine.judge.options import PROXY_ELEMENTS
from forge_tui.engine.judge.reference import eager
from forge_tui.engine.operators import IndependentDim, independent_dims, tensor_spec
from forge_tui.specs import Call, Items, TensorSpec, Value

T = TypeVar("T", bound=Struct)

STEPS = (1, 4, 16)
"""Proxies are tried at these multiples of the wanted size until one is representative; then the full call."""


class Proxy(Struct, frozen=True):
    """A call cut along independent dimensions."""

    call: Call
    cuts: tuple[tuple[IndependentDim, int], ...]
    """Each cut dimension and the size it keeps."""
    ratio: float
    """Elements of the full call over the proxy's."""

    @property
    def text(self) -> str:
        return ", ".join(f"{_dim_name(dim)} {dim.size} -> {size}" for dim, size in self.cuts)

    def cut(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The proxy's part of the full call's tensors, laid out as the proxy's call says."""
        specs = dict(self.call.tensors())
        parts = {}
        for name, tensor in tensors.items():
            for dim, size in self.cuts:
                if name in dim.inputs:
                    tensor = tensor.narrow(dim.inputs[name], 0, size)
            same = tuple(tensor.stride()) == specs[name].stride
            parts[name] = tensor if same else lay(specs[name], core(tensor))
        return parts


def whole(call: Call) -> Proxy:
    """No cut at all."""
    return Proxy(call, (), 1.0)


def proxies(call: Call, sample: Mapping[str, torch.Tensor], elements: int = PROXY_ELEMENTS) -> Iterator[Proxy]:
    """The full call if it is small; else proxies from small to larger, and the full call last."""
    total = _largest(call)
    seen: set[tuple[int, ...]] = set()
    for step in STEPS:
        if total <= elements * step:
            break
        cuts = _cuts(call, total, elements * step)
        sizes = tuple(size for _, size in cuts)
        if cuts and sizes not in seen:
            seen.add(sizes)
            yield _proxy(call, sample, cuts)
    yield whole(call)


def _largest(call: Call) -> int:
    return max((spec.numel for spec in (*call.outputs, *(spec for _, spec in call.tensors()))), default=0)


def _cuts(call: Call, total: int, elements: int) -> tuple[tuple[IndependentDim, int], ...]:
    """Outermost first, until what remains fits; the innermost dimension of the results last of all."""
    cuts: list[tuple[IndependentDim, int]] = []
    innermost = call.outputs[0].ndim - 1
    dims = sorted(independent_dims(call), key=lambda dim: dim.outputs[0] == innermost)
    remaining = total
    for dim in dims:
        if remaining <= elements:
            break
        size = _kept(dim.size, max(1, dim.size * elements // remaining))
        if size < dim.size:
            cuts.append((dim, size))
            remaining = remaining * size // dim.size
    return tuple(cuts)


def _kept(size: int, wanted: int) -> int:
    """About `wanted`, with the remainder that `size` leaves in as large a power of two as that allows, at least two.

    Guards and tails depend on such remainders: 1501 rows become 93, not 88.
    """
    for power in (64, 32, 16, 8, 4, 2):
        rest = size % power
        kept = rest + max(0, wanted - rest) // power * power
        if kept >= 2 and kept >= wanted // 2:
            return min(kept, size)
    return min(size, 2)


def _proxy(call: Call, sample: Mapping[str, torch.Tensor], cuts: tuple[tuple[IndependentDim, int], ...]) -> Proxy:
    arguments = {name: _cut_value(name, value, cuts) for name, value in call.arguments.items()}
    inputs = Proxy(Call(call.operator, arguments, call.outputs, call.aliases), cuts, 1.0)
    results = eager(inputs.call, inputs.cut(sample))
    names = {name: spec for name, spec in inputs.call.tensors()}
    outputs = tuple(names[call.aliases[name]] if name in call.aliases else structs.replace(tensor_spec(result), align=256)
                    for name, result in zip(call.output_names(), results, strict=True))
    small = Call(call.operator, arguments, outputs, call.aliases)
    return Proxy(small, cuts, _volume(call) / max(1, _volume(small)))


def _volume(call: Call) -> int:
    return sum(spec.numel for spec in call.outputs) or _largest(call)


def _cut_value(name: str, value: Value, cuts: Sequence[tuple[IndependentDim, int]]) -> Value:
    if isinstance(value, TensorSpec):
        shape = list(value.shape)
        for dim, size in cuts:
            if name in dim.inputs:
                shape[dim.inputs[name]] = size
        return structs.replace(value, shape=tuple(shape), stride=restride(value, tuple(shape)))
    if isinstance(value, Items):
        return Items(tuple(_cut_value(f"{name}[{i}]", item, cuts) for i, item in enumerate(value.items)))
    return value


def restride(spec: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of the cut tensor: dense where the full one is dense, in the same order; steps past gaps stay as they
    are."""
    stride = list(spec.stride)
    order = sorted((dim for dim in range(spec.ndim) if spec.stride[dim] and spec.shape[dim] > 1),
                   key=lambda dim: spec.stride[dim])
    full = small = 1
    for dim in order:
        dense = spec.stride[dim] == full
        stride[dim] = small if dense else spec.stride[dim]
        full = spec.stride[dim] * spec.shape[dim]
        small = stride[dim] * shape[dim]
    return tuple(stride)


def representative(full: Program, part: Program) -> bool:
    """Whether the plan does the same on both calls, but for the number of blocks."""
    def shape_of(program: Program) -> list[tuple[object, ...]]:
        return [(launch.kernel, launch.block, launch.shared, launch.cluster, launch.cooperative, 0 in launch.grid)
                for launch in program.launches]

    return shape_of(full) == shape_of(part)


def extrapolate(counts: Sequence[LaunchCounts], full: Program, part: Program, proxy: Proxy) -> tuple[LaunchCounts, ...]:
    """Counts of the full call, launch by launch.

    By the number of blocks; by elements where a launch moves most of the call's data with a grid that does not grow
    with it (grid-stride loops). Per-block figures stay.
    """
    if not proxy.cuts:
        return tuple(counts)
    data = sum(spec.numel * spec.itemsize for spec in (*proxy.call.outputs, *(s for _, s in proxy.call.tensors())))
    launched = [(whole_, part_) for whole_, part_ in zip(full.launches, part.launches, strict=True) if 0 not in part_.grid]
    scaled = []
    for count, (whole_, part_) in zip(counts, launched, strict=True):
        blocks = _blocks(whole_.grid)
        factor = blocks / _blocks(part_.grid)
        if count.global_bytes * 2 >= data:
            factor = max(factor, proxy.ratio)
        scaled.append(_scaled(count, blocks, factor))
    return tuple(scaled)


_PER_LAUNCH = ("thread_instructions", "warp_instructions", "global_requests", "global_sectors", "global_bytes",
               "shared_requests", "shared_waves", "barriers", "global_least", "global_loaded", "global_stored", "global_common", "load_rounds",
               "store_sectors", "async_sectors", "issued", "chain_cycles", "branches", "divergent_branches", "atomics", "atomic_passes",
               "atomic_hottest")


def _scaled(count: LaunchCounts, blocks: int, factor: float) -> LaunchCounts:
    def times(record: T, *names: str) -> T:
        return structs.replace(record, **{name: round(getattr(record, name) * factor) for name in names})

    return structs.replace(times(count, *_PER_LAUNCH), blocks=blocks, classes=tuple(times(c, "threads", "warps") for c in count.classes),
                           load_steps=tuple(times(step, "warps") for step in count.load_steps),
                           lines=tuple(times(line, "requests", "passes", "least") for line in count.lines))


def _blocks(grid: tuple[int, int, int]) -> int:
    return grid[0] * grid[1] * grid[2]


def _dim_name(dim: IndependentDim) -> str:
    name, position = next(iter(dim.inputs.items()), ("out", dim.outputs[0]))
    return f"{name}.shape[{position}]"
