"""Convolutions with what follows them, sums with their activations: where they are seen, what their reference is, when the model's own code runs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from conv_models import Block, ConvLayer, Listed, Nested, Spatial, Summed, SummedAnew, Used, UsedAgain
from hostkit import needs_nvrtc
from region_kit import captured, package_of
from torch import nn

from forge_tui.engine.judge.reference import reference
from forge_tui.engine.operators import independent_dims, lookup, materialize, operations
from forge_tui.engine.package.runtime import parts, sites
from forge_tui.engine.regionrecording import RegionRecorder
from forge_tui.specs import short_name

ARGUMENTS = ["input", "weight", "bias", "stride", "padding", "dilation", "groups", "running_mean", "running_var", "norm_weight", "norm_bias",
             "training", "momentum", "eps"]
CONV, NORM, RELU = (f"torch.nn.functional.{name}" for name in ("conv2d", "batch_norm", "relu"))


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X = draw(2, 4, 6, 6)


def found(model: nn.Module, x: torch.Tensor = X) -> dict[str, int]:
    """Offered calls of one forward, by region."""
    _, cards = captured(model.eval().requires_grad_(False), x)
    return {short_name(variant.operator): variant.open_calls for variant in cards.variants if variant.covers and variant.offered}


@pytest.mark.parametrize(("make", "expected"), [
    (ConvLayer, {"conv2d+batch_norm+relu": 1}), (Nested, {"conv2d+batch_norm+relu": 1}),
    (lambda: ConvLayer(nn.SiLU(), bias=True, stride=2), {"conv2d+batch_norm+silu": 1}),
    (lambda: ConvLayer(nn.ReLU(inplace=True)), {"conv2d+batch_norm+relu": 1}), (lambda: ConvLayer(nn.Identity()), {"conv2d+batch_norm": 1}),
    (lambda: Nested(nn.Identity()), {"conv2d+batch_norm": 1}), (Used, {}), (UsedAgain, {}), (Listed, {}),
    (lambda: ConvLayer(padding_mode="reflect"), {"batch_norm+relu": 1}), (lambda: ConvLayer(nn.LeakyReLU()), {}),
    (lambda: ConvLayer(nn.Dropout()), {}),
])
def test_where_they_are_seen(make: Any, expected: dict[str, int]) -> None:
    assert found(make()) == expected


def test_what_is_in_training_or_has_hooks_is_not_captured() -> None:
    for change in (lambda model: model.normalization.train(), lambda model: model.convolution.register_forward_hook(lambda *_: None)):
        model = ConvLayer().eval().requires_grad_(False)
        change(model)
        _, cards = captured(model, X)
        assert not [variant for variant in cards.variants if variant.operator.startswith(CONV + "+")]


def test_arguments_operations_and_the_reference_in_float64() -> None:
    model = ConvLayer(bias=True, stride=2, groups=2).eval().requires_grad_(False)
    capture, cards = captured(model, X)
    variant = next(item for item in cards.variants if item.operator == f"{CONV}+{NORM}+{RELU}")
    assert list(variant.call.arguments) == ARGUMENTS and variant.call.arguments["norm_weight"].weight == "normalization.weight"
    tensors = capture.tensors(capture.samples(variant.key)[0], capture.recorder.recording.variants[variant.key])
    own, = lookup(variant.operator).call(materialize(variant.call, tensors))
    assert torch.equal(own, model(X))
    truth, = reference(variant.call, tensors)
    assert truth.dtype == torch.float64 and torch.allclose(truth, copy.deepcopy(model).double()(X.double()), rtol=1e-12, atol=1e-12)
    inner = next(item for item in cards.variants if item.operator == CONV)
    assert operations(variant.call) > operations(inner.call) > 0
    assert [(dim.size, dim.inputs) for dim in independent_dims(variant.call)] == [(2, {"input": 0})]


def test_what_lies_inside_is_kept_for_when_no_kernel_takes_the_whole() -> None:
    _, cards = captured(ConvLayer().eval(), X)
    whole = next(item for item in cards.variants if item.operator == f"{CONV}+{NORM}+{RELU}")
    inside = {short_name(item.operator): item.taken_by for item in cards.variants if item.key in whole.covers}
    assert inside == dict.fromkeys(("conv2d", "batch_norm", "relu", "batch_norm+relu"), "conv2d+batch_norm+relu")


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    """A model, the same without a package, and the package."""
    torch.manual_seed(0)
    model = Block().eval().requires_grad_(False)
    return model, copy.deepcopy(model), package_of(model, tmp_path_factory.mktemp("conv"), X)


@needs_nvrtc
class TestInTheModel:
    @staticmethod
    def ran(package: Any) -> dict[str, int]:
        return {short_name(kernel["operator"]): kernel["calls"] for kernel in package.report()["kernels"]}

    def test_a_block_with_activations_in_place(self, forged: tuple[Any, Any, Any]) -> None:
        model, plain, package = forged
        x, before = X.clone(), self.ran(package)
        with package.optimized(model):
            got = model(x)
        ran = self.ran(package)
        assert {name: ran[name] - before[name] for name in ran if "conv2d" in name} == {"conv2d+batch_norm+relu": 1, "conv2d+batch_norm": 1}
        assert torch.allclose(got, plain(X), atol=1e-4) and torch.equal(x, X), "what came in is as it was"
        before = self.ran(package)
        assert torch.equal(model(x), plain(x)) and self.ran(package) == before, "removed"

    def test_it_compiles_whole(self, forged: tuple[Any, Any, Any]) -> None:
        model, plain, package = forged
        before = self.ran(package)
        with package.optimized(model):
            compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(X)
        ran = self.ran(package)
        assert all(ran[name] == before[name] + 1 for name in ran if "conv2d" in name)
        assert torch.allclose(compiled, plain(X), atol=1e-4)

    def test_the_operator_passes_opcheck_and_runs_the_original_where_a_guard_fails(self, forged: tuple[Any, Any, Any]) -> None:
        model, _, package = forged
        entry_form = next(form for _, router in package.all_routers() for form in router.forms if form.entry.operator == f"{CONV}+{NORM}+{RELU}")
        odd = torch.empty(X.numel() + 1)[1:].view_as(X).copy_(X)
        tensors = {"input": odd, "weight": model.conv1.weight, "running_mean": model.bn1.running_mean, "running_var": model.bn1.running_var,
                   "norm_weight": model.bn1.weight, "norm_bias": model.bn1.bias}
        given = [tensors[name] for name in entry_form.entry.input_names]
        expected = torch.relu(model.bn1(model.conv1(odd)))
        assert torch.equal(entry_form.op(*given), expected) and entry_form.entry.fallbacks["other alignment"] == 1
        given[0] = X
        assert set(torch.library.opcheck(entry_form.op, tuple(given)).values()) == {"SUCCESS"}

    def test_two_packages_each_keep_what_the_other_lacks(self, tmp_path: Path) -> None:
        """The first knows the whole of one layer; the second what is inside another, which it takes when the whole is not known."""
        torch.manual_seed(1)
        model = nn.Sequential(ConvLayer(), ConvLayer(padding_mode="reflect")).eval().requires_grad_(False)
        whole, part = package_of(model, tmp_path / "a", X), package_of(model[1], tmp_path / "b", X)
        assert list(self.ran(part)) == ["batch_norm+relu"]
        plain = copy.deepcopy(model)
        other = nn.Sequential(*copy.deepcopy(model), ConvLayer()).eval().requires_grad_(False)
        for order in ((whole, part), (part, whole)):
            for package in order:
                package.apply(model)
            before = self.ran(whole), self.ran(part)
            assert torch.allclose(model(X), plain(X), atol=1e-4)
            assert self.ran(whole)["conv2d+batch_norm+relu"] == before[0]["conv2d+batch_norm+relu"] + 1
            for package in order:
                package.remove(model)
        part.apply(other)
        before = self.ran(part)["batch_norm+relu"]
        other(X)
        assert self.ran(part)["batch_norm+relu"] == before + 3, "inside `act(norm(conv(x)))`, whose convolution it does not know"


def test_every_kind_of_site_is_written_out_placed_and_recorded() -> None:
    recorder = RegionRecorder(None)  # type: ignore[arg-type] - records nothing here
    assert set(sites.KINDS) == set(parts.WRITTEN) == set(parts.SITES) == set(recorder._weaver._helpers)


def test_three_dimensions_are_seen_too() -> None:
    assert found(Spatial(), draw(1, 2, 3, 4, 5)) == {"conv3d+batch_norm+relu": 1}


SUMS = {"in place": lambda: Summed(nn.ReLU(inplace=True)), "sum left behind": Summed, "anew": SummedAnew}


@needs_nvrtc
@pytest.mark.parametrize("kind", SUMS)
def test_a_sum_with_its_activation_does_to_memory_what_the_model_does(kind: str, tmp_path: Path) -> None:
    """The kernel runs or, where something is different, the original: what the caller gets and what its tensors hold is the same."""
    model, one, other = SUMS[kind]().eval(), draw(4, 16), draw(4, 16, seed=1)
    plain, package = copy.deepcopy(model), package_of(model, tmp_path, one.clone(), other)
    package.apply(model)
    aliases = {kernel.variant: kernel.written for kernel in package.entries}
    assert list(aliases.values()) == [{"in place": [0], "sum left behind": [0, -1], "anew": [-1]}[kind]]

    def both(make: Any) -> bool:
        """Whether the kernel ran: model and original, each on tensors made for it, leave and return the same."""
        before, results = sum(TestInTheModel.ran(package).values()), []
        for which in (model, plain):
            given = make()
            result = which(*given)
            results.append([result is given[0], result._version > 0 or given[0]._version > 0, result.clone(), *copy.deepcopy(given)])
        for own, expected in zip(*results, strict=True):
            assert torch.equal(own, expected) if isinstance(own, torch.Tensor) else own == expected
        return sum(TestInTheModel.ran(package).values()) > before

    room = draw(40, 16)

    def itself() -> tuple[torch.Tensor, torch.Tensor]:
        tensor = one.clone()
        return tensor, tensor

    for _ in range(2):  # decided in full, then recognized
        assert both(lambda: (one.clone(), other)) and both(itself), "the same elements are no overlap"
        view = room.clone()
        assert both(lambda view=view: (view[4:8].copy_(one), view[12:16].copy_(other))), "two parts of one memory"
        assert not both(lambda: (one.clone(), 2.0)) and not both(lambda: (draw(3, 16), draw(3, 16, seed=2)))
        if kind != "anew":
            memory = room.clone()
            with pytest.raises(RuntimeError, match="refer to a single memory location"):
                model(memory[4:8], memory[5:9])
    with torch.enable_grad():
        leaf = one.clone().requires_grad_()
        if kind == "anew":
            assert not both(lambda: (leaf, other))
        else:
            with pytest.raises(RuntimeError, match="leaf Variable"):
                model(leaf, other)


@needs_nvrtc
@pytest.mark.parametrize("kind", SUMS)
def test_a_sum_with_its_activation_compiles(kind: str, tmp_path: Path) -> None:
    """One result that is an input is an operator of torch's; one of two is not, and the original is compiled."""
    model, one, other = SUMS[kind]().eval(), draw(4, 16), draw(4, 16, seed=1)
    package = package_of(model, tmp_path, one.clone(), other)
    mine, eager = one.clone(), one.clone()
    expected = model(eager, other)
    with package.optimized(model):
        got = torch.compile(model, fullgraph=True, backend="aot_eager")(mine, other)
    assert torch.equal(got, expected) and torch.equal(mine, eager)
    assert sum(TestInTheModel.ran(package).values()) == (kind != "sum left behind")
