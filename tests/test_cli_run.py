"""`--run` as a process: streams, documents, going on, detaching, stopping, the lock. The model's one operator has no builtin
kernel, so nothing is judged and a run takes as long as importing torch does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from command_line import COMMAND, environment, forge

from forge_tui.engine import events
from forge_tui.engine.document import SCHEMA_VERSION, Document
from forge_tui.engine.state import load_state
from forge_tui.store.lock import ProjectLock, current_holder
from forge_tui.store.paths import ProjectPaths

MODEL = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.cumprod(x, -1)
def build_model(): return Model()
def sample_inputs(): return (torch.randn(4, 8),)
"""
SLEEPER = f"command:{sys.executable} -c 'import time; time.sleep(600)'"
"""A provider that never answers."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "p"
    root.mkdir()
    (root / "model.py").write_text(MODEL)
    (root / "project.toml").write_text('format = 1\n[model]\nsource = "model.py"\n[device]\ntarget = "host"\n')
    return root


def last_event(root: Path) -> events.AnyEvent | None:
    return load_state(ProjectPaths(root)).ended


def test_a_source_gets_a_project_and_the_next_run_finds_it(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    first = forge("--run", "net.py", "--device", "host", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "made the project net-forge for net.py" in first.stderr
    assert "cumprod" in first.stdout and str(tmp_path / "net-forge") in first.stdout
    assert "captured 1 operator variants" in first.stderr
    again = forge("--run", "net.py", "--device", "host", "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "made the project" not in again.stderr and "loading" not in again.stderr, "captured once"
    document = msgspec.json.decode(again.stdout, type=Document)
    assert (document.schema_version, document.status, document.time_kind) == (SCHEMA_VERSION, "done", "modelled")
    assert [item.operator for item in document.operators] == ["torch.cumprod"]
    assert document.operators[0].status == "skipped" and "no kernel for this operator ships" in document.operators[0].reason
    assert document.cost_usd == 0 and document.error is None and document.package is None
    shown = forge("show", "net-forge", "--json", cwd=tmp_path)
    assert msgspec.json.decode(shown.stdout, type=Document).operators == document.operators
    assert "cumprod(input: float32[4, 8], dim=-1" in forge("show", "net-forge", "cumprod", cwd=tmp_path).stdout
    nothing = forge("show", "net-forge", "cumprod", "best", cwd=tmp_path)
    assert nothing.returncode == 2 and "nothing was tried" in nothing.stderr
    wrong = forge("show", "net-forge", "softmax", cwd=tmp_path)
    assert wrong.returncode == 2 and "there are torch.cumprod" in wrong.stderr
    export = forge("export", "net-forge", cwd=tmp_path)
    assert export.returncode == 2 and "nothing to export" in export.stderr


def test_events_are_json_lines_of_the_journal(tmp_path: Path, root: Path) -> None:
    result = forge("--run", "p", "--events", "--seed", "7", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    seen = [msgspec.json.decode(line, type=events.AnyEvent) for line in result.stdout.splitlines()]
    assert isinstance(seen[0], events.RunStarted) and seen[0].seed == 7
    assert isinstance(seen[-1], events.RunEnded) and seen[-1].exit_code == 0
    assert load_state(ProjectPaths(root)).count == len(seen)


def test_a_detached_run_outlives_its_command(tmp_path: Path, root: Path) -> None:
    result = forge("--run", "p", "--provider", SLEEPER, "--detach", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    holder = current_holder(ProjectPaths(root))
    assert holder and result.stdout.startswith(f"process {holder.pid} runs p; log: p/logs/run-")
    held = forge("--run", "p", cwd=tmp_path)
    assert held.returncode == 6 and f"process {holder.pid} on " in held.stderr and "forge-tui stop" in held.stderr
    stopped = forge("stop", "p", cwd=tmp_path)
    assert (stopped.returncode, stopped.stdout) == (0, "p is free\n"), stopped.stderr
    ended = last_event(root)
    assert ended and (ended.status, ended.exit_code) == ("interrupted", 143), ended.reason


def test_a_detached_run_that_cannot_begin_says_why(tmp_path: Path, root: Path) -> None:
    with ProjectLock(ProjectPaths(root)):
        result = forge("--run", "p", "--detach", cwd=tmp_path)
    assert result.returncode == 6 and "another run holds this project" in result.stderr and result.stdout == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_and_ends_with_its_code(tmp_path: Path, root: Path, number: signal.Signals) -> None:
    running = subprocess.Popen([*COMMAND, "--run", "p", "--provider", SLEEPER, "--json"], cwd=tmp_path, text=True,
                               env=environment(tmp_path / "home"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for_question(root)
    running.send_signal(number)
    output, errors = running.communicate(timeout=60)
    assert running.returncode == 128 + number, errors
    assert json.loads(output)["status"] == "interrupted"
    assert "Traceback" not in errors
    ended = last_event(root)
    assert ended and (ended.status, ended.exit_code) == ("interrupted", 128 + number)


SWALLOWING = """
import pathlib, time, torch
class Model(torch.nn.Module):
    def forward(self, x):
        pathlib.Path("busy").touch()
        try:
            time.sleep(0 if pathlib.Path("seen").exists() else 600)
        except BaseException as error:
            pathlib.Path("seen").touch()
            {caught}
        return torch.cumprod(x, -1)
