"""A model with a region of every kind through random steps with packages on and off: beside a twin that never had any, it computes
the same, changes the same, fails alike, and is in the end exactly what it was."""

from __future__ import annotations

import copy
import io
import pickle
import random
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from conv_models import Block, ConvLayer, Nested, SummedAnew, normed
from region_models import Gate, Residual, Turned
from test_package_lifetimes import Reference, snapshot
from torch import nn

from benchmarks.guardcases import packed
from forge_tui.engine.operators.regions import is_region
from forge_tui.engine.package.runtime import Package
from forge_tui.engine.package.runtime.weave import packages_of
from forge_tui.specs import short_name


class NormAct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act = normed(4), nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm(x))


class Every(nn.Module):
    """Convolutions with norm and activation, sums in place and anew, a norm and its activation, a kept sum and its norm, a gate, a rotation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.shortcut = ConvLayer(nn.ReLU(inplace=True)), Block(), Nested(nn.Identity())
        self.sum, self.normed, self.residual, self.gate, self.turn = SummedAnew(), NormAct(), Residual(), Gate(), Turned()

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = self.block(self.first(x))
        x = self.normed(self.sum(self.shortcut(x), x))
        h = x.reshape(x.shape[0], 8, 32)
        h = self.residual(h, h.flip(1))
        h = self.gate(h, h.sin())
        return self.turn(h.view(h.shape[0], 8, 2, 16), cos, sin)


CONV, NORM = "conv2d+batch_norm+relu", "conv2d+batch_norm"
BLOCK = Counter({CONV: 1, NORM: 1, "add+relu": 1})
REST = Counter({CONV: 1, NORM: 1, "add+relu": 1, "batch_norm+silu": 1, "add+LateRMSNorm": 1, "gelu+mul": 1, "apply_rotary_to_one": 1})
"""Kernels in one forward."""

Patch = Callable[[Every], Callable[[], Any]]
"""Changes a model as users do; returns what takes it back."""


def attribute(path: str, name: str, make: Callable[[Any], Any]) -> Patch:
    """Another value of an attribute that is there; the very old one is put back."""
    def patch(model: Every) -> Callable[[], Any]:
        owner = model.get_submodule(path)
        old = getattr(owner, name)
        setattr(owner, name, make(owner))
        return lambda: setattr(owner, name, old)
    return patch


def own(path: str, name: str, make: Callable[[Any], Any]) -> Patch:
    """A callable of the instance's in the place of one of its class."""
    def patch(model: Every) -> Callable[[], Any]:
        owner = model.get_submodule(path)
        setattr(owner, name, make(owner))
        return lambda: delattr(owner, name)
    return patch


def twice(owner: nn.Module, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return 2 * x


PATCHES: dict[str, Patch] = {
    "eps": attribute("normed.norm", "eps", lambda norm: 0.5), "act": attribute("gate", "act", lambda gate: nn.SiLU()),
    "act in place": attribute("block", "relu", lambda block: nn.SiLU(inplace=True)),
    "weight": attribute("first.convolution", "weight", lambda conv: nn.Parameter(conv.weight.detach().flip(0), requires_grad=False)),
    "statistics": attribute("block.bn2", "running_mean", lambda norm: norm.running_mean + 1), "bias": attribute("block.bn1", "bias", lambda norm: None),
    "edges": attribute("shortcut.convolution", "padding_mode", lambda conv: "reflect"), "variance": attribute("residual.norm", "variance_epsilon", lambda norm: 0.1),
    "forward": own("residual.norm", "forward", lambda norm: types.MethodType(twice, norm)),
    "act's forward": own("sum.activation", "forward", lambda act: types.MethodType(twice, act)),
    "tiling": own("first.convolution", "_conv_forward", lambda conv: types.MethodType(twice, conv)),
    "hook": lambda model: model.first.normalization.register_forward_hook(lambda module, args, out: out + 1).remove,
    "hook before": lambda model: model.normed.act.register_forward_pre_hook(lambda module, args: (args[0] + 1,)).remove,
}


def arguments(batch: int = 2) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 4, 8, 8), torch.randn(batch, 8, 16), torch.randn(batch, 8, 16)


