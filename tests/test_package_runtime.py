"""The runtime of a package: routing, guards, fallback, counters, and a model that is exactly as before after `remove`."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from packagekit import SPEC, DoublingBackend, Model, aligned, write_package

from forge_tui.engine.cards import CallForm
from forge_tui.engine.package import runtime
from forge_tui.engine.package.compare import relative_error


@pytest.fixture
def package(tmp_path: Path) -> runtime.Package:
    return runtime.Package(write_package(tmp_path / "p"), DoublingBackend())


def test_the_captured_call_reaches_the_kernel_and_is_counted(package: runtime.Package) -> None:
    model, x = Model(), aligned(4, 8)
    with torch.no_grad():
        assert torch.equal(package.apply(model)(x), 2 * x)
    assert [kernel["calls"] for kernel in package.report()["kernels"]] == [1]
    assert package.report()["fallbacks"] == {}


@pytest.mark.parametrize(("change", "reason"), [
    (lambda x: x[:3], "other shape"),
    (lambda x: x.double(), "other dtype"),
    (lambda x: x.t().contiguous().t(), "other stride"),
    (lambda x: torch._neg_view(x), "a lazily conjugated or negated tensor"),
    (lambda x: aligned(4, 8, offset=1).copy_(x), "other alignment"),
])
def test_a_call_that_differs_runs_the_original(package: runtime.Package, change: Any, reason: str) -> None:
    model, x = Model(), change(aligned(4, 8))
    with torch.no_grad():
        expected = model(x)
        assert torch.equal(package.apply(model)(x), expected)
    assert package.report()["fallbacks"] == {"torch.nn.functional.relu": {reason: 1}}


def test_gradients_autocast_subclasses_and_vmap_run_the_original(package: runtime.Package) -> None:
    model, x = package.apply(Model()), aligned(4, 8)
    assert torch.equal(model(x.requires_grad_()), F.relu(x) * 1)
    x = x.detach()
    with torch.no_grad(), torch.autocast("cpu"):
        assert torch.equal(model(x), F.relu(x))
    with torch.no_grad():
        assert torch.equal(model(x.as_subclass(Subclass)).as_subclass(torch.Tensor), F.relu(x))
        batch = torch.stack([x, x])
        assert torch.equal(torch.vmap(model)(batch), F.relu(batch))
    reasons = package.report()["fallbacks"]["torch.nn.functional.relu"]
    assert reasons["a gradient is wanted"] == 1
    assert reasons["under autocast"] == 1
    assert reasons["a tensor subclass"] == 1
    assert sum(reasons.values()) == 4
    assert [kernel["calls"] for kernel in package.report()["kernels"]] == [0]


class Subclass(torch.Tensor):
    pass


def test_calls_outside_the_model_are_untouched(package: runtime.Package) -> None:
    package.apply(Model())
    x = aligned(4, 8)
    with torch.no_grad():
        assert torch.equal(F.relu(x), x.clamp(min=0))
        assert torch.equal(Model()(x), x.clamp(min=0))
    assert package.report()["fallbacks"] == {}


def test_a_model_that_raises_leaves_nothing_behind(package: runtime.Package) -> None:
    model = package.apply(Model())
    with pytest.raises(RuntimeError), torch.no_grad():
        model(torch.randn(4, 3))
    assert torch.overrides._get_current_function_mode_stack() == []


def test_remove_restores_exactly_and_apply_twice_is_once(package: runtime.Package) -> None:
    model = Model()
    before = {name: (dict(value) if isinstance(value, dict) else value) for name, value in vars(model).items()}
    for _ in range(3):
        package.apply(package.apply(model))
        package.remove(model)
        package.remove(model)
    after = {name: (dict(value) if isinstance(value, dict) else value) for name, value in vars(model).items()}
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] or before[name] == after[name] for name in before if name != "_parameters")
    x = aligned(4, 8)
    with torch.no_grad():
        assert torch.equal(model(x), F.relu(x))


class Half(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2


def parametrized(model: torch.nn.Module) -> Any:
    torch.nn.utils.parametrize.register_parametrization(model, "scale", Half())
    return lambda: torch.nn.utils.parametrize.remove_parametrizations(model, "scale", leave_parametrized=False)


def patched(model: torch.nn.Module) -> Any:
    """As FSDP and patches of one module do: a class of its own."""
    before = type(model)

    class Patched(before):  # type: ignore[misc, valid-type]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) / 2

    model.__class__ = Patched
    return lambda: setattr(model, "__class__", before)


@pytest.mark.parametrize("change", [parametrized, patched])
def test_a_class_that_a_module_got_after_apply_is_not_lost(package: runtime.Package, tmp_path: Path, change: Any) -> None:
    """It is what somebody else wants of the module: packages come and go before and after it, and a copy has it."""
    model, other, x = Model(), runtime.Package(write_package(tmp_path / "q"), DoublingBackend()), aligned(4, 8)
    undo = change(package.apply(model))
    with torch.no_grad():
        assert torch.equal(model(x), x) and torch.equal(copy.deepcopy(model)(x), x), "twice, and a half"
        for step in (package.remove, package.apply, other.apply):
            with pytest.raises(runtime.PackageError, match="undo that first"):
                step(model)
        assert torch.equal(model(x), x)
        undo()
        assert torch.equal(package.remove(model) or model(x), F.relu(x)) and type(model) is Model


def test_copies_and_saved_models_are_the_original_model(package: runtime.Package) -> None:
    model, x = package.apply(Model()), aligned(4, 8)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    with torch.no_grad():
        for other in (copy.deepcopy(model), loaded):
            assert torch.equal(other(x), F.relu(x))
        assert torch.equal(model(x), 2 * x)
    assert model.state_dict().keys() == {"scale"}


def test_two_packages_and_two_models_do_not_disturb_each_other(tmp_path: Path) -> None:
    one = runtime.Package(write_package(tmp_path / "one"), DoublingBackend())
    two = runtime.Package(write_package(tmp_path / "two"), DoublingBackend())
    a, b, x = one.apply(Model()), two.apply(Model()), aligned(4, 8)
    with torch.no_grad():
        a(x), b(x), b(x)
        two.apply(a)
        a(x)
        one.remove(a)
        a(x)
    assert [kernel["calls"] for kernel in one.report()["kernels"]] == [1]
    assert [kernel["calls"] for kernel in two.report()["kernels"]] == [4]


def test_the_with_form_ends_with_the_block(package: runtime.Package) -> None:
    model, x = Model(), aligned(4, 8)
    with torch.no_grad():
        with package.optimized(model):
            assert torch.equal(model(x), 2 * x)
        assert torch.equal(model(x), F.relu(x))


def test_an_in_place_spelling_writes_into_its_input(tmp_path: Path) -> None:
    forms = (CallForm("torch.nn.functional.relu", (SPEC,), {"inplace": True}, ("input",)),)
    package = runtime.Package(write_package(tmp_path / "p", forms, {"out": "input"}), DoublingBackend())

    class InPlace(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(x, inplace=True)

    x = aligned(4, 8)
    expected = 2 * x
    with torch.no_grad():
        result = package.apply(InPlace())(x)
    assert result is x and torch.equal(x, expected)


def test_a_changed_file_is_not_loaded(tmp_path: Path) -> None:
    folder = write_package(tmp_path / "p")
    entry = next((folder / "entries").iterdir())
    record = json.loads(entry.read_text())
    record["forms"] = []
    entry.write_text(json.dumps(record))
    with pytest.raises(runtime.PackageError, match="SHA-256"):
        runtime.Package(folder, DoublingBackend())


@pytest.mark.parametrize("manifest", [None, "format = 99\n", "format = ", "\0"])
def test_what_is_no_package_is_said(tmp_path: Path, manifest: str | None) -> None:
    if manifest is not None:
        (tmp_path / "manifest.toml").write_text(manifest)
    with pytest.raises(runtime.PackageError):
        runtime.Package(tmp_path)


def test_a_device_that_cannot_run_it_falls_back_and_says_so_once(tmp_path: Path) -> None:
    class Refusing(DoublingBackend):
        def prepare(self, entry: runtime.Entry, device: torch.device) -> Any:
            raise runtime.PackageError("no image for sm_75")

    package = runtime.Package(write_package(tmp_path / "p"), Refusing())
    model, x = package.apply(Model()), aligned(4, 8)
    with torch.no_grad(), pytest.warns(UserWarning, match="no image for sm_75") as warned:
        assert torch.equal(model(x), F.relu(x))
        assert torch.equal(model(x), F.relu(x))
    assert len(warned) == 1
    assert package.report()["fallbacks"] == {"torch.nn.functional.relu": {"no image for sm_75": 2}}


@pytest.mark.parametrize(("got", "expected", "error"), [
    ([1.0, 2.0], [1.0, 2.0], 0.0),
    ([0.0, 0.0], [3.0, 4.0], 1.0),
    ([float("nan"), 1.0], [float("nan"), 1.0], 0.0),
    ([float("nan"), 1.0], [1.0, 1.0], float("inf")),
    ([1.0, 1.0], [float("inf"), 1.0], float("inf")),
    ([float("-inf"), 1.0], [float("inf"), 1.0], float("inf")),
    ([0.0, 0.0], [0.0, 0.0], 0.0),
    ([1e-30, 0.0], [0.0, 0.0], float("inf")),
])
def test_relative_error(got: list[float], expected: list[float], error: float) -> None:
    assert relative_error(torch.tensor(got), torch.tensor(expected)) == error
