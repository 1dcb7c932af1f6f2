"""A reply while it is written: the growing file of the question that is out, wrapped as it grows."""

from __future__ import annotations

from pathlib import Path

from forge_tui.engine.providers.live import REASONING, REPLY, live_file
from forge_tui.screens.widgets.lines import wrapped
from forge_tui.screens.widgets.paint import Line

SHOWN_BYTES = 1 << 18
"""Of a longer file only the end is read."""


class LiveText:
    """Of one node. `more` reads what came since, and wraps no line twice."""

    def __init__(self, folder: Path, node: str, width: int) -> None:
        """node: `VARIANT/NUMBER`; its question has the same name with a dash."""
        ask = node.replace("/", "-")
        self.node, self.width = node, width
        self._files = (live_file(folder, f"{ask}-plan"), live_file(folder, ask))
        self._offsets = dict.fromkeys(self._files, 0)
        self._done: list[Line] = []
        """Of lines that are whole."""
        self._rest = ""
        self._token = ""

    def more(self) -> list[Line]:
        """All of it, as far as it is there."""
        for file in self._files:
            data = self._read(file)
            *whole, self._rest = (self._rest + data.decode(errors="replace")).split("\n")
            for line in whole:
                self._done += self._styled(line)
        return self._done + (self._styled(self._rest) if self._rest else [])

    def _read(self, file: Path) -> bytes:
        try:
            with file.open("rb") as stream:
                size = stream.seek(0, 2)
                if size < self._offsets[file]:  # the reply began anew
                    self._done, self._rest, self._offsets[file] = [], "", 0
                stream.seek(max(self._offsets[file], size - SHOWN_BYTES))
                data = stream.read(size - stream.tell())
                self._offsets[file] = size
                return data
        except OSError:  # not begun, or recorded since
            return b""

    def _styled(self, line: str) -> list[Line]:
        if line in (REASONING, REPLY):
            self._token = "forge-muted" if line == REASONING else ""
            return wrapped(line.lstrip("# "), self.width, "title bold")
        return wrapped(line, self.width, self._token)
