"""The screens of a project and the launcher on real files: folds, sorting, filters, diffs, results, what is written now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from screenkit import drive, home, press, read, root, text_of  # noqa: F401
from textual.pilot import Pilot

from benchmarks.screen_projects import SOURCE, Growing, candidate, launcher_home, project, softmax, started
from forge_tui.app import ForgeApp
from forge_tui.engine import events, steering
from forge_tui.engine.providers.live import LiveReplies
from forge_tui.engine.report import document
from forge_tui.engine.state import load_state
from forge_tui.screens.watch import ProjectWatch
from forge_tui.screens.widgets.table import Table
from forge_tui.specs import Call
from forge_tui.store.journal import JournalWriter
from forge_tui.store.recent import remember
from forge_tui.store.paths import ProjectPaths

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


def test_a_first_idea_is_compared_with_the_best_and_d_goes_round(root: Path) -> None:
    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "enter")
        table = app.screen.query_one("#tree", Table)
        table.select(table.keys[0])
        shown = await press(app, pilot, "4")
        best = next(iter(read(root).state.operators.values())).best
        assert f"best {best.number} and this 1 have the same text" in shown
        assert "builtin" in await press(app, pilot, "d", "d")
        assert "no marked to compare with" in await press(app, pilot, "d")

    drive(root, steps)


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
        bench = app.screen
        await press(app, pilot, "slash", *"relu", "enter")  # the filter stays, the focus goes to the list
        assert list(table.keys) == [keys[2]] and app.focused is table
        shown = await press(app, pilot, "escape")
        assert len(table.keys) == 4 and app.screen is bench and "relu" not in shown.splitlines()[-2]
        await press(app, pilot, "o", "down", "enter")  # the second choice: by name
        assert table.keys[0] == keys[2] and "operator▲" in text_of(app)

    drive(paths.root, steps)


def test_escape_takes_a_filter_back_and_then_leaves(tmp_path: Path) -> None:
    """In the launcher, which is left by q alone, and in a project opened from it."""
    for name in ("encoder", "decoder"):
        paths, _ = project(tmp_path / name, [softmax(64)])
        remember(paths.root)

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        launcher, table = app.screen, app.screen.query_one(Table)
        await press(app, pilot, "slash", *"decod", "enter")
        assert len(table.keys) == 1 and app.focused is table
        await press(app, pilot, "escape")
        assert len(table.keys) == 2 and app.screen is launcher
        await press(app, pilot, "escape")
        assert app.screen is launcher
        await press(app, pilot, "enter")
        bench = app.screen
        await press(app, pilot, "slash", *"soft", "enter", "escape")
        assert app.screen is bench is not launcher
        await press(app, pilot, "escape")
        assert app.screen is launcher

    drive(None, steps)


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


def test_another_writer_is_named_for_the_runs_started_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, keys = project(tmp_path / "encoder", [softmax(64), softmax(32)])
    with JournalWriter(paths.journal) as journal:
        for event in (
            started(1.0),
            events.Selected(at=1.0, operators=tuple(keys)),
            events.OperatorDone(at=2.0, variant=keys[0], status="skipped", reason="no kernel ships", best=None),
            events.OperatorDone(at=2.0, variant=keys[1], status="failed", reason="all were wrong", best=None),
            events.RunEnded(at=3.0, run="r", status="done", reason="", exit_code=0),
        ):
            journal.append(events.encode(event))
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(ForgeApp, "start_engine", lambda self, watch, options, what: asked.append(options))
    before = paths.config.read_text()

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        assert "100% of the time has no kernel: w" in text_of(app)
        await press(app, pilot, "space", "down")
        assert "no kernel ships; w chooses another writer" in " ".join((await press(app, pilot, "enter")).split())
        assert "there is no provider" in await press(app, pilot, "w", "ctrl+u", *"nobody", "enter")
        await press(app, pilot, "w", "ctrl+u", *"exchange", "enter")
        await press(app, pilot, "F")

    drive(paths.root, steps)
    assert asked == [("--provider", "exchange")] and paths.config.read_text() == before


def test_a_running_engine_is_told_of_and_its_queue_shown(tmp_path: Path) -> None:
    growing = Growing(tmp_path)

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        growing.step()
        await pilot.pause(0.6)
        shown = text_of(app)
        assert "▶ running" in shown and "asking  softmax" in shown and f"process {os.getpid()}" in shown
        assert "holds this project" in await press(app, pilot, "f")

    with growing:
        drive(growing.root, steps)


def test_p_pauses_a_run_and_lets_it_go_on(tmp_path: Path) -> None:
    growing = Growing(tmp_path)

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, "P")
        await pilot.pause(0.4)
        assert growing.paths.pause_request.exists() and "‖ paused" in text_of(app)
        await press(app, pilot, "P")
        await pilot.pause(0.4)
        assert not growing.paths.pause_request.exists() and "▶ running" in text_of(app)

    with growing:
        drive(growing.root, steps)


def test_a_reply_is_shown_while_it_is_written_and_its_reasoning_afterwards(tmp_path: Path) -> None:
    growing = Growing(tmp_path)

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        growing.step()
        live = LiveReplies(growing.paths.replies)
        await pilot.pause(0.4)
        await press(app, pilot, "enter", "6")
        assert "nothing came yet" in text_of(app)
        ask = growing.asked.replace("/", "-")
        live.begun(ask)
        live.came(ask, "the rows are sh", True)
        await pilot.pause(0.4)
        assert "the rows are sh" in text_of(app)
        live.came(ask, "ort\n" * 60 + "last thought", True)
        await pilot.pause(0.4)
        assert "last thought" in text_of(app)  # the end is followed
        (growing.paths.replies / "why.md").write_text("# Plan\n\nuse `float4` **now**\n")
        growing.step(reasoning_file="why.md")
        await pilot.pause(0.4)
        assert "Plan" in text_of(app) and "use float4 now" in text_of(app)

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
