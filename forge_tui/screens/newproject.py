"""New project: a model source, inputs, where and by whom, checked as one types; then the capture, with what it says."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.suggester import Suggester
from textual.widgets import Input, Label, Static

from forge_tui.engine.newproject import check_inputs, check_source, default_folder, new_project
from forge_tui.engine.providers import check_provider
from forge_tui.errors import ForgeError
from forge_tui.screens.base import FindLine, ForgeScreen
from forge_tui.screens.doctoring import last_diagnosis
from forge_tui.screens.processes import logged_command
from forge_tui.screens.widgets.keybar import KeyBar
from forge_tui.screens.widgets.lines import LineView, wrapped
from forge_tui.screens.widgets.paint import Line
from forge_tui.store.atomic import make_folder
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import BudgetConfig, ProviderConfig

DTYPES = ("", "float32", "float16", "bfloat16", "float64")
CHECK_S = 0.15
"""Rest after a key before the fields are checked."""
PREVIEW_LINES = 3
PREVIEW_BYTES = 2000
KEYED = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}

FIELDS: tuple[tuple[str, str, str], ...] = (
    ("source", "model", "hf:ORG/NAME, a folder, FILE.py, package.module:callable"),
    ("folder", "project folder", "empty: beside the model"),
    ("inputs", "inputs", "text:=words, text:FILE, image:FILE, FILE.npz, FILE.py:function; empty: the source's own"),
    ("weights", "weights", "empty: the source's own; random; a safetensors file"),
    ("dtype", "dtype", "empty: as the source has it; float32, float16, bfloat16"),
    ("attention", "attention", "empty: the default; eager lets capture see inside"),
    ("device", "device", "auto, cuda:N, host"),
    ("provider", "provider", "builtin, anthropic, exchange, command:PROGRAM"),
    ("llm", "language model", "empty: the provider's default"),
    ("budget", "budget, dollars", "empty: no limit"),
)


@dataclass(frozen=True)
class Checked:
    """What is to be said of one field."""

    field: str
    good: bool
    text: str


class PathSuggester(Suggester):
    """Completes the path at the end of what was typed; the right arrow takes it."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        return completion(value)


def completion(value: str) -> str | None:
    """The first path that begins so, folders with a slash; None where there is none or nothing to complete."""
    head, colon, typed = value.rpartition(":") if value.split(":")[0] in ("text", "image", "audio") else ("", "", value)
    if not typed or typed.startswith("=") or value.startswith("hf:"):
        return None
    folder, begun = os.path.split(os.path.expanduser(typed))
    try:
        names = sorted(
            name for name in os.listdir(folder or ".") if name.startswith(begun) and (begun or not name.startswith("."))
        )
    except OSError:
        return None
    for name in names:
        if name != begun:
            slash = "/" if os.path.isdir(os.path.join(folder, name)) else ""
            return f"{head}{colon}{typed[: len(typed) - len(begun)]}{name}{slash}"
    return None


def check_form(form: dict[str, str]) -> list[Checked]:
    """Every field's verdict, and what the model will be given. Reads names and sizes, runs nothing."""
    found = [_check_source(form["source"]), _check_folder(form), _check_inputs(form)]
    if form["weights"] not in ("", "random"):
        there = Path(form["weights"]).expanduser().is_file()
        found.append(Checked("weights", there, "is there" if there else "there is no such file; or write random"))
    if form["dtype"] not in DTYPES:
        found.append(Checked("dtype", False, f"one of {', '.join(DTYPES[1:])}, or empty"))
    device = form["device"]
    known = device in ("auto", "host", "cuda") or (device.startswith("cuda:") and device[5:].isdigit())
    found.append(Checked("device", known, _device_words(device) if known else "auto, cuda:N or host"))
    found.append(_check_provider(form["provider"]))
    if form["budget"] and not _is_amount(form["budget"]):
        found.append(Checked("budget", False, "a number of dollars, or empty"))
    return found


def _check_source(source: str) -> Checked:
    if not source:
        return Checked("model", False, "where does the model come from? Type a path: the right arrow completes it")
    try:
        check_source(source)
    except ForgeError as error:
        return Checked("model", False, f"{error.message}; {error.cure}" if error.cure else error.message)
    if source.startswith("hf:"):
        return Checked("model", True, "from the hub's cache, or downloaded at capture")
    return Checked("model", True, "a name to import" if not Path(source).expanduser().exists() else "is there")


def _check_folder(form: dict[str, str]) -> Checked:
    root = project_root(form)
    if root is None:
        return Checked("folder", True, "named after the model")
    if ProjectPaths(root).is_project():
        return Checked(
            "folder", False, f"{root} is a project already: open it from the launcher, or name another folder"
        )
    if root.exists() and not root.is_dir():
        return Checked("folder", False, f"{root} is a file")
    return Checked("folder", True, f"{root} will be made")


def project_root(form: dict[str, str]) -> Path | None:
    """Where the project goes; None while neither folder nor source is known."""
    if form["folder"]:
        return Path(form["folder"]).expanduser().absolute()
    return default_folder(form["source"]) if form["source"] else None


def _check_inputs(form: dict[str, str]) -> Checked:
    spec = form["inputs"]
    if not spec:
        return Checked("inputs", True, "the source's own, else small ones made for the model's signature")
    try:
        check_inputs(spec, project_root(form) or Path.cwd())
    except ForgeError as error:
        return Checked("inputs", False, f"{error.message}; {error.cure}")
    return Checked("inputs", True, preview(spec))


