"""The state of a project's runs: the fold of its journal. Resume, reports, `show` and the screens all read this."""

from __future__ import annotations

import collections
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from forge_tui.engine import events
from forge_tui.engine.search.tree import Node, Tree
from forge_tui.errors import ProjectError

if TYPE_CHECKING:
    from forge_tui.store.paths import ProjectPaths

KEPT_NOTES = 200
"""Notes shown to people: the journal has them all."""


@dataclass(slots=True)
class OperatorState:
    """What is known of one variant's search."""

    variant: str
    tree: Tree
    done: events.OperatorDone | None = None
    """The latest; None while the search goes on."""
    cost_usd: float = 0.0
    """Of the replies whose price is known."""
    unpriced: int = 0
    """Replies whose price is unknown."""
    tokens: int = 0
    tried: int = 0
    """Settled nodes."""
    verified: int = 0
    """Nodes that passed every check, duplicates left out."""
    best: Node | None = None
    first_at: float | None = None

    @property
    def pending(self) -> int:
        return self.tree.root.pending

    @property
    def status(self) -> Literal["won", "no_gain", "failed", "skipped", "pending", "verified"]:
        return self.done.status if self.done else "pending"


@dataclass(slots=True)
class RunState:
    """The fold of events: `apply` each once, in order. Everything is derived, nothing is stored elsewhere."""

    operators: dict[str, OperatorState] = field(default_factory=dict)
    """By variant key, in the order in which work on them began."""
    runs: int = 0
    run: events.RunStarted | None = None
    """The latest."""
    ended: events.RunEnded | None = None
    """The latest run's end; None while it goes on, or when it was killed."""
    captured: events.Captured | None = None
    selected: tuple[str, ...] = ()
    """Variant keys the latest run works on."""
    packaged: events.Packaged | None = None
    package_stale: bool = False
    """An operator's result changed since the package was written."""
    in_model: events.InModel | None = None
    benched: events.Benched | None = None
    """The whole model with the package that is there now."""
    notes: collections.deque[events.Note] = field(default_factory=lambda: collections.deque(maxlen=KEPT_NOTES))
    activity: str = ""
    """What goes on now, in plain words; empty when nothing does."""
    last_event_at: float | None = None
    cost_known: float = 0.0
    """Dollars of the replies whose price is known."""
    paid: int = 0
    """Replies that cost something known."""
    unpriced: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    count: int = 0
    """Events applied."""
    judged: Counter[str] = field(default_factory=Counter)
    """Verdicts by outcome."""
    requests: set[str] = field(default_factory=set)
    """A person's requests that were taken up."""
    elapsed_before: float = 0.0
    """Seconds that earlier runs took."""

    def apply(self, event: events.AnyEvent) -> None:
        """Take one event in. Amortized constant time, apart from the depth of the node in its tree."""
        self.count += 1
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)
        if not isinstance(event, events.Benched):  # which is no part of a run's time
            self.last_event_at = event.at

    @property
    def cost_usd(self) -> float | None:
        """None when any reply's price is unknown."""
        return None if self.unpriced else self.cost_known

    @property
    def mean_cost_usd(self) -> float:
        """Of the replies that cost something: what the next one is expected to cost. 0 before the first."""
        return self.cost_known / self.paid if self.paid else 0.0

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out

    @property
    def elapsed_s(self) -> float:
        """Working time of all runs up to the last event."""
        if self.run is None or self.last_event_at is None:
            return self.elapsed_before
        return self.elapsed_before + max(0.0, self.last_event_at - self.run.at)

    @property
    def status(self) -> Literal["new", "running", "done", "limit", "waiting", "interrupted", "failed"]:
        """`running` also when the last run was killed: only its lock tells the two apart."""
        if self.run is None:
            return "new"
        return self.ended.status if self.ended else "running"

    def node(self, name: str) -> Node | None:
        """By full name (`VARIANT/NUMBER`)."""
        operator = self.operators.get(name.partition("/")[0])
        return operator.tree.nodes.get(name) if operator else None

    def operator(self, variant: str) -> OperatorState:
        """The operator's state, begun empty when there is none yet."""
        if variant not in self.operators:
            self.operators[variant] = OperatorState(variant, Tree(variant))
        return self.operators[variant]

    def _run_started(self, event: events.RunStarted) -> None:
        if self.run is not None and self.last_event_at is not None:
            self.elapsed_before += max(0.0, self.last_event_at - self.run.at)
        self.runs += 1
        self.run, self.ended = event, None
        self.activity = "starting"

    def _captured(self, event: events.Captured) -> None:
        self.package_stale = self.captured is not None
        self.captured = event
        self.activity = ""

    def _selected(self, event: events.Selected) -> None:
        self.selected = event.operators
        for variant in event.operators:
            self.operator(variant)

    def _proposed(self, event: events.Proposed) -> None:
        operator = self.operator(event.variant)
        operator.tree.propose(event)
        operator.done = None
        if operator.first_at is None:
            operator.first_at = event.at
        self.activity = f"{event.node}: asking {event.provider}"

    def _replied(self, event: events.Replied) -> None:
        operator = self._owner(event.node)
        operator.tree.reply(event)
        self.tokens_in += event.tokens_in
        self.tokens_out += event.tokens_out
        operator.tokens += event.tokens_in + event.tokens_out
        if event.cost_usd is None:
            self.unpriced += 1
            operator.unpriced += 1
        else:
            self.cost_known += event.cost_usd
            self.paid += event.cost_usd > 0
            operator.cost_usd += event.cost_usd
        if event.kernel is None:
            operator.tried += 1
            self.judged["no kernel"] += 1
        self.activity = f"{event.node}: judging" if event.kernel else ""

    def _judged(self, event: events.Judged) -> None:
        operator = self._owner(event.node)
        operator.tree.judge(event)
        node = operator.tree.nodes[event.node]
        operator.tried += 1
        self.judged[node.outcome] += 1
        if node.verified:
            operator.verified += 1
            if node.value is not None and (operator.best is None or node.value > operator.best.value):
                operator.best = node
        self.activity = ""

    def _steered(self, event: events.Steered) -> None:
        """A person's kernel is a node that was proposed and answered at once, for nothing."""
        self.requests.add(event.request)
        variant, _, number = event.node.partition("/")
        operator = self.operator(variant)
        if event.action != "kernel":
            operator.tree.steer(event)
            return
        self._proposed(events.Proposed(at=event.at, node=event.made, variant=variant, parent=event.node if number else None,
                                       strategy="human", provider="human", origin="human"))
        self._replied(events.Replied(at=event.at, node=event.made, kernel=event.kernel, idea=event.idea, cost_usd=0.0,
                                     model="human"))

    def _confirmed(self, event: events.Confirmed) -> None:
        operator = self._owner(event.node)
        operator.tree.confirm(event)
        operator.verified = sum(node.verified for node in operator.tree.nodes.values())
        operator.best = operator.tree.best

    def _operator_done(self, event: events.OperatorDone) -> None:
        self.operator(event.variant).done = event
        self.package_stale = True
        self.activity = ""

    def _packaged(self, event: events.Packaged) -> None:
        self.packaged, self.in_model, self.benched, self.package_stale = event, None, None, False
        self.activity = "running the model with the package"

    def _in_model(self, event: events.InModel) -> None:
        self.in_model = event
        self.activity = ""

    def _benched(self, event: events.Benched) -> None:
        self.benched = event

    def _note(self, event: events.Note) -> None:
        self.notes.append(event)
        if event.level == "info":
            self.activity = event.text

    def _run_ended(self, event: events.RunEnded) -> None:
        self.ended = event
        self.activity = ""

    def _owner(self, node: str) -> OperatorState:
        return self.operators[node.partition("/")[0]]


