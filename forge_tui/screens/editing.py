"""A kernel in the user's own editor: what is saved becomes a child of the candidate, judged like any other."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from forge_tui.engine import steering
from forge_tui.engine.search.tree import Node
from forge_tui.errors import ForgeError

if TYPE_CHECKING:
    from forge_tui.screens.base import ForgeScreen
    from forge_tui.screens.watch import ProjectWatch

WORDS = {"prune": "pruned", "pin": "pinned", "hint": "hint"}
"""Of a move, for a row."""


def edit_text(screen: ForgeScreen, watch: ProjectWatch, node: Node, text: str) -> None:
    """Open the editor, wait for its end, and hand the new text to the running engine, or to one started for it."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        screen.notify("export EDITOR=vim (or another) before starting forge-tui", title="No editor", severity="warning")
        return
    folder = Path(tempfile.mkdtemp(prefix="forge-edit-"))
    file = folder / f"{node.id.replace('/', '-')}.cu"
    file.write_text(text)
    try:
        with screen.app.suspend():
            code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode
    except (OSError, ValueError, SuspendNotSupported) as error:
        screen.notify(f"{editor} cannot be started: {error}", title="No editor", severity="error")
        return
    new = file.read_text(errors="replace")
    if code or new == text:
        screen.notify(
            f"nothing was changed{f' (the editor ended with {code})' if code else ''}; your text is in {file}",
            title="No new candidate",
        )
        return
    hand_over(
        screen,
        watch,
        node.id,
        lambda: steering.add_kernel(watch.paths, node.id, new, "edited by hand"),
        said=f"Your kernel below #{node.number}",
        kept=f"; your text is in {file}",
        judge=True,
    )


def hand_over(
    screen: ForgeScreen,
    watch: ProjectWatch,
    node: str,
    ask: Callable[[], str],
    *,
    said: str,
    kept: str = "",
    judge: bool = False,
) -> None:
    """Leave a move for the running engine, or the next one; where a kernel waits to be judged, one is started.

    said: the move, as it is in force: the toast's title. kept: where the user's text stays if nothing can be written.
    """
    try:
        ask()
    except ForgeError as error:
        screen.notify(f"{error}{kept}", title="Cannot be handed over", severity="error")
        return
    if watch.running:
        screen.notify("the run takes it up next", title=said)
    elif judge:
        options = ("--ops", node.partition("/")[0], "--iterations", "1")
        screen.app.start_engine(watch, options, "judging your kernel")  # type: ignore[attr-defined]
    else:
        screen.notify("the next run on this operator takes it up: esc, then f starts one", title=said)


class Moves:
    """What a person asked of candidates and no engine has taken up: the latest word on each."""

    def __init__(self, watch: ProjectWatch) -> None:
        self._watch = watch
        self._latest: dict[tuple[str, str], bool] = {}

    def read(self) -> bool:
        """Look at the requests that lie in the project folder; whether the rows say something else now."""
        latest: dict[tuple[str, str], bool] = {}
        for _, request in steering.pending(self._watch.paths):
            if request is not None and request.action != "kernel":
                kind = request.action.removeprefix("un")
                latest[request.node, kind] = bool(request.text) if kind == "hint" else kind == request.action
        if latest == self._latest:
            return False
        self._latest = latest
        return True

    def words(self, node: Node) -> list[str]:
        """For a node's row: what will be other than it is."""
        now = {"prune": node.pruned, "pin": node.pinned, "hint": False}
        asked = [(kind, on) for kind in now if (on := self._latest.get((node.id, kind))) is not None and on != now[kind]]
        return [f"… {'' if on else 'un'}{WORDS[kind]}" for kind, on in asked]

    def on(self, node: Node, kind: str) -> bool:
        """Whether a node is pruned (`prune`) or pinned (`pin`), once what is asked for is taken up."""
        return self._latest.get((node.id, kind), node.pruned if kind == "prune" else node.pinned)
