"""Fresh inputs for one judgement: shaped like the captured ones, and adversarial, from one recorded seed.

Every draw is a pure function of (seed, variant, name of the draw): the same seed gives the same bits on the same kind
of device. The seed is chosen, and draws are made, after the kernel is built, so that nothing can be written for them.

What changes in a draw is the *data*: floating-point inputs that are no weights (all of them where there are none).
Weights change in the draws named for it, in place: the arena loads every draw at the same addresses.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import torch

from forge_tui.engine.cards import Statistics
from forge_tui.engine.judge import hardcases
from forge_tui.engine.judge.memory import PIECE, by_pieces, core, lay
from forge_tui.specs import Call, TensorSpec

WEIGHT_NAMES = frozenset({"weight", "bias", "norm_weight", "norm_bias", "running_mean", "running_var"})
"""Parameters that hold weights even when capture saw no name for them."""

MINUS_INFINITY = frozenset({"softmax", "log_softmax", "softmin", "logsumexp"})
"""Operators whose documentation or common use (masking) defines a result for -inf among finite values."""
ANY_INFINITY = frozenset({"relu", "sigmoid", "tanh", "max_pool1d", "max_pool2d", "max_pool3d", "clamp", "maximum", "minimum"})
"""Operators with a finite or infinite, never NaN, result for either infinity."""

NAMES = ("like the captured", "fresh weights", "permuted", "one element changed", "large", "small", "constant", "one spike",
         "equal rows", "sign flipped", "signed zeros", "denormals", "infinities", "like the captured again")

JITTER = 0.05
"""Standard deviation, relative, of what is added to resampled values, so that none is a captured one."""
MOST_INT = 2**63 - 2
"""The largest number that torch.randint draws."""
SPIKE = 1000.0
"""The spike, in units of the largest captured magnitude."""


class Drawer:
    """Makes the draws of one judgement.

    samples: captured inputs by kernel-file name, one dict a sample, laid out as `call` says.
    """

    def __init__(self, call: Call, samples: Sequence[Mapping[str, torch.Tensor]], statistics: Mapping[str, Statistics],
                 seed: int) -> None:
        self.call = call
        self.samples = samples
        self.statistics = statistics
        self.seed = seed
        self.short = "" if "+" in call.operator else call.operator.rpartition(".")[2]
        """Of a single operator: what several in a row define for infinities is not known."""
        specs = dict(call.tensors())
        floats = [name for name, spec in specs.items() if _floating(spec)]
        self.weights = [name for name in floats if specs[name].weight or name in WEIGHT_NAMES]
        self.data = [name for name in floats if name not in self.weights] or self.weights
        self.specs = specs

    def names(self) -> list[str]:
        """The draws that this call has a meaning for, at least ten for calls with floating-point inputs."""
        if not self.data:
            return [f"like the captured {i}" for i in range(1, 9)] + ["constant", "edges"]
        left_out = set()
        if not self.weights or self.weights == self.data:
            left_out.add("fresh weights")
        if not self._infinities():
            left_out.add("infinities")
        return [*(name for name in NAMES if name not in left_out),
                *hardcases.names(self.call, bool(self.weights) and self.weights != self.data)]

    def make(self, name: str, attempt: int = 0) -> dict[str, torch.Tensor]:
        """One draw: every input tensor, by kernel-file name. attempt: each weakens `large` and `one spike` 32-fold."""
        sample = self.samples[self._choose(name, len(self.samples))]
        made = {}
        for tensor, spec in self.specs.items():
            values = self._values(name, tensor, sample[tensor], attempt)
            made[tensor] = sample[tensor] if values is None else lay(spec, values)
        return made

    def _choose(self, name: str, count: int) -> int:
        return _digest(self.seed, self.call.operator, name) % count

    def _generator(self, name: str, tensor: str, device: torch.device) -> torch.Generator:
        generator = torch.Generator(device=device)
        generator.manual_seed(_digest(self.seed, self.call.operator, name, tensor))
        return generator

    def _values(self, name: str, tensor: str, sample: torch.Tensor, attempt: int) -> torch.Tensor | None:
        """New values for one tensor, shaped as the unique elements of `sample`; None leaves it as captured."""
        source = core(sample)
        if source.numel() == 0:
            return None
        generator = self._generator(name, tensor, sample.device)
        if not _floating(self.specs[tensor]):
            return self._discrete(name, tensor, source, generator)
        if name.startswith("like"):
            return self._resampled(tensor, source, generator) if tensor in self.data else None
        if name in hardcases.NAMES:
            wanted = self.weights if name == "other weights" else self.data
            return hardcases.make(name, self.call, tensor, source, generator) if tensor in wanted else None
        if name == "fresh weights":
            return self._resampled(tensor, source, generator) if tensor in self.weights else None
        if tensor not in self.data:
            return None
        return self._adversarial(name, tensor, source, generator, attempt)

    def _discrete(self, name: str, tensor: str, source: torch.Tensor, generator: torch.Generator) -> torch.Tensor | None:
        """Indices, flags: always within what was captured, or what the operator defines."""
        if name == "permuted":
            return _permuted(source, generator)
        if not (name.startswith("like") or name in ("constant", "edges")):
            return None
        if source.dtype == torch.bool:
            chosen = _pick(source, generator)
            return chosen if name != "constant" else chosen.reshape(-1)[0].expand(source.shape)
        whole = source.to(torch.int64)                      # torch finds no extremes of the wider unsigned ones
        low, high = int(whole.min()), min(int(whole.max()), MOST_INT)
        table = self.specs.get("weight")
        if self.short == "embedding" and tensor == "input" and table is not None:
            low, high = 0, table.shape[0] - 1
        shape = (1,) * source.dim() if name == "constant" else source.shape
        drawn = torch.randint(low, high + 1, shape, generator=generator, device=source.device)
        if name == "edges":
            drawn = torch.where(drawn > (low + high) // 2, high, low)
        statistics = self.statistics.get(tensor)
        if statistics and statistics.sorted_last and source.dim():
            drawn = drawn.sort(-1).values
        return drawn.to(source.dtype).expand(source.shape)

    def _resampled(self, tensor: str, source: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Captured values in a new order with repetition, moved a little: the distribution, zeros and masks stay."""
        statistics = self.statistics.get(tensor)
        jittered = not (statistics and (statistics.integral or statistics.lowest))
        flat = source.reshape(-1)

        def piece(part: torch.Tensor) -> torch.Tensor:
            chosen = flat[torch.randint(0, flat.numel(), part.shape, generator=generator, device=part.device)]
            if not jittered:
                return chosen
            noise = torch.randn(chosen.shape, generator=generator, device=chosen.device)
            moved = (chosen.to(_wide(chosen)) * (1 + JITTER * noise)).to(chosen.dtype)
            return torch.where(moved.isfinite(), moved, chosen)

        chosen = by_pieces(source, piece)
        if statistics and statistics.sorted_last and source.dim():
            chosen = chosen.sort(-1).values
        return chosen

    def _adversarial(self, name: str, tensor: str, source: torch.Tensor, generator: torch.Generator,
                     attempt: int) -> torch.Tensor:
        if name == "permuted":
            return _permuted(source, generator)
        if name == "one element changed":
            return _with_one(source, -1.5 * _largest(source) - 1.0, generator)
        if name == "large":
            return _times(source, _scale(source, 2.0 ** (10 - 5 * attempt)))
        if name == "small":
            return _times(source, 2.0**-8 if source.dtype == torch.float16 else 2.0**-30)
        if name == "constant":
            place = torch.randint(0, source.numel(), (1,), generator=generator, device=source.device)
            value = _finite(source.reshape(-1)[place].to(_wide(source)))[0]
            return _few_bits(value).to(source.dtype).expand(source.shape)
        if name == "one spike":
            largest = _largest(source) or 1.0
            return _with_one(self._resampled(tensor, source, generator),
                             largest * min(SPIKE, _scale(source, SPIKE)) / 32.0**attempt, generator)
        if name == "equal rows":
            rows = source.reshape(-1, source.shape[-1]) if source.dim() else source.reshape(1, 1)
            row = int(torch.randint(0, rows.shape[0], (1,), generator=generator, device=source.device))
            return rows[row].reshape((1,) * (source.dim() - 1) + (-1,)).expand(source.shape) if source.dim() else source
        if name == "sign flipped":
            return -source
        kinds = {"signed zeros": _zeros, "denormals": _denormals}
        return by_pieces(source, lambda part: kinds.get(name, self._with_infinities)(part, generator))

    def _with_infinities(self, source: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """A quarter of the elements infinite, of the signs this operator or its captured inputs know."""
        kinds = self._infinities()
        drawn = torch.rand(source.shape, generator=generator, device=source.device)
        values = source.nan_to_num(0.0, 0.0, 0.0)
        for index, kind in enumerate(kinds):
            share = 0.25 / len(kinds)
            values = values.masked_fill((drawn >= index * share) & (drawn < (index + 1) * share), kind)
        return values

    def _infinities(self) -> list[float]:
        if self.short in ANY_INFINITY:
            return [-math.inf, math.inf]
        seen = any(stat.nonfinite for name, stat in self.statistics.items() if name in self.data)
        return [-math.inf] if seen or self.short in MINUS_INFINITY else []


def _digest(seed: int, *parts: str) -> int:
    text = "\0".join([str(seed), *parts]).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def _floating(spec: TensorSpec) -> bool:
    return spec.dtype.startswith(("float", "bfloat"))


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _finite(values: torch.Tensor) -> torch.Tensor:
    return values.nan_to_num(0.0, 0.0, 0.0)


def _times(source: torch.Tensor, factor: float) -> torch.Tensor:
    return by_pieces(source, lambda part: (part.to(_wide(part)) * factor).to(part.dtype))


def _largest(source: torch.Tensor) -> float:
    """The largest finite magnitude."""
    parts = source.reshape(-1).split(PIECE)
    return float(torch.stack([_finite(part.to(_wide(part))).abs().max() for part in parts]).max())


def _signs(source: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 2, source.shape, generator=generator, device=source.device) * 2 - 1


def _zeros(source: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros_like(source) * _signs(source, generator).to(source.dtype)


def _denormals(source: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    signs = _signs(source, generator)
    fractions = torch.rand(source.shape, generator=generator, device=source.device, dtype=torch.float64)
    return (fractions * torch.finfo(source.dtype).tiny * signs).to(source.dtype)


def _pick(source: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    flat = source.reshape(-1)
    chosen = torch.randint(0, flat.numel(), (flat.numel(),), generator=generator, device=source.device)
    return flat[chosen].reshape(source.shape)


def _few_bits(value: torch.Tensor) -> torch.Tensor:
    """Rounded to three significant bits: sums of up to 2**21 copies are exact in float32 in any order.

    Other constants make the roundings of a sum all point the same way, further in a short chain of additions than any
    tolerance for independent roundings allows, and would refuse honest reductions.
    """
    fraction, exponent = torch.frexp(value)
    return torch.ldexp((fraction * 8).round() / 8, exponent)


def _permuted(source: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Rows in another order, and elements within rows in another order."""
    for dim in {0, source.dim() - 1} if source.dim() else set():
        source = source.index_select(dim, torch.randperm(source.shape[dim], generator=generator, device=source.device))
    return source


def _with_one(source: torch.Tensor, value: float, generator: torch.Generator) -> torch.Tensor:
    """One element, anywhere, replaced."""
    limit = torch.finfo(source.dtype).max / 4
    changed = source.clone(memory_format=torch.contiguous_format)
    place = torch.randint(0, changed.numel(), (1,), generator=generator, device=source.device)
    changed.view(-1)[place] = max(-limit, min(limit, value))
    return changed


def _scale(source: torch.Tensor, wanted: float) -> float:
    """`wanted`, or less where values would pass 1024 in a format that ends at 65504 (448 in e4m3: then 16)."""
    most = torch.finfo(source.dtype).max
    cap = math.inf if most > 1e30 else 1024.0 if most > 1e4 else 16.0
    return min(wanted, max(1.0, cap / (_largest(source) or 1.0)))