def preview(spec: str) -> str:
    """What the model will be given, as far as it can be seen without running anything."""
    kind, _, rest = spec.partition(":")
    if kind == "text":
        text = rest.removeprefix("=")
        if not rest.startswith("="):
            with Path(rest).expanduser().open("rb") as file:
                text = file.read(PREVIEW_BYTES).decode(errors="replace")
        lines = text.splitlines()
        return " | ".join(lines[:PREVIEW_LINES]) + (" | …" if len(lines) > PREVIEW_LINES else "")
    path = Path(
        rest if kind in ("image", "audio") else spec.rpartition(":")[0] if ".py:" in spec else spec
    ).expanduser()
    return f"{path.name}, {path.stat().st_size:,} bytes"


def _check_provider(name: str) -> Checked:
    try:
        check_provider(name)
    except ForgeError as error:
        return Checked("provider", False, f"{error.message}; {error.cure}")
    variable = KEYED.get(name)
    diagnosis = last_diagnosis()
    if variable is None or diagnosis is None:
        return Checked("provider", True, "needs no key" if variable is None else f"needs {variable}")
    finding = next((item for item in diagnosis.findings if item.name == variable), None)
    if finding is None or finding.status != "ok":
        return Checked(
            "provider",
            False,
            f"{variable}: {finding.found}; {finding.fix}"
            if finding
            else f"{variable}: not looked for; D in the launcher",
        )
    return Checked("provider", True, f"{variable} is {finding.found}; it is tried with the first request")


def _device_words(device: str) -> str:
    diagnosis = last_diagnosis()
    gpus = [item for item in diagnosis.findings if item.name.startswith("cuda:")] if diagnosis else []
    if device == "host" or (device == "auto" and diagnosis and not gpus):
        return "interpreted on the CPU: checks are real, times are modelled"
    return "; ".join(f"{item.name} {item.found}" for item in gpus) or "found out at capture"


def _is_amount(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False


class NewProject(ForgeScreen):
    """The form, its checks, and the capture."""

    NAME = "newproject"
    SIDE = "#checks"
    NARROW, LOW = 100, 34
    LEGEND: ClassVar[str] = "the right arrow takes the path that is offered"
    BINDINGS = [
        Binding("ctrl+s", "capture", "make and capture", priority=True, id="newproject.capture"),
        Binding("down,enter", "app.focus_next", "next field", show=False),
        Binding("up", "app.focus_previous", "previous field", show=False),
        Binding("escape", "app.pop_screen", "back", id="newproject.back"),
    ]
    DEFAULT_CSS = """
    NewProject VerticalScroll { width: 1fr; padding: 0 1; }
    NewProject .field { height: 1; margin-bottom: 1; }
    NewProject Label { width: 16; color: $forge-muted; }
    NewProject .field Input, NewProject .field Input:focus { width: 1fr; border: none; height: 1; padding: 0 1; }
    NewProject #checks { width: 50%; padding: 0 1; border-left: solid $panel; }
    NewProject.narrow Horizontal.body { layout: vertical; }
    NewProject.narrow #checks { width: 1fr; height: 40%; border-left: none; border-top: solid $panel; }
    NewProject.low .field { margin-bottom: 0; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: tuple[Path, str] | None = None
        """The project this form made, and the text of its project.toml: rewritten only while nobody else edited it."""
        self._busy = False
        self._said: list[Line] = []

    def compose(self) -> ComposeResult:
        yield Static("forge-tui › new project", id="title", markup=False)
        with Horizontal(classes="body"):
            with VerticalScroll(can_focus=False):
                for name, label, hint in FIELDS:
                    with Horizontal(classes="field"):
                        yield Label(label)
                        yield Input(
                            {"device": "auto", "provider": "builtin"}.get(name, ""),
                            placeholder=hint,
                            id=name,
                            suggester=PathSuggester() if name in ("source", "folder", "inputs", "weights") else None,
                        )
            yield LineView(id="checks", can_focus=False)
        yield FindLine("")
        yield KeyBar()

    def on_mount(self) -> None:
        for field in self.query(Input):
            field.cursor_blink = False
        self.query_one("#source").focus()
        self.call_after_refresh(self._check)

    def on_resize(self) -> None:
        self.fit()
        self.call_after_refresh(self._check)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A form has nothing to find in."""
        return action != "find"

    def form(self) -> dict[str, str]:
        """What stands in the fields."""
        return {name: self.query_one(f"#{name}", Input).value.strip() for name, _, _ in FIELDS}

    @on(Input.Changed)
    def _changed(self) -> None:
        self._said = []
        self.set_timer(CHECK_S, self._check)

    def _check(self) -> None:
        view = self.query_one("#checks", LineView)
        width, lines = max(20, view.size.width), list(self._said)
        for item in check_form(self.form()):
            if item.field == "folder" and self._made and project_root(self.form()) == self._made[0]:
                continue
            sign, token = ("✓", "forge-verified") if item.good else ("✗", "forge-failed")
            lines += [
                ((f"{sign} ", token), (item.field, "bold")),
                *wrapped(item.text, width, "forge-muted", indent="  "),
            ]
        view.show(lines, top=0)

    def _say(self, text: str, token: str) -> None:
        view = self.query_one("#checks", LineView)
        self._said = [*wrapped(text, max(20, view.size.width), token), ()]
        self._check()

    def action_capture(self) -> None:
        form = self.form()
        root = project_root(form)
        wrong = [
            item
            for item in check_form(form)
            if not item.good and not (item.field == "folder" and self._made and root == self._made[0])
        ]
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
        self.app.pop_screen()
        self.app.open_project(root)  # type: ignore[attr-defined]
        self.app.notify("captured; F forges all, f the one under the cursor", title="Ready")
