"""New project: a model source, inputs, where and by whom, checked as one types; then the capture, with what it says."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.suggester import Suggester
from textual.widgets import Input, Label, Static

from forge_tui.engine.given import Given
from forge_tui.engine.newproject import new_project
from forge_tui.errors import ForgeError
from forge_tui.screens.base import FindLine, ForgeScreen
from forge_tui.screens.doctoring import fresh_diagnosis, last_diagnosis
from forge_tui.screens.newchecks import Checked, check_form, completion, project_root
from forge_tui.screens.preview import ask_given, given_lines, quick_lines
from forge_tui.screens.processes import forge_command, logged_command
from forge_tui.screens.widgets.keybar import KeyBar
from forge_tui.screens.widgets.lines import LineView, wrapped
from forge_tui.screens.widgets.paint import Line
from forge_tui.store.atomic import make_folder
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import BudgetConfig, ProviderConfig

LABEL = 11
"""Cells of a check's sign and field."""
CHECK_S = 0.15
"""Rest after a key before the fields are checked."""

FIELDS: tuple[tuple[str, str, str, str], ...] = (
    (
        "source",
        "model",
        "hf:ORG/NAME, a folder, FILE.py",
        "hf:ORG/NAME, a transformers folder, FILE.py with build_model(), or package.module:callable. "
        "The right arrow takes the path that is offered.",
    ),
    ("folder", "project folder", "empty: beside the model", "Where the project is made."),
    (
        "inputs",
        "inputs",
        "empty: the source's own",
        "text:=words, text:FILE, image:FILE, audio:FILE, FILE.npz, FILE.safetensors, FILE.py:function. "
        "ctrl+r makes them and shows what the model is given.",
    ),
    ("weights", "weights", "empty: the source's own", "random, or a safetensors file; one that does not fit is an error."),
    ("dtype", "dtype", "empty: as the source has it", "float32, float16, bfloat16 or float64."),
    (
        "attention",
        "attention",
        "empty: the model's default",
        "eager lets capture see inside the attention; sdpa is one operator of its own.",
    ),
    ("device", "device", "auto", "auto, cuda:N, or host: interpreted on the CPU, where times are modelled."),
    (
        "provider",
        "provider",
        "builtin",
        "builtin (no key, no cost), anthropic, openai, openai:URL, exchange or command:PROGRAM. ctrl+y tries it.",
    ),
    ("llm", "language model", "empty: the provider's default", "One name, or several with commas between."),
    ("budget", "budget, dollars", "empty: no limit", "The run stops before the provider has cost more."),
)


