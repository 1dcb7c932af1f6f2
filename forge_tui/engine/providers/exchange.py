"""`exchange`: prompts written to a folder, replies read from it, for machines with no way out."""

from __future__ import annotations

import threading
import time

from forge_tui.engine.prompts import Prompt
from forge_tui.engine.providers.base import Ask, Cancelled, ReplyPending
from forge_tui.engine.providers.text import Completion, TextProvider
from forge_tui.store.atomic import write_atomic
from forge_tui.store.paths import ProjectPaths

END_MARK = "<!-- end of reply -->"
"""As the last line it says that the reply is whole."""

SETTLED_S = 5.0
"""A reply without the mark is taken for whole when nothing was written to it for this long."""

POLL_S = 1.0
MAX_REPLY_BYTES = 4 * 1024 * 1024


class ExchangeProvider(TextProvider):
    """`exchange/requests/ID.md` is a prompt that waits; `exchange/replies/ID.md` its answer, never deleted by Forge.

    wait: whether `propose` polls until the reply is there, instead of raising ReplyPending.
    """

    name = "exchange"

    def __init__(self, paths: ProjectPaths, wait: bool = False) -> None:
        self.paths = paths
        self.wait = wait
        self.deadline_s = float("inf")

    def complete(self, prompt: Prompt, ask: Ask, cancel: threading.Event) -> Completion:
        request = self.paths.requests / f"{ask.id}.md"
        text = self._reply(ask)
        if text is None and not request.exists():
            write_atomic(request, f"{prompt.text}\n\nWrite the reply to `exchange/replies/{ask.id}.md`; end it with the "
                                  f"line `{END_MARK}`.\n")
        while text is None:
            if not (self.wait or self._arriving(ask)):
                raise ReplyPending
            if cancel.wait(POLL_S):
                raise Cancelled
            text = self._reply(ask)
        request.unlink(missing_ok=True)
        return Completion(text=text.removesuffix(END_MARK), model="exchange")

    def _arriving(self, ask: Ask) -> bool:
        """Whether a reply is being written: one that stays empty is none."""
        try:
            return time.time() - (self.paths.answers / f"{ask.id}.md").stat().st_mtime < SETTLED_S
        except FileNotFoundError:
            return False

    def _reply(self, ask: Ask) -> str | None:
        """The reply, once it is whole."""
        path = self.paths.answers / f"{ask.id}.md"
        try:
            with path.open("rb") as file:
                age = time.time() - path.stat().st_mtime
                text = file.read(MAX_REPLY_BYTES).decode(errors="replace").strip()
        except FileNotFoundError:
            return None
        if text.endswith(END_MARK):
            return text
        return text if text and age >= SETTLED_S else None
