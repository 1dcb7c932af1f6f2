"""How the forged model's outputs compare with eager's, beside how eager's compare with float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from msgspec import Struct
from torch.nn import functional as F

from forge_tui.engine.bench.heldout import held_out, tokens_of
from forge_tui.engine.inputs import ModelInput
from forge_tui.engine.package.compare import relative_error, tensors_of

POSITIONS = 512
"""Least number of positions over which language models are compared."""
DRAWS = 2
MOST_DRAWS = 64
FACTOR, ULPS = 2.0, 2.0
"""Outputs may be as far from float64 as twice eager's own distance plus two units of roundoff, in norm: the forged model rounds
in other places, not more often."""
TELLING = 0.25
"""Where eager is farther than this from float64, in norm, its rounding has grown to the size of the outputs, and these tell right from wrong no more."""
WITHOUT_FLOAT64 = 64.0
"""Units of roundoff that outputs may be from eager's where there is no float64 to tell which is nearer."""

Run = Callable[[ModelInput], Any]


class Agreement(Struct, frozen=True):
    """Largest over the held-out inputs and the outputs."""

    forged_error: float
    """Norm of the difference from eager over eager's norm; inf where non-finite values differ."""
    eager_float64_error: float | None
    """Of eager against the same model in float64; None where that cannot be run."""
    forged_float64_error: float | None
    allowed: float
    """Most that the error in the last line, or without float64 the first, may be."""
    inputs: int
    seed: int
    top1: float | None = None
    """Language models: part of the positions whose most likely token is eager's."""
    loss_eager: float | None = None
    """Teacher-forced cross entropy of the input's own next tokens, nats."""
    loss_forged: float | None = None
    positions: int = 0
    calls: int = 0
    """Calls of kernels that were compared with the original ones on the same tensors, in the model."""
    call_error: float | None = None
    """Largest difference among those, norm over norm."""
    repeat_error: float = 0.0
    """Of eager against eager run once more on the same input."""

    @property
    def unsteady(self) -> bool:
        """Whether eager gives other outputs each time, by more than rounding in another order does."""
        return self.repeat_error > min(self.allowed, TELLING)

    @property
    def untelling(self) -> str:
        """Why outputs cannot tell a right model from a wrong one, so that `calls` alone do; empty where they can."""
        if self.unsteady:
            return f"eager itself is {self.repeat_error:.2g} from eager run once more"
        if self.eager_float64_error is not None and self.eager_float64_error > TELLING:
            return f"eager itself is {self.eager_float64_error:.2g} from float64"
        return ""

    @property
    def within(self) -> bool:
        """Whether outputs are within bounds, or tell nothing because they are others each time."""
        if self.unsteady:
            return True
        error = self.forged_error if self.forged_float64_error is None else self.forged_float64_error
        return error <= self.allowed


def compare(inputs: list[ModelInput], seed: int, eager: Run, forged: Run, float64: Run | None) -> Agreement:
    """Run all on shuffled inputs, several draws where a language model needs them for its positions."""
    draws = [held_out(item, seed + number) for number in range(_draws(inputs)) for item in inputs]
    worst, own, other, again, eps = 0.0, 0.0, 0.0, 0.0, 0.0
    language = _Language()
    for item in draws:
        first, second = eager(item), forged(item)
        before, after = list(tensors_of(first)), list(tensors_of(second))
        worst = max([worst, *(relative_error(new, old) for new, old in zip(after, before, strict=True))])
        again = max([again, *(relative_error(new, old) for new, old in zip(tensors_of(eager(item)), before, strict=True))])
        eps = max([eps, *(torch.finfo(tensor.dtype).eps for tensor in before if tensor.is_floating_point())])
        language.add(item, _logits(first), _logits(second))
        if float64 is not None:
            truth = list(tensors_of(float64(item)))
            own = max([own, *(_error(old, exact) for old, exact in zip(before, truth, strict=True))])
            other = max([other, *(_error(new, exact) for new, exact in zip(after, truth, strict=True))])
    allowed = FACTOR * own + ULPS * eps if float64 is not None else WITHOUT_FLOAT64 * eps
    return Agreement(worst, own if float64 else None, other if float64 else None, allowed, len(draws), seed,
                     repeat_error=again, **language.figures())


def _draws(inputs: list[ModelInput]) -> int:
    counts = [tokens.numel() for item in inputs if (tokens := tokens_of(item)) is not None]
    return min(MOST_DRAWS, max(DRAWS, -(-POSITIONS // max(1, sum(counts))))) if counts else DRAWS


def _error(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Against float64: integers and booleans are decisions, and are compared with eager's alone."""
    return relative_error(got.double(), exact.double()) if got.is_floating_point() else 0.0


def _logits(output: Any) -> torch.Tensor | None:
    found = output.get("logits") if isinstance(output, dict) else None
    return found if isinstance(found, torch.Tensor) and found.dim() == 3 else None


class _Language:
    """Sums over positions for language models."""

    def __init__(self) -> None:
        self.positions = self.agreeing = self.predicted = 0
        self.losses = [0.0, 0.0]

    def add(self, item: ModelInput, eager: torch.Tensor | None, forged: torch.Tensor | None) -> None:
        tokens = tokens_of(item)
        if tokens is None or eager is None or forged is None or eager.shape[:2] != tokens.shape:
            return
        self.positions += tokens.numel()
        self.agreeing += int((eager.argmax(-1) == forged.argmax(-1)).sum())
        if tokens.shape[1] > 1:
            self.predicted += tokens[:, 1:].numel()
            for index, logits in enumerate((eager, forged)):
                self.losses[index] += float(F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten(),
                                                            reduction="sum"))

    def figures(self) -> dict[str, Any]:
        if not self.positions:
            return {}
        losses = [total / self.predicted if self.predicted else None for total in self.losses]
        return {"top1": self.agreeing / self.positions, "loss_eager": losses[0], "loss_forged": losses[1],
                "positions": self.positions}
