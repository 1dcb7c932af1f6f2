"""What this machine has and lacks: a line in the launcher, a screen with every finding and its fix."""

from __future__ import annotations

import time

import msgspec
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Static

from forge_tui.engine.doctor import Diagnosis, broken, layout
from forge_tui.errors import MissingEnvironment
from forge_tui.screens.base import FindLine, ForgeScreen
from forge_tui.screens.processes import forge_command
from forge_tui.screens.widgets.keybar import KeyBar
from forge_tui.screens.widgets.lines import LineView, plain
from forge_tui.screens.widgets.paint import Line
from forge_tui.store.atomic import write_atomic
from forge_tui.store.paths import UserPaths

FRESH_S = 24 * 3600
"""A diagnosis costs two seconds of a core: it imports torch, in a process of its own."""
OWN_TERMINAL = "terminal"
"""A finding about the process that looked, which has none."""


def last_diagnosis() -> Diagnosis | None:
    """The latest one, unless it is a day old."""
    path = UserPaths.find().cache / "doctor.json"
    try:
        if time.time() - path.stat().st_mtime > FRESH_S:
            return None
        return msgspec.json.decode(path.read_bytes(), type=Diagnosis)
    except (OSError, msgspec.DecodeError):
        return None


async def fresh_diagnosis() -> Diagnosis | None:
    """Look now. None where that failed; the doctor command then says more."""
    finished = await forge_command("doctor", "--json")
    try:
        found = msgspec.json.decode(finished.out, type=Diagnosis)
        write_atomic(UserPaths.find().cache / "doctor.json", finished.out)
    except (msgspec.DecodeError, MissingEnvironment):
        return None
    return found


def doctor_line(found: Diagnosis) -> str:
    """What is missing and how to get it; else where kernels are judged."""
    missing = [finding for finding in found.findings if finding.status == "missing"]
    if missing:
        return f"✗ doctor: {missing[0].name}: {missing[0].found}; fix: {missing[0].fix} (D: all)"
    gpus = [finding.found for finding in found.findings if finding.name.startswith("cuda:")]
    place = gpus[0] if gpus else "no GPU: kernels are interpreted on the CPU, times are modelled"
    return f"✓ doctor: {place} (D: more)"


class Doctor(ForgeScreen):
    """Every finding."""

    NAME = "doctor"
    BINDINGS = [
        Binding("r", "again", "look again", id="doctor.again"),
        Binding("escape,q", "back", "back", id="doctor.back"),
    ]
    DEFAULT_CSS = "Doctor LineView { padding: 0 1; }"
    _found: Diagnosis | None = None
    """What is shown."""

    def compose(self) -> ComposeResult:
        yield Static("forge-tui › doctor", id="title", markup=False)
        yield LineView(id="findings")
        yield FindLine("find")
        yield KeyBar()

    def on_mount(self) -> None:
        self.query_one("#findings").focus()
        found = last_diagnosis()
        if found is None:
            self.action_again()
        else:
            self.call_after_refresh(self._show, found)

    def _show(self, found: Diagnosis) -> None:
        view = self.query_one("#findings", LineView)
        self._found = found
        view.show(diagnosis_lines(found, max(40, view.size.width)), top=0)

    def on_resize(self) -> None:
        if self._found is not None:
            self.call_after_refresh(self._show, self._found)

    @work(exclusive=True)
    async def action_again(self) -> None:
        self.query_one("#findings", LineView).show(plain("looking …"), top=0)
        found = await fresh_diagnosis()
        if found is None:
            self.query_one("#findings", LineView).show(
                plain("the look failed: run `forge-tui doctor` in a shell"), top=0
            )
        else:
            self._show(found)

    def found_text(self, text: str) -> None:
        self.search_lines(self.query_one("#findings", LineView), text)

    def find_ended(self) -> None:
        self.query_one("#findings").focus()


def diagnosis_lines(found: Diagnosis, width: int) -> list[Line]:
    """What is missing first. Nothing is cut off: words that are longer than a line go on in the next."""
    signs = {
        "ok": ("✓ ok", "forge-verified"),
        "note": ("· note", "forge-muted"),
        "missing": ("✗ missing", "forge-failed"),
    }
    order = {"missing": 0, "note": 1, "ok": 2}
    findings = [finding for finding in found.findings if finding.name != OWN_TERMINAL]
    lines: list[Line] = [((f"forge-tui {found.version}", "bold"),), ()]
    names = max((len(finding.name) for finding in findings), default=0) + 2
    indent, below = layout(11 + names, width)
    for finding in sorted(findings, key=lambda finding: order[finding.status]):
        word, token = signs[finding.status]
        head: Line = ((f"{word:<11}", token), (f"{finding.name:<{names}}", "bold"))
        said = _within(finding.found, width, indent)
        lines += [head, *plain("\n".join(said))] if below else [(*head, (said[0][indent:], "")), *plain("\n".join(said[1:]))]
        lines += plain("\n".join(_within(f"fix: {finding.fix}", width, indent)), "forge-muted") if finding.fix else []
    return lines


def _within(text: str, width: int, indent: int) -> list[str]:
    """As the command breaks it, and a word that is longer than the screen is wide goes on in the next line."""
    return [line[at : at + width] for line in broken(text, width, indent) for at in range(0, max(1, len(line)), width)]
