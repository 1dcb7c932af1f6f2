"""The tolerance: eager's own error is the yardstick, at every scale, in every dtype."""

from __future__ import annotations

import pytest
import torch

from forge_tui.engine.judge.tolerance import Comparer, Comparison

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def compare(truth: torch.Tensor, candidate: torch.Tensor, eager: torch.Tensor | None = None) -> Comparison:
    """eager: by default the truth, correctly rounded to the candidate's dtype."""
    comparer = Comparer("out", truth.to(candidate.dtype) if eager is None else eager, candidate)
    comparer.add((), truth)
    return comparer.result()


def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7)) * scale


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scale", [1e-2, 1.0, 30.0])
def test_the_rounded_truth_passes_and_zeros_do_not(dtype: torch.dtype, scale: float) -> None:
    truth = normal(64, 96, scale=scale)
    assert compare(truth, truth.to(dtype)).passed
    result = compare(truth, torch.zeros_like(truth, dtype=dtype))
    assert result.reason == "norm" and result.worst is not None
    assert result.figure > 0.9


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("factor", [1.001, 1.01, 1.1])
def test_scaled_copies_pass_only_where_eagers_error_is_as_large(dtype: torch.dtype, factor: float) -> None:
    truth = normal(64, 96)
    result = compare(truth, (truth * factor).to(dtype))
    assert result.passed == (dtype == torch.bfloat16 and factor == 1.001)
    if result.passed:
        assert result.eager > 0.001


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_small_values_beside_large_ones_are_held_to_their_own_scale(dtype: torch.dtype) -> None:
    """gelu written as relu: wrong only where values are small, in a tensor whose large values are right."""
    x = normal(64, 512, scale=2.0)
    truth = torch.nn.functional.gelu(x)
    candidate = torch.where(x < -2.5, 0.0, truth).to(dtype)
    assert compare(truth, truth.to(dtype)).passed
    assert not compare(truth, candidate).passed


def test_one_wrong_element_is_named() -> None:
    truth = normal(40, 50)
    candidate = truth.to(torch.float32)
    candidate[3, 17] += 0.01
    result = compare(truth, candidate)
    assert result.worst is not None and result.worst.index == (3, 17)
    assert result.worst.got == pytest.approx(float(truth[3, 17]) + 0.01)
    assert result.worst.allowed < 1e-5
    assert "out[3, 17] is" in result.sentence


def test_one_wrong_row_among_thousands_is_refused() -> None:
    """A copy scaled by 1.01 in bfloat16 stays within single elements' limits: the row's norm shows it."""
    truth = normal(4096, 256).abs() + 1
    candidate = truth.to(torch.bfloat16)
    candidate[1234] = (truth[1234] * 1.01).to(torch.bfloat16)
    result = compare(truth, candidate)
    assert result.reason in {"row", "element"}
    assert "1234" in result.sentence


def test_one_row_at_a_tiny_scale_may_not_be_zero() -> None:
    truth = normal(256, 64)
    truth[9] *= 1e-20
    candidate = truth.to(torch.float32)
    candidate[9] = 0
    assert not compare(truth, candidate).passed


def test_the_limit_follows_eagers_error() -> None:
    truth = normal(64, 64)
    noise = normal(64, 64).flip(0) * 1e-3
    eager = (truth + noise).float()
    assert compare(truth, (truth - noise).float(), eager).passed
    assert not compare(truth, (truth - 3 * noise).float(), eager).passed


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_never_passes(dtype: torch.dtype) -> None:
    truth = normal(8, 8)
    candidate = truth.to(dtype).float().to(dtype)
    candidate[2, 3] = float("nan")
    result = compare(truth, candidate)
    assert result.reason == "nonfinite" and result.worst is not None and result.worst.index == (2, 3)
    assert not compare(truth, torch.full_like(candidate, float("nan"))).passed


