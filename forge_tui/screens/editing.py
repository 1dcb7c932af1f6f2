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
        kept=f"; your text is in {file}",
        judge=True,
    )


def hand_over(
    screen: ForgeScreen, watch: ProjectWatch, node: str, ask: Callable[[], str], *, kept: str = "", judge: bool = False
) -> None:
    """Leave a move for the running engine, or the next one; where a kernel waits to be judged, one is started."""
    try:
        ask()
    except ForgeError as error:
        screen.notify(f"{error}{kept}", title="Cannot be handed over", severity="error")
        return
    if watch.running:
        screen.notify("the run takes it up next", title="Handed over")
    elif judge:
        options = ("--ops", node.partition("/")[0], "--iterations", "1")
        screen.app.start_engine(watch, options, "judging your kernel")  # type: ignore[attr-defined]
    else:
        screen.notify("the next run on this operator takes it up: esc, then f starts one", title="Noted")
