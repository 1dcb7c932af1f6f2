"""The exams that ship with Forge, on the host target: each faulty kernel refused for its reason, each honest one
accepted."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from forge_tui.cuda.host.target import HostTarget
from forge_tui.engine.judge.selftest import CALLS, ExamResult, SelftestReport, exams, run_selftest, take

EXAMS = exams()
TARGET = HostTarget(budget=20_000)
"""Instructions a thread may execute: honest exams stay below a thousand, and the endless one ends soon."""


def test_the_exams_are_complete() -> None:
    assert sum(exam.honest for exam in EXAMS) >= 10
    assert sum(not exam.honest for exam in EXAMS) >= 30
    assert {exam.call for exam in EXAMS} == set(CALLS)
    assert all(exam.caught for exam in EXAMS if not exam.honest)


@pytest.mark.parametrize("exam", EXAMS, ids=lambda exam: exam.name)
def test_exam(exam) -> None:
    result = take(exam, TARGET)
    assert result.passed, result.problem


def test_a_report_counts_both_kinds() -> None:
    good = ExamResult("a", True, True, "verified", "")
    bad = ExamResult("b", False, False, "verified", "", "verified instead of wrong")
    report = SelftestReport("host", (good, bad))
    assert not report.passed
    assert report.summary() == "0 of 1 faulty kernels refused for the stated reason, 1 of 1 honest kernels accepted"


def test_the_command_judges_in_a_worker_and_says_both_counts(tmp_path) -> None:
    """Three exams of each kind through the command line; the exit code tells whether all were right."""
    done = subprocess.run([sys.executable, "-m", "forge_tui", "selftest", "--device", "host", "--only", "honest_in_place"],
                          capture_output=True, text=True, check=False, env={**os.environ, "FORGE_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("host: 0 of 0 faulty kernels refused for the stated reason, 1 of 1 honest kernels accepted\n")
    report = run_selftest("host", "bias")
    assert report.passed and [result.outcome for result in report.results] == ["wrong"]