def test_the_nonfinite_pattern_is_eagers() -> None:
    truth = normal(8, 8)
    truth[0, 0], truth[1, 1], truth[2, 2] = float("inf"), float("-inf"), float("nan")
    same = truth.float()
    assert compare(truth, same).passed
    for place in [(0, 0), (1, 1), (2, 2)]:
        for value in [0.0, float("nan"), float("inf"), float("-inf")]:
            changed = same.clone()
            changed[place] = value
            equal = torch.equal(torch.nan_to_num(changed, 7.0), torch.nan_to_num(same, 7.0))
            assert compare(truth, changed).passed == equal


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_integers_are_exact(dtype: torch.dtype) -> None:
    truth = (normal(16, 16) > 0).to(dtype)
    assert compare(truth, truth.clone()).passed
    candidate = truth.clone()
    candidate[5, 6] = 1 - candidate[5, 6].int()
    result = compare(truth, candidate)
    assert result.reason == "exact" and result.worst is not None and result.worst.index == (5, 6)


def test_layout_is_part_of_the_result() -> None:
    truth = normal(4, 6)
    assert compare(truth, truth.float().t().contiguous().t(), truth.float()).reason == "strides"
    assert compare(truth, truth.half(), truth.float()).reason == "dtype"
    assert compare(truth, truth.float().reshape(6, 4), truth.float()).reason == "shape"
    one = normal(1, 6).float()
    assert compare(one.double(), torch.empty_strided((1, 6), (99, 1)).copy_(one), one).passed


def test_complex_and_scalar_and_empty() -> None:
    truth = torch.complex(normal(8, 8), normal(8, 8).flip(0))
    assert compare(truth, truth.to(torch.complex64)).passed
    assert not compare(truth, (truth * 1.001).to(torch.complex64)).passed
    scalar = torch.tensor(3.14159, dtype=torch.float64)
    assert compare(scalar, scalar.float()).passed
    assert not compare(scalar, scalar.float() * 1.001).passed
    assert compare(torch.empty(0, 4, dtype=torch.float64), torch.empty(0, 4)).passed


def test_sensitivity_is_counted_as_eagers_error() -> None:
    """layer_norm of a constant row: eager may be right by luck, any rounding of the mean is magnified 300-fold."""
    truth = torch.zeros(8, 64, dtype=torch.float64)
    candidate = torch.full((8, 64), 2e-5)
    assert not compare(truth, candidate).passed
    comparer = Comparer("out", truth.float(), candidate)
    comparer.add((), truth, torch.full_like(truth, 1.8e-5))
    assert comparer.result().passed


def test_slabs_give_the_same_result_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_tui.engine.judge.tolerance.CHUNK_ELEMENTS", 1000)
    truth = normal(24, 5, 70)
    candidate = truth.float()
    candidate[17, 2, 69] *= 1.5
    whole = compare(truth, candidate)
    comparer = Comparer("out", truth.float(), candidate)
    for start in range(0, 24, 7):
        comparer.add((start,), truth[start:start + 7])
    parts = comparer.result()
    assert parts.worst == whole.worst and parts.reason == whole.reason
    assert parts.figure == pytest.approx(whole.figure, rel=1e-12)
    assert whole.worst is not None and whole.worst.index == (17, 2, 69)


def test_zeros_in_the_truth_allow_nothing() -> None:
    """A row of one 1 and many zeros: small values where zeros belong are wrong at their own scale."""
    truth = torch.zeros(64, 512, dtype=torch.float64)
    truth[:, 7] = 1
    candidate = truth.float()
    candidate[:, 100:] = 3e-7
    assert compare(truth, truth.float()).allowed < 4e-7
    assert not compare(truth, candidate).passed


def test_where_eager_has_nan_an_infinity_of_the_reference_is_right_and_nothing_else_is() -> None:
    """float32 gelu of infinity on the CPU: eager has NaN, the operator in float64 has infinity."""
    inf, nan = float("inf"), float("nan")
    truth, eager = torch.tensor([1.0, inf, 2.0], dtype=torch.float64), torch.tensor([1.0, nan, 2.0])
    for got, passes in ((inf, True), (nan, True), (-inf, False), (3.0, False), (0.0, False)):
        assert compare(truth, torch.tensor([1.0, got, 2.0]), eager).passed == passes, got
    assert not compare(torch.tensor([1.0, 5.0], dtype=torch.float64), torch.tensor([1.0, 5.0]), torch.tensor([1.0, nan])).passed