_HANDLERS = {
    events.RunStarted: RunState._run_started,
    events.Captured: RunState._captured,
    events.Selected: RunState._selected,
    events.Proposed: RunState._proposed,
    events.Replied: RunState._replied,
    events.Judged: RunState._judged,
    events.Confirmed: RunState._confirmed,
    events.OperatorDone: RunState._operator_done,
    events.Packaged: RunState._packaged,
    events.InModel: RunState._in_model,
    events.Benched: RunState._benched,
    events.Note: RunState._note,
    events.RunEnded: RunState._run_ended,
    events.Steered: RunState._steered,
}


def load_state(paths: ProjectPaths) -> RunState:
    """The whole journal, folded. An empty state when there is none.

    Raises ProjectError when the journal is not one, or of a newer format.
    """
    from forge_tui.store.journal import JournalReader

    state = RunState()
    for payload in JournalReader(paths.journal).poll():
        state.apply(decode_event(payload, str(paths.journal)))
    return state


def decode_event(payload: bytes, where: str) -> events.AnyEvent:
    """One journal record. Raises ProjectError when it is no event that this version knows."""
    try:
        return events.decode(payload)
    except msgspec.DecodeError as error:
        raise ProjectError(f"a record of the journal is unknown to this version: {error}", where=where,
                           cure="use the forge-tui version that wrote it, or a newer one") from error
