"""How far a candidate's results may lie from the truth: never much further than eager's own, at any scale.

The yardstick is measured, not chosen: on the same inputs, eager's result E is compared with a reference R (the operator
in float64), and the candidate's result C with the same R. Over the elements where eager is finite, C passes when

1. the norm of C - R is at most `NORM_FACTOR` times the norm of E - R, plus `norm_ulps` units in the last place (root
mean
   square over the elements);
2. every element lies within `WORST_FACTOR` times eager's worst error *among elements of no greater magnitude*, plus
   `element_ulps` units in its own last place, plus the rounding noise of one float32 (float64) operation on the largest
   value of its row. Comparing by magnitude (one class per power of two) is what denies zeros to small values that lie
   beside large ones: eager's error at the large ones says nothing about the small;
3. in every row (the trailing dimensions that hold at least `ROW_ELEMENTS`), the norm is within `ROW_FACTOR` of eager's,
   so that one wrong row among thousands is not averaged away.

Why these factors. Two correct implementations that round independently differ in norm by a few per cent when there
are many elements; a different order of summation costs up to about 2. The worst of N independent errors is 3 to 4
times their root mean square, and which implementation is unlucky is chance: hence 4 for single elements and single
rows.

Why these units. Results of 16 bits and less are computed in float32 and rounded once, so a correct candidate is
correctly rounded but for ties: half a unit at an element, a quarter in norm. That is below the 1.02 to 2.05 units by
which a copy scaled by 1.001 differs in float16, and the 1.28 of a copy scaled by 1.01 in bfloat16. In float32 and
float64 the intermediate steps round in the output's own precision: CUDA's expf, erff, tanhf have up to 2 units each
(CUDA C++ Programming Guide, mathematical functions), a quotient of two such results has 4.

A second yardstick is asked for only when the first refuses: the operator's own *sensitivity*, the change of R when every
input is rounded in float32 (float64 for float64 calls); `reference.py` says how. An operator that magnifies such a
rounding (layer_norm of a constant row: 300-fold) has no more accurate answer in that arithmetic, and eager may have hit
it by luck.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from msgspec import Struct

from forge_tui.engine.judge.verdict import Worst

NORM_FACTOR = 2.0
WORST_FACTOR = 4.0
ROW_FACTOR = 4.0
ROW_ELEMENTS = 32
POPULATION = 256
"""Eager's worst error is taken over at least this many elements (all, when there are fewer): fewer may all be lucky."""
CHUNK_ELEMENTS = 1 << 20
"""Elements compared at a time: about ten float64 temporaries of 8 MiB."""

Reason = Literal["", "shape", "dtype", "strides", "nonfinite", "norm", "element", "row", "exact"]


class Comparison(Struct, frozen=True):
    """One output against its reference. Norms are relative to the reference's own norm (absolute where that is
    zero)."""

    output: str
    passed: bool
    reason: Reason = ""
    figure: float = 0.0
    """What failed, or the relative error in norm when nothing did."""
    allowed: float = 0.0
    eager: float = 0.0
    """Eager's own relative error in norm."""
    worst: Worst | None = None
    """The element that lies furthest out in units of what is allowed there."""
    sentence: str = ""
    """What is wrong, without the name of the draw; empty when passed."""


class Format(Struct, frozen=True):
    """A floating-point format: where its units in the last place lie."""

    digits: int
    """Of the significand, the implicit one included."""
    least: int
    """`frexp` exponent of the least normal number."""
    most: int
    """`frexp` exponent of the largest number."""
    element_ulps: float
    norm_ulps: float
    noise: float
    """Relative rounding of one operation in the arithmetic the operator is computed in."""

    @classmethod
    def of(cls, dtype: torch.dtype) -> Format:
        info = torch.finfo(dtype)
        wide = info.bits >= 32
        return cls(digits=1 - round(math.log2(info.eps)), least=round(math.log2(info.tiny)) + 1,
                   most=math.frexp(info.max)[1], element_ulps=4.0 if wide else 0.5, norm_ulps=2.0 if wide else 0.25,
                   noise=2.0**-52 if dtype == torch.float64 else 2.0**-23)


