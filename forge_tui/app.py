"""The Textual app: modes, themes, signals. A reader of projects; engines run in their own sessions."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from textual.app import App
from textual.binding import Binding
from textual.screen import Screen

from forge_tui.errors import ProjectError
from forge_tui.screens.help import Help
from forge_tui.screens.launcher import Launcher
from forge_tui.screens.themes import all_themes
from forge_tui.screens.watch import ProjectWatch
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import load_project
from forge_tui.store.recent import remember

TERMINAL_CHECK_S = 1.0
"""Textual spins when its terminal is gone without a signal; an orphaned app looks for that this often."""


class ForgeApp(App[int]):
    """Launcher, operator bench, kernel bench."""

    TITLE = "forge-tui"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS = [Binding("question_mark", "help", "help"), Binding("ctrl+q", "quit", "quit", show=False)]

    def __init__(self, project: Path | None = None) -> None:
        super().__init__(ansi_color="NO_COLOR" in os.environ)
        self.animation_level = "none"
        self._project = project

    def get_default_screen(self) -> Screen[None]:
        return Launcher()

    def on_mount(self) -> None:
        themes, problems = all_themes()
        for theme in themes:
            self.register_theme(theme)
        if "NO_COLOR" not in os.environ:
            self.theme = "forge-dark"
        for problem in problems:
            self.notify(problem, severity="warning", title="Theme")
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        if self._project is not None:
            from forge_tui.screens.operators import OperatorBench

            remember(self._project)
            self.push_screen(OperatorBench(ProjectWatch(self._project)))
        if os.isatty(0):
            self.set_interval(TERMINAL_CHECK_S, self._check_terminal)

    def _on_signal(self, number: int, frame: object) -> None:
        """Textual handles neither signal: leave the terminal as it was, with the exit code of the contract."""
        self.call_later(self.exit, 128 + number)

    def _check_terminal(self) -> None:
        try:
            os.tcgetpgrp(0)
        except OSError:
            self.exit(128 + signal.SIGHUP)

    def action_help(self) -> None:
        self.push_screen(Help(self.screen))


def run_app(project: str | None) -> int:
    """Run the app, on a project if one is named; returns the exit code. Raises ProjectError for a folder that is none."""
    root = None
    if project is not None:
        root = ProjectPaths(project).root
        load_project(root)
    elif ProjectPaths(Path.cwd()).is_project():
        root = Path.cwd()
    app = ForgeApp(root)
    code = app.run(mouse=False)
    if app._exception is not None:
        raise ProjectError(f"the app ended: {app._exception}") from app._exception
    return code or 0
