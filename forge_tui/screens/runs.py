"""Runs from the operator bench: what is started, by whom it is written, stopped, paused, tried again; or why it cannot be."""

from __future__ import annotations

from forge_tui.engine.control import request_pause, request_stop
from forge_tui.engine.providers import check_provider
from forge_tui.errors import ForgeError
from forge_tui.screens.base import ForgeScreen
from forge_tui.screens.dialogs import Ask
from forge_tui.screens.operatorrows import Entry, OperatorRows
from forge_tui.screens.watch import ProjectWatch
from forge_tui.screens.widgets.table import Table


class RunActions(ForgeScreen):
    """The actions; the screen has the table `#operators` and the keys."""

    def __init__(self, watch: ProjectWatch) -> None:
        super().__init__()
        self.project = watch
        self._rows = OperatorRows(watch)
        self._writer = ""
        """A provider other than the project's; empty: that one."""

    def _chosen_entries(self) -> list[Entry]:
        table = self.query_one("#operators", Table)
        keys = [key for key in table.keys if key in table.marked] or [table.key or ""]
        return list({entry.variant.key: entry for key in keys for entry in self._rows.variants_of(key)}.values())

    def action_forge(self) -> None:
        entries = self._chosen_entries()
        able = [entry for entry in entries if entry.variant.offered]
        if entries and not able:
            self.notify(entries[0].variant.reason, title="Cannot be forged")
        elif not entries and self.project.cards is not None:
            self.notify("no operator is under the cursor", title="Nothing to forge")
        else:
            self._start(
                able, f"forging {len(able)} operator{'s' * (len(able) != 1)}" if able else "capturing and forging"
            )

    def action_forge_all(self) -> None:
        self._start([], "forging all, most recoverable time first")

    def action_retry(self) -> None:
        failed = [
            entry
            for key in self.project.state.operators
            if (entry := self._rows.entry(key)) and entry.status == "failed"
        ]
        if not failed:
            self.notify("no operator has failed", title="Nothing to retry")
            return
        self._start(failed, f"trying {len(failed)} failed operators again")

    def _start(self, entries: list[Entry], what: str) -> None:
        if self.project.running:
            self.notify(f"{self.project.holder} holds this project; s stops it", title="Already running")
            return
        options = [word for entry in entries for word in ("--ops", entry.variant.key)]
        had = max((len(entry.operator.tree.nodes) for entry in entries if entry.operator), default=0)
        planned = self.project.config.search.iterations if self.project.config else 0
        if entries and planned and had >= planned:  # the search had its tries: give it as many again
            options += ["--iterations", str(had + planned)]
        if self._writer:
            options += ["--provider", self._writer]
        self.query_one("#operators", Table).marked.clear()
        self.app.start_engine(self.project, tuple(options), what)  # type: ignore[attr-defined]

    def action_stop(self) -> None:
        try:
            holder = request_stop(self.project.paths)
        except (ForgeError, OSError) as error:
            self.notify(str(error), title="Cannot be stopped", severity="error")
            return
        if holder is None:
            self.notify("no run holds this project; f starts one", title="Nothing to stop")
        else:
            self.notify(f"{holder} saves and ends; f goes on from there", title="Stopping")

    def action_pause(self) -> None:
        if self.project.running and not self.project.run_goes_on:
            self.notify(f"{self.project.holder}: no run yet, or none at all; s ends it", title="Cannot be paused")
            return
        wanted = not self.project.paused
        try:
            holder = request_pause(self.project.paths, wanted)
        except (ForgeError, OSError) as error:
            self.notify(str(error), title="Cannot be paused", severity="error")
            return
        if holder is None:
            self.notify("no run holds this project; f starts one", title="Nothing to pause")
        elif wanted:
            self.notify("what is in flight is judged, nothing new is asked for; P goes on", title="Paused")
        else:
            self.notify(f"{holder} goes on", title="Going on")

    def action_writer(self) -> None:
        def named(name: str | None) -> None:
            if not name:
                return
            try:
                check_provider(name)
            except ForgeError as error:
                self.notify(str(error), title="Cannot be used", severity="error", timeout=15)
                return
            self._writer = name
            self.notify(f"runs that are started here ask {name}; project.toml stays as it is", title="Writer")

        own = self.project.config.provider.name if self.project.config else "builtin"
        self.app.push_screen(
            Ask("Who writes kernels: builtin, anthropic, openai, openai:URL, exchange, command:PROGRAM", self._writer or own),
            named,
        )