def row_dims(shape: torch.Size | tuple[int, ...]) -> int:
    """How many trailing dimensions make one row: the fewest that hold ROW_ELEMENTS; all when none do."""
    count = 1
    for used, size in enumerate(reversed(shape), start=1):
        count *= size
        if count >= ROW_ELEMENTS:
            return used
    return len(shape)


def layout_problem(name: str, eager: torch.Tensor, candidate: torch.Tensor) -> Comparison | None:
    """Shape, dtype and strides must be eager's (strides where a dimension holds more than one element)."""
    checks: tuple[tuple[Reason, object, object], ...] = (
        ("dtype", eager.dtype, candidate.dtype), ("shape", tuple(eager.shape), tuple(candidate.shape)),
        ("strides", _strides(eager), _strides(candidate)))
    for reason, expected, got in checks:
        if expected != got:
            return Comparison(name, False, reason, sentence=f"{name} has {reason} {got}, eager's has {expected}")
    return None


def difference(name: str, eager: torch.Tensor, candidate: torch.Tensor) -> Comparison | None:
    """The first finite element that is not eager's, where there is one right answer; zeros of either sign are equal."""
    for at, piece in pieces(eager):
        other = candidate[tuple(slice(first, first + size) for first, size in zip(at, piece.shape, strict=True))]
        if piece.dtype.is_floating_point and piece.dtype.itemsize == 1:  # torch compares no float8
            piece, other = piece.float(), other.float()
        different = (piece != other) & piece.isfinite() & other.isfinite()
        if bool(different.any()):
            index, count = _first(at, different)
            expected, got = float(eager[index].real), float(candidate[index].real)
            return Comparison(name, False, "exact", worst=Worst(name, index, expected, got, 0.0), sentence=(
                f"{_place(name, index)} is {got:.9g}, eager has {expected:.9g} ({count} such elements in this part): this operator "
                "copies or rounds its inputs' values, so results must be equal"))
    return None


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    if tensor.numel() == 0:
        return ()
    return tuple(step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


class Comparer:
    """Compares one output slab by slab, in bounded memory.

    `add` takes each part of the reference once; `result` decides. Integer and boolean outputs must be equal to eager's.
    """

    def __init__(self, name: str, eager: torch.Tensor, candidate: torch.Tensor) -> None:
        self.name = name
        self.eager, self.candidate = _real(eager), _real(candidate)
        self.exact = not (eager.is_floating_point() or eager.is_complex())
        self.problem = layout_problem(name, eager, candidate)
        self.row_dims = row_dims(self.eager.shape)
        if self.exact or self.problem:
            return
        self.format = Format.of(self.eager.dtype)
        exponents = range(self.format.least, self.format.most + 2)
        classes = len(exponents)
        device = eager.device
        self.ulps = torch.tensor([math.ldexp(1.0, e - self.format.digits) for e in exponents], dtype=torch.float64,
                                 device=device)
        """One unit in the last place, by class: results between 2**(e-1) and 2**e, all smaller ones in the first."""
        self.counts = torch.zeros(classes, dtype=torch.int64, device=device)
        self.eager_worst = torch.zeros(classes, dtype=torch.float64, device=device)
        self.worst = torch.zeros(classes, dtype=torch.float64, device=device)
        """By class: the largest of the candidate's errors less the row's noise."""
        self.worst_at = torch.full((classes,), -1, dtype=torch.int64, device=device)
        """Its flat index in the output."""
        self.worst_values = torch.zeros(classes, 3, dtype=torch.float64, device=device)
        """Expected, got, row noise there."""
        self.squares = torch.zeros(4, dtype=torch.float64, device=device)
        """Sums of squares: eager's error, the candidate's, the reference, units in the last place."""
        self.row_problem: Comparison | None = None

    def add(self, start: tuple[int, ...], reference: torch.Tensor, sensitivity: torch.Tensor | None = None) -> None:
        """Compare the part of the output that begins at index `start` and has `reference`'s shape.

        sensitivity: same shape, float64: how far the truth moves when inputs are rounded; counted as eager's error.
        """
        if self.problem:
            return
        reference, sensitivity = self.real(reference, sensitivity)
        start = start + (0,) * (reference.dim() - len(start))
        for offset, piece in [((0,) * reference.dim(), reference)] if self.exact else pieces(reference):
            at = tuple(first + more for first, more in zip(start, offset, strict=True))
            region = tuple(slice(first, first + size) for first, size in zip(at, piece.shape, strict=True))
            eager, candidate = self.eager[region], self.candidate[region]
            if self.exact:
                self._add_exact(at, eager, candidate)
            else:
                local = tuple(slice(first, first + size) for first, size in zip(offset, piece.shape, strict=True))
                self._add_piece(at, piece, eager, candidate, None if sensitivity is None else sensitivity[local])
            if self.problem:
                return

    @staticmethod
    def real(reference: torch.Tensor, sensitivity: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Complex ones as pairs of numbers, as the outputs are held."""
        reference = _real(reference)
        return reference, None if sensitivity is None else _real_like(sensitivity, reference)

    def _add_exact(self, at: tuple[int, ...], eager: torch.Tensor, candidate: torch.Tensor) -> None:
        different = eager != candidate
        if bool(different.any()):
            self.problem = self._element_problem("exact", *_first(at, different), "; results of this dtype must be equal")

    def nonfinite_at(self, index: tuple[int, ...], count: int) -> Comparison:
        """A failure: the first of `count` elements that are infinite or NaN in one result only."""
        return self._element_problem("nonfinite", index, count, ": NaN and infinities must be where eager has them")

    def _element_problem(self, reason: Reason, index: tuple[int, ...], count: int, tail: str) -> Comparison:
        expected, got = float(self.eager[index]), float(self.candidate[index])
        more = f" ({count} such elements in this part)" if count > 1 else ""
        return Comparison(self.name, False, reason, worst=Worst(self.name, index, expected, got, 0.0),
                          sentence=f"{_place(self.name, index)} is {got:.9g}, eager has {expected:.9g}{more}{tail}")

    def _add_piece(self, at: tuple[int, ...], reference: torch.Tensor, eager: torch.Tensor, candidate: torch.Tensor,
                   sensitivity: torch.Tensor | None) -> None:
        eager, candidate = eager.to(torch.float64), candidate.to(torch.float64)
        finite = eager.isfinite()
        # torch's own CPU gelu makes NaN of infinity in float32: an infinity that the reference has too is right there.
        right = eager.isnan() & (candidate.isnan() | ((candidate == reference) & candidate.isinf()))
        pattern = (eager != candidate) & ~(finite & candidate.isfinite()) & ~right
        if bool(pattern.any()):
            self.problem = self.nonfinite_at(*_first(at, pattern))
            return
        width = math.prod(reference.shape[reference.dim() - self.row_dims:])
        shape = (-1, width)
        # Where the reference overflows though eager does not, eager is the only truth there is.
        truth = torch.where(finite & reference.isfinite(), reference.to(torch.float64), eager).reshape(shape)
        finite = finite.reshape(shape)
        truth = truth.masked_fill(~finite, 0.0)
        own = (eager.reshape(shape) - truth).abs_().masked_fill_(~finite, 0.0)
        if sensitivity is not None:
            own = torch.maximum(own, sensitivity.reshape(shape).nan_to_num(0.0, 0.0, 0.0).masked_fill(~finite, 0.0))
        got = candidate.reshape(shape)
        error = (got - truth).abs_().masked_fill_(~finite, 0.0)
        self._accumulate(at, tuple(reference.shape), truth, got, own, error, finite)

    def _accumulate(self, at: tuple[int, ...], shape: tuple[int, ...], truth: torch.Tensor, got: torch.Tensor,
                    own: torch.Tensor, error: torch.Tensor, finite: torch.Tensor) -> None:
        least = self.format.least
        # frexp gives zero the exponent 0, which is that of 0.5: its class is the least.
        kind = torch.frexp(truth)[1].to(torch.int64).masked_fill_(truth == 0, least)
        kind = kind.clamp_(least, self.format.most + 1).sub_(least)
        ulp = self.ulps[kind].masked_fill_(~finite, 0.0)
        self._check_rows(at, shape, truth, own, error, ulp)
        for slot, values in enumerate((own, error, truth, ulp)):
            self.squares[slot] += values.square().sum()
        noise = self.format.noise * truth.abs().amax(dim=1, keepdim=True).expand_as(truth)
        excess = (error - noise).clamp_(min=0.0)
        flat = kind.reshape(-1)
        keep = finite.reshape(-1)
        self.counts += torch.bincount(flat[keep], minlength=self.counts.numel())
        self.eager_worst.scatter_reduce_(0, flat, own.reshape(-1), "amax")
        best = self.worst.scatter_reduce(0, flat, excess.reshape(-1), "amax")
        better = (best > self.worst) | (self.worst_at < 0)
        self.worst = best
        chosen = ((excess.reshape(-1) == best[flat]) & better[flat] & keep).nonzero().reshape(-1)
        # Of equals within a class any will do, but the same one every time: the first.
        none = flat.numel()
        first = torch.full_like(self.worst_at, none).scatter_reduce_(0, flat[chosen], chosen, "amin")
        places = (first < none).nonzero().reshape(-1)
        where = first[places]
        self.worst_values[places] = torch.stack([item.reshape(-1)[where] for item in (truth, got, noise)], dim=1)
        whole = tuple(self.eager.shape)
        indices = [ravel(tuple(a + b for a, b in zip(at, unravel(flat_index, shape), strict=True)), whole)
                   for flat_index in where.tolist()]
        self.worst_at[places] = torch.tensor(indices, dtype=torch.int64, device=self.worst_at.device)

    def _check_rows(self, at: tuple[int, ...], shape: tuple[int, ...], truth: torch.Tensor, own: torch.Tensor,
                    error: torch.Tensor, ulp: torch.Tensor) -> None:
        if self.row_problem or truth.shape[1] < ROW_ELEMENTS:
            return
        norm = error.square().sum(1).sqrt_()
        allowed = self.row_limit(own.square().sum(1).sqrt_(), ulp.square().sum(1).sqrt_())
        row = int(self.row_ratio(norm, allowed).argmax())
        self.see_row(at, shape, row * truth.shape[1], float(norm[row]), float(allowed[row]),
                     float(truth[row].square().sum().sqrt()))

    def row_limit(self, own: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
        """What the norm of a row's error may be, from those of eager's error and of one unit in the last place."""
        return ROW_FACTOR * own + self.format.element_ulps * units

    @staticmethod
    def row_ratio(norm: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        return norm / allowed.clamp(min=torch.finfo(torch.float64).tiny)

    def see_row(self, at: tuple[int, ...], shape: tuple[int, ...], begin: int, norm: float, allowed: float, truth: float) -> None:
        """The worst row of a part, which begins at flat index `begin` of it: a failure where it is the first one too far out."""
        if self.row_problem or not norm > allowed:
            return
        local = unravel(begin, shape)
        index = tuple(a + b for a, b in zip(at, local, strict=True))[: len(shape) - self.row_dims]
        scale = truth or 1.0
        figure, limit = norm / scale, allowed / scale
        place = _place(self.name, (*index, ":")) if len(index) < len(shape) else self.name
        self.row_problem = Comparison(self.name, False, "row", figure, limit,
                                      sentence=f"{place} has a relative error of {figure:.3g} in norm, allowed {limit:.3g}")

    def result(self) -> Comparison:
        """The decision. The norm first: it says most about what kind of mistake it is."""
        if self.problem:
            return self.problem
        if self.exact or self.eager.numel() == 0:
            return Comparison(self.name, True)
        own, error, truth, ulps = self.squares.sqrt().tolist()
        few = int(self.counts.sum()) < ROW_ELEMENTS
        scale = truth or 1.0
        figure = error / scale
        units = self.format.element_ulps if few else self.format.norm_ulps
        allowed = (NORM_FACTOR * own + units * ulps) / scale
        worst, ratio = self._worst()
        common = {"eager": own / scale, "worst": worst}
        where = f"; worst at {_element(worst)}" if worst else ""
        if not figure <= allowed:
            return Comparison(self.name, False, "norm", figure, allowed, **common, sentence=(
                f"{self.name} has a relative error of {figure:.3g} in norm, allowed {allowed:.3g} "
                f"(eager's own: {own / scale:.3g}){where}"))
        if not ratio <= 1.0:
            return Comparison(self.name, False, "element", abs(worst.got - worst.expected), worst.allowed, **common,
                              sentence=_element(worst))
        if self.row_problem:
            problem = self.row_problem
            return Comparison(self.name, False, "row", problem.figure, problem.allowed, **common,
                              sentence=problem.sentence + where)
        return Comparison(self.name, True, "", figure, allowed, **common)

    def _worst(self) -> tuple[Worst | None, float]:
        """The element furthest out, and by how many times what is allowed there."""
        counts = self.counts.cpu()
        total = counts.cumsum(0)
        top = torch.cummax(self.eager_worst.cpu(), 0).values
        enough = torch.searchsorted(total, total[-1].clamp(max=POPULATION))
        classes = torch.arange(len(counts))
        pooled = top[torch.maximum(classes, enough)]
        allowed = WORST_FACTOR * pooled + self.format.element_ulps * self.ulps.cpu()
        ratios = torch.where(counts > 0, self.worst.cpu() / allowed, -1.0)
        cls = int(ratios.argmax())
        if counts[cls] == 0:
            return None, 0.0
        expected, got, noise = self.worst_values[cls].tolist()
        index = unravel(int(self.worst_at[cls]), tuple(self.eager.shape))
        return Worst(self.name, index, expected, got, float(allowed[cls]) + noise), float(ratios[cls])


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _real_like(sensitivity: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """A complex output's sensitivity holds one figure an element: it serves both parts."""
    return sensitivity if sensitivity.dim() == reference.dim() else sensitivity.unsqueeze(-1).expand_as(reference)


def pieces(tensor: torch.Tensor) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
    """Parts of at most CHUNK_ELEMENTS with their offsets, cut along the leading dimensions."""
    if tensor.numel() == 0:
        return
    if tensor.numel() <= CHUNK_ELEMENTS:
        yield (0,) * tensor.dim(), tensor
        return
    dim = next(d for d in range(tensor.dim()) if tensor.shape[d] > 1)
    step = max(1, CHUNK_ELEMENTS * tensor.shape[dim] // tensor.numel())
    for begin in range(0, tensor.shape[dim], step):
        part = tensor.narrow(dim, begin, min(step, tensor.shape[dim] - begin))
        for offset, piece in pieces(part):
            yield tuple(o + (begin if d == dim else 0) for d, o in enumerate(offset)), piece


def _first(at: tuple[int, ...], where: torch.Tensor) -> tuple[tuple[int, ...], int]:
    """Index in the output of the first element of `where`, which begins at `at`, and how many there are."""
    local = unravel(int(where.reshape(-1).nonzero()[0, 0]), tuple(where.shape))
    return tuple(first + more for first, more in zip(at, local, strict=True)), int(where.sum())


def unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def ravel(index: tuple[int, ...], shape: tuple[int, ...]) -> int:
    flat = 0
    for position, size in zip(index, shape, strict=True):
        flat = flat * size + position
    return flat


def _place(name: str, index: tuple[object, ...]) -> str:
    return f"{name}[{', '.join(str(part) for part in index)}]" if index else name


def _element(worst: Worst) -> str:
    return (f"{_place(worst.output, worst.index)} is {worst.got:.9g}, expected {worst.expected:.9g}, "
            f"allowed {worst.allowed:.3g}")
