"""Value statistics of captured tensors, in pieces, so that a large sample costs little memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

import torch

from forge_tui.engine.cards import Statistics

CHUNK = 1 << 20
"""Elements looked at in one piece: 8 MB as float64."""
MASK_VALUE = -1e4
"""A minimum at or below this that repeats is taken for the fill of a mask: -1e4 is the smallest that models use."""


def statistics(tensors: Sequence[torch.Tensor]) -> Statistics:
    """Statistics over all elements of all samples of one input; complex numbers count as their two parts.

    `mean` and `std` leave out the elements counted by `lowest`, which would drown everything else.
    """
    low, high, count, zeros, finite = float("inf"), float("-inf"), 0, 0, 0
    integral = True
    for part in _parts(tensors):
        good = part[torch.isfinite(part)]
        count += part.numel()
        finite += good.numel()
        zeros += int((part == 0).sum())
        if good.numel():
            low, high = min(low, float(good.min())), max(high, float(good.max()))
            integral = integral and bool((good == good.round()).all())
    if not count or not finite:
        return Statistics(0.0, 0.0, 0.0, 0.0, zeros / count if count else 0.0, 1.0 if count else 0.0, False, False)
    mean, std, masked = _moments(tensors, low)
    return Statistics(low, high, mean, std, zeros / count, 1 - finite / count, integral,
                      all(_sorted_last(tensor) for tensor in tensors), masked / count)


def _moments(tensors: Sequence[torch.Tensor], low: float) -> tuple[float, float, int]:
    """Mean, standard deviation and the number of elements at a mask's fill value; two passes, for accuracy."""
    masked = 0
    if low <= MASK_VALUE:
        masked = sum(int((part == low).sum()) for part in _parts(tensors))
        masked = masked if masked > 1 else 0
    number, total = 0, 0.0
    for part in _parts(tensors):
        kept = _kept(part, low, masked)
        number, total = number + kept.numel(), total + float(kept.sum())
    if not number:
        return low, 0.0, masked
    mean = total / number
    square = sum(float(((_kept(part, low, masked) - mean) ** 2).sum()) for part in _parts(tensors))
    return mean, sqrt(square / number), masked


def _kept(part: torch.Tensor, low: float, masked: int) -> torch.Tensor:
    keep = torch.isfinite(part)
    return part[keep & (part != low)] if masked else part[keep]


def _parts(tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Flat float64 pieces on the CPU; what a broadcast repeats is looked at once."""
    for tensor in tensors:
        once = _distinct(tensor)
        if not once.numel():
            continue
        for block in _blocks(torch.view_as_real(once.resolve_conj()) if once.is_complex() else once):
            yield block.detach().to("cpu", torch.float64).reshape(-1)


def _distinct(tensor: torch.Tensor) -> torch.Tensor:
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _blocks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Views of at most CHUNK elements, cut along the outer dimensions."""
    if tensor.numel() <= CHUNK or tensor.ndim == 0:
        yield tensor
        return
    row = max(1, tensor.numel() // tensor.shape[0])
    step = max(1, CHUNK // row)
    for begin in range(0, tensor.shape[0], step):
        piece = tensor[begin:begin + step]
        yield from (_blocks(piece[0]) if step == 1 and row > CHUNK else (piece,))


def _sorted_last(tensor: torch.Tensor) -> bool:
    if tensor.ndim == 0 or tensor.shape[-1] < 2 or tensor.is_complex() or tensor.dtype == torch.bool:
        return False
    return all(bool((block[..., 1:] >= block[..., :-1]).all()) for block in _blocks(_distinct(tensor)) if block.shape[-1] > 1)
