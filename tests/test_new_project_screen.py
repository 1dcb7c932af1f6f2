"""The form of a new project: completion, checks of each field, and a capture that can be corrected."""

from __future__ import annotations

from pathlib import Path

import pytest
from screenkit import drive, home, press, text_of  # noqa: F401
from textual.pilot import Pilot

from forge_tui.app import ForgeApp
from forge_tui.screens.newproject import check_form, completion


def test_paths_complete(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "words.txt").write_text("a\n")
    assert completion(f"{tmp_path}/mo") == f"{tmp_path}/model/"
    assert completion(f"text:{tmp_path}/w") == f"text:{tmp_path}/words.txt"
    assert completion("hf:some/thing") is None and completion(f"{tmp_path}/zzz") is None


def test_the_form_says_of_each_field_what_is_wrong(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text("def build_model(): ...\n")
    form = {
        "source": str(model),
        "folder": "",
        "inputs": "text:=one two",
        "weights": "",
        "dtype": "",
        "attention": "",
        "device": "host",
        "provider": "builtin",
        "llm": "",
        "budget": "",
    }
    assert all(item.good for item in check_form(form))
    assert next(item.text for item in check_form(form) if item.field == "inputs") == "one two"
    for field, value in (
        ("source", "nowhere.py"),
        ("inputs", "image:none.png"),
        ("weights", "none.bin"),
        ("dtype", "int3"),
        ("device", "gpu"),
        ("provider", "nobody"),
        ("budget", "much"),
        ("folder", str(model)),
    ):
        wrong = [item.field for item in check_form({**form, field: value}) if not item.good]
        assert wrong, f"{field} = {value} passed"


def test_the_form_makes_a_project_and_a_failed_capture_can_be_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.py"
    model.write_text("def build_model(): ...\n")
    codes = iter([2, 0])

    async def capture(log: Path, *arguments: str) -> int:
        log.write_text("forge-tui: the model cannot be built\n")
        return next(codes)

    monkeypatch.setattr("forge_tui.screens.newproject.logged_command", capture)

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "n", *str(model))
        shown = await press(app, pilot, "ctrl+s")
        await pilot.pause(0.5)
        shown = text_of(app)
        assert "the model cannot be built" in shown and "correct the field" in shown
        await press(app, pilot, "tab", "tab", *"text:=words")
        await press(app, pilot, "ctrl+s")
        await pilot.pause(0.5)
        assert "nothing captured yet" in text_of(app)

    drive(None, steps, size=(160, 40))
    assert 'spec = "text:=words"' in (tmp_path / "model-forge/project.toml").read_text()
