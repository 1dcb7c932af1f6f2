"""Value statistics of captured tensors, in pieces, so that a large sample costs little memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, sqrt

import torch

from forge_tui.engine.cards import Statistics

CHUNKS = {"cpu": 1 << 20, "cuda": 1 << 24}
"""Elements looked at in one piece, by kind of device: 8 MB as float64, or 128 MB. A GPU's own tensors are looked at there: a CPU takes a
minute for the weights of a small language model."""
_ORDERED = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
                      torch.float64})
MASK_VALUE = -1e4
"""A minimum at or below this that repeats is taken for the fill of a mask: -1e4 is the smallest that models use."""


def statistics(tensors: Sequence[torch.Tensor]) -> Statistics:
    """Statistics over all elements of all samples of one input; complex numbers count as their two parts.

    `mean` and `std` leave out the elements counted by `lowest`, which would drown everything else.
    """
    count, zeros, finite = 0, 0, _Moments()
    for part in _parts(tensors):
        count += part.numel()
        zeros += int((part == 0).sum())
        finite.add(part[good] if not (good := torch.isfinite(part)).all() else part)
    if not finite.number:
        return Statistics(0.0, 0.0, 0.0, 0.0, zeros / count if count else 0.0, 1.0 if count else 0.0, False, False)
    values, masked = finite, 0
    if finite.low <= MASK_VALUE:
        masked = sum(int((part == finite.low).sum()) for part in _parts(tensors))
    if masked > 1:
        values = _Moments()
        for part in _parts(tensors):
            values.add(part[torch.isfinite(part) & (part != finite.low)])
    return Statistics(finite.low, finite.high, values.mean if values.number else finite.low, values.std, zeros / count,
                      1 - finite.number / count, finite.integral, all(_sorted_last(tensor) for tensor in tensors),
                      masked / count if masked > 1 else 0.0)


class _Moments:
    """Extremes, mean and variance of values that come in pieces, by Chan's pairwise update."""

    def __init__(self) -> None:
        self.number, self.mean, self._squares = 0, 0.0, 0.0
        self.low, self.high, self.integral = inf, -inf, True

    @property
    def std(self) -> float:
        return sqrt(self._squares / self.number) if self.number else 0.0

    def add(self, part: torch.Tensor) -> None:
        number = part.numel()
        if not number:
            return
        variance, mean = (float(item) for item in torch.var_mean(part, correction=0))
        apart, total = mean - self.mean, self.number + number
        self.mean += apart * number / total
        self._squares += variance * number + apart * apart * self.number * number / total
        self.number = total
        low, high = (float(item) for item in torch.aminmax(part))
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.integral = self.integral and bool((part == part.round()).all())


def _parts(tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Flat float64 pieces, on the device of the tensor; what a broadcast repeats is looked at once."""
    for tensor in tensors:
        once = _distinct(tensor)
        if not once.numel():
            continue
        for block in _blocks(torch.view_as_real(once.resolve_conj()) if once.is_complex() else once):
            yield block.detach().to(torch.float64).reshape(-1)


def _distinct(tensor: torch.Tensor) -> torch.Tensor:
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _blocks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Views of at most CHUNKS elements, cut along the outer dimensions."""
    chunk = CHUNKS.get(tensor.device.type, CHUNKS["cpu"])
    if tensor.numel() <= chunk or tensor.ndim == 0:
        yield tensor
        return
    row = max(1, tensor.numel() // tensor.shape[0])
    step = max(1, chunk // row)
    for begin in range(0, tensor.shape[0], step):
        piece = tensor[begin:begin + step]
        yield from (_blocks(piece[0]) if step == 1 and row > chunk else (piece,))


def _sorted_last(tensor: torch.Tensor) -> bool:
    if tensor.ndim == 0 or tensor.shape[-1] < 2 or tensor.is_complex() or tensor.dtype == torch.bool:
        return False
    once = _distinct(tensor)
    pieces = [once] if once.ndim == 1 else _blocks(once)  # a cut would hide a step down between two pieces
    pieces = (_comparable(piece) for piece in pieces)
    return all(bool((piece[..., 1:] >= piece[..., :-1]).all()) for piece in pieces)


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """float8 and the wider unsigned integers have no order in torch: as float64, which keeps theirs."""
    return tensor if tensor.dtype in _ORDERED else tensor.to(torch.float64)
