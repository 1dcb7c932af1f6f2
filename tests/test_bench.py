"""The whole-model proof on the host target: agreement with eager and float64, kernels that do not belong, the command."""

from __future__ import annotations

import gc
import signal
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from command_line import forge
from hostkit import needs_nvrtc
from packagekit import DoublingBackend, Model, aligned, write_package
from torch import nn
from torch.nn import functional as F

from forge_tui.engine.bench.agreement import Agreement, compare
from forge_tui.engine.bench.bench import Bench, BenchResult
from forge_tui.engine.bench.heldout import held_out
from forge_tui.engine.bench.render import render
from forge_tui.engine.bench.rounds import Contender, _contender, in_stages
from forge_tui.engine.inputs import ModelInput
from forge_tui.engine.package.runtime import Entry, Package
from forge_tui.engine.sources import LoadedModel
from forge_tui.errors import Interrupted


class Close(DoublingBackend):
    """Off by a part of its result: of right kernels the last digits but one."""

    def __init__(self, error: float = 1e-7) -> None:
        self.error = error

    def prepare(self, entry: Entry, device: torch.device) -> Any:
        return lambda tensors: tensors[-1].copy_(tensors[0].clamp(min=0) * (1 + self.error))


class Chaotic(nn.Module):
    """The last digits of its input are the first of its output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(F.relu(x) * 1e9)


def made(tmp_path: Path, backend: DoublingBackend, model: nn.Module | None = None) -> Bench:
    item = ModelInput((aligned(4, 8),), label="test")
    return Bench(LoadedModel((model or Model()).eval(), "test"), [item], Package(write_package(tmp_path / "p"), backend),
                 torch.device("cpu"), seed=3)


def test_a_right_kernel_is_kept(tmp_path: Path) -> None:
    result = made(tmp_path, Close()).run(rounds=1)
    assert result.accepted and result.time_kind == "none" and result.contenders == ()
    agreement = result.agreement
    assert agreement.within and 0 < agreement.forged_error < 1e-6 and agreement.eager_float64_error == 0
    assert agreement.forged_float64_error == pytest.approx(agreement.forged_error)
    assert [(kernel.status, kernel.calls) for kernel in result.kernels] == [("kept", 4)]
    assert "accepted" in render(result)


def test_a_wrong_kernel_is_found_dropped_and_said(tmp_path: Path) -> None:
    bench = made(tmp_path, DoublingBackend())
    result = bench.run(rounds=1)
    assert not result.accepted and result.reason == "every kernel was dropped"
    assert [kernel.status for kernel in result.kernels] == ["dropped"]
    assert "off by" in result.kernels[0].reason and list(bench.dropped) == [result.kernels[0].variant]
    with torch.no_grad():
        x = aligned(4, 8)
        assert torch.equal(bench.package.apply(bench.model)(x), x.clamp(min=0)), "it does not run any more"


def test_a_kernel_whose_calls_pass_and_whose_model_does_not_is_found_by_leaving_it_out(tmp_path: Path) -> None:
    result = made(tmp_path, Close(3e-6)).run(rounds=1)
    assert not result.accepted and "without it by" in result.kernels[0].reason


@pytest.mark.parametrize(("error", "status"), [(1e-7, "kept"), (1e-3, "dropped")])
def test_where_rounding_grows_to_the_size_of_the_outputs_calls_tell(tmp_path: Path, error: float, status: str) -> None:
    result = made(tmp_path, Close(error), Chaotic()).run(rounds=1)
    assert result.agreement.eager_float64_error > 0.25 and "from float64" in result.agreement.untelling
    assert [kernel.status for kernel in result.kernels] == [status] and result.accepted == (status == "kept")
    if result.accepted:
        assert result.agreement.calls == 2 and 0 < result.agreement.call_error < 1e-6
        assert "outputs cannot tell" in result.reason and "2 calls of kernels" in render(result)


def test_what_a_failed_copy_in_float64_held_is_given_back(tmp_path: Path) -> None:
    alive: list[weakref.ref[nn.Module]] = []

    class Big(Model):
        def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
            half = Model()
            alive.append(weakref.ref(half))
            raise torch.OutOfMemoryError("no room for the other half")

    bench = made(tmp_path, Close(), Big())
    with bench._float64() as float64:
        gc.collect()
        assert float64 is None and [item() for item in alive] == [None]
    assert bench.run(rounds=1).accepted


class Noisy(nn.Module):
    """Another result each time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x) + torch.randn_like(x)


@pytest.mark.parametrize(("error", "status"), [(1e-7, "kept"), (1e-3, "dropped")])
def test_a_model_of_which_no_two_outputs_are_alike_blames_no_kernel_for_that(tmp_path: Path, error: float, status: str) -> None:
    result = made(tmp_path, Close(error), Noisy()).run(rounds=1)
    assert [kernel.status for kernel in result.kernels] == [status] and result.accepted == (status == "kept")
    assert not result.accepted or "from eager run once more" in result.reason


def test_a_kernel_no_call_comes_to_is_said(tmp_path: Path) -> None:
    item = ModelInput((aligned(4, 8),), label="test")
    package = Package(write_package(tmp_path / "p"), Close())
    result = Bench(LoadedModel(nn.Tanh(), "test"), [item], package, torch.device("cpu"), seed=3).run(rounds=1)
    assert [kernel.status for kernel in result.kernels] == ["not reached"]
    assert not result.accepted and "no kernel ran" in result.reason


