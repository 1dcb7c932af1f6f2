"""Progress of a run as plain lines on stderr: one for each event that a person wants to see."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from forge_tui.engine import events

Line = Callable[[events.AnyEvent], str | None]


class Progress:
    """Called with every event; knows the operators' names once they are captured."""

    def __init__(self, name_of: Callable[[str], str]) -> None:
        """name_of: a variant's key -> what to call it."""
        self._started = time.monotonic()
        self._name_of = name_of

    def __call__(self, event: events.AnyEvent) -> None:
        line = self.line(event)
        if line:
            self.say(line)

    def say(self, text: str) -> None:
        """A terminal that is gone must not end the run (its SIGHUP does, if it is to)."""
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        try:
            print(f"{minutes:>3}:{seconds:02}  {text}", file=sys.stderr, flush=True)
        except OSError:
            pass

    def line(self, event: events.AnyEvent) -> str | None:
        """None for what is not worth a line."""
        match event:
            case events.RunStarted():
                return f"run {event.run} on {event.device}: provider {event.provider}, policy {event.policy}, seed {event.seed}"
            case events.Captured():
                return f"captured {event.variants} operator variants, {event.offered} of them open to a kernel"
            case events.Selected():
                names = ", ".join(self._name_of(key) for key in event.operators)
                return f"working on {len(event.operators)}: {names}" if names else "nothing to work on"
            case events.Replied() if event.kernel is None:
                return f"{self._node(event.node)}  no kernel: {event.problem}"
            case events.Judged() | events.Confirmed():
                return self._verdict(event)
            case events.OperatorDone():
                return f"{self._name_of(event.variant)}  {event.status}: {event.reason}"
            case events.Packaged():
                return f"packaged {event.kernels} kernels: {event.path}"
            case events.InModel():
                return (f"in the model: {event.kernel_calls} calls by kernels, {event.fallback_calls} by the original "
                        f"operators; outputs within {event.relative_error:.2g} of eager's"
                        + (f" ({event.detail})" if event.detail else ""))
            case events.Note():
                return event.text if event.level == "info" else f"{event.level}: {event.text}"
            case events.RunEnded():
                return f"{event.status}: {event.reason}"
        return None

    def _verdict(self, event: events.Judged | events.Confirmed) -> str:
        verdict = event.verdict
        if isinstance(event, events.Judged) and event.duplicate_of:
            return f"{self._node(event.node)}  the same code as {self._node(event.duplicate_of)}"
        outcome = f"confirmed: {verdict.outcome}" if isinstance(event, events.Confirmed) else verdict.outcome
        timing = f"  {verdict.timing.us:.2f} us ({verdict.timing.kind})" if verdict.verified and verdict.timing else ""
        return f"{self._node(event.node)}  {outcome}{timing}  {verdict.sentence}"

    def _node(self, node: str) -> str:
        variant, _, number = node.partition("/")
        return f"{self._name_of(variant)} #{number}"


def names_from(root: Path) -> Callable[[str], str]:
    """Short names of a project's variants: `softmax 3fa2`, as soon as there are cards; the key until then."""
    from forge_tui.engine.cards import load_operators
    from forge_tui.store.paths import ProjectPaths

    known: dict[str, str] = {}

    def name_of(key: str) -> str:
        if key not in known:
            cards = load_operators(ProjectPaths(root))
            known.update({variant.key: f"{variant.operator.rpartition('.')[2]} {variant.key[:4]}"
                          for variant in (cards.variants if cards else ())})
        return known.get(key, key)

    return name_of