class PathSuggester(Suggester):
    """Completes the path at the end of what was typed; the right arrow takes it."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        return completion(value)


class NewProject(ForgeScreen):
    """The form, its checks, and the capture."""

    NAME = "newproject"
    SIDE = "#checks"
    NARROW, LOW = 100, 34
    LEGEND: ClassVar[str] = "the right arrow takes the path that is offered"
    BINDINGS = [
        Binding("ctrl+s", "capture", "make and capture", priority=True, id="newproject.capture"),
        Binding(
            "ctrl+r",
            "given",
            "preview inputs",
            tooltip="make the inputs and show what the model is given",
            priority=True,
            id="newproject.given",
        ),
        Binding(
            "ctrl+y",
            "try_provider",
            "test the key",
            tooltip="ask the provider for its models: whether it answers and takes the key, at no cost",
            priority=True,
            id="newproject.try_provider",
        ),
        Binding("down,enter", "app.focus_next", "next field", show=False),
        Binding("up", "app.focus_previous", "previous field", show=False),
        Binding("escape", "app.pop_screen", "back", id="newproject.back"),
    ]
    DEFAULT_CSS = """
    NewProject VerticalScroll { width: 1fr; padding: 0 1; }
    NewProject .field { height: 1; margin-bottom: 1; }
    NewProject Label { width: 16; color: $forge-muted; }
    NewProject .field Input, NewProject .field Input:focus { width: 1fr; border: none; height: 1; padding: 0 1; }
    NewProject #form { width: 1fr; }
    NewProject #hint { height: 3; padding: 0 1; color: $forge-muted; }
    NewProject #checks { width: 50%; padding: 0 1; border-left: solid $panel; }
    NewProject.narrow Horizontal.body { layout: vertical; }
    NewProject.narrow #form { height: 1fr; }
    NewProject.narrow #hint { height: 2; }
    NewProject.narrow #checks { width: 1fr; height: 38%; border-left: none; border-top: solid $panel; }
    NewProject.low .field { margin-bottom: 0; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: tuple[Path, str] | None = None
        """The project this form made, and the text of its project.toml: rewritten only while nobody else edited it."""
        self._busy = False
        self._said: list[Line] = []
        self._given: tuple[tuple[str, ...], Given | str] | None = None
        """What the model is given, and the fields that it was made from."""

    def compose(self) -> ComposeResult:
        yield Static("forge-tui › new project", id="title", markup=False)
        with Horizontal(classes="body"):
            with Vertical(id="form"):
                with VerticalScroll(can_focus=False):
                    for name, label, example, _ in FIELDS:
                        with Horizontal(classes="field"):
                            yield Label(label)
                            yield Input(
                                self.forge.form_left.get(name, {"device": "auto", "provider": "builtin"}.get(name, "")),
                                placeholder=example,
                                id=name,
                                suggester=PathSuggester() if name in ("source", "folder", "inputs", "weights") else None,
                            )
                yield Static(id="hint", markup=False)
            yield LineView(id="checks")
        yield FindLine("")
        yield KeyBar()

    def on_mount(self) -> None:
        for field in self.query(Input):
            field.cursor_blink = False
        self.query_one("#form").add_class("pane")
        self.query_one("#checks").add_class("pane")
        self.query_one("#source").focus()
        self.call_after_refresh(self._check)
        found = last_diagnosis()
        if found is None or any(item.name.startswith("cuda:") for item in found.findings):
            self._look_at_devices()

    @work(exclusive=True, group="devices")
    async def _look_at_devices(self) -> None:
        """What is free on a GPU changes by the minute."""
        if await fresh_diagnosis() is not None:
            self._check()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Say what the field takes."""
        hints = {name: hint for name, _, _, hint in FIELDS}
        self.update("#hint", hints.get(event.widget.id or "", ""))

    def on_resize(self) -> None:
        self.fit()
        self.call_after_refresh(self._check)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A form has nothing to find in."""
        return action != "find"

    def form(self) -> dict[str, str]:
        """What stands in the fields."""
        return {name: self.query_one(f"#{name}", Input).value.strip() for name, *_ in FIELDS}

    @on(Input.Changed)
    def _changed(self) -> None:
        self._said = []
        self.forge.form_left = self.form()
        self.set_timer(CHECK_S, self._check)

    def _check(self) -> None:
        view = self.query_one("#checks", LineView)
        width, lines = max(20, view.size.width), list(self._said)
        found = [item for item in check_form(self.form()) if not self._made_by_us(item)]
        for item in sorted(found, key=lambda item: item.good):
            sign, token = ("✓ ", "forge-verified") if item.good else ("✗ ", "forge-failed")
            for number, line in enumerate(wrapped(item.text or "as below", width - LABEL, "forge-muted" if item.good else "")):
                label = f"{'' if number else item.field:<{LABEL - 2}}"
                lines.append((("  " if number else sign, token), (label, "bold"), *line))
        for item in found:
            if item.field == "inputs" and item.good:
                preview = self._preview(item.preview, width)
                lines += [(), *preview] if preview else []
        view.show(lines, top=0)

    def _made_by_us(self, item: Checked) -> bool:
        """A folder that is there because this form made it is no obstacle."""
        return item.field == "folder" and self._made is not None and project_root(self.form()) == self._made[0]

    def _preview(self, spec: str, width: int) -> list[Line]:
        """As the model is given them, where that was asked for; else as the file is."""
        colours = not self.app.no_color
        if self._given is not None and self._given[0] == self._sources():
            found = self._given[1]
            if isinstance(found, Given):
                return given_lines(found, width, colours)
            return wrapped(found, width, "forge-failed")
        return quick_lines(spec, width, colours) if spec else []

    def _sources(self) -> tuple[str, ...]:
        """The fields that decide what the model is given."""
        form = self.form()
        return tuple(form[name] for name in ("source", "inputs", "weights", "dtype", "attention"))

    @work(exclusive=True, group="given")
    async def action_given(self) -> None:
        form = self.form()
        wrong = [item for item in check_form(form) if not item.good and item.field in ("model", "inputs", "weights", "dtype")]
        if wrong:
            self.notify(f"{wrong[0].field}: {wrong[0].text}", title="Not yet", severity="warning")
            return
        made_from = self._sources()
        self._say("▶ making the inputs (a Python source is run for that)", "forge-running")
        model = {"source": form["source"], "weights": form["weights"], "dtype": form["dtype"], "attention": form["attention"]}
        found = await ask_given(model, form["inputs"])
        self._given, self._said = (made_from, found), []
        self._check()

    @work(exclusive=True, group="provider")
    async def action_try_provider(self) -> None:
        form = self.form()
        self._say(f"▶ asking {form['provider'] or 'builtin'}", "forge-running")
        finished = await forge_command("doctor", "--provider", form["provider"] or "builtin", "--llm", form["llm"])
        sign, token = ("✗", "forge-failed") if finished.code else ("✓", "forge-verified")
        self._say(f"{sign} {finished.words}", token)

    def _say(self, text: str, token: str) -> None:
        view = self.query_one("#checks", LineView)
        self._said = [*wrapped(text, max(20, view.size.width), token), ()]
        self._check()

    def action_capture(self) -> None:
        form = self.form()
        root = project_root(form)
        wrong = [item for item in check_form(form) if not item.good and not self._made_by_us(item)]
        if self._busy:
            self.notify("the capture is still going on", title="Already capturing")
        elif wrong or root is None:
            self.notify(f"{wrong[0].field}: {wrong[0].text}", title="Not yet", severity="warning")
        else:
            self._capture(root, form)

    def _write(self, root: Path, form: dict[str, str]) -> None:
        """Make the project; or make it again, where it is ours and as we left it. Raises ForgeError."""
        paths = ProjectPaths(root)
        if (
            self._made
            and self._made[0] == root
            and paths.config.is_file()
            and paths.config.read_text() == self._made[1]
        ):
            paths.config.unlink()
        new_project(
            root,
            form["source"],
            inputs=form["inputs"],
            device=form["device"] or "auto",
            dtype=form["dtype"],
            weights=form["weights"],
            attention=form["attention"],
            provider=ProviderConfig(form["provider"] or "builtin", form["llm"]),
            budget=BudgetConfig(usd=float(form["budget"] or 0)),
        )
        self._made = (root, paths.config.read_text())

    @work(exclusive=True)
    async def _capture(self, root: Path, form: dict[str, str]) -> None:
        """In a process and a session of its own; its words are shown as they come."""
        try:
            self._write(root, form)
            folder = make_folder(ProjectPaths(root).logs)
        except (ForgeError, OSError) as error:
            self._say(str(error), "forge-failed")
            return
        log = folder / time.strftime("capture-%Y%m%d-%H%M%S.log")
        self._busy = True
        running = asyncio.ensure_future(logged_command(log, "capture", str(root)))
        while not running.done():
            await asyncio.wait([running], timeout=0.25)
            words = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
            self._say(f"▶ capturing: {words[-1] if words else 'starting'}", "forge-running")
        self._busy = False
        if running.result():
            words = log.read_text(errors="replace").strip()[-1500:].removeprefix("forge-tui: ")
            self._say(f"✗ the capture failed; correct the field and press ctrl+s again\n{words}", "forge-failed")
            return
        self.forge.form_left = {}
        self.app.pop_screen()
        self.app.open_project(root)  # type: ignore[attr-defined]
        self.app.notify("captured; F forges all, f the one under the cursor", title="Ready")
