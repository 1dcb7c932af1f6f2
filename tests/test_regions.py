"""Regions: module classes as operators, captured, judged on the host target, packed, and run in the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hostkit import needs_nvrtc
from region_models import BareRMSNorm, LateRMSNorm, OneMoreRMSNorm, Stack

from forge_tui.cuda.device import H200
from forge_tui.cuda.host.target import HostTarget
from forge_tui.engine.builtin.catalog import kernels_for
from forge_tui.engine.capture import Capture, capture_model, once
from forge_tui.engine.cards import OperatorFile, Variant
from forge_tui.engine.inputs import ModelInput
from forge_tui.engine.judge.judge import judge_text
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.judge.reference import reference
from forge_tui.engine.operators import lookup
from forge_tui.engine.sources import LoadedModel


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def captured(request: pytest.FixtureRequest) -> tuple[Stack, torch.Tensor, Capture, OperatorFile]:
    torch.manual_seed(0)
    model, x = Stack().to(request.param).eval(), torch.randn(5, 64, dtype=request.param)
    capture = capture_model(LoadedModel(model, "test"), [ModelInput((x,), label="test")], torch.device("cpu"), H200)
    return model, x, capture, capture.cards()


def regions(cards: OperatorFile) -> dict[str, Variant]:
    return {variant.operator.rpartition(".")[2]: variant for variant in cards.variants if variant.covers}


def test_norm_modules_are_operators_with_their_state_as_arguments(captured: tuple) -> None:
    found = regions(captured[3])
    assert {name: list(variant.call.arguments) for name, variant in found.items()} == {
        "LateRMSNorm": ["input", "weight", "variance_epsilon"], "OneMoreRMSNorm": ["input", "weight", "eps"],
        "BareRMSNorm": ["input", "eps", "with_scale"]}
    assert all(variant.offered and variant.calls == 1 for variant in found.values())
    assert found["LateRMSNorm"].call.arguments["weight"].weight == "late.weight"


def test_the_operators_of_an_offered_region_are_not_counted_again(captured: tuple) -> None:
    cards = captured[3]
    inner = {key for variant in regions(cards).values() for key in variant.covers}
    assert len(inner) > 8
    assert not any(cards.find(key).offered and cards.find(key).calls == 0 for key in inner)
    total = sum(cards.share(variant) for variant in cards.variants if not variant.covers)
    assert total == pytest.approx(1.0)
    names = [variant.operator for variant in cards.variants if variant.offered]
    assert not any(name.endswith(("rsqrt", "pow", "mean")) for name in names), "all of them are inside regions here"


def test_the_reference_is_the_modules_own_forward_and_float64_reaches_through_its_casts(captured: tuple) -> None:
    model, x, capture, cards = captured
    for name, module in (("LateRMSNorm", model.late), ("OneMoreRMSNorm", model.more), ("BareRMSNorm", model.bare)):
        variant = regions(cards)[name]
        seen = capture.recorder.recording.variants[variant.key]
        tensors = capture.tensors(capture.samples(variant.key)[0], seen)
        arguments = {**{key: value for key, value in variant.call.arguments.items()}, **tensors}
        with torch.no_grad():
            own, = lookup(variant.operator).call(arguments)
            assert torch.equal(own, module(tensors["input"]))
        truth, = reference(variant.call, tensors)
        wide = tensors["input"].double()
        scale = {"LateRMSNorm": lambda: tensors["weight"].double(), "OneMoreRMSNorm": lambda: 1 + tensors["weight"].double(),
                 "BareRMSNorm": lambda: 1.0}[name]()
        expected = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * scale
        assert truth.dtype == torch.float64 and float((truth - expected).abs().max()) < 1e-13


@needs_nvrtc
def test_the_judge_tells_the_right_builtin_form(captured: tuple) -> None:
    """Both forms of the weight are offered; the wrong one is refused as wrong, the right one verified."""
    capture, cards = captured[2], captured[3]
    options = JudgeOptions(time=False, tune_points=1)
    outcomes: dict[str, set[tuple[bool, str]]] = {}
    for name, variant in regions(cards).items():
        seen = capture.recorder.recording.variants[variant.key]
        sample = capture.tensors(capture.samples(variant.key)[0], seen)
        for kernel in [item for item in kernels_for(variant.call) if item.name.startswith("rows_lanes")]:
            verdict = judge_text(kernel.text, "k.cu", variant, [sample], HostTarget(), options=options)
            outcomes.setdefault(name, set()).add((kernel.name.endswith("plus_one"), verdict.outcome))
    assert outcomes == {"LateRMSNorm": {(False, "verified"), (True, "wrong")}, "BareRMSNorm": {(False, "verified")},
                        "OneMoreRMSNorm": {(False, "wrong"), (True, "verified")}}


def test_a_region_that_recovers_less_than_its_operators_is_not_offered(captured: tuple) -> None:
    import msgspec

    cards = captured[3]
    region = regions(cards)["LateRMSNorm"]
    parts = [msgspec.structs.replace(cards.find(key), calls=count + 2, offered=True, reason="", time_us=20.0, floor_us=5.0)
             for key, count in region.covers.items()]
    slow = msgspec.structs.replace(region, time_us=8.0, floor_us=5.0)
    kept = {variant.key: variant for variant in once([slow, *parts], True)}
    assert not kept[region.key].offered and "one by one" in kept[region.key].reason
    assert all(kept[part.key].calls == part.calls for part in parts)
    fast = msgspec.structs.replace(region, time_us=8e3, floor_us=5.0)
    kept = {variant.key: variant for variant in once([fast, *parts], True)}
    assert kept[region.key].offered and all(kept[part.key].offered and kept[part.key].calls == 2 for part in parts)


def test_what_is_no_region(tmp_path: Path) -> None:
    class InsideRMSNorm(OneMoreRMSNorm):
        """A class that no other process can import."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.own, self.trained = InsideRMSNorm(8), torch.nn.RMSNorm(8), LateRMSNorm(8)
            self.bare = BareRMSNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.bare(x=self.trained(self.own(self.norm(x))))

    model = Net().eval()
    model.trained.train()
    cards = capture_model(LoadedModel(model, "test"), [ModelInput((torch.randn(2, 8),), label="test")], torch.device("cpu"),
                          H200).cards()
    assert regions(cards) == {}
