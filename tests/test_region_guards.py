"""What is not the captured call of a region runs the model's own code: bit for bit, whatever is different about it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conv_models import ConvLayer, SummedAnew
from hostkit import needs_nvrtc
from region_functions import apply_rotary_to_one
from region_kit import package_of
from region_models import Activated, Gate, HandLayerNorm, PostNorm, Residual, Turned
from torch import nn

pytestmark = needs_nvrtc


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...]]] = {
    "gate": (Gate, (draw(6, 32), draw(6, 32, seed=1))),
    "norm and activation": (Activated, (draw(2, 16, 4, 4),)),
    "convolution, norm, activation": (ConvLayer, (draw(2, 4, 6, 6),)),
    "convolution and norm": (lambda: ConvLayer(nn.Identity(), stride=2), (draw(2, 4, 6, 6),)),
    "sum and activation": (SummedAnew, (draw(6, 32), draw(6, 32, seed=1))),
    "sum kept": (Residual, (draw(6, 32), draw(6, 32, seed=1))),
    "sum": (PostNorm, (draw(6, 32), draw(6, 32, seed=1))),
    "function": (Turned, (draw(2, 6, 4, 16), draw(2, 6, 16, seed=1), draw(2, 6, 16, seed=2))),
    "module": (lambda: HandLayerNorm(32), (draw(6, 32),)),
}


class Sub(torch.Tensor):
    pass


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """The same values one element past where they lay."""
    room = torch.empty(tensor.numel() + 17)
    begin = (-(room.data_ptr() // 4)) % 16 + 1
    return room[begin:begin + tensor.numel()].view_as(tensor).copy_(tensor)


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda t: torch.cat([t, t]), "dtype": lambda t: t.double(),
    "stride": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1), "alignment": moved,
    "subclass": lambda t: t.as_subclass(Sub), "grad": lambda t: t.clone().requires_grad_(),
    "lazily negated": lambda t: torch.complex(torch.zeros_like(t), -t).conj().imag,
}


@pytest.fixture(scope="module", params=CASES)
def forged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, nn.Module, Any, Any]:
    """A model, the same without a package, the package, and the captured arguments."""
    torch.manual_seed(0)
    make, args = CASES[request.param]
    model = make().eval().requires_grad_(False)
    plain = copy.deepcopy(model)
    package = package_of(model, tmp_path_factory.mktemp("region"), *args)
    package.apply(model)
    return model, plain, package, args


def ran(package: Any) -> int:
    return sum(kernel["calls"] for kernel in package.report()["kernels"])


def same(model: nn.Module, plain: nn.Module, package: Any, args: Any) -> None:
    before = ran(package)
    got, expected = model(*args), plain(*args)
    assert ran(package) == before, "the kernel ran"
    assert type(got) is type(expected) and torch.equal(got, expected) and got.requires_grad == expected.requires_grad


def test_the_captured_call_runs_the_kernel(forged: tuple) -> None:
    model, plain, package, args = forged
    before = ran(package)
    got = model(*args)
    assert ran(package) == before + 1 and torch.allclose(got, plain(*args), atol=1e-4)


@pytest.mark.parametrize("change", CHANGES)
def test_tensors_that_are_not_as_captured(forged: tuple, change: str) -> None:
    model, plain, package, args = forged
    if change == "dtype":
        model, plain = copy.deepcopy(plain).double(), copy.deepcopy(plain).double()
        package.apply(model)
    changed = tuple(CHANGES[change](tensor) for tensor in args)
    if change == "shape" and isinstance(plain, Turned):
        changed = (changed[0], changed[1], changed[2])
    same(model, plain, package, changed)


def test_surroundings(forged: tuple) -> None:
    model, plain, package, args = forged
    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    class Dispatching(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    for context in (lambda: torch.autocast("cpu", torch.bfloat16), Watching, Dispatching):
        before = ran(package)
        with context():
            got, expected = model(*args), plain(*args)
        assert torch.equal(got, expected) and ran(package) == before
    batched = torch.vmap(lambda *tensors: model(*tensors))(*(torch.stack([tensor, tensor]) for tensor in args))
    assert torch.equal(batched, torch.vmap(lambda *tensors: plain(*tensors))(*(torch.stack([tensor, tensor]) for tensor in args)))


def callees(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if next(module.children(), None) is None and not isinstance(module, Turned)]


def test_modules_that_are_not_as_captured(forged: tuple) -> None:
    """Hooks, training, a forward of the instance's own, another constant, another parameter, one more parameter."""
    model, plain, package, args = forged
    for own, other in zip(callees(model), callees(plain), strict=True):
        hooks = [module.register_forward_hook(lambda module, inputs, output: output * 2) for module in (own, other)]
        if own is not model:                                # the model's own hooks run around its forward, whoever does that
            same(model, plain, package, args)
        for hook in hooks:
            hook.remove()
        with both(own, other, lambda module: module.train(), lambda module: module.eval()):
            same(model, plain, package, args)
        if own is not model:
            forward = lambda x: x + 1  # noqa: E731
            with both(own, other, lambda module: setattr(module, "forward", forward), lambda module: delattr(module, "forward")):
                same(model, plain, package, args)
        for name in ("eps", "variance_epsilon", "num_groups", "approximate", "stride", "padding", "inplace"):
            if hasattr(own, name):
                kept, new = getattr(own, name), {"approximate": "none", "num_groups": 8, "stride": (3, 1), "padding": (0, 0), "inplace": True}.get(name, 0.25)
                with both(own, other, lambda module, name=name, new=new: setattr(module, name, new),
                          lambda module, name=name, kept=kept: setattr(module, name, kept)):
                    same(model, plain, package, args)
        with both(own, other, lambda module: module.register_parameter("more", nn.Parameter(torch.ones(1), requires_grad=False)),
                  lambda module: module._parameters.pop("more")):
            same(model, plain, package, args)


