"""What a call depends on besides its arguments and its module's public state: the model's own code runs where that is not as captured."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conv_models import Block, ConvLayer, Summed
from hostkit import needs_nvrtc
from packagekit import DoublingBackend, Model, aligned, write_package
from region_kit import captured, package_of
from region_models import OneMoreRMSNorm, Switched
from torch import nn
from torch.autograd import forward_ad

from forge_tui.engine.package import runtime


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, A, B = draw(2, 4, 6, 6), draw(6, 32), draw(6, 32, seed=1)


def packed(make: Callable[[], nn.Module], folder: Path, *args: torch.Tensor) -> tuple[nn.Module, nn.Module, runtime.Package]:
    """A model, the same without a package, and its package, not applied yet."""
    torch.manual_seed(0)
    model = make().eval().requires_grad_(False)
    return model, copy.deepcopy(model), package_of(model, folder, *args)


def ran(package: Any) -> int:
    return sum(kernel["calls"] for kernel in package.report()["kernels"])


def tiled(self: nn.Conv2d, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """As user interfaces of diffusion models make images that tile."""
    return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), weight, bias, self.stride, 0, self.dilation, self.groups)


def refuse(x: torch.Tensor) -> None:
    raise ValueError("checked")


def hide(module: nn.Module, name: str) -> None:
    own = {"_conv_forward": tiled.__get__(module), "_check_input_dim": refuse, "_norm": lambda x: 2 * x}[name]
    setattr(module, name, own)


def outcome(model: nn.Module, *args: torch.Tensor) -> Any:
    try:
        return model(*args)
    except ValueError as error:
        return str(error)


@needs_nvrtc
@pytest.mark.parametrize("warm", [False, True], ids=["before a match", "after one"])
@pytest.mark.parametrize(("make", "args", "path", "name"), [
    (ConvLayer, (X,), "convolution", "_conv_forward"), (ConvLayer, (X,), "normalization", "_check_input_dim"),
    (lambda: OneMoreRMSNorm(32), (A,), "", "_norm")], ids=["convolution", "norm", "module"])
def test_an_instance_that_hides_a_method_of_its_class(make: Any, args: Any, path: str, name: str, warm: bool, tmp_path: Path) -> None:
    model, plain, package = packed(make, tmp_path, *args)
    with package.optimized(model):
        if warm:
            model(*args)
        for one in (model, plain):
            hide(one.get_submodule(path), name)
        for _ in range(2):
            got, expected = outcome(model, *args), outcome(plain, *args)
            assert got == expected if isinstance(expected, str) else torch.equal(got, expected)
        assert ran(package) == int(warm)
        delattr(model.get_submodule(path), name)
        model(*args)
        assert ran(package) == int(warm) + 1, "afterwards it is as captured again"


@needs_nvrtc
@pytest.mark.parametrize(("make", "args", "path", "name"), [
    (ConvLayer, (X,), "convolution", "_conv_forward"), (lambda: OneMoreRMSNorm(32), (A,), "", "_norm")], ids=["convolution", "module"])
def test_an_instance_that_hides_a_method_after_it_was_compiled(make: Any, args: Any, path: str, name: str, tmp_path: Path) -> None:
    model, plain, package = packed(make, tmp_path, *args)
    torch._dynamo.reset()
    compiled = torch.compile(package.apply(model), backend="eager", fullgraph=True)
    unforged = torch.compile(plain, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(*args), unforged(*args), atol=1e-4) and ran(package) == 1
    for one in (model, plain):
        hide(one.get_submodule(path), name)
    if not torch.equal(unforged(*args), plain(*args)):
        pytest.skip("torch's own compiler does not see it in this version, package or none")
    assert torch.equal(compiled(*args), plain(*args)) and ran(package) == 1
    for one in (model, plain):
        delattr(one.get_submodule(path), name)
    assert torch.allclose(compiled(*args), plain(*args), atol=1e-4) and ran(package) == 2


@needs_nvrtc
def test_as_many_attributes_as_the_module_that_matched(tmp_path: Path) -> None:
    """What hides a method is seen even where another attribute is gone."""
    model, plain, package = packed(lambda: OneMoreRMSNorm(32), tmp_path, A)
    with package.optimized(model):
        model.things = []
        model(A)
        assert ran(package) == 1
        for one in (model, plain):
            hide(one, "_norm")
        del model.things
        assert torch.equal(model(A), plain(A)) and ran(package) == 1


@needs_nvrtc
@pytest.mark.parametrize(("kind", "name"), [(nn.Conv2d, "_conv_forward"), (nn.ReLU, "forward")])
def test_a_class_of_torchs_that_was_patched_before(kind: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, plain, package = packed(ConvLayer, tmp_path, X)
    old = getattr(kind, name)
    monkeypatch.setattr(kind, name, lambda self, *args: old(self, *args) * 2)
    with package.optimized(model):
        assert torch.equal(model(X), plain(X)) and ran(package) == 0


@needs_nvrtc
class TestPrivateAttributes:
    def test_plain_ones_are_compared(self, tmp_path: Path) -> None:
        model, plain, package = packed(Switched, tmp_path, A, B)
        with package.optimized(model):
            for _ in range(2):
                assert torch.allclose(model(A, B), plain(A, B), atol=1e-4)
            count = ran(package)
            assert count == 4
            for own, other in ((model.act, plain.act), (model.norm, plain.norm)):
                own._off = other._off = True
                assert torch.allclose(model(A, B), plain(A, B), atol=1e-4)
            assert ran(package) == count + 1, "of two kernels one, then none"

    @pytest.mark.parametrize("warm", [False, True], ids=["before a match", "after one"])
    def test_one_that_no_captured_call_had(self, warm: bool, tmp_path: Path) -> None:
        model, plain, package = packed(Switched, tmp_path, A, B)
        with package.optimized(model):
            if warm:
                model(A, B)
            for module in (model.act, model.norm):
                module._later = 1
            for _ in range(2):
                assert torch.equal(model(A, B), plain(A, B))
            assert ran(package) == 2 * warm

    def test_one_that_cannot_be_compared_is_not_captured(self) -> None:
        model = Switched().eval().requires_grad_(False)
        assert sum(bool(variant.covers) for variant in captured(model, A, B)[1].variants) == 2
        for module in (model.act, model.norm):
            module._table = [1]
        assert not any(variant.covers for variant in captured(model, A, B)[1].variants)

    def test_marks_that_libraries_leave(self, tmp_path: Path) -> None:
        model, _, package = packed(Switched, tmp_path, A, B)
        with package.optimized(model):
            for module in model.modules():
                module._is_hf_initialized = True
            model(A, B)
            assert ran(package) == 2

    def test_torch_compile_leaves_the_model_as_captured(self, tmp_path: Path) -> None:
        """It marks the module that it is given."""
        model, _, package = packed(lambda: OneMoreRMSNorm(32), tmp_path, A)
        with package.optimized(model):
            torch._dynamo.reset()
            torch.compile(model, backend="aot_eager")(A)
            model(A)
            assert ran(package) == 2

    def test_a_forward_of_the_instances_own_that_calls_the_classes(self, tmp_path: Path) -> None:
        """As accelerate wraps modules."""
        model, plain, package = packed(lambda: OneMoreRMSNorm(32), tmp_path, A)
        with package.optimized(model):
            for module in (model, plain):
                module._old_forward = module.forward
                module.forward = lambda x, module=module: module._old_forward(x) + 1
            for _ in range(2):
                assert torch.allclose(model(A), plain(A), atol=1e-4)
            assert ran(package) == 2


class TestForwardMode:
    @pytest.mark.parametrize("warm", [False, True], ids=["before a match", "after one"])
    def test_a_function(self, warm: bool, tmp_path: Path) -> None:
        package = runtime.Package(write_package(tmp_path / "forged"), DoublingBackend())
        model, plain, x = package.apply(Model().requires_grad_(False)), Model().requires_grad_(False), aligned(4, 8)
        if warm:
            model(x)
        with forward_ad.dual_level():
            for _ in range(2):
                got, expected = (forward_ad.unpack_dual(one(forward_ad.make_dual(x, x))) for one in (model, plain))
                assert torch.equal(got.primal, expected.primal) and torch.equal(got.tangent, expected.tangent)
        assert ran(package) == int(warm)
        model(x)
        assert ran(package) == int(warm) + 1

    def test_compiled(self, tmp_path: Path) -> None:
        """Compiled outside of a level, then used inside one."""
        package = runtime.Package(write_package(tmp_path / "forged"), DoublingBackend())
        model, x = package.apply(Model().requires_grad_(False)), aligned(4, 8)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="eager")
        assert torch.equal(compiled(x), 2 * x)
        with forward_ad.dual_level():
            got = forward_ad.unpack_dual(compiled(forward_ad.make_dual(x, torch.ones_like(x))))
            assert torch.equal(got.primal, F.relu(x)) and torch.equal(got.tangent, (x > 0).float())

    @needs_nvrtc
    def test_a_part(self, tmp_path: Path) -> None:
        model, plain, package = packed(ConvLayer, tmp_path, X)
        with package.optimized(model):
            model(X)
            with forward_ad.dual_level():
                got, expected = (forward_ad.unpack_dual(one(forward_ad.make_dual(X, X))).tangent for one in (model, plain))
            assert torch.equal(got, expected) and ran(package) == 1


@needs_nvrtc
@pytest.mark.parametrize("warm", [False, True], ids=["before a match", "after one"])
def test_an_inference_tensor_is_not_written_outside_of_inference_mode(warm: bool, tmp_path: Path) -> None:
    model, plain, package = packed(Summed, tmp_path, A.clone(), B)
    with package.optimized(model):
        with torch.inference_mode():
            tensor = A.clone()
            if warm:
                model(tensor, B)
            same = tensor.clone()
        for one, written in ((plain, same), (model, tensor)):
            with pytest.raises(RuntimeError, match="outside InferenceMode"):
                one(written, B)
        assert torch.equal(tensor, same) and ran(package) == int(warm)


@needs_nvrtc
def test_transforms_while_torch_compile_traces(tmp_path: Path) -> None:
    model, plain, package = packed(Block, tmp_path, X)
    batch = torch.stack([X, X + 1])
    with package.optimized(model):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="eager")
        assert torch.allclose(compiled(X), plain(X), atol=1e-4)
        count = ran(package)
        assert count, "without a transform the kernels run"
        for transformed in (torch.compile(torch.vmap(lambda x: model(x)), backend="eager", fullgraph=True), torch.vmap(compiled)):
            assert torch.allclose(transformed(batch), torch.vmap(plain)(batch), atol=1e-4)
        gradient = torch.compile(torch.func.grad(lambda x: model(x).sum()), backend="eager", fullgraph=True)(X)
        assert torch.allclose(gradient, torch.func.grad(lambda x: plain(x).sum())(X), atol=1e-4)
        assert ran(package) == count
