"""`tolerance.Comparer` for large results on a GPU: the same figures from three kernels, without a wait between them.

The device code is `fused.cu`. It counts what the steps in torch count, element by element in float64; only sums of
squares are added in another order. Everything stays on the device until `result`, which looks once.
"""

from __future__ import annotations

import math
import weakref
from functools import lru_cache
from pathlib import Path

import torch
from msgspec import Struct

from forge_tui.cuda.program import Argument, Image, Launch, Program
from forge_tui.cuda.target import Target
from forge_tui.engine.judge.tolerance import CHUNK_ELEMENTS, ROW_ELEMENTS, Comparer, Format, unravel

SEGMENT = 2048
"""Elements that one warp takes at a time; as in fused.cu."""
BLOCK = 256
BLOCKS_PER_SM = 8
NOWHERE = (1 << 63) - 1
RESULTS = ("maxima", "sums", "counts", "own_worst", "worst", "differing", "places")
"""Written by the kernels, and most of them read too: all hold something beforehand."""
_TYPES = {torch.float64: "double", torch.float32: "float", torch.float16: "half", torch.bfloat16: "__nv_bfloat16"}
"""Results of other floating-point formats, all narrower, are compared as float32 values."""

_images: weakref.WeakKeyDictionary[Target, dict[torch.dtype, Image]] = weakref.WeakKeyDictionary()