@contextlib.contextmanager
def both(own: nn.Module, other: nn.Module, change: Callable[[nn.Module], Any], back: Callable[[nn.Module], Any]) -> Any:
    change(own)
    change(other)
    try:
        yield
    finally:
        back(own)
        back(other)


def test_another_activation_and_other_places(tmp_path: Path) -> None:
    """A module of another class where the captured one was; a call from outside the model; values that are no tensors."""
    model, args = Gate().eval(), CASES["gate"][1]
    package = package_of(model, tmp_path, *args)
    with package.optimized(model), torch.no_grad():
        model.act = nn.ReLU()
        assert torch.equal(model(*args), torch.relu(args[0]) * args[1]) and ran(package) == 0
        model.act = nn.GELU(approximate="tanh").eval()
        model(*args)
        assert ran(package) == 1, "a new module of the same class is the same call"
        assert torch.equal(model(args[0], 2.0), nn.functional.gelu(args[0], approximate="tanh") * 2.0)
        with pytest.raises(TypeError, match="must be Tensor, not str"):
            model("a", 2)
    assert ran(package) == 1
    turned = Turned().eval()
    other = package_of(turned, tmp_path / "more", *CASES["function"][1])
    with other.optimized(turned), torch.no_grad():
        apply_rotary_to_one(*CASES["function"][1], unsqueeze_dim=2)
        assert ran(other) == 0, "the function itself is what it was"
        with pytest.raises(TypeError, match="apply_rotary_to_one"):
            turned.forward.__func__.__globals__["apply_rotary_to_one"]()


def test_an_attribute_that_cannot_be_compared(tmp_path: Path) -> None:
    """What was captured as None is something else later."""
    model, args = HandLayerNorm(32).eval().requires_grad_(False), CASES["module"][1]
    model.extra = None
    plain = copy.deepcopy(model)
    package = package_of(model, tmp_path, *args)
    with package.optimized(model):
        model(*args)
        assert ran(package) == 1
        for value in ([], torch.ones(1), object()):
            model.extra = value
            same(model, plain, package, args)
