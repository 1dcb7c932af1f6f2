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
from forge_tui.engine.capture import Capture, capture_model
from forge_tui.engine.cards import OperatorFile, Variant
from forge_tui.engine.inputs import ModelInput
from forge_tui.engine.judge.judge import judge_text
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.judge.reference import reference
from forge_tui.engine.operators import lookup
from forge_tui.engine.overlap import once
from forge_tui.engine.judge.verdict import Verdict
from forge_tui.engine.kernelfile import parse
from forge_tui.engine.package.export import Winner, export_package
from forge_tui.engine.package.host_backend import HostBackend
from forge_tui.engine.package.runtime import Package, private
from forge_tui.engine.sources import LoadedModel
from forge_tui.store.kernels import save_kernel
from forge_tui.store.paths import ProjectPaths


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


def test_capture_leaves_no_hook_behind(captured: tuple) -> None:
    assert not private.any_global_hook()


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
        assert truth.dtype == torch.float64 and bool(((truth - expected).abs() < 1e-13).all())


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
    parts = [msgspec.structs.replace(cards.find(key), calls=count + 2, offered=True, reason="", inside=0, time_us=20.0, floor_us=5.0)
             for key, count in region.covers.items()]
    slow = msgspec.structs.replace(region, time_us=8.0, floor_us=5.0)
    kept = {variant.key: variant for variant in once([slow, *parts], True)}
    assert not kept[region.key].offered and "one by one" in kept[region.key].reason
    assert all(kept[part.key].calls == part.calls for part in parts)
    fast = msgspec.structs.replace(region, time_us=8e3, floor_us=5.0)
    kept = {variant.key: variant for variant in once([fast, *parts], True)}
    assert kept[region.key].offered and all(kept[part.key].offered and kept[part.key].open_calls == 2 for part in parts)


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


@needs_nvrtc
def test_regions_run_in_the_model_and_inside_torch_compile(captured: tuple, tmp_path: Path) -> None:
    """Each norm is one call of its kernel; whatever differs runs the module's own forward."""
    model, x, _, cards = captured
    package, before = built(cards, tmp_path), [type(module) for module in model.modules()]
    with torch.no_grad():
        eager, other = model(x), model(x[:2])
        with package.optimized(model):
            forged = model(x)
            assert [kernel["calls"] for kernel in package.report()["kernels"]] == [1, 1, 1], package.report()
            assert torch.equal(model(x[:2]), other)
            compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
            assert [kernel["calls"] for kernel in package.report()["kernels"]] == [2, 2, 2], package.report()
            model.late.variance_epsilon = 0.5
            changed = model.late(x)
            model.late.train()
            trained = model.late(x)
            model.late.eval()
        assert [type(module) for module in model.modules()] == before
        assert torch.equal(changed, model.late(x)) and torch.equal(trained, changed), "another constant is another call"
        model.late.variance_epsilon = 1e-6
    slack = 1e-5 if x.dtype == torch.float32 else 0.02
    assert float((forged - eager).norm() / eager.norm()) < slack
    assert float((compiled - eager).norm() / eager.norm()) < slack


@needs_nvrtc
def test_a_regions_operator_passes_opcheck_and_runs_the_forward_where_a_guard_fails(captured: tuple, tmp_path: Path) -> None:
    model, x, _, cards = captured
    package = built(cards, tmp_path)
    region = next(item for item in package.regions.values() if item.path.endswith("LateRMSNorm"))
    operator, weight = region.router.forms[0].op, model.late.weight.detach()
    assert set(torch.library.opcheck(operator, (x, weight)).values()) == {"SUCCESS"}
    odd = torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view_as(x).copy_(x)
    with torch.no_grad():
        assert torch.equal(operator(odd, weight), model.late(odd))


def built(cards: OperatorFile, tmp_path: Path) -> Package:
    """A package with the builtin kernel of each region's right form."""
    paths, winners = ProjectPaths(tmp_path / "project"), []
    for name, variant in sorted(regions(cards).items()):
        kernel = next(item for item in kernels_for(variant.call)
                      if item.name.endswith("_plus_one") == (name == "OneMoreRMSNorm")
                      and not parse(item.text, "k.cu").refusal(variant.call, H200))
        settings = parse(kernel.text, "k.cu").points(variant.call, H200)[0]
        winners.append(Winner(variant, save_kernel(paths, kernel.text), Verdict("verified", "right", settings=settings)))
    exported = export_package(paths, cards, winners, H200, tmp_path / "out")
    assert not exported.left_out
    return Package(exported.folder / exported.module, HostBackend())
