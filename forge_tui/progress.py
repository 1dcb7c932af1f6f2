"""Progress of a run as plain lines on stderr: one for each event that a person wants to see."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from forge_tui.engine import events
from forge_tui.engine.cards import load_operators
from forge_tui.engine.report import event_line
from forge_tui.specs import short_name
from forge_tui.store.paths import ProjectPaths


class Progress:
    """Called with every event of a run."""

    def __init__(self, paths: ProjectPaths) -> None:
        self._paths = paths
        self._names: dict[str, str] = {}
        self._started = time.monotonic()

    def __call__(self, event: events.AnyEvent) -> None:
        line = event_line(event, self._name_of)
        failed = isinstance(event, events.RunEnded) and event.status == "failed"  # said at the end, with the cure
        if line and not failed:
            minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
            with suppress(OSError):  # a terminal that is gone does not end the work; its SIGHUP does, if it is to
                print(f"{minutes:>3}:{seconds:02}  {line}", file=sys.stderr, flush=True)

    def _name_of(self, key: str) -> str:
        """`softmax 3fa2`; the key, before there are cards."""
        if key not in self._names:
            cards = load_operators(self._paths)
            self._names.update((variant.key, f"{short_name(variant.operator)} {variant.key[:4]}")
                               for variant in (cards.variants if cards else ()))
        return self._names.get(key, key)
