"""The screens' logic on real files: folds, sorting, filters, diffs, heat tables, keys, themes, settings, the form."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.color import Color
from textual.pilot import Pilot

from benchmarks.screen_projects import (
    SOURCE,
    candidate,
    doctor_cache,
    launcher_home,
    many_nodes_project,
    project,
    softmax,
    started,
)
from forge_tui.app import ForgeApp, known_ids
from forge_tui.engine import events, steering
from forge_tui.engine.judge.verdict import Point
from forge_tui.engine.report import document
from forge_tui.engine.state import load_state
from forge_tui.screens.candidate import heat_table
from forge_tui.screens.code import highlighted, side_by_side, unified
from forge_tui.screens.newproject import check_form, completion
from forge_tui.screens.palette import actions_of
from forge_tui.screens.settings import load_config
from forge_tui.screens.themes import TOKENS, all_themes, load_theme, shipped_folder
from forge_tui.screens.watch import ProjectWatch
from forge_tui.screens.widgets.table import Table
from forge_tui.specs import Call
from forge_tui.store.journal import JournalWriter
from forge_tui.store.paths import ProjectPaths

Steps = Callable[[ForgeApp, Pilot[int]], Awaitable[None]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("FORGE_HOME", str(folder))
    monkeypatch.delenv("NO_COLOR", raising=False)
    doctor_cache(folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return many_nodes_project(tmp_path, 30)


def text_of(app: ForgeApp) -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


def drive(root: Path | None, steps: Steps, size: tuple[int, int] = (120, 40)) -> None:
    async def run() -> None:
        app = ForgeApp(root)
        async with app.run_test(size=size, notifications=True) as pilot:
            await pilot.pause(0.2)
            await steps(app, pilot)

    asyncio.run(run())


async def press(app: ForgeApp, pilot: Pilot[int], *keys: str) -> str:
    await pilot.press(*keys)
    await pilot.pause(0.15)
    return text_of(app)


# -- the search tree


def test_failures_fold_into_one_row_and_unfold(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "enter")
        table = app.screen.query_one("#tree", Table)
        folds = [key for key in table.keys if key.startswith("fold:")]
        assert "▸ 1 wrong" in table.row_of(folds[0]).cells[0].text
        hidden = len(table.keys)
        table.select(folds[0])
        await press(app, pilot, "space")
        assert len(table.keys) == hidden and folds[0] not in table.keys  # the row gave way to the one it hid

    drive(root, steps)


def test_the_bench_opens_on_the_best_and_failures_are_found(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        shown = await press(app, pilot, "enter")
        watch = ProjectWatch(root)
        watch.refresh()
        (operator,) = watch.state.operators.values()
        table = app.screen.query_one("#tree", Table)
        assert table.key == operator.best.id and "✓ draw number 16" in shown
        assert "✗ wrong" in await press(app, pilot, "f")
        await press(app, pilot, "b")
        assert table.key == operator.best.id

    drive(root, steps)


def test_checks_are_read_anew_and_not_kept(root: Path) -> None:
    watch = ProjectWatch(root)
    watch.refresh()
    (operator,) = watch.state.operators.values()
    assert operator.best.verdict.checks == () and operator.best.verdict.timing is not None
    assert len(watch.verdict(operator.best).checks) == 16 and watch.judged(operator.best).counts


def test_a_mark_is_what_the_diff_compares_with(root: Path) -> None:
    paths = ProjectPaths(root)
    key = ProjectWatch(root)
    key.refresh()
    (variant,) = key.state.operators
    paths.kernel("b" * 64).write_text(SOURCE.replace("input[0]", "input[1]"))
    with JournalWriter(paths.journal) as journal:
        for event in candidate(variant, 31, 1, 10.0, "b" * 64):
            journal.append(events.encode(event))

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "enter")
        table = app.screen.query_one("#tree", Table)
        table.select(f"{variant}/1")
        await press(app, pilot, "m")
        table.select(f"{variant}/31")
        shown = await press(app, pilot, "4")
        assert "marked 1" in shown and "this 31" in shown and "│" in shown and "input[1]" in shown

    drive(root, steps, size=(200, 60))


def test_hint_prune_and_pin_reach_the_project_folder(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "enter")
        await press(app, pilot, "H", *"wider", "enter")
        await press(app, pilot, "x")
        await press(app, pilot, "p")

    drive(root, steps)
    left = [request for _, request in steering.pending(ProjectPaths(root))]
    assert [(request.action, request.text) for request in left] == [("hint", "wider"), ("prune", ""), ("pin", "")]


def test_editing_without_an_editor_names_the_cure(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.delenv("VISUAL", raising=False)

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "enter")
        assert "export EDITOR" in await press(app, pilot, "e")

    drive(root, steps)


# -- the operator bench


def test_operators_fold_sort_and_filter(tmp_path: Path) -> None:
    paths, keys = project(
        tmp_path / "encoder",
        [softmax(64), softmax(128), Call("torch.relu", softmax(32).arguments, softmax(32).outputs)],
    )

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        table = app.screen.query_one("#operators", Table)
        assert len(table.keys) == 2 and "softmax  2 variants" in text_of(app)
        await press(app, pilot, "space")
        assert len(table.keys) == 4
        await press(app, pilot, "slash", *"relu")
        assert list(table.keys) == [keys[2]]
        await press(app, pilot, "escape")
        assert len(table.keys) == 4
        await press(app, pilot, "o", "down", "enter")  # the second choice: by name
        assert table.keys[0] == keys[2] and "operator▲" in text_of(app)

    drive(paths.root, steps)


def test_marked_operators_are_the_ones_that_are_forged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, keys = project(
        tmp_path / "encoder", [softmax(64), Call("torch.relu", softmax(32).arguments, softmax(32).outputs)]
    )
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(ForgeApp, "start_engine", lambda self, watch, options, what: asked.append(options))

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "m", "m", "f")
        await press(app, pilot, "F")

    drive(paths.root, steps)
    assert asked == [("--ops", keys[0], "--ops", keys[1]), ()]


def test_a_running_engine_is_told_of_and_its_queue_shown(tmp_path: Path) -> None:
    from benchmarks.screen_projects import Growing

    growing = Growing(tmp_path)

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        growing.step()
        await pilot.pause(0.6)
        shown = text_of(app)
        assert "▶ running" in shown and "asking  softmax" in shown and f"process {os.getpid()}" in shown
        assert "holds this project" in await press(app, pilot, "f")

    with growing:
        drive(growing.root, steps)


# -- the launcher


def test_projects_are_renamed_archived_and_moved_to_the_trash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = launcher_home(tmp_path, 3)
    monkeypatch.setenv("FORGE_HOME", str(home))

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await pilot.pause(0.5)
        table = app.screen.query_one("#projects", Table)
        assert len(table.keys) == 3 and "✓ done" in text_of(app)
        await press(app, pilot, "a")
        assert len(table.keys) == 2 and "1 archived" in text_of(app)
        table.select(str(tmp_path / "project-001"))
        await press(app, pilot, "R", *"x", "enter")
        assert (tmp_path / "project-001x/project.toml").is_file()
        table.select(str(tmp_path / "project-002"))
        shown = await press(app, pilot, "x")
        assert "to the trash" in shown
        await press(app, pilot, "n")
        assert (tmp_path / "project-002").is_dir()
        await press(app, pilot, "x", "y")

    drive(None, steps)
    assert not (tmp_path / "project-002").exists()
    (kept,) = (tmp_path / ".forge-trash").iterdir()
    assert (kept / "journal.msgpack").is_file()


# -- everywhere


def test_the_palette_finds_an_action_by_name_and_does_it(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        shown = await press(app, pilot, "colon", *"before and after")
        assert "results" not in shown.splitlines()[0]
        assert "› results" in await press(app, pilot, "enter")

    drive(root, steps)


def test_every_key_with_an_action_is_in_the_palette(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        for keys in ((), ("enter",)):
            await press(app, pilot, *keys)
            named = {action.action for action in actions_of(app.screen)}
            bound = {binding.action for binding in type(app.screen).BINDINGS if binding.description}
            assert bound <= named

    drive(root, steps)


def test_keys_of_the_config_rebind_by_id_and_a_wrong_id_is_told(root: Path, home: Path) -> None:
    (home / "config").mkdir()
    (home / "config/config.toml").write_text('[keys]\n"operators.results" = "f5"\n"operators.resluts" = "f6"\n')

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        assert "operators.results?" in text_of(app).replace("\n", "")
        assert "› results" not in await press(app, pilot, "r")
        assert "› results" in await press(app, pilot, "f5")

    drive(root, steps)


def test_a_config_that_is_no_toml_is_a_sentence(home: Path) -> None:
    (home / "config").mkdir()
    (home / "config/config.toml").write_text("[keys\n")
    _, problems = load_config(known_ids)
    assert len(problems) == 1 and "config.toml" in problems[0]


def test_binding_ids_are_unique() -> None:
    names = list(known_ids())
    assert len(names) == len(set(names)) > 60


def test_a_chosen_theme_and_a_pane_width_are_remembered(root: Path, home: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "ctrl+t", "g", "enter")
        assert app.theme == "forge-ansi-dark"
        await press(app, pilot, "greater_than_sign")

    drive(root, steps)
    kept = json.loads((home / "state/app.json").read_text())
    assert kept["theme"] == "forge-ansi-dark" and kept["panes"]["operators"] == 46

    async def again(app: ForgeApp, pilot: Pilot[int]) -> None:
        assert app.theme == "forge-ansi-dark" and app.screen.query_one("#card").outer_size.width == 46

    drive(root, again)


def test_zoom_gives_the_focused_pane_everything(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "enter", "tab", "z")
        assert app.screen.query_one("#text").outer_size.width == 120
        await press(app, pilot, "z")
        assert app.screen.query_one("#text").outer_size.width < 120

    drive(root, steps)


@pytest.mark.parametrize("path", sorted(shipped_folder().glob("*.toml")), ids=lambda path: path.stem)
def test_text_of_shipped_themes_can_be_read(path: Path) -> None:
    theme = load_theme(path)
    if theme.ansi:  # the terminal's own colours: nobody here knows them
        return
    grounds = [theme.background, theme.surface, theme.panel, theme.variables["forge-cursor"]]
    words = [
        theme.foreground,
        theme.primary,
        theme.secondary,
        theme.accent,
        theme.warning,
        theme.error,
        theme.success,
        *(theme.variables[f"forge-{name}"] for name in TOKENS if name != "cursor"),
    ]
    for ground in grounds:
        for word in words:
            assert contrast(word, ground) >= 4.5, f"{word} on {ground}"


def contrast(first: str, second: str) -> float:
    """WCAG 2.1's contrast ratio, from its relative luminance."""

    def luminance(text: str) -> float:
        parts = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
            for part in Color.parse(text).normalized
        ]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    darker, lighter = sorted((luminance(first), luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def test_shipped_themes_are_six_and_a_bad_one_of_the_user_is_told(root: Path, home: Path) -> None:
    (home / "config/themes").mkdir(parents=True)
    (home / "config/themes/mine.toml").write_text('name = "mine"\ndark = true\n[base]\n[tokens]\n')
    themes, problems = all_themes()
    assert len(themes) == 6 and sum(theme.ansi for theme in themes) == 2
    assert len(problems) == 1 and "mine.toml" in problems[0]

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        assert "lacks verified" in text_of(app).replace("\n", "")

    drive(root, steps)


# -- texts


def test_a_comment_over_lines_is_a_comment_on_each() -> None:
    lines = highlighted("/* one\ntwo */\nint x;\n")
    assert [line[0][1] for line in lines] == ["code-comment", "code-comment", "code-type"]


def test_both_diffs_show_what_differs_also_in_long_lines() -> None:
    old, new = "a\n" + "x" * 100 + "1\nb\n", "a\n" + "x" * 100 + "2\nb\n"
    flat = ["".join(text for text, _ in line) for line in unified(old, new, "old", "new")]
    assert "-" + "x" * 100 + "1" in flat and "+" + "x" * 100 + "2" in flat
    beside = ["".join(text for text, _ in line) for line in side_by_side(old, new, "old", "new", 61)]
    assert any("x1" in line and "x2" in line for line in beside)
    assert unified(old, old, "old", "new") == []


def test_the_heat_table_has_the_fastest_of_each_cell() -> None:
    points = tuple(
        Point({"BLOCK": block, "VEC": vec, "ITEMS": items}, float(block * vec + items))
        for block in (1, 2)
        for vec in (1, 3)
        for items in (5,)
    ) + (Point({"BLOCK": 2, "VEC": 3, "ITEMS": 5}, None),)
    rows = ["".join(text for text, _ in line) for line in heat_table(points)]
    assert (
        rows[0].split()[-2:] == ["1", "3"]
        and rows[1].split() == ["1", "6.00*", "8.00"]
        and rows[2].split() == ["2", "7.00", "11.00"]
    )
    assert heat_table(points[:1]) == []


# -- the form


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


def test_started_and_ended_runs_are_told_apart(root: Path) -> None:
    """A journal that says `running` while nobody holds the lock is a killed run."""
    with JournalWriter(ProjectPaths(root).journal) as journal:
        journal.append(events.encode(started(1.0)))
    watch = ProjectWatch(root)
    watch.refresh()
    assert watch.status == "killed"


def test_the_app_and_the_command_line_say_the_same_of_a_run(root: Path) -> None:
    """The screens' slim fold of the journal gives the document that `--run --json` and `show --json` print."""
    watch = ProjectWatch(root)
    watch.refresh()
    assert document(watch.paths, watch.cards, watch.state) == document(
        watch.paths, watch.cards, load_state(watch.paths)
    )


def test_damaged_cards_stay_told_until_they_are_mended(root: Path) -> None:
    paths = ProjectPaths(root)
    whole = paths.operators.read_bytes()
    paths.operators.write_bytes(whole[:-40])
    watch = ProjectWatch(root)
    for _ in range(2):
        watch.refresh()
        assert "operators.msgpack" in watch.problem
    paths.operators.write_bytes(whole)
    watch.refresh()
    assert watch.problem == "" and watch.cards is not None
