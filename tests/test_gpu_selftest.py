"""The exams of `forge-tui selftest` on a GPU: a line for each and both counts. Needs a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest

from forge_tui.engine.judge.selftest import ExamResult, exams, run_selftest

pytestmark = pytest.mark.gpu


def test_every_exam_on_a_gpu() -> None:
    """Faulty kernels refused for the stated reason, honest ones accepted; workers that a kernel ends are replaced."""
    begun = time.monotonic()
    notes: list[str] = []

    def tell(result: ExamResult) -> None:
        word = "ok" if result.passed else "left out" if not result.shown else "NOT OK"
        print(f"{time.monotonic() - begun:6.1f} s  {word:8} {result.name:28} {result.outcome:9} {result.problem or result.sentence}")

    report = run_selftest("cuda:0", on_result=tell, on_note=lambda text: notes.append(text) or print("      note:", text))
    print(f"{report.target}: {report.summary()}")
    assert report.target == "cuda" and len(report.results) == len(exams())
    assert report.passed, [f"{result.name}: {result.problem}" for result in report.results if result.shown and not result.passed]
    replaced = {name for note in notes for name in re.findall(r"(\w+)\.cu", note)}
    assert {"endless", "misaligned"} <= replaced, "a device that answers nothing any more costs its worker"


def test_the_command_and_its_exit_code(tmp_path) -> None:
    """One exam whose worker must be replaced, through the command line."""
    done = subprocess.run([sys.executable, "-m", "forge_tui", "selftest", "--device", "cuda:0", "--only", "endless"],
                          capture_output=True, text=True, check=False, env={**os.environ, "FORGE_HOME": str(tmp_path)})
    print(done.stderr, done.stdout)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "cuda: 1 of 1 faulty kernels refused for the stated reason, 0 of 0 honest kernels accepted\n"


def test_the_comparison_kernels_agree_with_torch_on_this_device() -> None:
    from forge_tui.cuda.gpu import GpuTarget
    from forge_tui.engine.judge.fusedcheck import self_check, usable

    target = GpuTarget(0, measure=False)
    begun = time.monotonic()
    assert self_check(target) == ""
    print(f"self-check of the comparison kernels: {time.monotonic() - begun:.2f} s")
    assert usable(target) and target.lost is None


def test_comparison_kernels_that_count_wrong_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from forge_tui.cuda.gpu import GpuTarget
    from forge_tui.engine.judge import fused
    from forge_tui.engine.judge.fusedcheck import problem
    from forge_tui.engine.judge.judge import judge_text
    from forge_tui.engine.judge.options import JudgeOptions
    from forge_tui.engine.judge.probe import CONSTANT, HONEST, probe_variant

    source = fused._source()
    monkeypatch.setattr(fused, "_source", lambda: source.replace("- 1022", "- 1023"))
    target = GpuTarget(0, measure=False)
    print(problem(target))
    assert "float64" in problem(target) and target.lost is None
    variant, sample = probe_variant()
    sample = {name: tensor.cuda() for name, tensor in sample.items()}
    for text, outcome in ((HONEST, "verified"), (CONSTANT, "wrong")):
        verdict = judge_text(text, "k.cu", variant, [sample], target, options=JudgeOptions(time=False))
        assert verdict.outcome == outcome, verdict.sentence


def test_builtin_winners_pass_the_sanitizer() -> None:
    """What a confirmation does: no honest kernel may be refused for what the sanitizer says of it."""
    from forge_tui.cuda.gpu import GpuTarget
    from forge_tui.cuda.single import find_tool
    from forge_tui.engine.builtin.catalog import kernels_for
    from forge_tui.engine.judge.judge import judge_text
    from forge_tui.engine.judge.memory import to_device
    from forge_tui.engine.judge.options import JudgeOptions
    from forge_tui.engine.judge.selftest import CALLS

    if find_tool("compute-sanitizer") is None:
        pytest.skip("compute-sanitizer is not installed")
    target = GpuTarget(0, measure=False)
    refused = []
    for call in ("softmax", "layer_norm", "group_norm_one_group", "relu"):
        variant, sample = CALLS[call]()
        kernel = kernels_for(variant.call)[0]
        begun = time.monotonic()
        verdict = judge_text(kernel.text, f"{kernel.name}.cu", variant,
                             [{name: to_device(tensor, "cuda") for name, tensor in sample.items()}], target,
                             options=JudgeOptions(tune_points=1, time=False, sanitize=True))
        looks = [f"{check.name}: {check.detail or 'clean'}" for check in verdict.checks if check.name.startswith("sanitizer")]
        print(f"{call:22} {kernel.name:18} {verdict.outcome} in {time.monotonic() - begun:.1f} s; {'; '.join(looks)}")
        if not verdict.verified:
            refused.append(f"{kernel.name} on {call}: {verdict.sentence}")
    assert not refused, refused
