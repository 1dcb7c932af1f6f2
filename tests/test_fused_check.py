"""The comparison kernels' self-check: it passes what is right, names what is not, and torch compares where it fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from forge_tui.cuda.host.target import HostTarget
from forge_tui.engine.judge import fused, fusedcheck
from forge_tui.engine.judge.client import JudgeClient
from forge_tui.engine.judge.fusedcheck import known, self_check, usable
from forge_tui.engine.judge.reference import compare
from forge_tui.engine.judge.selftest import exams, variant_of, write_project
from forge_tui.store.paths import ProjectPaths
from tests.fused_server import DeviceLike
from tests.hostkit import needs_nvrtc

pytestmark = needs_nvrtc
SOURCE = fused._source()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two dtypes of one shape: the interpreter runs every thread. On a GPU all are taken, in tests/test_gpu_selftest.py."""
    monkeypatch.setattr(fusedcheck, "SHAPES", ((3, 40),))
    monkeypatch.setattr(fusedcheck, "DTYPES", (torch.bfloat16, torch.int32))


def test_the_kernels_as_shipped_pass() -> None:
    target = HostTarget()
    assert self_check(target) == "" and usable(target)


@pytest.mark.parametrize(("right", "wrong"), [
    ("- 1022", "- 1023"),                                                   # every class one too low
    ("!(is_nan(own) && is_nan(got))", "true"),                              # NaN where eager has it is a difference
    ("e.error = e.finite ? fabs(got - e.truth) : 0.0", "e.error = 0.0"),    # no error is ever seen
    ("atomicMin(differing,", "atomicMax(differing,"),                       # another element is named
    ("if (moved != nullptr", "if (false"),                                  # an operator that magnifies is not seen
    ("== worst[kind] &&", "!= worst[kind] &&"),                             # the worst element is another one
    ("s_counts + kind, 1u", "s_counts + kind, 2u"),                         # elements count twice
])
def test_a_kernel_that_counts_wrong_is_named(monkeypatch: pytest.MonkeyPatch, right: str, wrong: str) -> None:
    assert SOURCE.count(right) == 1, right
    monkeypatch.setattr(fused, "_source", lambda: SOURCE.replace(right, wrong))
    assert "bfloat16: " in self_check(HostTarget())


def test_what_does_not_build_or_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_source", lambda: SOURCE + "\nnonsense")
    assert "the rounded truth, bfloat16: " in self_check(HostTarget())
    monkeypatch.setattr(fused, "_source", lambda: SOURCE.replace("candidate[at]", "candidate[at + (1ll << 40)]", 1))
    assert "the rounded truth, bfloat16: " in self_check(HostTarget())


def test_the_known_results_are_right_and_wrong_ones() -> None:
    from forge_tui.engine.judge.tolerance import Comparer

    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int32):
        outcomes = {}
        for item in known(dtype, torch.device("cpu")):
            comparer = Comparer("out", item.eager, item.candidate)
            comparer.add((), item.truth, item.moved)
            outcomes[item.name] = comparer.result().passed
            values = item.truth
        right = {"equal integers"} if dtype == torch.int32 else {"the rounded truth", "zeros of the other sign", "an operator that magnifies"}
        assert {name for name, passed in outcomes.items() if passed} == right
        if dtype != torch.int32:
            assert values.isnan().any() and values.isinf().sum() == 2 and (values == 0).sum() == 2


def test_torch_compares_where_the_kernels_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same verdict by either way; the kernels are not asked again."""
    variant, sample = variant_of("torch.nn.functional.relu", {"input": torch.randn(3, 40).bfloat16()})
    own = (torch.relu(sample["input"]),)
    wrong = (own[0] * 1.5,)
    good, broken = DeviceLike(), DeviceLike()
    by_kernels = compare(variant.call, sample, own, wrong, target=good)
    assert good.launched and not by_kernels[0].passed
    monkeypatch.setattr(fused, "_source", lambda: SOURCE.replace("- 1022", "- 1023"))
    assert not usable(broken)
    launched = broken.launched
    by_torch = compare(variant.call, sample, own, wrong, target=broken)
    assert broken.launched == launched and by_torch[0].sentence == by_kernels[0].sentence


@pytest.mark.parametrize("kind", ["wrong", "fatal"])
def test_a_worker_says_so_and_judges_on(tmp_path: Path, kind: str) -> None:
    """A real worker whose comparison kernels count wrong, or end its device's context: then another one starts without them."""
    paths = ProjectPaths(tmp_path)
    keys = write_project(paths)
    texts = {exam.name: exam.text for exam in exams()}
    notes: list[str] = []
    server = str(Path(__file__).with_name("fused_server.py"))
    with JudgeClient(paths, "host", on_note=notes.append, command=[sys.executable, server, kind, str(tmp_path)]) as client:
        assert client.statistics()["workers started"] == (2 if kind == "fatal" else 1)
        assert client.judge(keys["relu_in_place"], texts["honest_in_place"], "k.cu").verified
    assert len(notes) == 1 and "compared by torch" in notes[0] and ("ended a worker" in notes[0]) == (kind == "fatal")
    assert "compared by torch" in (paths.logs / "worker.log").read_text()
