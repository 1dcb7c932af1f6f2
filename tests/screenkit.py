"""What the tests of the screens share: a user's home, a searched project, and driving the app by keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from benchmarks.screen_projects import doctor_cache, many_nodes_project
from forge_tui.app import ForgeApp
from forge_tui.screens.watch import ProjectWatch

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


def read(root: Path) -> ProjectWatch:
    """A project as the screens have it."""
    watch = ProjectWatch(root)
    watch.refresh()
    return watch