class _Part(Struct):
    """What one slab of the reference left on the device."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    counts: torch.Tensor
    own_worst: torch.Tensor
    worst: torch.Tensor
    places: torch.Tensor
    """By class, flat within the slab; NOWHERE where the class is empty."""
    values: torch.Tensor
    """(classes, 3): expected, got, noise at those places."""
    squares: torch.Tensor
    differing: torch.Tensor
    """The first element that is not finite on one side only, and how many there are."""
    row: torch.Tensor | None
    """(number, norm, allowed, norm of the truth) of the row that is furthest out."""
    width: int


class FusedComparer(Comparer):
    """A Comparer whose sums are made by kernels on `target`."""

    def __init__(self, name: str, eager: torch.Tensor, candidate: torch.Tensor, target: Target) -> None:
        super().__init__(name, eager, candidate)
        self.target = target
        self.parts: list[_Part] = []

    def add(self, start: tuple[int, ...], reference: torch.Tensor, sensitivity: torch.Tensor | None = None) -> None:
        if self.problem or self.exact or not reference.numel():
            super().add(start, reference, sensitivity)
            return
        reference, sensitivity = self.real(reference, sensitivity)
        start = start + (0,) * (reference.dim() - len(start))
        region = tuple(slice(first, first + size) for first, size in zip(start, reference.shape, strict=True))
        eager, candidate = self.eager[region], self.candidate[region]
        if eager.dtype not in _TYPES:
            eager, candidate = eager.float(), candidate.float()
        tensors = {
            "eager": eager.contiguous(),
            "candidate": candidate.contiguous(),
            "reference": reference.to(torch.float64).contiguous(),
        }
        if sensitivity is not None:
            tensors["moved"] = sensitivity.to(torch.float64).contiguous()
        self.parts.append(self._enqueue(start, tuple(reference.shape), tensors))

    def _enqueue(self, start: tuple[int, ...], shape: tuple[int, ...], tensors: dict[str, torch.Tensor]) -> _Part:
        width = math.prod(shape[len(shape) - self.row_dims :])
        rows = math.prod(shape) // width
        segments = -(-width // SEGMENT)
        parts = -(-width // CHUNK_ELEMENTS)
        if parts > 1:
            segments = parts * (CHUNK_ELEMENTS // SEGMENT)
        classes, device = self.ulps.numel(), self.eager.device
        numbers = torch.zeros(3, classes, dtype=torch.int64, device=device)
        tensors |= {
            "units": self.ulps,
            "maxima": torch.zeros(rows * parts, dtype=torch.int64, device=device),
            "sums": torch.empty(rows * segments, 4, dtype=torch.float64, device=device),
            "counts": numbers[0],
            "own_worst": numbers[1],
            "worst": numbers[2],
            "places": torch.full((classes,), NOWHERE, dtype=torch.int64, device=device),
            "differing": torch.full((2,), NOWHERE, dtype=torch.int64, device=device),
        }
        tensors["differing"][1].zero_()
        program = _program(
            self.eager.dtype,
            self.format,
            "moved" in tensors,
            rows * segments,
            segments,
            width,
            parts,
            self.target.facts.sm_count * BLOCKS_PER_SM,
        )
        _launch(self.target, program, self.eager.dtype, tensors)
        found = tensors["places"]
        at = found.clamp(max=math.prod(shape) - 1)
        maxima = tensors["maxima"].view(torch.float64)
        noise = self.format.noise * maxima[at // width * parts + at % width // CHUNK_ELEMENTS]
        expected, got = (tensors[name].reshape(-1)[at].to(torch.float64) for name in ("reference", "candidate"))
        expected = torch.where(expected.isfinite(), expected, tensors["eager"].reshape(-1)[at].to(torch.float64))
        return _Part(
            start,
            shape,
            numbers[0],
            numbers[1].view(torch.float64),
            numbers[2].view(torch.float64),
            found,
            torch.stack((expected, got, noise), 1),
            tensors["sums"].sum(0),
            tensors["differing"],
            self._row(tensors["sums"], rows * parts, width),
            min(width, CHUNK_ELEMENTS),
        )

    def _row(self, sums: torch.Tensor, parts: int, width: int) -> torch.Tensor | None:
        if width < ROW_ELEMENTS:
            return None
        own, error, truth, units = sums.view(parts, -1, 4).sum(1).sqrt_().unbind(1)
        allowed = self.row_limit(own, units)
        number = self.row_ratio(error, allowed).argmax()
        return torch.stack((number.to(torch.float64), error[number], allowed[number], truth[number]))

    def result(self):
        for part in self.parts:
            self._take(part)
            if self.problem:
                break
        self.parts.clear()
        return super().result()

    def _take(self, part: _Part) -> None:
        """Add one slab's figures to those that `Comparer.result` decides by."""
        first, count = part.differing.tolist()
        if first != NOWHERE:
            index = tuple(a + b for a, b in zip(part.start, unravel(first, part.shape), strict=True))
            self.problem = self.nonfinite_at(index, count)
            return
        if part.row is not None:
            number, norm, allowed, truth = part.row.tolist()
            self.see_row(part.start, part.shape, self._row_begin(int(number), part), norm, allowed, truth)
        self.squares += part.squares
        self.counts += part.counts
        self.eager_worst = torch.maximum(self.eager_worst, part.own_worst)
        there = part.counts > 0
        better = there & ((part.worst > self.worst) | (self.worst_at < 0))
        self.worst = torch.where(better, part.worst, self.worst)
        self.worst_values = torch.where(better[:, None], part.values, self.worst_values)
        self.worst_at = torch.where(better, self._whole_index(part), self.worst_at)

    def _row_begin(self, number: int, part: _Part) -> int:
        width = math.prod(part.shape[len(part.shape) - self.row_dims :])
        parts = -(-width // CHUNK_ELEMENTS)
        return number // parts * width + number % parts * CHUNK_ELEMENTS

    def _whole_index(self, part: _Part) -> torch.Tensor:
        """Flat indices within the slab as flat indices of the whole output."""
        if part.shape == tuple(self.eager.shape):
            return part.places
        left, found, step = part.places, torch.zeros_like(part.places), 1
        for size, offset, whole in zip(
            reversed(part.shape), reversed(part.start), reversed(self.eager.shape), strict=True
        ):
            found = found + (left % size + offset) * step
            left, step = left // size, step * whole
        return found


def _launch(target: Target, program: Program, dtype: torch.dtype, tensors: dict[str, torch.Tensor]) -> None:
    """Without waiting on a GPU; the host target, which tests run these kernels on, waits anyway."""
    images = _images.setdefault(target, {})
    if dtype not in images:
        images[dtype] = target.build(program)
    if target.kind == "host":
        target.run(program, images[dtype], tensors)
    else:
        target.enqueue(target.prepare(program, images[dtype], tensors))  # type: ignore[attr-defined]


def _program(
    dtype: torch.dtype, format: Format, moved: bool, total: int, segments: int, width: int, parts: int, most: int
) -> Program:
    macros = (("T", _TYPES.get(dtype, "float")), ("LEAST", f"({format.least})"), ("LAST", f"({format.most + 1})"))
    grid = (min(-(-total // (BLOCK // 32)), most), 1, 1)
    sizes = tuple(Argument("int64", value=value) for value in (total, segments, width, parts))
    noise = Argument("float64", value=format.noise)

    def launch(kernel: str, *names: str | None) -> Launch:
        more = () if kernel == "part_max" else (noise,)
        return Launch(kernel, grid, (BLOCK, 1, 1), (*(Argument("pointer", name) for name in names), *sizes, *more))

    return Program(
        "fused.cu",
        _source(),
        macros,
        (
            launch("part_max", "eager", "candidate", "reference", "maxima"),
            launch(
                "tally",
                "eager",
                "candidate",
                "reference",
                "moved" if moved else None,
                "units",
                "maxima",
                "sums",
                "counts",
                "own_worst",
                "worst",
                "differing",
            ),
            launch("find", "eager", "candidate", "reference", "maxima", "worst", "places"),
        ),
        inputs=("eager", "candidate", "reference", "moved", "units"),
        outputs=RESULTS,
        aliases={name: name for name in RESULTS},
    )


@lru_cache(maxsize=1)
def _source() -> str:
    return Path(__file__).with_name("fused.cu").read_text()
