"""What goes wrong with a model or a disk during `capture` and `--run`: one message with the cure, nothing lost."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command_line import COMMAND, environment, forge
from safetensors.torch import save_file

from forge_tui.store.paths import ProjectPaths

MODEL = """
import torch
def build_model(): return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
def sample_inputs(): return (torch.randn(4, 8),)
"""
RAISES = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x.no_such_method()
def build_model(): return Model()
def sample_inputs(): return (torch.randn(4, 8),)
"""

both = pytest.mark.parametrize("command", ["capture", "--run"])
"""Where the two differ: --run also has a journal to write."""


def project(folder: Path, model: str, more: str = "") -> Path:
    root = folder / "p"
    root.mkdir()
    (root / "model.py").write_text(model)
    (root / "project.toml").write_text(f'format = 1\n[model]\nsource = "model.py"\n{more}\n[device]\ntarget = "host"\n')
    return root


def failed(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert result.returncode == code, result.stderr
    for word in (*words, "fix: "):
        assert word in result.stderr, result.stderr
    assert "Traceback" not in result.stderr and result.stdout == ""


@both
def test_a_model_that_raises(tmp_path: Path, command: str) -> None:
    project(tmp_path, RAISES)
    failed(forge(command, "p", cwd=tmp_path), 2, "forward of Model raised", "model.py:5", "no_such_method")


def test_inputs_of_the_wrong_shape(tmp_path: Path) -> None:
    project(tmp_path, MODEL.replace("randn(4, 8)", "randn(4, 9)"))
    failed(forge("--run", "p", cwd=tmp_path), 2, "forward of Sequential raised", "(4, 9)")


def test_a_state_dict_that_lacks_a_key(tmp_path: Path) -> None:
    root = project(tmp_path, MODEL, 'weights = "half.safetensors"')
    save_file({"0.weight": torch.zeros(8, 8)}, root / "half.safetensors")
    failed(forge("--run", "p", cwd=tmp_path), 2, "half.safetensors", "0.bias")


def test_a_model_file_that_went_away(tmp_path: Path) -> None:
    (project(tmp_path, MODEL) / "model.py").unlink()
    failed(forge("--run", "p", cwd=tmp_path), 2, "model.py")


def test_a_syntax_error(tmp_path: Path) -> None:
    project(tmp_path, MODEL + "def broken(:\n")
    failed(forge("--run", "p", cwd=tmp_path), 2, "model.py:5")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("may not mount a file system here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@both
def test_a_disk_that_fills_up(tmp_path: Path, disk: Path, command: str) -> None:
    paths = ProjectPaths(project(disk, MODEL.replace("randn(4, 8)", "randn(4096, 8)")))
    before = paths.config.read_bytes()
    failed(forge(command, paths.root, cwd=tmp_path), 3, "no space left on device", str(paths.captures), "free space")
    assert paths.config.read_bytes() == before
    assert not paths.operators.exists() and list(paths.captures.rglob("*")) == []


@both
def test_a_read_only_project(tmp_path: Path, disk: Path, command: str) -> None:
    root = project(disk, MODEL)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    failed(forge(command, root, cwd=tmp_path), 3, str(root), "read-only")


def test_a_failed_run_is_a_document_too(tmp_path: Path) -> None:
    project(tmp_path, RAISES)
    result = forge("--run", "p", "--json", cwd=tmp_path)
    document = json.loads(result.stdout)
    assert result.returncode == 2 and document["status"] == "failed"
    assert "no_such_method" in document["error"] and "no_such_method" in result.stderr


def test_a_run_that_cannot_begin_is_a_document_too(tmp_path: Path) -> None:
    result = forge("--run", "none.py", "--json", cwd=tmp_path)
    document = json.loads(result.stdout)
    assert result.returncode == 2
    assert (document["status"], document["project"], document["operators"]) == ("failed", "none.py", [])
    assert "no such file" in document["error"]


@pytest.mark.parametrize(("change", "words"), [
    ("[search]\nseed = " + "9" * 5000, ("not valid TOML",)),
    ("[search]\nseed = 99999999999999999999999", ("seed",)),
    ("[search]\niterations = 99999999999999999999999", ("iterations",)),
    ("[model.arguments]\na = " + "[" * 3000 + "]" * 3000, ("nested too deeply",)),
])
def test_numbers_and_nesting_beyond_reason_in_a_project(tmp_path: Path, change: str, words: tuple[str, ...]) -> None:
    project(tmp_path, MODEL, change)
    failed(forge("--run", "p", cwd=tmp_path), 2, "project.toml", *words)


@pytest.mark.parametrize("option", [("--seed", "9" * 30), ("--seed", "-1"), ("--iterations", "9" * 30)])
def test_numbers_beyond_reason_on_the_command_line(tmp_path: Path, option: tuple[str, str]) -> None:
    done = forge("--run", "p", *option, cwd=tmp_path)
    assert done.returncode == 2 and option[0] in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("junk", [b"\x80\x02h\x65.", b"\x80\x02q\x00.", b"junk", b"\x80\x02}q\x01(X\x01\x00\x00\x00aK\x01u."])
def test_weights_that_are_no_state_dict(tmp_path: Path, junk: bytes) -> None:
    root = project(tmp_path, MODEL, 'weights = "w.pt"')
    (root / "w.pt").write_bytes(junk)
    failed(forge("capture", "p", cwd=tmp_path), 2, "w.pt")


def test_a_result_that_cannot_be_written(tmp_path: Path) -> None:
    project(tmp_path, MODEL)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, "doctor"], cwd=tmp_path, env=environment(tmp_path / "home"), stdin=subprocess.DEVNULL,
                              stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 3 and "standard output" in done.stderr and "Traceback" not in done.stderr


def test_a_package_where_a_file_is_or_nothing_can_be_made(tmp_path: Path) -> None:
    from forge_tui.cuda.device import H200
    from forge_tui.engine.cards import FORMAT, OperatorFile
    from forge_tui.engine.package.export import export_package
    from forge_tui.errors import MissingEnvironment, ProjectError

    cards = OperatorFile(FORMAT, "m", H200, "cpu", 0.0, (), (), "2")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ProjectError, match="a file of that name"):
        export_package(ProjectPaths(tmp_path), cards, [], H200, tmp_path / "file")
    with pytest.raises(MissingEnvironment):
        export_package(ProjectPaths(tmp_path), cards, [], H200, Path("/proc/self/out"))
    assert (tmp_path / "file").read_text() == "mine"