def test_held_out_inputs_keep_the_shape_and_the_kind_of_values() -> None:
    ids, mask, values = torch.arange(10).reshape(2, 5), torch.ones(2, 5, dtype=torch.int64), torch.randn(4, 6).t()
    item = ModelInput((values,), {"input_ids": ids, "attention_mask": mask}, label="test")
    fresh, again = held_out(item, 7), held_out(item, 7)
    assert not torch.equal(fresh.args[0], values) and torch.equal(fresh.args[0], again.args[0])
    assert fresh.args[0].stride() == values.stride() and torch.equal(fresh.args[0].flatten().sort()[0], values.flatten().sort()[0])
    assert torch.equal(fresh.kwargs["input_ids"].flatten().sort()[0], ids.flatten()) and fresh.kwargs["attention_mask"] is mask


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 11)

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.head(self.embedding(input_ids))}


def test_language_models_are_compared_over_enough_positions() -> None:
    model = Language()
    item = ModelInput((), {"input_ids": torch.arange(40).reshape(2, 20) % 11}, label="test")

    def run(item: ModelInput) -> Any:
        return model(**item.kwargs)

    def shifted(item: ModelInput) -> Any:
        return {"logits": run(item)["logits"].roll(1, dims=-1)}

    with torch.no_grad():
        same, other = compare([item], 5, run, run, None), compare([item], 5, run, shifted, None)
    assert same.positions >= 512 and same.top1 == 1.0 and same.loss_eager == same.loss_forged and same.within
    assert other.top1 == 0.0 and other.loss_eager != other.loss_forged and not other.within
    logits = torch.cat([model(**held_out(item, 5 + number).kwargs)["logits"][:, :-1] for number in range(13)])
    targets = torch.cat([held_out(item, 5 + number).kwargs["input_ids"][:, 1:] for number in range(13)])
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert same.loss_eager == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(("forged", "within"), [(2e-7, True), (3e-6, False), (float("inf"), False)])
def test_bounds_go_by_the_distance_from_float64(forged: float, within: bool) -> None:
    assert Agreement(1e-6, 1e-7, forged, 2 * 1e-7 + 4 * 1.2e-7, 1, 0).within == within


def test_contenders_are_compared_within_rounds() -> None:
    eager = [100.0, 200.0, 100.0, 200.0] * 5
    item = _contender("forged", [value / 2 for value in eager], eager, 7, "")
    assert item.speedup == pytest.approx(2.0) and item.speedup_interval[0] > 1.9, "drift that both see cancels"
    assert _contender("compile", None, eager, None, "no compiler") == Contender("compile", None, note="no compiler")


def test_what_was_measured_before_an_interruption_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Contender("forged", 2.0), Contender("forged", 3.0)

    def interrupted() -> list[Contender]:
        raise Interrupted(signal.SIGTERM)

    def swallowed() -> list[Contender]:
        monkeypatch.setattr(Interrupted, "received", signal.SIGTERM)
        return [Contender("torch.compile", None, note="an error of a library's own")]

    said: list[str] = []
    assert in_stages([lambda: [first], lambda: [second]], said.append) == [second] and not said
    assert in_stages([lambda: [first], interrupted, lambda: [second]], said.append) == [first] and said
    with pytest.raises(KeyboardInterrupt):
        in_stages([interrupted, lambda: [second]])
    assert in_stages([lambda: [first], swallowed, lambda: [second]])[0] == first


@needs_nvrtc
@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("""
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
def build_model(): return Net()
def sample_inputs(): return (torch.randn(8, 32),)
""")
    ran = forge("--run", "net.py", "--device", "host", "--iterations", "1", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    result = forge("bench", "net-forge", "--json", "--seed", "1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    document = msgspec.json.decode(result.stdout, type=BenchResult)
    assert document.accepted and document.kernels[0].calls == 4 and document.agreement.within
    missing = forge("bench", "net-forge", "--package", "nowhere", cwd=tmp_path)
    assert missing.returncode == 2 and "no package to bench" in missing.stderr
    (module,) = (tmp_path / "net-forge" / "packages").glob("*/forged_*")
    inner = forge("bench", "net-forge", "--package", module, "--json", cwd=tmp_path)
    assert inner.returncode == 0 and msgspec.json.decode(inner.stdout, type=BenchResult).accepted
    entry = next((module / "entries").iterdir())
    entry.write_text(entry.read_text() + " ")
    damaged = forge("bench", "net-forge", cwd=tmp_path)
    assert damaged.returncode == 2 and "SHA-256 differs" in damaged.stderr and "fix: " in damaged.stderr, damaged.stderr


@pytest.mark.gpu
def test_the_command_on_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("""
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(torch.relu(x), dim=-1)
def build_model(): return Net()
def sample_inputs(): return (torch.randn(512, 4096),)
""")
    ran = forge("--run", "net.py", "--device", "cuda:0", "--iterations", "1", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    exported = forge("export", "net-forge", "--select", "all", "--output", "out", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    for more, names in (((), ["eager", "forged", "torch.compile", "forged under compile"]), (("--no-compile",), ["eager", "forged"])):
        result = forge("bench", "net-forge", "--package", "out", "--json", "--rounds", "3", "--no-autotune", *more, cwd=tmp_path)
        document = msgspec.json.decode(result.stdout, type=BenchResult)
        assert [item.name for item in document.contenders] == names and all(item.us for item in document.contenders)
        assert document.agreement.calls and document.agreement.within
