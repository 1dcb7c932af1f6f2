"""The comparison by kernels decides as the one in torch does; here its kernels run on the host target."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from forge_tui.cuda.host.target import HostTarget
from forge_tui.engine.judge import fused
from forge_tui.engine.judge.fused import FusedComparer
from forge_tui.engine.judge.tolerance import Comparer
from hostkit import needs_nvrtc

pytestmark = needs_nvrtc
TARGET = HostTarget()


def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7)) * scale


def as_is(truth: torch.Tensor, candidate: torch.Tensor) -> None:
    """An honest candidate."""


def one_element(truth: torch.Tensor, candidate: torch.Tensor) -> None:
    candidate.view(-1)[candidate.numel() // 3] += 0.25


def one_row(truth: torch.Tensor, candidate: torch.Tensor) -> None:
    candidate[-1] = (truth[-1] * 1.02).to(candidate.dtype)


def zeros(truth: torch.Tensor, candidate: torch.Tensor) -> None:
    candidate.zero_()


def a_nan(truth: torch.Tensor, candidate: torch.Tensor) -> None:
    candidate.view(-1)[candidate.numel() // 2 :] = math.nan


def small_ones_lost(truth: torch.Tensor, candidate: torch.Tensor) -> None:
    candidate.masked_fill_(truth.abs() < 0.01, 0.0)


MISTAKES = [as_is, one_element, one_row, zeros, a_nan, small_ones_lost]


def both(
    truth: torch.Tensor, eager: torch.Tensor, candidate: torch.Tensor, slabs: int = 1, moved: torch.Tensor | None = None
):
    results = []
    for comparer in (Comparer("out", eager, candidate), FusedComparer("out", eager, candidate, TARGET)):
        step = -(-truth.shape[0] // slabs)
        for begin in range(0, truth.shape[0], step):
            part = slice(begin, begin + step)
            comparer.add((begin,), truth[part], None if moved is None else moved[part])
        results.append(comparer.result())
    return results


def same(plain, other) -> None:
    """Reasons and places to the letter, figures to what another order of summation allows."""
    assert (plain.passed, plain.reason) == (other.passed, other.reason), (plain, other)
    for name in ("figure", "allowed", "eager"):
        assert getattr(other, name) == pytest.approx(getattr(plain, name), rel=1e-9, abs=1e-300), name
    if plain.reason != "nonfinite":
        assert other.worst == plain.worst
        assert other.sentence == plain.sentence
    else:
        assert other.worst.index == plain.worst.index


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_as_in_torch(dtype: torch.dtype, mistake: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    truth = normal(6, 5, 67, scale=3.0)
    candidate = truth.to(dtype)
    mistake(truth, candidate)
    same(*both(truth, truth.to(dtype), candidate))


@pytest.mark.parametrize("shape", [(1,), (7,), (31,), (3, 1), (2, 3, 4), (5, 2, 2100), (4097,)])
@pytest.mark.parametrize("mistake", [as_is, one_element, zeros])
def test_awkward_shapes(shape: tuple[int, ...], mistake: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    truth = normal(*shape)
    candidate = truth.to(torch.float32)
    mistake(truth, candidate)
    same(*both(truth, truth.to(torch.float32), candidate))


@pytest.mark.parametrize("mistake", [as_is, one_element, one_row, small_ones_lost])
def test_slabs_and_a_rougher_eager(mistake: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    truth = normal(9, 3, 40)
    eager = truth.to(torch.bfloat16).float()
    eager[2, 1, 3] = math.inf  # eager alone overflows: the candidate must too
    candidate = truth.float()
    candidate[2, 1, 3] = math.inf
    mistake(truth, candidate)
    same(*both(truth, eager, candidate, slabs=4))


def test_transposed_results_and_sensitivity() -> None:
    truth = normal(40, 37)
    eager = truth.float().t().contiguous().t()
    candidate = (truth * (1 + 1e-6)).float().t().contiguous().t()
    plain, other = both(truth, eager, candidate)
    assert not plain.passed
    same(plain, other)
    plain, other = both(truth, eager, candidate, slabs=3, moved=truth.abs() * 1e-6)
    assert plain.passed
    same(plain, other)


def test_rows_longer_than_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a long row are compared one by one."""
    from forge_tui.engine.judge import tolerance

    truth = normal(2, (1 << 20) + 3000)
    candidate = truth.float()
    candidate[1, (1 << 20) + 5 :] *= 1.000005
    comparer = FusedComparer("out", truth.float(), candidate, TARGET)
    comparer.add((), truth)
    plain = Comparer("out", truth.float(), candidate)
    plain.add((), truth)
    same(plain.result(), comparer.result())
    assert tolerance.CHUNK_ELEMENTS == 512 * fused.SEGMENT


def test_other_dtypes() -> None:
    exact = torch.arange(12).reshape(3, 4)
    plain, other = both(exact, exact, exact + (exact == 7))
    assert plain == other and plain.reason == "exact" and plain.worst.index == (1, 3)
    small = normal(3, 40)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        same(*both(small, small.to(dtype), small.to(dtype)))
        same(*both(small, small.to(dtype), (small * 1.1).to(dtype)))
    turned = torch.complex(normal(3, 40), normal(3, 40))
    wrong = turned.clone()
    wrong[1, 2] += 1
    same(*both(turned, turned.to(torch.complex64), wrong.to(torch.complex64)))
