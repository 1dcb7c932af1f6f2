"""The command line as a person meets it: exit codes, messages, streams, signals. Every case is a real process."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import COMMAND, ROOT, environment, forge

from forge_tui import cli
from forge_tui.cli import NOT_YET, PARSERS, duration
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import load_project

MODEL = "import torch\ndef build_model(): return torch.nn.Softmax(-1)\ndef sample_inputs(): return (torch.randn(4, 8),)\n"


def refused(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """One message on stderr that holds the words, nothing on stdout, no traceback."""
    assert result.returncode == code, result.stderr
    for word in words:
        assert word in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("may not mount a file system here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


PAGE = (ROOT / "docs" / "command-line.md").read_text()


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {name for action in parser._actions for name in action.option_strings if name.startswith("--")} - {"--help", "--version"}


@pytest.mark.parametrize("name", [name for name in cli.PARSERS if name not in cli.NOT_YET])
def test_the_page_has_every_option_of_a_command_and_no_other(name: str) -> None:
    line, = re.findall(rf"^forge-tui {name}\b.*$", PAGE, flags=re.MULTILINE)
    assert set(re.findall(r"--[a-z-]+", line)) == options_of(cli.PARSERS[name]()) - {"--output"}
    assert line.split()[2:3] == [] or ("DIR" in line) == any(action.dest == "dir" for action in cli.PARSERS[name]()._actions)
    assert f"  {name} " in cli.COMMANDS


def test_the_page_has_every_option_of_a_run_and_the_same_exit_codes() -> None:
    table = PAGE.partition("## `--run TARGET`")[2].partition("\n## ")[0]
    rows = {name for row in re.findall(r"^\| (`--.*?) \|", table, flags=re.MULTILINE) for name in re.findall(r"--[a-z-]+", row)}
    assert rows == options_of(cli._main_parser()) - {"--run"}
    codes = re.findall(r"^\| ([\d, ]+) \|", PAGE.partition("## Exit codes")[2], flags=re.MULTILINE)
    told = re.findall(r"\b\d+\b", cli.COMMANDS.partition("exit codes:")[2].partition("stdout is data")[0])
    assert told == re.findall(r"\d+", " ".join(codes))


def test_help_lists_every_command_and_says_what_is_missing(tmp_path: Path) -> None:
    result = forge("--help", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    for name in PARSERS:
        assert f"\n  {name} " in result.stdout
    for name in NOT_YET:
        line = next(line for line in result.stdout.splitlines() if line.startswith(f"  {name} "))
        assert line.endswith("(not in this version)")
        refused(forge(name, "x", cwd=tmp_path), 2, f"`{name}` is not in this version")
        assert "not in this version" in forge(name, "--help", cwd=tmp_path).stdout


@pytest.mark.parametrize(("arguments", "said"), [
    (["--no-such"], "unrecognized arguments: --no-such"),
    (["--iterations", "3"], "--iterations needs --run TARGET"),
    (["--run", "a", "b"], "--run takes one TARGET; what is b?"),
    (["--run", "a", "--iterations", "0"], "--iterations: '0' is no whole number from 1 up"),
    (["--run", "a", "--budget-usd", "nan"], "--budget-usd: 'nan' is no number"),
    (["--run", "a", "--time-limit", "5 days"], "write 90, 90s, 10m or 2h"),
    (["--run", "a", "--device", "gpu"], "write auto, cuda:N or host"),
    (["--run", "a", "--json", "--events"], "choose one"),
    (["--run", "a", "--detach", "--json"], "forge-tui show DIR --json"),
    (["new", "x"], "required: --model"),
    (["doctr"], "did you mean `doctor`?"),
])
def test_wrong_usage(tmp_path: Path, arguments: list[str], said: str) -> None:
    refused(forge(*arguments, cwd=tmp_path), 2, said)


def test_durations() -> None:
    assert [duration(text) for text in ("90", "90s", "10m", "2h", "1.5h", "0")] == [90, 90, 600, 7200, 5400, 0]


def test_new_makes_a_project_that_can_be_moved_to(tmp_path: Path, model: Path) -> None:
    (tmp_path / "words.txt").write_text("one\ntwo\n")
    result = forge("new", "p", "--model", "model.py", "--inputs", "text:words.txt", "--device", "cuda:1", "--dtype", "bfloat16",
                   "--random-weights", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "made p/project.toml\n")
    config = load_project(tmp_path / "p")
    assert config.model.source == str(model)
    assert config.inputs.spec == f"text:{tmp_path}/words.txt"
    assert (config.device.target, config.model.dtype, config.model.weights) == ("cuda:1", "bfloat16", "random")
    refused(forge("new", "p", "--model", "model.py", cwd=tmp_path), 2, "project already")


def test_files_inside_the_project_are_named_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p/model.py").write_text(MODEL)
    assert forge("new", "p", "--model", "p/model.py", "--inputs", "p/model.py:sample_inputs", cwd=tmp_path).returncode == 0
    config = load_project(tmp_path / "p")
    assert (config.model.source, config.inputs.spec) == ("model.py", "model.py:sample_inputs")


@pytest.mark.parametrize(("source", "said"), [
    ("none.py", "none.py: there is no such file"),
    ("nothing", "nothing: there is no such file"),
    ("empty", "no config.json"),
    ("notes.txt", "no Python file"),
    ("broken.py", "broken.py:2: not valid Python"),
    ("hf:", "write hf:ORG/NAME"),
    ("a b:c", "this is no model source"),
])
def test_what_is_no_model_source(tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "broken.py").write_text("import torch\ndef build_model(:\n")
    refused(forge("new", "p", "--model", source, cwd=tmp_path), 2, said, "fix: ")
    refused(forge("--run", source, cwd=tmp_path), 2, "forge-tui new" if source == "empty" else said, "fix: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.py", "empty", "notes.txt"]


@pytest.mark.parametrize("spec", ["text:none.txt", "none.npz", "none.py:f", "sound:x"])
def test_inputs_that_are_not_there(tmp_path: Path, model: Path, spec: str) -> None:
    refused(forge("new", "p", "--model", "model.py", "--inputs", spec, cwd=tmp_path), 2, spec, "fix: ")
    assert not (tmp_path / "p").exists()


COMMANDS_ON_A_PROJECT = [["--run"], ["capture"], ["show"], ["export"], ["stop"], []]


@pytest.mark.parametrize("command", COMMANDS_ON_A_PROJECT, ids=" ".join)
def test_every_command_refuses_what_is_no_project(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "folder").mkdir()
    refused(forge(*command, "folder", cwd=tmp_path), 2, "folder: this folder is not a project", "forge-tui new")
    (tmp_path / "folder/project.toml").write_text('format = 99\nfuture = 1\n[model]\nsource = "m"\n')
    refused(forge(*command, "folder", cwd=tmp_path), 2, "project.toml:1: this project has format 99", "up to 1", "upgrade")
    (tmp_path / "folder/project.toml").write_text('format = 1\n[model]\nsource = "m"\n[search]\niteration = 4\n')
    refused(forge(*command, "folder", cwd=tmp_path), 2, "project.toml:5", "did you mean `search.iterations`?")


def test_places_that_cannot_be_written(tmp_path: Path, model: Path, disk: Path) -> None:
    refused(forge("new", "/proc/p", "--model", "model.py", cwd=tmp_path), 3, "/proc/p", "fix: ")
    assert forge("new", disk / "p", "--model", "model.py", cwd=tmp_path).returncode == 0
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    refused(forge("new", disk / "q", "--model", "model.py", cwd=tmp_path), 3, str(disk / "q"), "read-only", "fix: ")


def test_a_full_disk(tmp_path: Path, model: Path, disk: Path) -> None:
    (disk / "filler").write_bytes(bytes(64 * 1024))
    refused(forge("new", disk / "p", "--model", "model.py", cwd=tmp_path), 3, str(disk / "p"), "no space left", "free space")


def test_show_before_anything_was_captured(tmp_path: Path, model: Path) -> None:
    forge("new", "p", "--model", "model.py", cwd=tmp_path)
    refused(forge("show", "p", cwd=tmp_path), 2, "nothing was captured yet", "forge-tui capture p")


def test_the_app_needs_a_terminal(tmp_path: Path, model: Path) -> None:
    forge("new", "p", "--model", "model.py", cwd=tmp_path)
    refused(forge("p", cwd=tmp_path), 2, "no terminal", "forge-tui --run p")
    refused(forge(cwd=tmp_path), 2, "no terminal", "forge-tui --run TARGET")


def test_the_app_refuses_a_dumb_terminal(tmp_path: Path) -> None:
    main, other = pty.openpty()
    try:
        result = subprocess.run(COMMAND, stdin=other, stdout=other, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=60,
                                env=environment(tmp_path / "home", TERM="dumb"))
    finally:
        os.close(main)
        os.close(other)
    assert result.returncode == 2
    assert "TERM=dumb" in result.stderr and "--run" in result.stderr


FAILING = """
import sys
from forge_tui import commands
from forge_tui.cli import entry
def body(options): raise {error}
commands.BODIES["doctor"] = body
sys.argv = ["forge-tui", "doctor"]
entry()
"""


def test_an_internal_error_is_one_line_and_a_log(tmp_path: Path) -> None:
    code = FAILING.format(error='ValueError("odd\\nthing")')
    result = subprocess.run([sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True)
    assert result.returncode == 70 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "internal error: ValueError: odd thing" in result.stderr
    log = Path(result.stderr.rpartition("traceback: ")[2].strip().rstrip(")"))
    assert log.is_relative_to(tmp_path / "state/logs")
    assert "Traceback" in log.read_text() and "in body" in log.read_text()


def test_an_internal_error_where_nothing_can_be_logged(tmp_path: Path) -> None:
    code = FAILING.format(error="ValueError(1)")
    result = subprocess.run([sys.executable, "-c", code], env=environment(Path("/proc/none"), TMPDIR=str(tmp_path)),
                            capture_output=True, text=True)
    assert result.returncode == 70
    assert "in body" in next(tmp_path.glob("crash-*.log")).read_text()


def test_a_reader_that_leaves_is_no_traceback(tmp_path: Path, model: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run([*COMMAND, "new", "p", "--model", "model.py"], cwd=tmp_path, stdout=write, stderr=subprocess.PIPE,
                            env=environment(tmp_path / "home"), text=True)
    os.close(write)
    assert result.returncode == 0
    assert "Traceback" not in result.stderr and "BrokenPipe" not in result.stderr


HOLDER = """
import signal, socket, sys, time
from forge_tui.store.lock import ProjectLock
from forge_tui.store.paths import ProjectPaths
mode, root = sys.argv[1:]
paths = ProjectPaths(root)
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode == "elsewhere":
    socket.gethostname = lambda: "another-host"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with ProjectLock(paths):
    print("held", flush=True)
    while not (mode == "elsewhere" and paths.stop_request.exists()):
        time.sleep(0.02)
