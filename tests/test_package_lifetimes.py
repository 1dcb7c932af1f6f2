"""A model through a thousand random steps with packages on and off: it computes what it did, and is in the end exactly what it was."""

from __future__ import annotations

import copy
import io
import pickle
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from region_functions import apply_rotary_to_one
from region_models import LateRMSNorm
from torch import nn
from torch.nn import functional as F

from benchmarks.guardcases import packed
from forge_tui.engine.operators.regions import is_region, region_function
from forge_tui.engine.package.runtime import Entry, Package
from forge_tui.engine.package.runtime.callees import resolve
from forge_tui.engine.package.runtime.patterns import pattern_of
from forge_tui.engine.package.runtime.weave import packages_of


class Reference:
    """Kernels that compute what the original does, bit for bit: that one ran is seen by the counters alone."""

    device_type = "cpu"

    def prepare(self, entry: Entry, device: torch.device) -> Any:
        function = region_function(entry.operator) if "+" in entry.operator or not entry.operator.startswith("torch.") else resolve(entry.operator)

        def run(tensors: Any) -> None:
            given = {name: pattern_of(value) for name, value in entry.arguments.items()} | dict(zip(entry.input_names, tensors, strict=False))
            results = function(**given)
            for target, result in zip(tensors[len(entry.input_names):], (results,) if isinstance(results, torch.Tensor) else results, strict=True):
                target.copy_(result)

        return run


