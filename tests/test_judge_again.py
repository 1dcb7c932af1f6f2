"""Judged again: in a fresh process after the first verdict, and with the seed that a verdict recorded. Real workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from forge_tui.engine.judge.client import JudgeClient, next_seed
from forge_tui.engine.judge.memory import fingerprint
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.judge.selftest import exams, write_project
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import FORMAT, DeviceConfig, ModelConfig, ProjectConfig, create_project
from tests.hostkit import needs_nvrtc

pytestmark = needs_nvrtc
SERVER = str(Path(__file__).with_name("hanging_server.py"))
TEXTS = {exam.name: exam.text for exam in exams()}
OPTIONS = JudgeOptions(repeats=1)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProjectPaths, dict[str, str]]:
    """The calls of the exams; variant keys by the call's name."""
    paths = create_project(tmp_path_factory.mktemp("project") / "p", ProjectConfig(
        format=FORMAT, model=ModelConfig("model.py"), device=DeviceConfig(target="host")))
    return paths, write_project(paths)


def test_a_verified_kernel_is_checked_again_in_a_fresh_process(project: tuple[ProjectPaths, dict[str, str]]) -> None:
    paths, keys = project
    with JudgeClient(paths, "host", options=OPTIONS) as client:
        first = client.judge(keys["relu_in_place"], TEXTS["honest_in_place"], "k.cu")
        before = client.pids()
        again = client.again(keys["relu_in_place"], TEXTS["honest_in_place"], "k.cu", first)
        assert first.verified and again.verified and client.statistics()["workers started"] == 2
        assert len(client.pids()) == 1 and client.pids() != before
    assert again.checks[:-1] == first.checks and again.checks[-1].name == "fresh process"
    assert str(next_seed(first.seed)) in again.checks[-1].detail and next_seed(first.seed) != first.seed


def test_a_difference_in_the_fresh_process_is_a_refusal(project: tuple[ProjectPaths, dict[str, str]]) -> None:
    paths, keys = project
    with JudgeClient(paths, "host", options=OPTIONS, command=[sys.executable, SERVER, "later", str(paths.root)]) as client:
        first = client.judge(keys["relu_in_place"], TEXTS["honest_in_place"], "k.cu")
        assert first.verified
        again = client.again(keys["relu_in_place"], TEXTS["honest_in_place"], "k.cu", first)
    assert again.outcome == "wrong" and again.sentence.startswith("verified, but not when judged again in a fresh process: wrong on")
    assert again.seed == next_seed(first.seed) and not again.checks[-1].passed


def test_a_confirmation_says_what_the_sanitizer_said(project: tuple[ProjectPaths, dict[str, str]]) -> None:
    """On `host` nothing but the interpreter looks, and the verdict says so."""
    paths, keys = project
    with JudgeClient(paths, "host", options=OPTIONS) as client:
        assert client.welcome is not None and not client.welcome.sanitizer
        verdict = client.confirm(keys["relu"], TEXTS["honest_printf"], "k.cu", settings={})
        assert verdict.verified and verdict.checks[-1].name == "sanitizer"
        assert verdict.checks[-1].detail == "not run: the host target checks every access itself"
        faulty = client.confirm(keys["relu"], TEXTS["reads_past_the_end"], "k.cu", settings={})
        assert (faulty.outcome, faulty.fault) == ("fault", "out_of_bounds")
        same = client.judge(keys["relu"], TEXTS["honest_printf"], "k.cu", verdict.seed)
        other = client.judge(keys["relu"], TEXTS["honest_printf"], "k.cu", verdict.seed + 1)
    assert same.checks == verdict.checks[:-1], "the seed alone decides: the same bits of input, the same figures"
    drawn = [(one.inputs, two.inputs) for one, two in zip(same.checks, other.checks, strict=True) if one.name.startswith("draw ")]
    assert sum(one != two for one, two in drawn) >= 7


def evaluated(paths: ProjectPaths, key: str, file: Path, *more: str) -> dict:
    done = subprocess.run([sys.executable, "-m", "forge_tui", "eval", str(paths.root), key, str(file), "--json", *more],
                          capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    verdict = json.loads(done.stdout)
    assert done.returncode == (0 if verdict["outcome"] == "verified" else 2)
    verdict.pop("judged_s")
    return verdict


def test_a_seed_repeats_a_verdict_through_the_command_line(project: tuple[ProjectPaths, dict[str, str]], tmp_path: Path) -> None:
    """Two processes, one seed: the same verdict in every word, the same bits of input."""
    paths, keys = project
    file = tmp_path / "k.cu"
    file.write_text(TEXTS["no_max_subtraction"])
    first = evaluated(paths, keys["softmax"], file)
    assert first["outcome"] == "wrong" and all(check["inputs"] for check in first["checks"] if check["name"].startswith("draw "))
    assert evaluated(paths, keys["softmax"], file, "--seed", str(first["seed"])) == first


def test_a_fingerprint_is_of_bits_not_of_layout() -> None:
    x = torch.randn(1500, 1001)                             # more than one piece
    same = fingerprint({"input": x, "weight": x[0]})
    assert same == fingerprint({"weight": x[0].clone(), "input": x.t().contiguous().t()}) and len(same) == 16
    one = x.clone()
    one[1499, 1000] = torch.nextafter(one[1499, 1000], torch.tensor(9.0))
    assert fingerprint({"input": one, "weight": x[0]}) != same
    swapped = x.clone()
    swapped[0, 0], swapped[700, 3] = x[700, 3], x[0, 0]
    assert fingerprint({"input": swapped, "weight": x[0]}) != same
    zeros = torch.zeros(5)
    assert fingerprint({"x": zeros}) != fingerprint({"x": -zeros}) != fingerprint({"y": -zeros})
    for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.int64, torch.complex64, torch.complex128, torch.float8_e5m2):
        assert fingerprint({"x": torch.ones(3).to(dtype)}) != fingerprint({"x": torch.zeros(3).to(dtype)})
    assert fingerprint({"x": x[:1].expand(4, 1001)}) == fingerprint({"x": x[:1].expand(4, 1001)})
    assert fingerprint({}) == fingerprint({}) and fingerprint({"x": torch.zeros(0)})
