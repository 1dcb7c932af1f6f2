"""Projects, paths, safe writes, kernels by hash, and the lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tui.errors import MissingEnvironment, ProjectError, ProjectLocked
from forge_tui.store.atomic import write_atomic
from forge_tui.store.kernels import kernel_hash, load_kernel, save_kernel
from forge_tui.store.lock import ProjectLock, current_holder
from forge_tui.store.paths import ProjectPaths, UserPaths
from forge_tui.store.project import FORMAT, ModelConfig, ProjectConfig, SearchConfig, create_project, load_project, render

CONFIG = ProjectConfig(FORMAT, ModelConfig("model.py", arguments={"depth": 2, "odd name": "x"}),
                       search=SearchConfig(iterations=3, operators=("*softmax*",), seed=7))


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("may not mount a file system here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def write_config(root: Path, text: str) -> None:
    root.mkdir(exist_ok=True)
    (root / "project.toml").write_text(text)


def refusal(root: Path, text: str) -> str:
    write_config(root, text)
    with pytest.raises(ProjectError) as caught:
        load_project(root)
    return str(caught.value).replace(str(root) + "/", "")


def test_a_created_project_loads_as_it_was(tmp_path: Path) -> None:
    create_project(tmp_path / "p", CONFIG)
    assert load_project(tmp_path / "p") == CONFIG
    unseeded = ProjectConfig(FORMAT, ModelConfig("hf:org/name"))
    write_config(tmp_path / "q", render(unseeded))
    assert load_project(tmp_path / "q") == unseeded


def test_creating_never_overwrites(tmp_path: Path) -> None:
    paths = create_project(tmp_path, CONFIG)
    paths.config.write_text("# mine\n")
    with pytest.raises(ProjectError, match="project already"):
        create_project(tmp_path, CONFIG)
    assert paths.config.read_text() == "# mine\n"
    with pytest.raises(ProjectError, match="a file, not a folder"):
        create_project(paths.config / "below", CONFIG)


@pytest.mark.parametrize(("text", "said"), [
    ('format = 1\n[model]\nsource = "m"\n[search]\niteration = 3\n',
     ("project.toml:5", "unknown key `search.iteration`", "did you mean `search.iterations`?")),
    ('format = 1\n[model]\nsource = "m"\n[serch]\n', ("project.toml:4", "`serch`", "`search`")),
    ('format = 1\niterations = 4\n[model]\nsource = "m"\n', ("project.toml:2", "did you mean `search.iterations`?")),
    ('format = 1\nmodel = { source = "m", zzz = 1 }\n', ("project.toml:2", "`model.zzz`", "known here: source")),
    ('format = 1\n[model]\nsource = "m"\n[search]\npolicy = "uct"\niterations = "3"\n',
     ("project.toml:6", "`search.iterations`", "expected `int`")),
    ('format = 1\n[model]\nsource = "m"\n[budget]\nusd = -1\n', ("project.toml:5", "`budget.usd`", ">= 0")),
    ('format = 1\n[model]\nsource = "m"\nsearch.jobs = 0\n', ("project.toml:4", "`model.search`", "outside of [model]")),
    ('format = 1\n[model]\nweights = "w"\n', ("project.toml:2", "`model.source` is missing")),
    ("format = 1\n", ("project.toml", "`model` is missing")),
    ('[model]\nsource = "m"\n', ("project.toml", "`format` is missing", "format = 1")),
    ('format = 9\n[model]\nsource = "m"\nnew_key = 1\n', ("project.toml:1", "format 9", "up to 1", "upgrade")),
    ('format = 1\n[model\nsource = "m"\n', ("project.toml:2", "not valid TOML")),
    ('format = 1\n[model]\nsource = "m', ("project.toml:3", "not valid TOML")),
])
def test_a_wrong_file_names_line_and_cure(tmp_path: Path, text: str, said: tuple[str, ...]) -> None:
    message = refusal(tmp_path, text)
    assert message.startswith(said[0])
    for words in said:
        assert words in message


def test_what_is_no_project_says_how_to_make_one(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "none"):
        with pytest.raises(ProjectError, match="forge-tui new"):
            load_project(root)
    (tmp_path / "f").write_text("x")
    with pytest.raises(ProjectError, match="file, not a project folder"):
        load_project(tmp_path / "f")
    (tmp_path / "project.toml").write_bytes(b"format = 1 # \xff")
    with pytest.raises(ProjectError, match="UTF-8"):
        load_project(tmp_path)


def test_a_full_disk_keeps_the_old_file_and_leaves_no_rubbish(tiny_disk: Path) -> None:
    write_atomic(tiny_disk / "a", b"old")
    with pytest.raises(MissingEnvironment, match="no space left") as caught:
        write_atomic(tiny_disk / "a", bytes(200_000))
    assert str(tiny_disk / "a") in str(caught.value) and "free space" in str(caught.value)
    assert (tiny_disk / "a").read_bytes() == b"old"
    assert os.listdir(tiny_disk) == ["a"]


def test_a_read_only_file_system_is_named(tiny_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with pytest.raises(MissingEnvironment, match="read-only"):
        create_project(tiny_disk / "p", CONFIG)
    with pytest.raises(MissingEnvironment, match="read-only"), ProjectLock(ProjectPaths(tiny_disk)):
        pass


def test_an_unwritable_place_is_named() -> None:
    with pytest.raises(MissingEnvironment, match="/proc/forge"):
        create_project("/proc/forge", CONFIG)


def test_written_files_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        write_atomic(tmp_path / "a", "text")
    finally:
        os.umask(old)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_kernels_are_stored_once_under_their_hash(tmp_path: Path) -> None:
    paths = ProjectPaths(tmp_path)
    digest = save_kernel(paths, "/*forge*/ ünï")
    assert save_kernel(paths, "/*forge*/ ünï") == digest == kernel_hash("/*forge*/ ünï")
    assert os.listdir(paths.kernels) == [f"{digest}.cu"]
    assert load_kernel(paths, digest) == "/*forge*/ ünï"
    paths.kernel(digest).write_text("edited")
    with pytest.raises(ProjectError, match="edited in place"):
        load_kernel(paths, digest)
    with pytest.raises(ProjectError, match="cannot be read"):
        load_kernel(paths, "0" * 64)


def test_kernel_text_keeps_its_line_ends(tmp_path: Path) -> None:
    paths = ProjectPaths(tmp_path)
    assert load_kernel(paths, save_kernel(paths, "a\r\nb\n")) == "a\r\nb\n"


HOLD = """
import sys, time
from forge_tui.store.lock import ProjectLock
from forge_tui.store.paths import ProjectPaths
with ProjectLock(ProjectPaths(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True, cwd=Path(__file__).parent.parent)
    assert process.stdout and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_run_is_told_who_holds_the_project(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    paths = ProjectPaths(tmp_path)
    with pytest.raises(ProjectLocked, match=f"process {holder.pid} .* running since") as caught, ProjectLock(paths):
        pass
    assert f"forge-tui stop {tmp_path}" in str(caught.value) and caught.value.exit_code == 6
    found = current_holder(paths)
    assert found and found.pid == holder.pid


def test_a_killed_holder_blocks_nobody(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    paths = ProjectPaths(tmp_path)
    paths.stop_request.write_text("")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert current_holder(paths) is None
    with ProjectLock(paths):
        assert not paths.stop_request.exists(), "a request to an earlier holder must not stop this one"
        mine = current_holder(paths)
        assert mine and mine.pid == os.getpid()
    assert current_holder(paths) is None


def test_user_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORGE_HOME", str(tmp_path))
    assert UserPaths.find().logs == tmp_path / "state" / "logs"
    monkeypatch.delenv("FORGE_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/u")
    assert UserPaths.find().state == Path("/s/forge-tui")
    assert UserPaths.find().cache == Path("/home/u/.cache/forge-tui")


def test_store_needs_no_torch() -> None:
    code = ("import sys, forge_tui.store.project, forge_tui.store.journal, forge_tui.store.lock, forge_tui.store.kernels\n"
            "assert 'torch' not in sys.modules and 'numpy' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)