def build_model(): return Model()
def sample_inputs(): return (torch.randn(4, 8),)
"""


@pytest.mark.parametrize("caught", ["pass", "raise RuntimeError('something else')"])
def test_a_signal_that_the_model_swallows_still_ends_the_run(tmp_path: Path, root: Path, caught: str) -> None:
    """Libraries' import hooks and destructors do the same, at times."""
    (root / "model.py").write_text(SWALLOWING.format(caught=caught))
    running = subprocess.Popen([*COMMAND, "--run", "p", "--provider", SLEEPER], cwd=tmp_path, text=True,
                               env=environment(tmp_path / "home"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not (tmp_path / "busy").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    output, errors = running.communicate(timeout=120)
    assert running.returncode == 143, errors
    ended = last_event(root)
    assert ended and (ended.status, ended.exit_code) == ("interrupted", 143), ended.reason


def wait_for_question(root: Path) -> None:
    """Until the provider is being asked."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        state = load_state(ProjectPaths(root))
        if any(operator.tree.nodes for operator in state.operators.values()):
            return
        time.sleep(0.05)
    raise AssertionError("no question was asked")


def test_a_time_limit_is_resumable(tmp_path: Path, root: Path) -> None:
    result = forge("--run", "p", "--provider", SLEEPER, "--time-limit", "1s", cwd=tmp_path)
    assert result.returncode == 5, result.stderr
    assert "forge-tui --run p" in result.stderr


def test_missing_replies_are_waited_for_outside(tmp_path: Path, root: Path) -> None:
    result = forge("--run", "p", "--provider", "exchange", "--iterations", "1", "--json", cwd=tmp_path)
    assert result.returncode == 75, result.stderr
    assert json.loads(result.stdout)["status"] == "waiting"
    assert list(ProjectPaths(root).requests.iterdir())


def test_wrong_names_are_refused_with_what_there_is(tmp_path: Path, root: Path) -> None:
    for option, value, said in (("--provider", "openia", "builtin"), ("--policy", "utc", "uct"), ("--ops", "cumprd", "cumprod")):
        result = forge("--run", "p", option, value, cwd=tmp_path)
        assert result.returncode == 2 and value in result.stderr and said in result.stderr, result.stderr


@pytest.mark.parametrize(("kind", "words"), [("modelled", "on a machine with a GPU; then: import forged_net;"), ("device", "   then: import forged_net;")])
def test_the_next_step_says_where_a_package_runs(tmp_path: Path, kind: str, words: str) -> None:
    """On `host` the kernels were interpreted: the package that was written for them needs a GPU all the same."""
    from forge_tui.commands import _next_steps

    (tmp_path / "out" / "forged_net").mkdir(parents=True)
    (tmp_path / "out" / "forged_net" / "manifest.toml").touch()
    document = Document(SCHEMA_VERSION, "done", str(tmp_path), "", kind, 1.0, 0.0, 0, str(tmp_path / "out"), None, ())
    line = next(line for line in _next_steps(ProjectPaths(tmp_path), document).splitlines() if "PYTHONPATH" in line)
    assert words in line and ("GPU" in line) == (kind == "modelled")
