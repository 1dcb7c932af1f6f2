"""What stands in for a function: a call like one that was decided before, matched or not, is not decided in full again."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from packagekit import DoublingBackend, aligned, write_package

from benchmarks.guardcases import CASES, DTYPE, no_device, packed
from benchmarks.guards import around, missing, nothing, ran
from forge_tui.engine.package import runtime
from forge_tui.engine.package.runtime.regions import Function
from forge_tui.engine.package.runtime.router import Router
from forge_tui.specs import TensorSpec


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The keys of the calls that were decided in full."""
    keys: list[Any] = []
    whole = Router.decide
    monkeypatch.setattr(Router, "decide", lambda self, key, *rest: (keys.append(key), whole(self, key, *rest))[1])
    return keys


class Watching(torch.overrides.TorchFunctionMode):
    """A function mode like `torch.device` as a context, or a default device."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def entry_of(folder: Path, *shape: int) -> runtime.Entry:
    stride = tuple(torch.empty(shape, device="meta").stride())
    return runtime.Package(write_package(folder, spec=TensorSpec("float32", shape, stride, align=16)), DoublingBackend()).entries[0]


@pytest.mark.parametrize("name", CASES)
def test_what_does_not_match_is_told_without_deciding_in_full(tmp_path: Path, decided: list[Any], name: str) -> None:
    """Every guard of the benchmark, before a call has matched and after one has: its figures are of generated functions alone."""
    case = CASES[name]
    with torch.no_grad(), no_device():
        model, args = case.make().to(DTYPE).eval().requires_grad_(False), case.inputs()
        package = packed(tmp_path, model, args)
        first, warm = (case.stand_in(package, nothing) for _ in range(2))
        for _ in range(3):
            warm(*case.arguments(model, args))
        assert len(decided) == 1 and ran(package) == 3
        for miss, given in missing(case, model, args).items():
            with around(miss):
                assert first(*given) is None and warm(*given) is None and len(decided) == 1, miss
        with Watching() as mode:
            assert first(*case.arguments(model, args)) is None and warm(*case.arguments(model, args)) is None and len(decided) == 1
        assert len(mode.seen) <= 2, "of two calls, the look at the number of elements that finds the line"
        assert ran(package) == 3
    reasons = {reason for found in package.report()["fallbacks"].values() for reason in found}
    assert reasons == {"other shape", "other dtype", "other stride", "other alignment", "a gradient is wanted", "under autocast", "on meta",
                       "under a torch function mode", *(["other arguments"] if case.constant else [])}


@pytest.mark.parametrize("warm", [False, True], ids=["first", "after a match"])
def test_shapes_of_as_many_elements(tmp_path: Path, decided: list[Any], warm: bool) -> None:
    """Calls are told apart by the number of elements where that tells the captured shapes apart."""
    router = Router("torch.nn.functional.relu", F.relu, DoublingBackend())
    entry = entry_of(tmp_path / "one", 4, 8)
    router.add(entry, entry.forms[0])
    relu, x, other = router.standing_in(F.relu, F.relu), aligned(4, 8), aligned(8, 4)
    with torch.no_grad():
        if warm:
            assert torch.equal(relu(x), 2 * x)
            decided.clear()
            assert torch.equal(relu(other), F.relu(other)) and not decided
        assert torch.equal(relu(other), F.relu(other)) and router.report()["other shape"] == warm + 1
        assert torch.equal(relu(x), 2 * x)
        entry = entry_of(tmp_path / "two", 8, 4)
        router.add(entry, entry.forms[0])
        relu = router.standing_in(F.relu, F.relu)
        for _ in range(2):
            assert torch.equal(relu(x), 2 * x) and torch.equal(relu(other), 2 * other)
            assert torch.equal(relu(x.reshape(2, 16)), F.relu(x.reshape(2, 16)))


def test_one_tensor_as_two_arguments_is_decided_once(tmp_path: Path, decided: list[Any]) -> None:
    case = CASES["silu * up"]
    model, (x, _) = case.make().to(DTYPE).eval().requires_grad_(False), case.inputs()
    with torch.no_grad(), no_device():
        package = packed(tmp_path, model, case.inputs())
        package.apply(model)
        for _ in range(3):
            model(x, x)
    assert ran(package) == 3 and len(decided) == 1


def test_modules_of_several_kinds_at_one_place(tmp_path: Path, decided: list[Any]) -> None:
    """A function for modules with one attribute more cannot tell of those without it; the other one's reason is enough."""
    case = CASES["silu * up"]
    with torch.no_grad(), no_device():
        model, args = case.make().to(DTYPE).eval().requires_grad_(False), case.inputs()
        package = packed(tmp_path, model, args)
        stand_in, more = case.stand_in(package, nothing), copy.deepcopy(model)
        more.act_fn.more = 3
        for _ in range(2):
            for one in (model, more):
                stand_in(*case.arguments(one, args))
        assert ran(package) == 4 and len(decided) == 2
        model.act_fn.inplace = more.act_fn.inplace = True
        for one in (model, more):
            assert stand_in(*case.arguments(one, args)) is None
    assert ran(package) == 4 and len(decided) == 2
    assert list(package.report()["fallbacks"].values()) == [{"other arguments": 2}]


def shifted(x: torch.Tensor, by: int | None = None, *, scale: int = 1) -> torch.Tensor:
    return scale * x + (by or 1)


def moved(x: torch.Tensor, by: int | None = None, scale: int = 1) -> torch.Tensor:
    return scale * x + (by or 1)


@pytest.mark.parametrize("function", [shifted, moved])
def test_defaults_of_a_function_that_no_captured_call_gives(tmp_path: Path, function: Any) -> None:
    entry = entry_of(tmp_path / "p", 4, 8)
    captured = Function(f"{__name__}.{function.__name__}", {"source": ""}, DoublingBackend())
    captured.router.add(entry, {"positional": entry.forms[0]["positional"], "keywords": {}, "names": ["input"]})
    stand_in, x = captured.standing_in(function, function), aligned(4, 8)
    assert stand_in is not None
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(stand_in(x), 2 * x)
            assert torch.equal(stand_in(x, 3), x + 3) and torch.equal(stand_in(x, by=3), x + 3) and torch.equal(stand_in(x, scale=2), 2 * x + 1)
    assert captured.router.report() == {"other arguments": 6} and entry.calls == 2
    if function is moved:
        assert list(inspect.signature(stand_in).parameters) == ["x", "by", "scale"]
        with torch.no_grad():
            assert torch.equal(stand_in(x=x, by=None), 2 * x), "what the default says is the captured call"
    with pytest.raises(TypeError):
        stand_in()
    assert torch.equal(torch.compile(lambda y: stand_in(y, 3), backend="eager")(x), x + 3)
