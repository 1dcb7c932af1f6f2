"""Draws that only some operators define: NaN, masked rows, values at a threshold, a mean far from zero, weights unlike fresh ones.

Which operator gets which is a list, since elsewhere the result is eager's accident (NaN through a Winograd convolution) or the
operator's own condition (exp of a large mean).
"""

from __future__ import annotations

import math

import torch

from forge_tui.engine.judge.memory import PIECE, by_pieces
from forge_tui.specs import Call, Items

NAMES = ("not a number", "masked row", "far from zero", "at the thresholds", "other weights")

SELECTS = frozenset({
    "relu", "neg", "abs", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "cat", "stack", "clone", "contiguous", "to",
    "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "embedding", "pad",
    "flip", "roll", "index_select", "gather", "where", "repeat", "reshape", "amax", "amin", "max", "min", "floor", "ceil", "trunc", "round",
    "sign", "relu6", "hardtanh", "threshold", "masked_fill", "tril", "triu"})
"""Operators whose results are their inputs' values, or one rounding of one: there is one right answer, eager's."""

_NAN = SELECTS - {"sign", "floor", "ceil", "trunc", "round"} | {
    "sigmoid", "tanh", "gelu", "silu", "leaky_relu", "elu", "softplus", "softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm",
    "batch_norm", "instance_norm", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "add", "sub", "mul", "div", "exp", "log", "sqrt", "rsqrt", "matmul", "bmm", "mm", "linear", "addmm", "sum",
    "mean", "var", "std", "cumsum", "logsumexp"}
_MASKED = frozenset({"softmax", "log_softmax", "logsumexp"})
_CENTRED = frozenset({"layer_norm", "group_norm", "instance_norm", "var", "std", "softmax", "log_softmax", "logsumexp"})
_COMPARED = frozenset({"gt", "ge", "lt", "le", "eq", "ne", "threshold", "clamp", "clamp_min", "clamp_max", "hardtanh", "relu6", "hardshrink",
                       "softshrink", "sign", "maximum", "minimum", "leaky_relu", "relu"})
FAR = 8.0
"""Of `far from zero`: the mean in standard deviations. A variance taken as the difference of two averages loses 6 of float32's 24
bits there, one taken about the mean 3, as eager's does: enough to tell them apart, and honest sums in any order still pass."""
WEIGHT_SPREAD = 0.25
DEAD = 0.25
"""Part of a batch norm's channels whose variance is zero or of the size of eps in `other weights`."""


def names(call: Call, weights: bool) -> list[str]:
    """The draws of this module that the call has a meaning for. weights: it has weights beside its data."""
    steps = _steps(call)
    floating = all(spec.dtype.startswith(("float", "bfloat")) for spec in call.outputs)
    carried = all(step in _NAN or step.endswith("RMSNorm") for step in steps)
    wanted = {"not a number": carried and (floating or steps[-1].endswith("RMSNorm")), "masked row": steps[0] in _MASKED,
              "far from zero": not _CENTRED.isdisjoint(steps), "at the thresholds": not _COMPARED.isdisjoint(steps),
              "other weights": weights}
    return [name for name in NAMES if wanted[name]]


def selects(call: Call) -> bool:
    """Whether results must equal eager's: see SELECTS."""
    return SELECTS.issuperset(_steps(call))


