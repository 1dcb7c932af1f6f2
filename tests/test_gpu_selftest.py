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