class Steps:
    """One random step each, taken by the model and by its twin."""

    def __init__(self, folder: Path, seed: int) -> None:
        torch.manual_seed(seed)
        self.draw, self.model = random.Random(seed), Every().eval().requires_grad_(False)
        self.twin, self.args = copy.deepcopy(self.model), arguments()
        self.packages = [packed(folder / str(at), self.model, self.args, Reference()) for at in range(2)]
        self.before, self.saved = snapshot(self.model), copy.deepcopy(self.model.state_dict())
        self.on: dict[str, set[Package]] = {"block": set(), "rest": set()}
        self.unpatched = sorted(PATCHES)
        self.draw.shuffle(self.unpatched)

    def ran(self) -> Counter[str]:
        """Calls of the regions so far."""
        return Counter({short_name(kernel["operator"]): sum(other["calls"] for package in self.packages for other in package.report()["kernels"]
                                                            if other["operator"] == kernel["operator"])
                        for kernel in self.packages[0].report()["kernels"] if is_region(kernel["operator"])})

    def expected(self) -> Counter[str]:
        return (BLOCK if self.on["block"] else Counter()) + (REST if self.on["rest"] else Counter())

    def alike(self, args: tuple[torch.Tensor, ...], model: nn.Module | None = None, twin: nn.Module | None = None) -> Counter[str]:
        """Both are called, with tensors of their own; the kernels that ran."""
        before, mine, theirs = self.ran(), copy.deepcopy(args), copy.deepcopy(args)
        got, wanted = (model or self.model)(*mine), (twin or self.twin)(*theirs)
        assert torch.equal(got, wanted) and (got.requires_grad, got.dtype, got.stride()) == (wanted.requires_grad, wanted.dtype, wanted.stride())
        assert all(map(torch.equal, mine, theirs)), "what is written in place is written alike"
        if got.requires_grad:
            grads = [torch.autograd.grad(result.float().square().sum(), inputs[0])[0] for result, inputs in ((got, mine), (wanted, theirs))]
            assert torch.equal(*grads)
        return self.ran() - before

    def step(self) -> None:
        kinds = [self.apply, self.apply, self.remove, self.call, self.call, self.otherwise, self.otherwise, self.converted, self.trained,
                 self.copied, self.loaded, self.patch, self.fails]
        self.draw.choice(kinds)()
        self.check()

    def part(self) -> tuple[nn.Module, list[str]]:
        return (self.model, ["block", "rest"]) if self.draw.random() < 0.6 else (self.model.block, ["block"])

    def apply(self) -> None:
        package, (module, names) = self.draw.choice(self.packages), self.part()
        package.apply(module)
        for name in names:
            self.on[name].add(package)

    def remove(self) -> None:
        package, (module, names) = self.draw.choice(self.packages), self.part()
        package.remove(module)
        for name in names:
            self.on[name].discard(package)

    def call(self) -> None:
        assert self.alike(self.args) == self.expected()

    def otherwise(self) -> None:
        """Calls that no kernel was captured for: every one of them is the original's."""
        x, cos, sin = self.args
        kind = self.draw.choice(["batch", "autocast", "grad", "inference", "inputs of another layout"])
        if kind == "batch":
            assert not self.alike(arguments(3))
        elif kind == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                assert not self.alike(self.args)
        elif kind == "grad":
            assert not self.alike((x.clone().requires_grad_(), cos, sin))
        elif kind == "inference":
            with torch.inference_mode():
                self.alike(self.args)
        else:
            self.alike((x.contiguous(memory_format=torch.channels_last), cos.transpose(0, 1).contiguous().transpose(0, 1), sin))

    def converted(self) -> None:
        """In another dtype and back: the very parameters and buffers are put back."""
        with held(self.model):
            self.model.bfloat16()
            assert not self.alike(tuple(item.bfloat16() for item in self.args), twin=copy.deepcopy(self.twin).bfloat16())

    def trained(self) -> None:
        """Batch norms use the batch's statistics and move their own."""
        self.model.train(), self.twin.train()
        ran = self.alike(self.args)
        assert not any("batch_norm" in name for name in ran)
        assert same(self.model.state_dict(), self.twin.state_dict()) and not same(self.model.state_dict(), self.saved)
        self.model.eval(), self.twin.eval()
        self.model.load_state_dict(self.saved), self.twin.load_state_dict(self.saved)

    def copied(self) -> None:
        buffer = io.BytesIO()
        torch.save(self.model, buffer)
        buffer.seek(0)
        for twin in (copy.deepcopy(self.model), pickle.loads(pickle.dumps(self.model)), torch.load(buffer, weights_only=False)):
            assert not any(map(packages_of, twin.modules())) and not self.alike(self.args, twin, self.twin)

    def loaded(self) -> None:
        """Other weights through `state_dict`, and the old ones again."""
        other = {name: value.flip(0) if value.ndim else value for name, value in self.model.state_dict().items()}
        buffer = io.BytesIO()
        torch.save(other, buffer)
        buffer.seek(0)
        self.model.load_state_dict(torch.load(buffer)), self.twin.load_state_dict(other)
        assert self.alike(self.args) == self.expected()
        self.model.load_state_dict(self.saved), self.twin.load_state_dict(self.saved)

    def patch(self) -> None:
        """Two attributes are others for a while; all have their turn."""
        names = [self.unpatched.pop(0), self.unpatched.pop(0)]
        self.unpatched += names
        back = [PATCHES[name](model) for name in names for model in (self.model, self.twin)]
        self.alike(self.args)
        for undo in reversed(back):
            undo()
        assert self.alike(self.args) == self.expected()

    def fails(self) -> None:
        """A wrong call raises what it raises, wherever in the model."""
        x, cos, sin = self.args
        wrong = self.draw.choice([(x[:, :3], cos, sin), (x.bfloat16(), cos, sin), (x, cos[..., :5], sin), (x[..., :3], cos, sin)])
        said = []
        for model in (self.model, self.twin):
            with pytest.raises(RuntimeError) as found:
                model(*wrong)
            said.append(str(found.value))
        assert said[0] == said[1]

    def check(self) -> None:
        assert set(packages_of(self.model)) == self.on["rest"] and set(packages_of(self.model.block)) == self.on["block"]
        assert same(self.model.state_dict(), self.saved)
        if not self.on["block"] and not self.on["rest"]:
            assert snapshot(self.model) == self.before
        assert torch.overrides._get_current_function_mode_stack() == []


def same(state: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(state) == list(other) and all(torch.equal(value, other[name]) for name, value in state.items())


@contextmanager
def held(model: nn.Module) -> Iterator[None]:
    """A conversion gives parameters other data and makes other buffers; afterwards the old ones are there again."""
    data = [(value, value.data) for value in model.parameters()]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    yield
    for value, old in data:
        value.data = old
    for module, old_buffers in buffers:
        module._buffers.update(old_buffers)


@pytest.mark.parametrize("seed", [1, 2])
def test_random_steps_over_every_region(tmp_path: Path, seed: int) -> None:
    steps = Steps(tmp_path, seed)
    for _ in range(180):
        steps.step()
    for package in steps.packages:
        package.remove(steps.model)
    assert snapshot(steps.model) == steps.before and same(steps.model.state_dict(), steps.saved)
    steps.on = {"block": set(), "rest": set()}
    assert not steps.alike(steps.args)
    assert set(steps.ran()) == set(BLOCK | REST) and min(steps.ran().values()) > 30