class Inner(nn.Module):
    """A region of every kind: a module class, a function of its own, a gate, a kept sum with its norm, a held function."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act, self.ln, self.held = LateRMSNorm(16), nn.SiLU(), nn.LayerNorm(16), F.softmax

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        h = apply_rotary_to_one(h, cos, sin, unsqueeze_dim=2)
        h = self.act(h) * x
        h = h + x
        residual = h
        h = self.ln(h)
        return self.held(residual + 2 * h + bias, dim=-1)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.softmax(self.inner(x, cos, sin, bias), dim=-1)


def arguments(batch: int = 2, width: int = 16) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 6, 4, 16), torch.randn(batch, 6, 16), torch.randn(batch, 6, 16), torch.randn(width)


def snapshot(model: nn.Module) -> list[Any]:
    """Classes, and of every attribute the very object and what containers hold."""
    return [(name, type(module), {key: (id(value), [(inner, id(item)) for inner, item in value.items()] if isinstance(value, dict) else value)
                                  for key, value in vars(module).items()}) for name, module in model.named_modules()]


INNER = 5
"""Kernels in one forward of `Inner`; `Outer` has one more."""


class Steps:
    """One random step each; after every one the model has the packages that were asked for, and computes what it did."""

    def __init__(self, folder: Path, seed: int) -> None:
        torch.manual_seed(seed)
        self.draw, self.model = random.Random(seed), Outer().eval().requires_grad_(False)
        self.plain, self.args = copy.deepcopy(self.model), arguments()
        self.packages = [packed(folder / str(at), self.model, self.args, Reference()) for at in range(2)]
        self.others = [arguments(batch=3), tuple(item.double() for item in self.args), tuple(item.clone().requires_grad_() for item in self.args)]
        self.wrong = (*self.args[:3], torch.randn(5))
        self.before, self.saved = snapshot(self.model), copy.deepcopy(self.model.state_dict())
        self.on: dict[str, set[Package]] = {"outer": set(), "inner": set()}

    def part(self) -> tuple[nn.Module, list[str]]:
        return (self.model, ["outer", "inner"]) if self.draw.random() < 0.6 else (self.model.inner, ["inner"])

    def ran(self) -> int:
        return sum(self.calls())

    def calls(self) -> list[int]:
        """Of the regions and softmax; how often the operators of tensors run, which only a mode reaches, depends on where it is entered."""
        return [kernel["calls"] for package in self.packages for kernel in package.report()["kernels"]
                if is_region(kernel["operator"]) or kernel["operator"].endswith("softmax")]

    def forward(self, args: tuple[torch.Tensor, ...]) -> None:
        before, model, plain = self.ran(), self.model, self.plain
        if args[0].dtype == torch.float64:
            model, plain = model.double(), copy.deepcopy(plain).double()
        got, expected = model(*args), plain(*args)
        assert torch.equal(got, expected) and got.requires_grad == expected.requires_grad
        if args[0].dtype == torch.float64:
            self.model.load_state_dict(self.saved)
            self.restore()
        wanted = (INNER * bool(self.on["inner"]) + bool(self.on["outer"])) if args is self.args else None
        assert wanted is None or self.ran() - before == wanted

    def restore(self) -> None:
        """`double()` makes new tensors: the very old ones are put back."""
        for mine, theirs in zip(self.model.modules(), self.before, strict=True):
            for name, held in theirs[2]["_parameters"][1]:
                mine._parameters[name].data = mine._parameters[name].data.float()
                assert id(mine._parameters[name]) == held

    def step(self) -> None:
        package, (module, names) = self.draw.choice(self.packages), self.part()
        kind = self.draw.randrange(9)
        if kind == 0:
            package.apply(module)
            for name in names:
                self.on[name].add(package)
        elif kind == 1:
            package.remove(module)
            for name in names:
                self.on[name].discard(package)
        elif kind == 2:
            with pytest.raises(RuntimeError, match="must match the size"), torch.no_grad():
                self.model(*self.wrong)
        elif kind == 3:
            self.within(package, module)
        elif kind == 4:
            self.copied()
        elif kind == 5:
            self.threads()
        else:
            self.forward(self.draw.choice([self.args, self.args, *self.others]))
        self.check()

    def within(self, package: Package, module: nn.Module) -> None:
        """`optimized` leaves what was applied before, whatever happens inside; some of it may be of the same package."""
        already = any(package in packages_of(item) for item in module.modules())
        kept = {name: set(packages) for name, packages in self.on.items()}
        with pytest.raises(KeyError, match="inside"), package.optimized(module), torch.no_grad():
            assert torch.equal(self.model(*self.args), self.plain(*self.args))
            raise KeyError("inside")
        for name in (["outer", "inner"] if module is self.model else ["inner"]) if already else []:
            kept[name].add(package)
        self.on = kept

    def copied(self) -> None:
        buffer = io.BytesIO()
        torch.save(self.model, buffer)
        buffer.seek(0)
        twins = [copy.deepcopy(self.model), copy.copy(self.model), pickle.loads(pickle.dumps(self.model)), torch.load(buffer, weights_only=False)]
        before = self.ran()
        for at, twin in enumerate(twins):
            assert type(twin) is Outer and (at == 1 or not any(map(packages_of, twin.modules())))
            if at != 1:  # a shallow copy shares its modules
                assert torch.equal(twin(*self.args), self.plain(*self.args)) and twin.inner.held is F.softmax
        assert self.ran() == before and all(torch.equal(value, self.saved[key]) for key, value in self.model.state_dict().items())

    def threads(self) -> None:
        results: list[bool] = []

        def work() -> None:
            with torch.no_grad():
                results.append(torch.equal(self.model(*self.args), self.plain(*self.args)))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [True] * 3

    def check(self) -> None:
        assert set(packages_of(self.model)) == self.on["outer"]
        assert all(set(packages_of(module)) <= self.on["inner"] for module in self.model.inner.modules())
        assert set(packages_of(self.model.inner)) == self.on["inner"]
        if not self.on["outer"] and not self.on["inner"]:
            assert snapshot(self.model) == self.before
        assert torch.overrides._get_current_function_mode_stack() == []


@pytest.mark.parametrize("seed", [1, 2])
def test_a_thousand_random_steps(tmp_path: Path, seed: int) -> None:
    steps = Steps(tmp_path, seed)
    for _ in range(500):
        steps.step()
    for package in steps.packages:
        package.remove(steps.model)
    assert snapshot(steps.model) == steps.before
    assert all(torch.equal(value, steps.saved[key]) for key, value in steps.model.state_dict().items())
    assert len(steps.calls()) == 2 * INNER and min(steps.calls()) > 50