"""


@pytest.fixture
def hold(tmp_path: Path, model: Path) -> Iterator[object]:
    """Starts a process that holds the project `p`: `plain`, `deaf` to SIGTERM, or `elsewhere` (heeds only the file)."""
    forge("new", "p", "--model", "model.py", cwd=tmp_path)
    started = []

    def start(mode: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", HOLDER, mode, str(tmp_path / "p")], stdout=subprocess.PIPE, text=True,
                                   cwd=ROOT)
        started.append(process)
        assert process.stdout and process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_stop_ends_a_run_here_by_signal(tmp_path: Path, hold: object) -> None:
    process = hold("plain")
    result = forge("stop", "p", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "p is free\n")
    assert f"asked process {process.pid} on " in result.stderr
    assert process.wait(10) == -signal.SIGTERM
    assert not ProjectPaths(tmp_path / "p").stop_request.exists()


def test_stop_reaches_a_run_elsewhere_by_file(tmp_path: Path, hold: object) -> None:
    process = hold("elsewhere")
    result = forge("stop", "p", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "p is free\n")
    assert "on another-host" in result.stderr
    assert process.wait(10) == 0


def test_stop_where_nothing_runs(tmp_path: Path, model: Path) -> None:
    forge("new", "p", "--model", "model.py", cwd=tmp_path)
    result = forge("stop", "p", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "no run holds p\n")
    assert not ProjectPaths(tmp_path / "p").stop_request.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_end_a_command_with_their_code(tmp_path: Path, hold: object, number: signal.Signals) -> None:
    hold("deaf")
    waiting = subprocess.Popen([*COMMAND, "stop", "p"], cwd=tmp_path, env=environment(tmp_path / "home"), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert waiting.stderr and "asked process" in waiting.stderr.readline()
    waiting.send_signal(number)
    output, errors = waiting.communicate(timeout=20)
    assert waiting.returncode == 128 + number
    assert f"stopped by {number.name}" in errors and "Traceback" not in errors and output == ""


def test_doctor_says_what_is_there_and_never_a_key(tmp_path: Path) -> None:
    result = forge("doctor", "--json", cwd=tmp_path, ANTHROPIC_API_KEY="sk-very-secret", TERM="xterm")
    assert "secret" not in result.stdout + result.stderr
    findings = {item["name"]: item for item in json.loads(result.stdout)["findings"]}
    assert findings["ANTHROPIC_API_KEY"] == {"name": "ANTHROPIC_API_KEY", "status": "ok", "found": "set", "fix": ""}
    assert findings["OPENAI_API_KEY"]["status"] == "note"
    assert findings["terminal"]["status"] == "note" and "--run" in findings["terminal"]["fix"]
    assert "GiB free" in findings["disk"]["found"]
    for item in findings.values():
        assert item["status"] in ("ok", "note", "missing") and bool(item["fix"]) == (item["status"] != "ok"), item
    missing = [name for name, item in findings.items() if item["status"] == "missing"]
    assert result.returncode == (3 if missing else 0)
    assert "NVRTC" in findings["compiler"]["found"]


def test_doctor_names_the_cure_for_a_missing_compiler(tmp_path: Path) -> None:
    """Without site-packages' cuda-bindings there is no NVRTC: a real absence, made by a module path that hides it."""
    hidden = tmp_path / "hidden/cuda"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("")
    result = forge("doctor", cwd=tmp_path, PYTHONPATH=f"{hidden.parent}{os.pathsep}{ROOT}")
    assert result.returncode == 3
    line = next(index for index, text in enumerate(result.stdout.splitlines()) if text.startswith("missing compiler"))
    assert "fix: pip install" in result.stdout.splitlines()[line + 1]


def test_doctor_finds_a_key_file_and_minds_who_may_read_it(tmp_path: Path) -> None:
    file = tmp_path / "home/config/keys/anthropic"
    file.parent.mkdir(parents=True)
    file.write_text("sk-very-secret")
    for mode, status in ((0o644, "note"), (0o600, "ok")):
        file.chmod(mode)
        result = forge("doctor", "--json", cwd=tmp_path)
        finding = next(item for item in json.loads(result.stdout)["findings"] if item["name"] == "ANTHROPIC_API_KEY")
        assert finding["status"] == status and str(file) in finding["found"] and "secret" not in result.stdout
