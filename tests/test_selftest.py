"""The exams that ship with Forge, on the host target: each faulty kernel refused for its reason, each honest one
accepted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forge_tui.cuda.host.target import HostTarget
from forge_tui.engine.judge.selftest import CALLS, ExamResult, SelftestReport, exams, grade, hidden, run_selftest, take
from forge_tui.engine.judge.verdict import Check, Verdict

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


SERVER = str(Path(__file__).with_name("hanging_server.py"))


def test_a_worker_that_hangs_is_ended_and_the_exams_go_on() -> None:
    """The path that an endless kernel takes where the worker itself cannot answer any more: a real process, stopped in a launch."""
    notes: list[str] = []
    report = run_selftest("host", "es", on_note=notes.append, deadline_s=8.0,
                          command=lambda paths: [sys.executable, SERVER, "hang", str(paths.root)])
    endless = next(result for result in report.results if result.name == "endless")
    assert endless.passed and endless.outcome == "fault" and "was killed" in endless.sentence
    assert report.passed, [result.problem for result in report.results if not result.passed]
    faulty = [result for result in report.results if not result.honest]
    honest = [result for result in report.results if result.honest]
    assert len(faulty) >= 5 and len(honest) >= 10 and faulty.index(endless) < len(faulty) - 1, "others come after it"
    assert report.summary() == (f"{len(faulty)} of {len(faulty)} faulty kernels refused for the stated reason, "
                                f"{len(honest)} of {len(honest)} honest kernels accepted")
    assert len(notes) == 1 and "endless.cu" in notes[0] and "replaced" in notes[0]


def test_a_judge_that_is_wrong_ends_in_exit_code_1(tmp_path) -> None:
    """An honest kernel refused, through the command line: the count says so, and the line names it."""
    done = subprocess.run([sys.executable, "-m", "forge_tui", "selftest", "--device", "host", "--only", "honest_in_place"],
                          capture_output=True, text=True, check=False,
                          env={**os.environ, "FORGE_HOME": str(tmp_path), "FORGE_WORKER_PREFIX": f"{sys.executable} {SERVER} corrupt"})
    assert done.returncode == 1, done.stderr
    assert done.stdout == "host: 0 of 0 faulty kernels refused for the stated reason, 0 of 1 honest kernels accepted\n"
    assert "NOT OK" in done.stderr and "wrong instead of verified" in done.stderr


def test_what_only_the_sanitizer_shows_is_left_out_where_it_cannot_run() -> None:
    exam = next(exam for exam in EXAMS if exam.name == "shared_overrun")
    assert exam.sanitizer("cuda") and not exam.sanitizer("host")
    assert hidden(exam, "host", False) is None and hidden(exam, "cuda", True) is None
    missing = hidden(exam, "cuda", False)
    assert missing is not None and not missing.shown

    def judged(*checks: Check) -> ExamResult:
        return grade(exam, Verdict("verified", "right", checks), "cuda")

    failed = judged(Check("sanitizer memcheck", True, detail="not run: memcheck failed with status 1"))
    assert not failed.shown and "memcheck failed" in failed.sentence
    clean = judged(Check("sanitizer memcheck", True))
    assert clean.shown and not clean.passed
    found = grade(exam, Verdict("fault", "accesses memory out of bounds", fault="out_of_bounds"), "cuda")
    assert found.shown and found.passed
    report = SelftestReport("cuda", (missing, found))
    assert report.passed and report.summary() == (
        "1 of 1 faulty kernels refused for the stated reason, 0 of 0 honest kernels accepted, "
        "1 left out: compute-sanitizer, which alone can show it, cannot run here")


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
