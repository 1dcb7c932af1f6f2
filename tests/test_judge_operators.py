"""No false refusal and no false pass, over the operators and layouts that the builtin kernels serve."""

from __future__ import annotations

import pytest
import torch

from forge_tui.cuda.host.target import HostTarget
from forge_tui.engine.builtin.catalog import kernels_for
from forge_tui.engine.cards import Variant, variant_key
from forge_tui.engine.judge.judge import judge_text
from forge_tui.engine.judge.memory import lay
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.judge.reference import compare, eager, in_place, reference
from forge_tui.engine.statistics import statistics
from tests import builtin_cases, norm_cases
from tests.hostkit import needs_nvrtc
from tests.kernels import FLOATS, Sample

FAMILIES = {**builtin_cases.FAMILIES, **norm_cases.FAMILIES}
EVERY = [(family, name) for family, cases in FAMILIES.items() for name in cases]
SOME = [(family, list(cases)[len(cases) // 2]) for family, cases in FAMILIES.items()]
"""One case of each family with every kernel; `-m slow` judges every second case with one, `python -m benchmarks.judging` all of them."""


def variant_of(item: Sample) -> Variant:
    return Variant(key=variant_key(item.call), call=item.call, calls=1, time_us=1.0, bytes_moved=1, operations=1, floor_us=1.0,
                   statistics={name: statistics([tensor]) for name, tensor in item.tensors.items()}, samples=("s",),
                   modules=("",))


def assert_no_false_refusal(family: str, name: str, dtype: torch.dtype, target: HostTarget, turn: int | None = None) -> None:
    """turn: only the kernel whose turn it is of those that take the call."""
    item = FAMILIES[family][name](dtype)
    kernels = kernels_for(item.call)
    for kernel in kernels if turn is None or not kernels else [kernels[turn % len(kernels)]]:
        verdict = judge_text(kernel.text, f"{kernel.name}.cu", variant_of(item), [item.tensors], target,
                             options=JudgeOptions(tune_points=2))
        assert verdict.outcome in ("verified", "skipped"), f"{kernel.name}, seed {verdict.seed}: {verdict.sentence}"


@needs_nvrtc
@pytest.mark.parametrize(("family", "name"), SOME, ids=lambda text: text.replace(" ", "-"))
def test_builtin_kernels_are_not_refused(family: str, name: str) -> None:
    target = HostTarget()
    for dtype in FLOATS:
        assert_no_false_refusal(family, name, dtype, target)


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_no_builtin_kernel_is_refused_on_other_cases(family: str) -> None:
    target = HostTarget()
    for number, name in list(enumerate(FAMILIES[family]))[::2]:
        assert_no_false_refusal(family, name, FLOATS[number % len(FLOATS)], target, turn=number)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("family", FAMILIES)
def test_zeros_constants_and_scaled_copies(family: str, dtype: torch.dtype) -> None:
    """Accepted only where they are right, or eager's own error is as large: by norm, twice it and its rounding."""
    for name, case in FAMILIES[family].items():
        item = case(dtype)
        own = in_place(item.call, eager(item.call, item.tensors))
        truth = torch.where(own[0].isfinite(), reference(item.call, item.tensors)[0].double(), own[0].double())
        finite = truth[truth.isfinite()]
        if not own[0].is_floating_point() or not bool(finite.any()):
            continue
        for label, wrong in (("zeros", torch.zeros_like(truth)), ("constant", torch.full_like(truth, float(finite.mean()))),
                             *((factor, truth * factor) for factor in (1.001, 1.01, 1.1))):
            wrong = torch.where(truth.isfinite(), wrong, truth)
            moved = wrong.to(own[0].dtype)
            distance = float((moved.double() - truth)[truth.isfinite()].norm() / finite.norm())
            candidate = (lay(item.call.outputs[0], moved), *own[1:])
            first = compare(item.call, item.tensors, own, candidate)[0]
            if first.passed:
                limit = 3 * first.eager + {torch.float32: 1e-6, torch.float16: 1.2e-3, torch.bfloat16: 1e-2}[dtype]
                assert distance <= limit, f"{label} passes for {family} {name}: {distance:.3g} away, eager {first.eager:.3g}"


@needs_nvrtc
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_batch_norm_without_eps_is_refused_whatever_the_captured_variances(dtype: torch.dtype) -> None:
    """A channel that nothing came through while training has a variance of zero: seen in no usual capture."""
    item = norm_cases.BATCH_NORM["planes"](dtype)
    item.tensors["running_var"].mul_(50)
    kernel = next(kernel for kernel in kernels_for(item.call) if kernel.name == "batch_planes")
    wrong = kernel.text.replace("running_var[c]) + eps", "running_var[c]) + 0.f")
    assert wrong != kernel.text
    for seed in range(4):
        right, verdict = (judge_text(text, "k.cu", variant_of(item), [item.tensors], HostTarget(), seed=seed, options=JudgeOptions(tune_points=1))
                          for text in (kernel.text, wrong))
        assert right.verified and verdict.outcome == "wrong", (right.sentence, verdict.sentence)
