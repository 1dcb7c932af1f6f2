"""Capture of small models: what is recorded, what is not and why, and the way back from disk."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from torch import nn

from forge_tui.cuda.device import H200
from forge_tui.engine.capture import Capture, capture_model, capture_project
from forge_tui.engine.cards import OperatorFile, Variant, load_operators
from forge_tui.engine.inputs import ModelInput
from forge_tui.engine.operators import lookup, materialize, named_tensors, tensor_spec
from forge_tui.engine.samples import load_sample
from forge_tui.engine.sources import LoadedModel
from forge_tui.errors import MissingEnvironment, ProjectError
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import CaptureConfig, DeviceConfig, InputsConfig, ModelConfig, ProjectConfig

FIXTURES = Path(__file__).parent / "fixtures" / "models"


def record(model: nn.Module, *args: object, **options: object) -> tuple[Capture, OperatorFile]:
    capture = capture_model(LoadedModel(model.eval(), "test"), [ModelInput(args, label="test")], torch.device("cpu"), H200,
                            **options)
    return capture, capture.cards()


def by_name(cards: OperatorFile, name: str) -> Variant:
    found = [item for item in cards.variants if item.operator == name]
    assert len(found) == 1, [item.call for item in found]
    return found[0]


def reasons(cards: OperatorFile) -> dict[str, str]:
    return {item.operator: item.reason for item in cards.skipped}


def project(source: Path | str, spec: str = "", **capture: int) -> ProjectConfig:
    return ProjectConfig(1, ModelConfig(str(source)), InputsConfig(spec), DeviceConfig("host"),
                         capture=CaptureConfig(**capture))


class Functions(nn.Module):
    """Every kind of call that is not a plain operator, and a few that are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        self.register_buffer("steps", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.scripted(self.linear(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = self.linear(x)
        with torch.inference_mode():
            x = torch.tanh(x)
        x = x + torch.ops.aten.exp.default(x)
        self.steps.add_(1)
        x = torch.sub(x, self.steps)
        into = torch.empty_like(x)
        torch.mul(x, 2, out=into)
        x = x + torch.rand(4) * 0
        x[:, 0] = 0
        half = x.half()
        half *= x
        return torch.ops.aten.mul.Tensor(x.t().t(), low)


def test_calls_that_cannot_be_operators_say_why() -> None:
    _, cards = record(Functions(), torch.randn(3, 4))
    why = reasons(cards)
    assert why["torch.t"] == "a view moves no data"
    assert why["torch.rand"] == "random"
    assert why["torch.empty_like"] == "creates a constant"
    assert why["torch.mul"] == "writes into an `out=` argument"
    assert why["torch.Tensor.__setitem__"] == "indexing"
    assert why["torch.ops.aten.addmm"].startswith("called from code that is not visible")
    assert why["scripted"] == "TorchScript: the calls inside it are not visible"
    refused = {(item.operator, item.reason.split(" (")[0]) for item in cards.variants if not item.offered}
    assert ("torch.nn.functional.linear", "alone it gives float32") in refused, "under autocast it gives bfloat16"
    assert ("torch.sub", "steps changes during the forward") in refused
    assert ("torch.mul", "alone it gives float32") in refused, "in place it stays float16"
    assert by_name(cards, "torch.nn.functional.tanh").offered and by_name(cards, "torch.exp").offered
    assert [item.offered for item in cards.variants] == sorted((item.offered for item in cards.variants), reverse=True)


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        x += 1
        nn.functional.relu(x, inplace=True)
        return x.clamp_(max=2)


def test_in_place_inputs_are_as_they_were_before_the_call() -> None:
    x = torch.tensor([[-3.0, -0.5, 1.5]])
    capture, cards = record(InPlace(), x)
    before = {"torch.add": x, "torch.nn.functional.relu": x + 1, "torch.clamp": torch.relu(x + 1)}
    for name, expected in before.items():
        variant = by_name(cards, name)
        assert variant.call.aliases == {"out": "input"} and variant.call.output_names() == ["out"]
        assert torch.equal(capture.samples(variant.key)[0].tensors["input"], expected), name
    assert by_name(cards, "torch.nn.functional.relu").forms[0].keywords == {"inplace": True}
    assert [form.function for form in by_name(cards, "torch.clamp").forms] == ["torch.Tensor.clamp_"]


class Layouts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x.transpose(0, 1)[:, 1:])
        left, right = (x @ self.weight[:, :4]).split(2, dim=-1)
        return torch.cat([left, left * right, left.sum(-1, keepdim=True).expand(-1, -1, 3)], dim=-1) @ torch.ones(7, 2)


def test_samples_come_back_with_bits_strides_and_alignment(tmp_path: Path) -> None:
    capture, _ = record(Layouts(), torch.randn(5, 4, 6))
    paths = ProjectPaths(tmp_path)
    cards = capture.save(paths)
    assert load_operators(paths) == cards
    assert by_name(cards, "torch.cat").call.arguments["tensors"].items[2].stride[-1] == 0, "the expanded one"
    for variant in cards.variants:
        seen, kept = capture.recorder.recording.variants[variant.key], capture.samples(variant.key)
        assert len(variant.samples) == len(kept) >= 1
        for index, sample in enumerate(kept):
            loaded = load_sample(paths, variant, index)
            assert list(loaded) == [name for name, _ in variant.call.tensors()]
            for (name, spec), original in zip(variant.call.tensors(), capture.tensors(sample, seen).values(), strict=True):
                got = tensor_spec(loaded[name])
                assert (got.dtype, got.shape, got.stride, got.align) == (spec.dtype, spec.shape, spec.stride, spec.align)
                assert torch.equal(loaded[name], original)


def test_a_captured_call_runs_again_from_disk(tmp_path: Path) -> None:
    paths = ProjectPaths(tmp_path)
    cards = capture_project(paths, project(FIXTURES / "bench.py"))
    assert by_name(cards, "torch.nn.functional.gelu").modules == ("",)
    gelu = by_name(cards, "torch.nn.functional.gelu")
    (result,) = lookup(gelu.operator).call(materialize(gelu.call, load_sample(paths, gelu, 0)))
    model_input = torch.nn.functional.gelu(load_sample(paths, gelu, 0)["input"])
    assert torch.equal(result, model_input)
    product = by_name(cards, "torch.matmul")
    assert torch.equal(load_sample(paths, product, 0)["input"], result), "the next call's input is this call's result"


def test_plain_model_has_exact_counts_and_weights_by_reference(tmp_path: Path) -> None:
    paths = ProjectPaths(tmp_path)
    messages: list[str] = []
    cards = capture_project(paths, project(FIXTURES / "plain.py"), messages.append)
    counts = {item.operator: item.calls for item in cards.variants if item.operator != "torch.nn.functional.linear"}
    assert counts == {"torch.nn.functional.relu": 1, "torch.mul": 1, "torch.nn.functional.softmax": 1}
    linears = {item.modules: item for item in cards.variants if item.operator == "torch.nn.functional.linear"}
    first = linears[("first",)]
    assert first.call.arguments["weight"].weight == "first.weight"
    assert sorted(path.name.rpartition("-")[0] for path in paths.weights.iterdir()) == [
        "first.bias", "first.weight", "second.bias", "second.weight"]
    assert first.operations == 5 * 16 * (2 * 8 + 1) and first.bytes_moved == 4 * (5 * 8 + 16 * 8 + 16 + 5 * 16)
    assert set(first.statistics) == {"input", "weight", "bias"}
    assert first.floor_us == max(first.bytes_moved / H200.copy_bytes_per_s * 1e6, H200.launch_us)
    assert all(item.time_us > 0 for item in cards.variants) and cards.time_kind == "cpu"
    assert sum(cards.share(item) for item in cards.variants) == pytest.approx(1.0)
    assert any("plain.py" in message for message in messages) and any("recorded 5 calls" in message for message in messages)


class Layers(nn.Module):
    """Three equal layers, one of which is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in [*self.layers, self.layers[0]]:
            x = layer(x)
        return x


def test_the_same_call_on_other_weights_is_the_same_variant() -> None:
    capture, cards = record(Layers(), torch.randn(2, 4), samples=3)
    linear = by_name(cards, "torch.nn.functional.linear")
    assert linear.calls == 4 and linear.modules == ("layers.0", "layers.1", "layers.2") and len(linear.forms) == 1
    assert linear.forms[0].names == ("input", "weight", "bias")
    assert [sample.weights["weight"] for sample in capture.samples(linear.key)] == [f"layers.{i}.weight" for i in range(3)]


def test_the_results_are_those_of_eager_and_nothing_stays_behind() -> None:
    from torch.nn.modules import module as hooks
    from torch.overrides import _get_current_function_mode

    model, x = Layers(), torch.randn(2, 4)
    with torch.no_grad():
        expected = model(x)
    capture, _ = record(model, x)
    assert torch.equal(capture.recorder.forward(lambda: model(x)), expected)
    assert _get_current_function_mode() is None and not hooks._global_forward_pre_hooks and not hooks._global_forward_hooks


class Special(torch.Tensor):
    """A subclass, as quantization libraries have them."""


class Subclasses(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        special = torch.exp(x.as_subclass(Special))
        return torch.mul(x, special.as_subclass(torch.Tensor)) + x.to_sparse().to_dense()


def test_tensors_that_are_more_than_memory_are_left_alone() -> None:
    _, cards = record(Subclasses(), torch.randn(2, 3))
    why = reasons(cards)
    assert "no plain tensor" in why["torch.exp"] and "no plain tensor" in why["torch.Tensor.to_sparse"]
    assert "no kernel can use" in why["torch.Tensor.to_dense"]
    assert {item.operator for item in cards.variants} == {"torch.mul", "torch.add"}


class Mapped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: torch.exp(row) * 2)(x).sum()


def test_calls_inside_a_functorch_transform_are_left_alone() -> None:
    _, cards = record(Mapped(), torch.randn(2, 3))
    assert "no plain tensor" in reasons(cards)["torch.exp"]
    assert {item.operator for item in cards.variants} == {"torch.sum"}


def test_a_call_that_cannot_be_described_does_not_stop_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from forge_tui.engine import recording

    def refuse(*_: object) -> None:
        raise TypeError("what is this")
    monkeypatch.setattr(recording, "describe", refuse)
    _, cards = record(Layers(), torch.randn(2, 4))
    assert reasons(cards)["torch.nn.functional.linear"] == "it cannot be described: what is this" and not cards.variants


def test_recapture_replaces_cleanly(tmp_path: Path) -> None:
    paths = ProjectPaths(tmp_path)
    first = capture_project(paths, project(FIXTURES / "plain.py"))
    files = {path.name for path in paths.captures.rglob("*") if path.is_file()}
    (paths.captures / "notes.txt").write_text("the user's own")
    (paths.captures / ".x.msgpack.1.tmp").write_text("half written")
    second = capture_project(paths, project(FIXTURES / "plain.py"))
    now = {path.name for path in paths.captures.rglob("*") if path.is_file()}
    assert len(now - {"notes.txt"}) == len(files) and not files & now and "notes.txt" in now
    assert {item.key: item.calls for item in first.variants} == {item.key: item.calls for item in second.variants}
    for variant in second.variants:
        load_sample(paths, variant, 0)


def test_a_capture_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forge_tui.engine import capture

    paths = ProjectPaths(tmp_path)
    cards = capture_project(paths, project(FIXTURES / "plain.py"))

    def full_disk(*_: object) -> None:
        raise MissingEnvironment("cannot write: no space left on device")
    monkeypatch.setattr(capture, "save_operators", full_disk)
    with pytest.raises(MissingEnvironment):
        capture_project(paths, project(FIXTURES / "plain.py"))
    assert load_operators(paths) == cards
    for variant in cards.variants:
        load_sample(paths, variant, 0)


def test_inputs_over_the_byte_cap_say_so(tmp_path: Path) -> None:
    paths = ProjectPaths(tmp_path)
    cards = capture_project(paths, project(FIXTURES / "plain.py", byte_cap=200))
    dropped = [item for item in cards.variants if not item.samples]
    assert {item.modules for item in dropped} == {("first",), ("act",), ("second",)}, "80 bytes are kept, 160 and 320 are not"
    assert all(not item.offered and "raise [capture] byte_cap" in item.reason for item in dropped)
    dropped = dropped[0]
    with pytest.raises(ProjectError, match="has 0 samples"):
        load_sample(paths, dropped, 0)


BROKEN = {
    "raises": ("raise KeyError('no such key')", "KeyError"),
    "wrong shapes": ("return self.l(x)", "float32 (2, 3)"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_forward_that_raises_shows_the_users_own_line(case: str, tmp_path: Path) -> None:
    body, said = BROKEN[case]
    (tmp_path / "m.py").write_text(inspect.cleandoc(f"""
        import torch
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.l = torch.nn.Linear(4, 4)
            def forward(self, x):
                {body}
        def build_model():
            return Net()
        def sample_inputs():
            return torch.ones(2, 3)
    """))
    with pytest.raises(ProjectError) as caught:
        capture_project(ProjectPaths(tmp_path), project(tmp_path / "m.py"))
    assert said in caught.value.message and str(caught.value.where).endswith("m.py:7")
    assert f"in forward: {body}" in caught.value.message and "forward(x)" in caught.value.cure
    assert not (tmp_path / "operators.msgpack").exists()


def test_wrong_keyword_is_named(tmp_path: Path) -> None:
    model = LoadedModel(Layers().eval(), "test")
    with pytest.raises(ProjectError, match="unexpected keyword argument 'y'"):
        capture_model(model, [ModelInput((), {"y": torch.ones(2, 4)})], torch.device("cpu"), H200)


def test_weights_in_an_unchanged_safetensors_file_are_not_copied(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from forge_tui.engine.sources import load_model

    state = load_model(ModelConfig("plain.py"), FIXTURES).model.state_dict()
    weights = tmp_path / "w.safetensors"
    save_file({name: value.clone() for name, value in state.items()}, weights)
    config = ProjectConfig(1, ModelConfig(str(FIXTURES / "plain.py"), weights=str(weights)), device=DeviceConfig("host"))
    paths = ProjectPaths(tmp_path / "p")
    cards = capture_project(paths, config)
    first = next(item for item in cards.variants if item.modules == ("first",))
    assert not list(paths.captures.rglob("weights/*"))
    assert torch.equal(load_sample(paths, first, 0)["weight"], state["first.weight"])
    save_file({name: value * 2 for name, value in state.items()}, weights)
    with pytest.raises(ProjectError, match=r"changed since the capture \(first"):
        load_sample(paths, first, 0)
    weights.unlink()
    with pytest.raises(ProjectError, match="cannot be read"):
        load_sample(paths, first, 0)


def test_named_tensors_and_specs_agree_on_nested_arguments() -> None:
    _, cards = record(Layouts(), torch.randn(5, 4, 6))
    cat = by_name(cards, "torch.cat")
    assert [name for name, _ in cat.call.tensors()] == ["tensors[0]", "tensors[1]", "tensors[2]"]
    assert cat.forms[0].names == ("tensors[0]", "tensors[1]", "tensors[2]")
    assert [name for name, _ in named_tensors({"tensors": [torch.ones(1)] * 2})] == ["tensors[0]", "tensors[1]"]
