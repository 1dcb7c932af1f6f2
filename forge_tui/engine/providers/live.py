"""Replies while they are written: one growing text file for each question that is out, for whoever watches.

The journal has a reply when it is whole. Until then its text lies in `replies/ASK.live`, reasoning first where a model
shows any; the file goes when the reply is recorded. Nothing of a run depends on it.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Protocol

MAX_BYTES = 1 << 20
"""Of one file: nobody reads more of a reply that is not there yet."""
REASONING, REPLY = "## reasoning", "## reply"
"""Lines that begin the two parts."""


class Listener(Protocol):
    """Is told of a reply as it comes, from whichever thread asks."""

    def begun(self, ask: str) -> None:
        """A reply begins, or begins anew: what came of it before is void."""

    def came(self, ask: str, text: str, reasoning: bool) -> None:
        """More of it."""


class LiveReplies:
    """Listener that writes the files. A folder that cannot be written costs the watcher the view, and nobody else
    anything."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: dict[str, str] = {}
        """The part that each file is in."""
        self._sizes: dict[str, int] = {}
        self._guard = threading.Lock()

    def begun(self, ask: str) -> None:
        with self._guard:
            self._parts[ask], self._sizes[ask] = "", 0
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            live_file(self._folder, ask).write_bytes(b"")

    def came(self, ask: str, text: str, reasoning: bool) -> None:
        part = REASONING if reasoning else REPLY
        with self._guard:
            if not text or self._sizes.get(ask, 0) > MAX_BYTES:
                return
            before = self._parts.get(ask, "")
            if part != before:
                self._parts[ask] = part
                text = f"{chr(10) * 2 if before else ''}{part}\n\n{text}"
            data = text.encode(errors="replace")
            self._sizes[ask] = self._sizes.get(ask, 0) + len(data)
        with contextlib.suppress(OSError), live_file(self._folder, ask).open("ab", buffering=0) as file:
            file.write(data)

    def clear(self) -> None:
        """No reply is being written: what is left is of a run that ended in the middle of one."""
        with contextlib.suppress(OSError):
            for path in self._folder.glob("*.live"):
                path.unlink(missing_ok=True)

    def ended(self, ask: str) -> None:
        """The reply is recorded, or will not come."""
        for name in (ask, f"{ask}-plan"):
            with self._guard:
                self._parts.pop(name, None)
                self._sizes.pop(name, None)
            with contextlib.suppress(OSError):
                live_file(self._folder, name).unlink(missing_ok=True)


def live_file(folder: Path, ask: str) -> Path:
    """Where the reply to a question grows."""
    return folder / f"{ask}.live"


class ToolText:
    """The words in a tool's input while its JSON grows: strings' contents as far as they are there, in order."""

    def __init__(self) -> None:
        self._json = ""
        self._told = 0
        self._due = 0

    def more(self, piece: str) -> str:
        """What a piece of JSON adds to the words; empty while it adds none, or where there is no parser for halves."""
        self._json += piece
        if len(self._json) < self._due:
            return ""
        self._due = len(self._json) + 64  # parsing from the start each time is cheap only where it is rare
        try:
            from jiter import from_json  # comes with the anthropic SDK

            found = from_json(self._json.encode(), partial_mode="trailing-strings")
        except (ImportError, ValueError):
            return ""
        values = found.values() if isinstance(found, dict) else ()
        text = "\n\n".join(value for value in values if isinstance(value, str))
        added, self._told = text[self._told :], max(self._told, len(text))
        return added