def make(name: str, call: Call, tensor: str, source: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """New values for one tensor of floating-point numbers, shaped as `source`."""
    source = source.detach()
    if name == "not a number":
        return _with_nan(source, generator)
    if name == "masked row":
        return _with_masked_row(source, _number(call, "dim", -1), generator)
    if name == "far from zero":
        return _far(source)
    if name == "at the thresholds":
        return _at_thresholds(call, source, generator)
    return _other_weights(call, tensor, source, generator)


def _steps(call: Call) -> list[str]:
    """Names of the operators in a row that the call is: one, for all but regions."""
    return [path.rpartition(".")[2] for path in call.operator.split("+")]


def _real(call: Call, name: str, default: float) -> float:
    value = call.arguments.get(name, default)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default


def _number(call: Call, name: str, default: int) -> int:
    value = call.arguments.get(name, default)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _place(source: torch.Tensor, generator: torch.Generator) -> int:
    return int(torch.randint(0, source.numel(), (1,), generator=generator, device=source.device))


def _with_nan(source: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One NaN of either sign, at two places."""
    changed = source.clone(memory_format=torch.contiguous_format)
    for value in (math.nan, -math.nan):
        changed.view(-1)[_place(source, generator)] = value
    return changed


def _with_masked_row(source: torch.Tensor, dim: int, generator: torch.Generator) -> torch.Tensor:
    """One whole row along `dim` is minus infinity, as where every key of a query is masked."""
    changed = source.clone(memory_format=torch.contiguous_format)
    if not source.dim():
        return changed.fill_(-math.inf)
    rows = changed.movedim(dim if -source.dim() <= dim < source.dim() else -1, -1)
    place = [int(torch.randint(0, size, (1,), generator=generator, device=source.device)) for size in rows.shape[:-1]]
    rows[tuple(place)] = -math.inf
    return changed


def _far(source: torch.Tensor) -> torch.Tensor:
    moved = FAR * (_spread(source) or 1.0)
    return by_pieces(source, lambda part: (part.to(torch.float64) + moved).to(part.dtype)) if math.isfinite(moved) else source


def _spread(source: torch.Tensor) -> float:
    """Standard deviation, what is not finite taken as 0."""
    total = squares = 0.0
    for part in source.reshape(-1).split(PIECE):
        wide = part.to(torch.float64).nan_to_num(0.0, 0.0, 0.0)
        total, squares = total + float(wide.sum()), squares + float((wide * wide).sum())
    mean = total / max(1, source.numel())
    return math.sqrt(max(0.0, squares / max(1, source.numel()) - mean * mean))


def _at_thresholds(call: Call, source: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Every element is one of the call's own numbers, or -1, 0, 1: equal elements of two inputs are frequent."""
    flat = [item for value in call.arguments.values() for item in (value.items if isinstance(value, Items) else (value,))]
    numbers = {float(item) for item in flat if isinstance(item, (int, float)) and not isinstance(item, bool)}
    pool = torch.tensor(sorted({-1.0, 0.0, 1.0} | {item for item in numbers if abs(item) < 1e4}), device=source.device)

    def piece(part: torch.Tensor) -> torch.Tensor:
        return pool[torch.randint(0, pool.numel(), part.shape, generator=generator, device=part.device)].to(part.dtype)

    return by_pieces(source, piece)


def _other_weights(call: Call, tensor: str, source: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Weights as training might leave them: ones are no longer ones, zeros no longer zeros. Variances are never negative: a few are
    those of channels that nothing comes through, zero or of the size of `eps`, which is seen nowhere else."""
    total = sum(float(part.to(torch.float64).abs().sum()) for part in source.reshape(-1).split(PIECE))
    scale, eps = total / max(1, source.numel()) or 1.0, _real(call, "eps", 0.0)

    def piece(part: torch.Tensor) -> torch.Tensor:
        wide, noise = part.to(torch.float32), torch.randn(part.shape, generator=generator, device=part.device)
        if tensor != "running_var":
            return (wide + WEIGHT_SPREAD * scale * noise).to(part.dtype)
        dead = torch.rand(part.shape, generator=generator, device=part.device)
        moved = wide * (1 + WEIGHT_SPREAD * noise).abs()
        return torch.where(dead < DEAD, torch.where(noise < 0, 0.0, noise * eps), moved).to(part.dtype)

    made = by_pieces(source, piece)
    if tensor == "running_var" and made.numel():
        made.view(-1)[_place(made, generator)] = 0.0         # at least one, of however few channels
    return made
