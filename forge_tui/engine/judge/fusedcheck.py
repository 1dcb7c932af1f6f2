"""The comparison kernels tried on known tensors before anything is judged by them: they must count what the steps in torch count.

A kernel of ours that a driver, a compiler or a device gets wrong would make every verdict wrong. Where it differs in anything
but the last digits of a sum, or cannot be run, results are compared by torch on that target from then on.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator

import torch
from msgspec import Struct

from forge_tui.cuda.driver import DriverError
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.target import Target
from forge_tui.engine.judge.fused import FusedComparer
from forge_tui.engine.judge.tolerance import Comparer, Comparison

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int32)
SHAPES = ((5, 3, 67), (2, 2100))
"""Rows shorter than a warp's segment, and longer."""
SUM_RELATIVE = 1e-9
"""Sums of squares are added in another order in float64: a few thousand roundings of 1e-16."""

_found: weakref.WeakKeyDictionary[Target, str] = weakref.WeakKeyDictionary()


class Known(Struct, frozen=True):
    """One comparison whose outcome is known: that of the steps in torch."""

    name: str
    truth: torch.Tensor
    eager: torch.Tensor
    candidate: torch.Tensor
    moved: torch.Tensor | None = None


def usable(target: Target) -> bool:
    """Whether results on this target may be compared by kernels. Tried once for each target."""
    return not problem(target)


def problem(target: Target) -> str:
    """Why they may not; empty where they may."""
    if target not in _found:
        _found[target] = self_check(target)
    return _found[target]


def forbid(target: Target, why: str) -> None:
    """Compare by torch on this target, whatever a check would say."""
    _found[target] = why


def self_check(target: Target) -> str:
    """What the comparison kernels get wrong here; empty where they are right on everything known."""
    device = getattr(target, "device", torch.device("cpu"))
    for dtype in DTYPES:
        for item in known(dtype, device):
            plain, other = Comparer("out", item.eager, item.candidate), FusedComparer("out", item.eager, item.candidate, target)
            plain.add((), item.truth, item.moved)
            where = f"{item.name}, {str(dtype).removeprefix('torch.')}"
            try:
                other.add((), item.truth, item.moved)
                found = other.result()
            except (CandidateFault, DriverError, RuntimeError) as error:  # RuntimeError: torch's word for a fault of the device
                return f"{where}: {str(error).splitlines()[0]}"
            wanted = plain.result()
            if not same(wanted, found):
                return f"{where}: {_words(found)} instead of {_words(wanted)}"
            if differing := _figures(plain, other):
                return f"{where}: other {differing}"
    return ""


def known(dtype: torch.dtype, device: torch.device) -> Iterator[Known]:
    """Right and wrong results with every kind of value: all magnitudes of the dtype, zeros of both signs, infinities, NaN."""
    generator = torch.Generator().manual_seed(11)
    for shape in SHAPES:
        if dtype == torch.int32:
            whole = torch.randint(-1000, 1000, shape, generator=generator, dtype=dtype).to(device)
            yield Known("equal integers", whole, whole, whole.clone())
            yield Known("one integer off", whole, whole, _with(whole, 5, int(whole.view(-1)[5]) + 1))
            continue
        truth = torch.randn(shape, generator=generator, dtype=torch.float64)
        truth = _spread(truth, torch.finfo(dtype)).to(device)
        flat = truth.view(-1)
        flat[:6] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0], dtype=torch.float64, device=device)
        eager = truth.to(dtype)
        yield Known("the rounded truth", truth, eager, eager.clone())
        yield Known("zeros of the other sign", truth, eager, _with(eager, 0, -0.0))
        yield Known("a large element off", truth, eager, _with(eager, flat.numel() - 3, -float(flat[-3])))
        yield Known("a small element off", truth, eager, _with(eager, 10, float(flat[10]) + 0.5))
        yield Known("a row off", truth, eager, torch.cat((eager[:-1], eager[-1:] * 1.125)))
        yield Known("zeros everywhere", truth, eager, torch.zeros_like(eager))
        yield Known("NaN where there is none", truth, eager, _with(eager, 7, math.nan))
        yield Known("no infinity where there is one", truth, eager, _with(eager, 2, 1.0))
        yield Known("an operator that magnifies", truth, eager, _with(eager, 10, float(flat[10]) + 0.5), torch.full_like(truth, 8.0))


def same(one: Comparison, other: Comparison) -> bool:
    """Equal but for the order in which squares are added."""
    figures = all(math.isclose(getattr(one, name), getattr(other, name), rel_tol=SUM_RELATIVE, abs_tol=1e-300)
                  for name in ("figure", "allowed", "eager"))
    place = one.worst.index if one.worst else None
    return (one.passed, one.reason, place) == (other.passed, other.reason, other.worst.index if other.worst else None) and figures


def _figures(plain: Comparer, other: Comparer) -> str:
    """The first of the figures by class that differ; empty where none does, or where nothing was counted."""
    if plain.exact or plain.problem:
        return ""
    names = ("counts", "eager_worst", "worst", "worst_at")
    differing = next((name for name in names if not torch.equal(getattr(plain, name), getattr(other, name))), "")
    sums = torch.allclose(plain.squares, other.squares, rtol=SUM_RELATIVE, atol=0.0)
    return differing.replace("_", " ") or ("" if sums else "sums of squares")


def _spread(values: torch.Tensor, info: torch.finfo) -> torch.Tensor:
    """The second half scaled over every magnitude from denormal to large that the dtype (and float32) has."""
    most = min(math.log2(info.max), 127.0) - 4
    least = max(math.log2(info.tiny), -126.0) - 4
    flat = values.reshape(-1).clone()
    half = flat.numel() // 2
    flat[half:] *= torch.exp2(torch.linspace(least, most, flat.numel() - half, dtype=torch.float64))
    return flat.view(values.shape)


def _with(tensor: torch.Tensor, at: int, value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(-1)[at] = value
    return changed


def _words(found: Comparison) -> str:
    outcome = "passed" if found.passed else f"refused for {found.reason}"
    return f"{outcome}, {found.figure:.9g} of {found.allowed:.9g}" + (f" at {found.worst.index}" if found.worst else "")
