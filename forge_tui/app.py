"""The Textual app: themes, keymap, signals, what is remembered. It reads projects; engines have their own sessions."""

from __future__ import annotations

import gc
import importlib
import os
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from textual import events, work
from textual.app import App
from textual.await_complete import AwaitComplete
from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widget import AwaitMount
from textual.worker import WorkerFailed

from forge_tui.screens import letters, toasts
from forge_tui.screens.dialogs import Choose
from forge_tui.screens.launcher import Launcher
from forge_tui.screens.palette import Palette
from forge_tui.screens.processes import forge_command
from forge_tui.screens.settings import load_config, load_remembered, remember_app
from forge_tui.screens.terminal import Driver, listen
from forge_tui.screens.themes import all_themes
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.recent import remember

if TYPE_CHECKING:
    from forge_tui.screens.watch import ProjectWatch

SETTLED_S = 0.4
"""After this the first screen is painted: what the next ones need is loaded while nobody waits for it."""
NEXT_MODULES = ("watch", "operatorcard", "operators", "candidate", "kernels", "results")


class ForgeApp(App[int]):
    """Launcher, operator bench, kernel bench."""

    TITLE = "forge-tui"
    ENABLE_COMMAND_PALETTE = False
    CSS = f"{toasts.CSS} Screen {{ scrollbar-size-vertical: 1; }}"
    BINDINGS = [
        Binding("question_mark", "help", "help", show=False, tooltip="help: the keys of this screen", id="app.help"),
        Binding("colon,ctrl+p", "palette", "actions", show=False, tooltip="all actions, by name", id="app.palette"),
        Binding("ctrl+t", "theme", "theme", show=False, tooltip="choose the colours", id="app.theme"),
        Binding("exclamation_mark", "messages", "messages", show=False, tooltip="all that was said here", id="app.messages"),
        # these two also in dialogs, forms and jump mode, which otherwise keep all keys to themselves
        Binding(
            "ctrl+l", "redraw", "redraw", show=False, tooltip="paint the whole screen anew", priority=True, id="app.redraw"
        ),
        Binding("ctrl+q", "quit", "quit", show=False, tooltip="leave; runs go on", priority=True, id="app.quit"),
    ]

    def __init__(self, project: Path | None = None) -> None:
        # NO_COLOR: with the terminal's own colours Textual's filter takes colours away; else it turns them to greys
        super().__init__(driver_class=Driver if os.name == "posix" else None, ansi_color="NO_COLOR" in os.environ)
        self.animation_level = "none"
        self.remembered = load_remembered()
        self._project = project
        self.form_left: dict[str, str] = {}
        """What stands in the form of a new project, for when it was left and is opened again; of one that was made, nothing."""
        self.said: deque[toasts.Said] = deque(maxlen=toasts.KEPT)
        self._config, self._problems = load_config(known_ids)
        chosen = self._config.app.ascii
        self.in_ascii = letters.wanted(os.environ) if chosen is None else chosen
        """Signs are sent as ASCII letters."""
        self._choose_theme()

    def get_default_screen(self) -> Screen[None]:
        return Launcher()

    def on_mount(self) -> None:
        self.set_keymap(self._config.keys)
        for problem in self._problems:
            self.notify(problem, severity="warning", title="Settings", timeout=15)
        if not self.is_headless:
            listen(self)
            self.set_timer(SETTLED_S, self._settle)
        if self._project is not None:
            self.open_project(self._project)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Forge's own tokens where a theme that is not Forge's has none."""
        return {
            "forge-verified": "ansi_green",
            "forge-failed": "ansi_red",
            "forge-running": "ansi_cyan",
            "forge-muted": "ansi_default",
            "forge-cursor": "ansi_default",
        }

    def _choose_theme(self) -> None:
        themes, broken = all_themes()
        self._problems += broken
        for theme in themes:
            self.register_theme(theme)
        if self.no_color:
            self.theme = "forge-ansi-dark"
            return
        wanted = self._config.app.theme or self.remembered.theme or "forge-dark"
        if wanted in self.available_themes:
            self.theme = wanted
        else:
            self.theme = "forge-dark"
            self._problems.append(f"there is no theme `{wanted}`; ctrl+t lists them")

    def _settle(self, modules: tuple[str, ...] = NEXT_MODULES) -> None:
        """Collect garbage again, which the command put off, and load a module of the screens that come next."""
        if modules:
            importlib.import_module(f"forge_tui.screens.{modules[0]}")
            self.set_timer(0.02, lambda: self._settle(modules[1:]))
        else:
            gc.freeze()
            gc.enable()

    # -- keys typed ahead, errors

    def push_screen(self, screen: Screen[Any], *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        """A key that was pressed twice opens one screen."""
        if self._screen_stack and type(screen) is type(self.screen):
            return AwaitMount(self.screen, [])
        return super().push_screen(screen, *arguments, **options)

    def pop_screen(self) -> AwaitComplete:
        """The last screen stays."""
        return super().pop_screen() if len(self._screen_stack) > 1 else AwaitComplete()

    def notify(self, message: str, *, markup: bool = False, **options: Any) -> None:
        """Toasts name files and quote errors: a bracket in one is a bracket. What is too long for one is in `!`."""
        self.said.append(toasts.Said(time.time(), options.get("title", ""), message, options.get("severity", "information")))
        super().notify(toasts.cut(message, self.size.width, self.size.height), markup=False, **options)

    def _refresh_notifications(self) -> None:
        if self._screen_stack:
            toasts.settle(self)
        super()._refresh_notifications()
        self.call_later(toasts.place, self)

    async def on_event(self, event: events.Event) -> None:
        await super().on_event(event)
        if isinstance(event, events.InputEvent) and self._notifications:  # the focus or a cursor may have moved under one
            self.call_after_refresh(toasts.place, self)

    def panic(self, *renderables: object) -> None:
        """End without a word: `run_app` raises the error once the terminal is as it was."""
        self._close_messages_no_wait()

    def _fatal_error(self) -> None:
        self.panic()

    # -- services of the screens

    def open_project(self, root: Path) -> None:
        """Show a project's operators."""
        from forge_tui.screens.operators import OperatorBench
        from forge_tui.screens.watch import ProjectWatch

        remember(root)
        self.push_screen(OperatorBench(ProjectWatch(root)))

    @work
    async def start_engine(self, watch: ProjectWatch, options: tuple[str, ...], what: str) -> None:
        """A run in a session of its own: closing this terminal does not stop it."""
        self.notify(
            f"{what}; the run has a session of its own, closing this terminal does not stop it", title="Starting"
        )
        finished = await forge_command("--run", str(watch.paths.root), "--detach", *options)
        if finished.code:
            for toast in [toast for toast in self._notifications if toast.title == "Starting"]:
                self._unnotify(toast)
            self.notify(finished.words, title="The run did not start", severity="error", timeout=20)

    def remember_pane(self, slot: str, size: int) -> None:
        """Panes open next time as they were left."""
        self._remember(panes={**self.remembered.panes, slot: size})

    def remember_zoom(self, screen: str, pane: str) -> None:
        """Also which one has the whole screen; empty for none."""
        self._remember(zoomed={**self.remembered.zoomed, screen: pane})

    def toggle_archived(self, root: str) -> bool:
        """Whether it is archived now."""
        archived = set(self.remembered.archived) ^ {root}
        self._remember(archived=tuple(sorted(archived)))
        return root in archived

    def _remember(self, **changes: object) -> None:
        self.remembered = msgspec.structs.replace(self.remembered, **changes)
        remember_app(self.remembered)

    # -- actions

    def on_resize(self) -> None:
        if isinstance(self._driver, Driver):
            self._driver.shadow.forget()

    def action_redraw(self) -> None:
        """Another program may have written on the terminal."""
        self.on_resize()
        self.screen.refresh()

    def action_messages(self) -> None:
        self.clear_notifications()
        self.push_screen(toasts.Messages(list(self.said)))

    def action_help(self) -> None:
        self.push_screen(Palette(self.screen, getattr(self.screen, "LEGEND", "")))

    def action_palette(self) -> None:
        self.push_screen(Palette(self.screen))

    def action_theme(self) -> None:
        def chosen(name: str | None) -> None:
            if name:
                self.theme = name
                self._remember(theme=name)

        names = sorted(name for name in self.available_themes if name.startswith("forge-")) + sorted(
            name for name in self.available_themes if not name.startswith(("forge-", "textual-", "ansi-"))
        )
        self.push_screen(Choose("theme", names, self.theme), chosen)

    def handle_bindings_clash(self, clashed_bindings: set[Binding], node: DOMNode) -> None:
        names = ", ".join(sorted(str(binding.id or binding.action) for binding in clashed_bindings))
        self.notify(f"[keys] gives one key to two actions: {names} lost theirs", severity="warning", title="Settings")


