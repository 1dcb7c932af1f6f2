"""Guards violated on purpose: the output is bit for bit the original model's, with torch's fast guards and without them."""

from __future__ import annotations

import copy
import io
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from packagekit import DoublingBackend, Model, aligned, write_package

from forge_tui.engine.cards import CallForm
from forge_tui.engine.package import runtime
from forge_tui.engine.package.runtime import matched
from forge_tui.engine.package.runtime.driver import CudaBackend
from forge_tui.specs import Items, TensorSpec


@pytest.fixture(params=["fast", "plain"])
def package(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> runtime.Package:
    if request.param == "plain":
        monkeypatch.setattr(matched, "TensorGuards", None)
    else:
        assert matched.TensorGuards is not None, "this torch has no fast guards: the cost of a call is another"
    return runtime.Package(write_package(tmp_path / "p"), DoublingBackend())


class Subclass(torch.Tensor):
    pass


VIOLATIONS = {
    "shape": lambda x: x[:3],
    "more dimensions": lambda x: x[None],
    "dtype": lambda x: x.double(),
    "stride": lambda x: x.t().contiguous().t(),
    "alignment": lambda x: aligned(4, 8, offset=1).copy_(x),
    "gradient": lambda x: x.clone().requires_grad_(),
    "subclass": lambda x: x.as_subclass(Subclass),
    "negated": torch._neg_view,
    "sparse": lambda x: x.to_sparse(),
}


@pytest.mark.parametrize("violation", VIOLATIONS)
@pytest.mark.parametrize("warm", [False, True], ids=["first", "after a match"])
def test_a_violated_guard_gives_the_original(package: runtime.Package, violation: str, warm: bool) -> None:
    model, plain, x = package.apply(Model()), Model(), aligned(4, 8)
    if warm:
        with torch.no_grad():
            assert torch.equal(model(x), 2 * x)
    with torch.set_grad_enabled(violation == "gradient"):
        changed = VIOLATIONS[violation](x)
        got, expected = model(changed), plain(changed)
    assert type(got) is type(expected) and got.requires_grad == expected.requires_grad and got.layout == expected.layout
    got, expected = (item.detach().to_dense().as_subclass(torch.Tensor) for item in (got, expected))
    assert got.dtype == expected.dtype and got.stride() == expected.stride() and torch.equal(got, expected)
    assert package.report()["kernels"][0]["calls"] == int(warm)


def test_surroundings_in_which_the_original_runs(package: runtime.Package) -> None:
    model, x = package.apply(Model()), aligned(4, 8)
    batch = torch.stack([x, x])
    with torch.no_grad():
        assert torch.equal(model(x), 2 * x)
        with torch.autocast("cpu"):
            assert torch.equal(model(x), F.relu(x))
        assert torch.equal(torch.vmap(model)(batch), F.relu(batch))
        assert torch.equal(torch.vmap(lambda unused: model(x))(batch), torch.stack([F.relu(x)] * 2))
        with Everything():
            assert torch.equal(model(x), F.relu(x))
        with Calls() as seen:
            assert torch.equal(model(x), F.relu(x))
    assert F.relu in seen.functions, "another function mode sees the call that was made"
    assert package.report()["kernels"][0]["calls"] == 1
    reasons = package.report()["fallbacks"]["torch.nn.functional.relu"]
    assert {"under autocast", "inside a functorch transform", "under a torch dispatch mode",
            "under a torch function mode"} <= set(reasons)
    gradient = torch.func.grad(lambda value: model(value).sum())(x)
    assert torch.equal(gradient, (x > 0).float())


class Everything(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Calls(torch.overrides.TorchFunctionMode):
    def __init__(self) -> None:
        self.functions: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


def test_inference_mode_uses_the_kernel_and_gives_inference_tensors(package: runtime.Package) -> None:
    model, x = package.apply(Model()), aligned(4, 8)
    for _ in range(2):
        with torch.inference_mode():
            result = model(x)
            assert result.is_inference() and torch.equal(result, 2 * x)
            own = aligned(4, 8).copy_(x)
            assert torch.equal(model(own), 2 * x)
        with torch.no_grad():
            assert not model(x).is_inference()
    assert package.report()["kernels"][0]["calls"] == 6


def test_cpu_tensors_in_a_package_for_cuda(tmp_path: Path) -> None:
    package = runtime.Package(write_package(tmp_path / "p"))
    assert isinstance(package.backend, CudaBackend)
    x = aligned(4, 8)
    with torch.no_grad():
        assert torch.equal(package.apply(Model())(x), F.relu(x))
    assert package.report()["fallbacks"] == {"torch.nn.functional.relu": {"on cpu": 1}}


def test_threads_share_a_model(package: runtime.Package) -> None:
    model, failed = package.apply(Model()), []

    def work(seed: int) -> None:
        x = aligned(4, 8)
        with torch.no_grad():
            for _ in range(50):
                if not torch.equal(model(x), 2 * x) or not torch.equal(model(x[:3]), F.relu(x[:3])):
                    failed.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_replicas_use_their_own_tensors(package: runtime.Package) -> None:
    model, x = package.apply(Model()), aligned(4, 8)
    replica = model._replicate_for_data_parallel()
    replica.scale = torch.full((8,), 3.0)
    with torch.no_grad():
        assert torch.equal(replica(x), 6 * x) and torch.equal(model(x), 2 * x)


def state_of(model: torch.nn.Module) -> list[Any]:
    return [(name, type(module), {key: (dict(value), type(value)) if isinstance(value, dict) else value
                                  for key, value in vars(module).items()}) for name, module in model.named_modules()]


class Nested(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Model()
        self.held = F.relu
        self.second = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.held(self.first(x)))


def test_a_thousand_random_calls_through_apply_and_remove(package: runtime.Package, tmp_path: Path) -> None:
    """Whatever the order, a model without packages is exactly what it was, and one with them computes what they say."""
    other = runtime.Package(write_package(tmp_path / "other"), DoublingBackend())
    model = Nested()
    before, saved, draw = state_of(model), copy.deepcopy(model.state_dict()), random.Random(5)
    inputs = [aligned(4, 8), aligned(4, 8, offset=1), aligned(3, 8), aligned(4, 8).double()]
    applied: set[runtime.Package] = set()
    for _ in range(1000):
        step, pack = draw.randrange(5), draw.choice([package, other])
        if step == 0:
            pack.apply(model)
            applied.add(pack)
        elif step == 1:
            pack.remove(model)
            applied.discard(pack)
        elif step == 2:
            copied = draw.choice([copy.copy, copy.deepcopy])(model.first)
            assert copied.scale.equal(model.first.scale)
        else:
            x = draw.choice(inputs)
            model.to(x.dtype)
            with torch.no_grad():
                inner = (2 * x if applied and x is inputs[0] else F.relu(x)) * model.first.scale
                matches = applied and x.shape == (4, 8) and x.dtype == torch.float32  # what is new in the model is aligned
                expected = 2 * (2 * inner) if matches else F.relu(F.relu(inner))
                assert torch.equal(model(x), model.second[1](expected))
            model.float()
        if not applied:
            assert [type(module) for module in model.modules()] == [kind for _, kind, _ in before]
    package.remove(model)
    other.remove(model)
    after = state_of(model)
    assert [item[:2] for item in after] == [item[:2] for item in before]
    for (_, _, mine), (_, _, theirs) in zip(after, before, strict=True):
        assert mine.keys() == theirs.keys()
        assert all(mine[key] is theirs[key] or str(mine[key]) == str(theirs[key]) for key in mine)
    assert all(torch.equal(value, saved[key]) for key, value in model.state_dict().items())


def test_state_and_copies_show_nothing_while_applied(package: runtime.Package) -> None:
    model = Nested()
    before, text = state_of(model), repr(model)
    package.apply(model)
    assert repr(model) == text and model.__class__.__name__ == "Nested" and isinstance(model, Nested)
    assert [vars(module).keys() for module in model.modules()] == [item[2].keys() for item in before]
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for twin in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert [type(module) for module in twin.modules()] == [kind for _, kind, _ in before]
        assert twin.held is F.relu
    assert model.held is not F.relu and vars(model)["held"] is F.relu


def test_constants_are_told_apart_by_type_and_sequences_by_length(tmp_path: Path) -> None:
    spec = TensorSpec("float32", (4, 8), (8, 1), align=16)
    forms = (CallForm("torch.nn.functional.relu", (spec,), {"inplace": 0}, ("input",)),)
    package = runtime.Package(write_package(tmp_path / "a", forms), DoublingBackend())
    model, x = package.apply(Model()), aligned(4, 8)
    with torch.no_grad():
        assert torch.equal(model(x), F.relu(x)), "False is not 0"
    nested = (CallForm("torch.nn.functional.pad", (spec, Items((1, 2))), {"mode": "constant", "value": None}, ("input",)),)
    package = runtime.Package(write_package(tmp_path / "b", nested), DoublingBackend())

    class Pad(torch.nn.Module):
        def forward(self, x: torch.Tensor, pad: Any) -> torch.Tensor:
            return F.pad(x, pad)

    padded = package.apply(Pad())
    with torch.no_grad():
        assert torch.equal(padded(x, (1, 2)), 2 * x) and torch.equal(padded(x, [1, 2]), 2 * x)
        for pad in [(1, 3), (1, 2, 0, 0), (1.0, 2)][:2]:
            assert torch.equal(padded(x, pad), F.pad(x, pad))


def test_helpers_closures_and_decorators_reach_the_kernel(package: runtime.Package) -> None:
    class Outer(torch.nn.Module):
        @torch.no_grad()
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.method(helper(x))

        def method(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.relu(input=x)

    x = aligned(4, 8)
    assert torch.equal(package.apply(Outer())(x), 4 * x)
    assert torch.equal(helper(x), F.relu(x)), "the helper itself is untouched"


def helper(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x, False)


COUNT = 0


def counting(x: torch.Tensor) -> torch.Tensor:
    global COUNT
    COUNT += 1
    return F.relu(x)


def test_a_helper_that_writes_globals_stays_itself(package: runtime.Package) -> None:
    class Outer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return counting(x)

    x, before = aligned(4, 8), COUNT
    with torch.no_grad():
        assert torch.equal(package.apply(Outer())(x), F.relu(x))
    assert COUNT == before + 1


def test_a_tensor_method_is_reached_by_the_mode(tmp_path: Path) -> None:
    spec = TensorSpec("float32", (4, 8), (8, 1), align=16)
    package = runtime.Package(write_package(tmp_path / "p", (CallForm("torch.Tensor.relu", (spec,), {}, ("input",)),)),
                              DoublingBackend())

    class Method(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu()

    model, x = package.apply(Method()), aligned(4, 8)
    with torch.no_grad():
        assert torch.equal(model(x), 2 * x) and torch.equal(model(x[:2]), F.relu(x[:2]))
    assert torch.overrides._get_current_function_mode_stack() == []
    package.remove(model)
    with torch.no_grad():
        assert torch.equal(model(x), F.relu(x))


def test_a_canary_that_differs_disables_the_kernel_and_says_so(package: runtime.Package) -> None:
    model, x = package.apply(Model()), aligned(4, 8)
    package.canary(3)
    with torch.no_grad():
        assert torch.equal(model(x), 2 * x) and torch.equal(model(x), 2 * x)
        with pytest.warns(UserWarning, match="a canary differed"):
            assert torch.equal(model(x), F.relu(x))
        assert torch.equal(model(x), F.relu(x))
    kernel = package.report()["kernels"][0]
    assert kernel["calls"] == 2 and kernel["canaries"] == 1 and "canary" in kernel["disabled"]
    assert sum(kernel["fallbacks"].values()) == 2


def test_a_canary_that_agrees_changes_nothing(tmp_path: Path) -> None:
    class Right(DoublingBackend):
        def prepare(self, entry: runtime.Entry, device: torch.device) -> Any:
            return lambda tensors: tensors[-1].copy_(tensors[0].clamp(min=0))

    package = runtime.Package(write_package(tmp_path / "p"), Right())
    package.canary(1)
    x = aligned(4, 8)
    with torch.no_grad():
        assert torch.equal(package.apply(Model())(x), F.relu(x))
    assert package.report()["kernels"][0] | {"kernel": ""} == {
        "operator": "torch.nn.functional.relu", "variant": package.entries[0].variant, "kernel": "", "calls": 1,
        "fallbacks": {}, "canaries": 1, "canary_error": 0.0, "disabled": ""}


@pytest.mark.parametrize("aliases", [None, {"out": "input"}], ids=["out of place", "in place"])
def test_kernels_are_operators_of_torch(tmp_path: Path, aliases: dict[str, str] | None) -> None:
    spec = TensorSpec("float32", (4, 8), (8, 1), align=16)
    forms = (CallForm("torch.nn.functional.relu", (spec,), {"inplace": bool(aliases)}, ("input",)),)
    package = runtime.Package(write_package(tmp_path / "p", forms, aliases), DoublingBackend())
    name = f"relu_{package.entries[0].variant}"
    operator = getattr(getattr(torch.ops, package.library.ns), name).default
    results = torch.library.opcheck(operator, (aligned(4, 8),))
    assert set(results.values()) == {"SUCCESS"} and len(results) == 4


def test_torch_compile_uses_the_operator_and_the_operator_guards_itself(package: runtime.Package) -> None:
    model, x = package.apply(Model()), aligned(4, 8)
    torch._dynamo.reset()  # torch counts compilations by code, and every Model has the same
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(x), 2 * x)
        odd = aligned(4, 8, offset=1).copy_(x)
        assert torch.equal(compiled(odd), F.relu(x)), "alignment is seen when the operator runs"
        assert torch.equal(compiled(x[:3]), F.relu(x[:3]))
        with torch.autocast("cpu"):
            assert torch.equal(compiled(x), F.relu(x))
    wanted = x.clone().requires_grad_()
    compiled(wanted).sum().backward()
    assert torch.equal(wanted.grad, (x > 0).float())
    kernel = package.report()["kernels"][0]
    assert kernel["calls"] == 1 and kernel["fallbacks"] == {"other alignment": 1}
    package.remove(model)
    with torch.no_grad():
        assert torch.equal(compiled(x), F.relu(x)), "what was compiled is not used any more"


def test_what_apply_and_canary_are_given(package: runtime.Package) -> None:
    for wrong in (-1, 1.5, "x", None, True):
        with pytest.raises(ValueError, match="canary"):
            package.canary(wrong)
    with pytest.raises(TypeError, match="apply takes a torch.nn.Module, and was given a Tensor"):
        package.apply(torch.ones(1))


def test_a_shape_of_as_many_elements_is_another_shape(package: runtime.Package) -> None:
    model, x = package.apply(Model()), aligned(4, 8)
    other = torch.ones(32).as_strided((2, 2, 8), (1, 16, 2))
    with torch.no_grad():
        for _ in range(2):
            model(other)
            assert torch.equal(model(x), 2 * x)
    assert package.report()["kernels"][0]["fallbacks"] == {"other shape": 2}


class Bare(torch.nn.Module):
    """Nothing of it is guarded by torch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x)


@pytest.mark.parametrize("kind", [Model, Bare])
def test_what_was_compiled_before_apply_and_after_it_is_kept_apart(package: runtime.Package, kind: type[torch.nn.Module]) -> None:
    """torch keeps what it compiles with the code object: a forged forward must have one of its own."""
    torch._dynamo.reset()
    model, other, x = kind(), kind(), aligned(4, 8)
    compiled, beside = (torch.compile(item, fullgraph=True, backend="eager") for item in (model, other))
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(compiled(x), F.relu(x))
            with package.optimized(model):
                assert torch.equal(compiled(x), 2 * x) and torch.equal(beside(x), F.relu(x))
            assert torch.equal(compiled(x), F.relu(x)) and torch.equal(beside(x), F.relu(x))


def test_an_operator_called_with_gradients_has_the_originals(package: runtime.Package) -> None:
    operator = next(iter(package.routers.values())).forms[0].op
    x = aligned(4, 8).requires_grad_()
    operator(x).sum().backward()
    assert torch.equal(x.grad, (x > 0).float())
