"""The app in a real pseudo-terminal: bytes on the line, memory, signals, exit codes, what becomes of the engine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.screen_projects import Growing, doctor_cache, launcher_home, many_nodes_project, many_rows_project
from benchmarks.screens import SETTLE_S, measure_reasoning, measure_stall
from benchmarks.terminals import KEY_QUIET_S, LINES, Terminal, terminal

COLOURS = re.compile(rb"\x1b\[[\d;]*?(?:[34][0-7]|9[0-7]|10[0-7]|[34]8;[25][\d;]*)m")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    doctor_cache(folder)
    return folder


def test_a_launcher_of_200_projects_is_painted_in_16_kb_and_then_silent(tmp_path: Path) -> None:
    home = launcher_home(tmp_path, 200)
    with terminal(home=home, cwd=tmp_path) as app:
        app.until("project-000")
        app.quiet(2.0)
        assert len(app.received) <= 16_000
        assert app.read(5.0) == 0, "an idle app sent bytes"
        assert b"?1003h" not in app.received and b"?1000h" not in app.received


def past_the_edge(app: Terminal) -> int:
    """The most bytes of a row down, near the end of the window and over it."""
    for _ in range(LINES - 8):
        os.write(app.handle, b"j")
    app.quiet(KEY_QUIET_S)
    return max(app.press(b"j")[0] for _ in range(10))


def test_keys_in_10000_rows_cost_little(tmp_path: Path, home: Path) -> None:
    root = many_rows_project(tmp_path, 10_000)
    with terminal(str(root), home=home, cwd=tmp_path) as app:
        app.until("operator-")
        app.quiet()
        assert past_the_edge(app) <= 2_000
        assert app.press(b"\x1b[6~")[0] <= 4_000
        app.press(b"G")
        assert "10000/10000" in app.text()


def test_5000_candidates_open_in_little_memory_without_torch(tmp_path: Path, home: Path) -> None:
    root = many_nodes_project(tmp_path, 5_000)
    with terminal(str(root), home=home, cwd=tmp_path) as app:
        app.until("softmax")
        app.quiet(KEY_QUIET_S)
        os.write(app.handle, b"\r")
        app.until("candidate")
        app.quiet(KEY_QUIET_S)
        assert "5000 tried" in app.text()
        app.press(b"g")
        assert past_the_edge(app) <= 5_000  # the window moves, the text beside it too
        assert app.press(b"\x1b[6~")[0] <= 8_000
        assert app.memory_kb() <= 90_000
        assert not app.torch_loaded()


@pytest.mark.parametrize("keys", [b"", b"\r"], ids=["operators", "kernels"])
def test_a_live_run_costs_at_most_6_kb_a_second(tmp_path: Path, home: Path, keys: bytes) -> None:
    growing = Growing(tmp_path)
    with growing, terminal(str(growing.root), home=home, cwd=tmp_path) as app:
        app.until("softmax")
        growing.step()
        app.read(SETTLE_S)
        if keys:
            app.press(keys)
        before, begun = len(app.received), time.monotonic()
        while time.monotonic() - begun < 4.0:
            growing.step()
            app.read(0.25)
        elapsed = time.monotonic() - begun
        assert 0 < (len(app.received) - before) / elapsed <= 6_000 * max(1.0, growing.events / elapsed / 4)


def test_a_resized_terminal_is_painted_whole_and_ctrl_l_mends_what_others_wrote(tmp_path: Path, home: Path) -> None:
    root = many_nodes_project(tmp_path, 30)
    shown = []
    for resized in (True, False):
        size = {} if resized else {"columns": 80, "lines": 24}
        with terminal(str(root), home=home, cwd=tmp_path, **size) as app:
            app.until("softmax")
            app.quiet(KEY_QUIET_S)
            if resized:
                app.resize(80, 24)
                app.quiet()
            shown.append(app.text())
            app.scribble()
            assert "#####" in app.text()
            app.press(b"\x0c")
            assert app.text() == shown[-1]
    assert shown[0] == shown[1] and "####" not in shown[0]


def test_no_colour_is_sent_under_no_color(tmp_path: Path, home: Path) -> None:
    root = many_nodes_project(tmp_path, 5)
    with terminal(str(root), home=home, cwd=tmp_path, NO_COLOR="1") as app:
        app.until("softmax")
        app.press(b"\r")
        app.until("✓ verified")
        assert not COLOURS.findall(app.received)
    with terminal(str(root), home=home, cwd=tmp_path) as app:
        app.until("softmax")
        assert COLOURS.findall(app.received)  # the pattern does find colours


@pytest.mark.parametrize(
    ("environment", "pattern"),
    [
        ({"COLORTERM": "", "TERM": "xterm"}, rb"\x1b\[[\d;]*38;[\d;]*m"),
        ({"COLORTERM": "", "TERM": "xterm-256color"}, rb"\x1b\[[\d;]*38;2;[\d;]*m"),
    ],
    ids=["16", "256"],
)
def test_a_terminal_of_few_colours_gets_no_more(
    tmp_path: Path, home: Path, environment: dict[str, str], pattern: bytes
) -> None:
    with terminal(str(many_nodes_project(tmp_path, 5)), home=home, cwd=tmp_path, **environment) as app:
        app.until("softmax")
        app.quiet(KEY_QUIET_S)
        assert not re.search(pattern, app.received) and COLOURS.search(app.received)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_gives_the_terminal_back_and_has_its_code(tmp_path: Path, home: Path, number: int, code: int) -> None:
    with terminal(str(many_nodes_project(tmp_path, 3)), home=home, cwd=tmp_path) as app:
        app.until("softmax")
        assert app.end(number) == code
        assert b"\x1b[?1049l" in app.received and b"\x1b[?25h" in app.received


def test_a_terminal_that_reads_nothing_does_not_keep_the_app(tmp_path: Path, home: Path) -> None:
    """The pipe is full, the writer waits: the app still ends on SIGTERM."""
    root = many_rows_project(tmp_path, 500)
    with terminal(str(root), home=home, cwd=tmp_path) as app:
        app.until("operator-")
        app.redraw(40, 0.06)
        held = app.unread()
        app.redraw(4, 0.06)
        assert app.unread() == held > 0, "the terminal still took what was sent"
        os.kill(app.pid, signal.SIGTERM)
        deadline = time.monotonic() + 15
        while (ended := os.waitpid(app.pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert ended[0] and os.waitstatus_to_exitcode(ended[1]) == 143


@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=pytest.mark.skipif("FORGE_LONG" not in os.environ, reason="a minute of waiting: FORGE_LONG=1"))])
def test_a_terminal_that_stops_reading_for_a_while_costs_no_event_and_catches_up(
    tmp_path: Path, home: Path, seconds: float
) -> None:
    found = measure_stall(tmp_path, seconds)
    assert found["events_meanwhile"] >= 2 * seconds and found["memory_kb"] <= 90_000
    assert found["bytes_the_app_held"] > 0, "the terminal took all: nothing was stalled"


def test_a_reply_that_streams_costs_at_most_40_kb_a_second(tmp_path: Path, home: Path) -> None:
    found = measure_reasoning(tmp_path, 4.0)
    assert 0 < found["bytes_per_s"] <= 40_000 * max(1.0, found["written_bytes_per_s"] / 2_000)


@pytest.mark.parametrize("how", ["kill", "close"])
def test_an_engine_goes_on_when_its_app_is_gone(tmp_path: Path, home: Path, how: str) -> None:
    """Started by F, in a session of its own: it ends as it would have, by its own journal."""
    example = Path(__file__).parent.parent / "examples/model.py"
    shutil.copy(example, tmp_path / "model.py")
    environment = {**os.environ, "FORGE_HOME": str(home), "PYTHONPATH": os.getcwd()}
    made = [
        sys.executable,
        "-m",
        "forge_tui",
        "new",
        str(tmp_path / "p"),
        "--model",
        str(tmp_path / "model.py"),
        "--device",
        "host",
    ]
    subprocess.run(made, check=True, env=environment, capture_output=True)
    with terminal(str(tmp_path / "p"), home=home, cwd=tmp_path) as app:
        app.until("nothing captured yet")
        os.write(app.handle, b"F")
        app.until("▶ running")
        engine = _holder(app)
        if how == "kill":
            assert app.end(signal.SIGKILL) == -signal.SIGKILL
        else:
            app.close()
            assert app.wait() == 129
        assert _alive(engine), "the engine ended with its app"
    stopped = subprocess.run(
        [sys.executable, "-m", "forge_tui", "stop", str(tmp_path / "p")],
        env=environment,
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert stopped.returncode == 0 and b"free" in stopped.stdout


def _holder(app: Terminal) -> int:
    found = None
    while found is None:
        app.read(0.5)
        found = re.search(r"process (\d+) on", app.text())
    return int(found[1])


def _alive(pid: int) -> bool:
    time.sleep(0.5)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux on this machine")
def test_the_app_works_in_tmux(tmp_path: Path, home: Path) -> None:
    root, socket = many_nodes_project(tmp_path, 5), str(tmp_path / "tmux")

    def tmux(*words: str) -> str:
        environment = {**os.environ, "FORGE_HOME": str(home), "PYTHONPATH": os.getcwd(), "TERM": "xterm-256color"}
        return subprocess.run(
            ["tmux", "-S", socket, *words], env=environment, check=True, capture_output=True, text=True
        ).stdout

    tmux("new-session", "-d", "-x", "100", "-y", "30", f"{sys.executable} -m forge_tui {root}")
    try:
        deadline = time.monotonic() + 60
        while "softmax" not in (shown := tmux("capture-pane", "-p")) and time.monotonic() < deadline:
            time.sleep(0.3)
        tmux("send-keys", "Enter")
        while "verified" not in (shown := tmux("capture-pane", "-p")) or "candidate" not in shown:
            assert time.monotonic() < deadline, shown
            time.sleep(0.3)
    finally:
        tmux("kill-server")
