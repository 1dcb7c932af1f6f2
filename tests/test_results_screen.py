"""Results: what the model uses and why, the whole model's times, and an export by choice with reasons."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from screenkit import drive, home, press, read, root, text_of  # noqa: F401
from textual.pilot import Pilot

from forge_tui.app import ForgeApp
from forge_tui.engine import events
from forge_tui.engine.state import load_state
from forge_tui.screens.exporting import Export
from forge_tui.store.journal import JournalWriter
from forge_tui.store.paths import ProjectPaths


def done(root: Path, key: str) -> None:
    """The best candidate confirmed, packed and run in the model."""
    paths = ProjectPaths(root)
    best = read(root).state.operator(key).best
    package = paths.packages / "forged/forged_encoder"
    package.mkdir(parents=True)
    (package / "manifest.toml").write_text(f'format = 1\nentries = ["{key}"]\n')
    with JournalWriter(paths.journal) as journal:
        for event in (
            events.Confirmed(at=9.0, node=best.id, verdict=best.verdict, value=best.value),
            events.Packaged(at=10.0, path=str(package.parent), kernels=1),
            events.InModel(
                at=11.0,
                relative_error=1e-7,
                kernel_calls=5,
                fallback_calls=1,
                kernels=(events.KernelUse(key, 5, {"other stride": 1}),),
            ),
        ):
            journal.append(events.encode(event))


def test_calls_by_the_kernel_and_by_the_original_are_counted_with_the_guard(root: Path) -> None:
    (key,) = load_state(ProjectPaths(root)).operators
    done(root, key)

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        assert "✓ 5 of 6" in text_of(app) and "other stride 1" in " ".join(text_of(app).split())
        shown = await press(app, pilot, "r")
        assert "its kernel ran 5 times in the model, the original 1: other stride 1" in shown
        assert "b compares and times it" in shown

    drive(root, steps, size=(200, 60))


def test_the_whole_model_s_times_are_shown_until_there_is_another_package(root: Path) -> None:
    (key,) = load_state(ProjectPaths(root)).operators
    done(root, key)
    times = (events.ModelTime("eager", 4100.0, 1.0), events.ModelTime("forged", 3300.0, 1.242, (1.23, 1.25)))
    with JournalWriter(ProjectPaths(root).journal) as journal:
        journal.append(
            events.encode(
                events.Benched(at=12.0, accepted=True, reason="1.242x", device="GPU", times=times, error=1e-7)
            )
        )

    async def steps(app: ForgeApp, pilot: Pilot[int]) -> None:
        shown = await press(app, pilot, "r")
        assert "✓ accepted: 1.242x" in shown and "forged 3.30 ms (1.24x [1.23, 1.25])" in shown

    drive(root, steps)
    state = load_state(ProjectPaths(root))
    assert state.last_event_at == 11.0  # a bench is no part of a run's time
    state.apply(events.Packaged(at=13.0, path="p", kernels=1))
    assert state.benched is None


def test_kernels_are_chosen_for_export_with_the_reason_beside_each(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,) = load_state(ProjectPaths(root)).operators
    asked: list[tuple[str, ...]] = []

    async def export(*arguments: str) -> object:
        asked.append(arguments)
        return msgspec.defstruct("Finished", [("code", int, 0), ("out", str, "1 kernel"), ("err", str, "")])()

    monkeypatch.setattr("forge_tui.screens.results.forge_command", export)

    async def unconfirmed(app: ForgeApp, pilot: Pilot[int]) -> None:
        shown = await press(app, pilot, "r", "x")
        assert "not confirmed in a fresh process" in shown and "export 0 of 1" in shown
        await press(app, pilot, "ctrl+s")
        assert isinstance(app.screen, Export)  # nothing is taken
        assert "export 1 of 1" in await press(app, pilot, "space")

    drive(root, unconfirmed)
    done(root, key)

    async def confirmed(app: ForgeApp, pilot: Pilot[int]) -> None:
        shown = await press(app, pilot, "r", "w")
        assert "✓ confirmed, 1.9" in shown and "export 1 of 1" in shown and "and a wheel" in shown
        await press(app, pilot, "ctrl+s")

    drive(root, confirmed)
    (arguments,) = asked
    assert arguments[-3:] == ("--select", key, "--wheel")
