"""What the screens say at odd moments: names that are none, filters without a match, a folder that goes while it is open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import forge
from screenkit import drive, home, press, root, text_of
from textual.pilot import Pilot
from textual.widgets import Input

from benchmarks.screen_projects import launcher_home
from forge_tui.app import ForgeApp
from forge_tui.screens.widgets.table import Table
from forge_tui.store.lock import ProjectLock
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import ModelConfig, ProjectConfig, create_project
from forge_tui.store.recent import recent_projects

__all__ = ["home", "root"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("a/b", "without /"), ("..", "without /"), ("n" * 300, "shorter"), ("", ""), ("project-000", "another name"), ("[/x]", "[/x] is no")],
)
def test_a_name_that_a_folder_cannot_have_is_a_toast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.setenv("FORGE_HOME", str(launcher_home(tmp_path, 2)))

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await pilot.pause(0.3)
        app.screen.query_one("#projects", Table).select(str(tmp_path / "project-001"))
        await press(app, pilot, "R")
        app.screen.query_one(Input).value = name
        shown = await press(app, pilot, "enter")
        assert said in " ".join(shown.split()) and "projects" in shown

    drive(None, steps, size=(160, 40))
    assert (tmp_path / "project-001/project.toml").is_file()


def test_a_project_that_is_gone_is_not_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_HOME", str(launcher_home(tmp_path, 1)))

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await pilot.pause(0.3)
        await press(app, pilot, "R")
        shutil.rmtree(tmp_path / "project-000")
        assert "gone already" in await press(app, pilot, "x", "enter")

    drive(None, steps)


def test_a_filter_without_a_match_says_how_all_come_back(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        for opened in ((), ("enter",)):
            await press(app, pilot, *opened)
            shown = await press(app, pilot, "slash", *"WARP", "enter")
            assert "nothing matches WARP: esc shows all" in shown and "press F" not in shown
            assert "nothing matches" not in await press(app, pilot, "escape")
            assert app.screen.query(Table).first().keys

    drive(root, steps)


def test_an_empty_bench_says_what_goes_on(tmp_path: Path) -> None:
    paths = create_project(tmp_path / "new", ProjectConfig(format=1, model=ModelConfig(source="hf:some/encoder")))

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        assert "press F to capture" in text_of(app)
        with ProjectLock(paths):
            await pilot.pause(0.6)
            shown = text_of(app)
            assert "▶ starting" in shown and "press F" not in shown

    drive(paths.root, steps)


def test_a_folder_that_goes_while_it_is_open_is_told_on_every_screen(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        away = root.with_name("away")
        for opened in ((), ("enter",), ("escape", "r")):
            await press(app, pilot, *opened)
            root.rename(away)
            for _ in range(2):
                await pilot.pause(0.5)
                assert "the project folder is gone" in text_of(app)
            away.rename(root)
            await pilot.pause(0.5)
            assert "is gone" not in text_of(app)
        await press(app, pilot, "escape")
        root.rename(away)
        await press(app, pilot, "F")
        for _ in range(80):
            if "did not start" in text_of(app):
                break
            await pilot.pause(0.25)
        assert "did not start" in text_of(app) and "Starting" not in text_of(app)
        away.rename(root)

    drive(root, steps)


def test_projects_of_the_command_line_are_in_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_HOME", str(tmp_path / "home"))
    (tmp_path / "model.py").write_text("")
    assert forge("new", tmp_path / "made", "--model", tmp_path / "model.py", cwd=tmp_path).returncode == 0
    assert [item.root for item in recent_projects()] == [str(tmp_path / "made")]
    create_project(tmp_path / "run", ProjectConfig(format=1, model=ModelConfig(source=str(tmp_path / "model.py"))))
    forge("--run", tmp_path / "run", cwd=tmp_path)
    assert [Path(item.root).name for item in recent_projects()] == ["run", "made"]
    assert ProjectPaths(tmp_path / "run").is_project()


def test_a_move_says_which_and_whether_it_is_on_and_stands_in_the_tree_at_once(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "enter", "b")
        number = app.screen.node.number
        for key, word in (("x", "pruned"), ("p", "pinned")):
            shown = await press(app, pilot, key)
            assert f"{word} #{number}" in shown and f"[… {word}]" in shown
            app.clear_notifications()
            shown = await press(app, pilot, key)
            assert f"#{number} no longer {word}" in shown and "[…" not in shown
            app.clear_notifications()
        shown = await press(app, pilot, "H", *"wide", "enter")
        assert f"hint at #{number}: wide" in shown and "[… hint]" in shown
        for path in (root / "steering").iterdir():
            path.unlink()
        await pilot.pause(0.6)
        assert "[…" not in text_of(app)

    drive(root, steps, size=(200, 40))
