"""The truth a candidate is compared with: the operator in float64, eager itself, and the operator's sensitivity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch

from forge_tui.cuda.target import Target
from forge_tui.engine.judge.fused import FusedComparer
from forge_tui.engine.judge.fusedcheck import usable
from forge_tui.engine.judge.hardcases import selects
from forge_tui.engine.judge.memory import lay
from forge_tui.engine.judge.tolerance import Comparer, Comparison, difference, pieces
from forge_tui.engine.operators import independent_dims, lookup, materialize
from forge_tui.engine.operators.formulas import products_summed
from forge_tui.specs import Call, Dtype, Items, Value

SLAB_BYTES = {"cpu": 8 << 20, "cuda": 512 << 20}
"""Most bytes of the float64 reference held at once, where the operator can be cut, by kind of device."""
PERTURBATIONS = 2
LEAST_NORMAL = 2.0**-126
"""Of float32 and bfloat16."""
FEW = 64
FEW_PERTURBATIONS = 16
"""Random roundings of the inputs tried for the sensitivity, the largest change counting: more where there are so few
results that no neighbour makes up for one that chance left unmoved."""

Tensors = Mapping[str, torch.Tensor]


class NoReference(Exception):
    """Eager itself refuses these inputs: the draw has no meaning for the operator."""


def eager(call: Call, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """torch's own results for these inputs, out of place. Raises NoReference."""
    try:
        with torch.no_grad():
            return lookup(call.operator).call(materialize(call, tensors))
    except (RuntimeError, IndexError, ValueError, NotImplementedError) as error:
        raise NoReference(str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def in_place(call: Call, results: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Results as the call leaves them: those that are an input's own memory have that input's dtype and strides."""
    specs = dict(call.tensors())
    return tuple(lay(specs[call.aliases[name]], result) if name in call.aliases else result
                 for name, result in zip(call.output_names(), results, strict=True))


def finite(tensor: torch.Tensor) -> bool:
    """Whether every element is; in bounded memory."""
    return all(bool(piece.isfinite().all()) for _, piece in pieces(tensor))


def compare(call: Call, tensors: Tensors, own: Sequence[torch.Tensor], candidate: Sequence[torch.Tensor],
            sensitivity_seed: int | None = None, target: Target | None = None) -> list[Comparison]:
    """Every output of the candidate against the reference, in slabs where the operator can be cut.

    own: eager's results on the same inputs. sensitivity_seed: also count the operator's sensitivity as eager's error.
    target: a CUDA one compares by kernels of its own, where these pass their self-check.
    """
    fused = target is not None and target.kind == "cuda" and usable(target)
    make = partial(FusedComparer, target=target) if fused else Comparer
    comparers = [make(name, mine, other)
                 for name, mine, other in zip(call.output_names(), own, candidate, strict=True)]
    if any(comparer.problem for comparer in comparers):
        return [comparer.result() for comparer in comparers]
    if selects(call):
        unequal = [difference(name, mine, other) for name, mine, other in zip(call.output_names(), own, candidate, strict=True)]
        if any(unequal):
            return [found or comparer.result() for found, comparer in zip(unequal, comparers, strict=True)]
    for starts, part, some in _slabs(call, tensors):
        truth = reference(part, some) if not all(comparer.exact for comparer in comparers) else _exact(starts, part, own)
        moved = None if sensitivity_seed is None else _sensitivity(part, some, truth, sensitivity_seed)
        for index, comparer in enumerate(comparers):
            comparer.add(starts[index], truth[index], None if moved is None else moved[index])
    return [comparer.result() for comparer in comparers]


def reference(call: Call, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """The operator in float64; in float32 where torch has no float64 for it; its own dtype where it has neither."""
    for dtype in (torch.float64, torch.float32):
        try:
            return eager(_widened(call, dtype), {name: _widen(tensor, dtype) for name, tensor in tensors.items()})
        except NoReference:
            continue
    return eager(call, tensors)


def _sensitivity(call: Call, tensors: Tensors, truth: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor] | None:
    """By output: how far float64 results move when inputs are rounded to float32 (float64 calls: to float64).

    Roundings are random, as those inside a sum are not: a result that many inputs flow into moves by the square root
    of their number more when all are rounded against it, and that is the error of a plain running sum. (The standard
    bound: unit roundoff times the sum of |derivative x input|.) The number is taken as inputs over results; of matrix
    products and convolutions, each input of which flows into many results, as the products summed into one. Inputs
    that are denormal in float32 may also count as zero.
    """
    wide = _widened(call, torch.float64)
    double = any(tensor.dtype == torch.float64 for tensor in tensors.values())
    unit = 2.0**-53 if double else 2.0**-24
    moved = [torch.zeros(item.shape, dtype=torch.float64, device=item.device) for item in truth]
    results = sum(item.numel() for item in truth)
    for attempt in range(PERTURBATIONS if results >= FEW else FEW_PERTURBATIONS):
        try:
            other = eager(wide, {name: _perturbed(tensor, unit, seed + attempt) for name, tensor in tensors.items()})
        except NoReference:
            return None
        _widen_to(moved, other, truth)
    inflow = max(products_summed(call), max((tensor.numel() for tensor in tensors.values() if tensor.is_floating_point()), default=1)
                 / max(results, 1))
    moved = [item * max(1.0, inflow) ** 0.5 for item in moved]
    if not double and any(_has_denormals(tensor) for tensor in tensors.values()):
        _widen_to(moved, eager(wide, {name: _flushed(tensor) for name, tensor in tensors.items()}), truth)
    return moved


def _widen_to(moved: Sequence[torch.Tensor], results: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> None:
    """Raise each of `moved` to how far `results` lie from the truth."""
    for total, result, base in zip(moved, results, truth, strict=True):
        change = (result - base).abs()
        torch.maximum(total, change.to(torch.float64).nan_to_num(0.0, 0.0, 0.0), out=total)


def _has_denormals(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and bool(((tensor != 0) & (tensor.abs().to(torch.float64) < LEAST_NORMAL)).any())


def _flushed(tensor: torch.Tensor) -> torch.Tensor:
    """Denormal numbers of float32 as zeros: float atomics on global memory flush them (PTX ISA, `atom.add.f32`)."""
    if not tensor.is_floating_point():
        return tensor
    wide = tensor.to(torch.float64)
    return wide.masked_fill(wide.abs() < LEAST_NORMAL, 0.0)


def _perturbed(tensor: torch.Tensor, unit: float, seed: int) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    generator = torch.Generator(device=tensor.device)
    generator.manual_seed(seed)
    wide = tensor.to(torch.float64)
    signs = torch.randint(0, 2, wide.shape, generator=generator, device=wide.device) * 2 - 1
    return wide + wide * signs * unit


def _slabs(call: Call, tensors: Tensors) -> Iterator[tuple[list[tuple[int, ...]], Call, Tensors]]:
    """The call in parts whose float64 results stay under SLAB_BYTES: where each output's part begins, and the part."""
    size = 8 * sum(spec.numel for spec in call.outputs)
    most = SLAB_BYTES["cuda" if any(tensor.is_cuda for tensor in tensors.values()) else "cpu"]
    dims = independent_dims(call) if size > most else []
    if not dims:
        yield [() for _ in call.outputs], call, tensors
        return
    dim = max(dims, key=lambda item: item.size)
    step = max(1, dim.size * most // size)
    for begin in range(0, dim.size, step):
        count = min(step, dim.size - begin)
        part = {name: tensor.narrow(dim.inputs[name], begin, count) if name in dim.inputs else tensor
                for name, tensor in tensors.items()}
        starts = [tuple(begin if position == where else 0 for position in range(spec.ndim))
                  for spec, where in zip(call.outputs, dim.outputs, strict=True)]
        yield starts, call, part


def _exact(starts: Sequence[tuple[int, ...]], call: Call, own: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Integer and boolean results have no better truth than eager: the whole of it, once."""
    first = all(not any(start) for start in starts)
    return own if first else [output[:0] for output in own]


def _widened(call: Call, dtype: torch.dtype) -> Call:
    """The call with dtype arguments (softmax's `dtype`) raised too."""
    name = str(dtype).removeprefix("torch.")
    return Call(call.operator, {key: _widened_value(value, name) for key, value in call.arguments.items()},
                call.outputs, call.aliases)


def _widened_value(value: Value, name: str) -> Value:
    if isinstance(value, Dtype) and value.name.startswith(("float", "bfloat")):
        return Dtype(name)
    if isinstance(value, Items):
        return Items(tuple(_widened_value(item, name) for item in value.items))
    return value


def _widen(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128 if dtype == torch.float64 else torch.complex64)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