def binding_owners() -> list[type[DOMNode]]:
    """Everything that has keys. Loads every screen."""
    from forge_tui.screens import base, doctoring, exporting, jump, kernels, launcher, newproject, operators, palette, results
    from forge_tui.screens.widgets import lines, table

    return [
        ForgeApp,
        base.ForgeScreen,
        base.FindLine,
        launcher.Launcher,
        newproject.NewProject,
        operators.OperatorBench,
        kernels.KernelBench,
        results.Results,
        exporting.Export,
        exporting.OfferTable,
        doctoring.Doctor,
        palette.Palette,
        toasts.Messages,
        jump.Jump,
        table.Table,
        lines.LineView,
    ]


def known_ids() -> Iterable[str]:
    """Every binding that `[keys]` may name."""
    return [
        binding.id
        for owner in binding_owners()
        for binding in owner.BINDINGS
        if isinstance(binding, Binding) and binding.id
    ]


def run_app(project: str | None) -> int:
    """Run the app, on a project if one is named; returns the exit code.

    Raises ProjectError for what is none, and the error that ended the app where one did.
    """
    root = None
    if project is not None:
        root = ProjectPaths(project).root
        from forge_tui.store.project import load_project

        load_project(root)
    elif ProjectPaths(Path.cwd()).is_project():
        root = Path.cwd()
    app = ForgeApp(root)
    code = app.run(mouse=load_config(tuple)[0].app.mouse)
    error = app._exception
    if error is not None:
        raise error.error if isinstance(error, WorkerFailed) else error
    return code or app.return_code or 0
