"""The fold of the journal: every figure of the state from a written-out list of events."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forge_tui.engine import events
from forge_tui.engine.judge.verdict import Timing, Verdict
from forge_tui.engine.state import RunState, load_state
from forge_tui.errors import ProjectError
from forge_tui.store.journal import JournalWriter
from forge_tui.store.paths import ProjectPaths

FAST = Verdict("verified", "ok", timing=Timing("modelled", 10.0), image="i1")
SLOW = Verdict("verified", "ok", timing=Timing("modelled", 20.0), image="i2")
WRONG = Verdict("wrong", "differs", image="i3")


def started(at: float, run: str) -> events.RunStarted:
    return events.RunStarted(at=at, run=run, host="h", pid=1, version="0", provider="p", llm="", policy="uct", seed=1,
                             device="host", target="host", iterations=5)


def proposed(at: float, number: int, parent: int | None = None) -> events.Proposed:
    return events.Proposed(at=at, node=f"a/{number}", variant="a", parent=f"a/{parent}" if parent else None,
                           strategy="fusion", provider="p")


def replied(at: float, number: int, **more) -> events.Replied:
    return events.Replied(at=at, node=f"a/{number}", **{"kernel": f"k{number}", "cost_usd": 0.5, "tokens_in": 10,
                                                        "tokens_out": 5, **more})


JOURNAL = (
    started(100, "r1"),
    events.Captured(at=101, variants=3, offered=2, forward_us=500.0),
    events.Selected(at=101, operators=("a", "b")),
    proposed(102, 1), replied(103, 1), events.Judged(at=104, node="a/1", verdict=SLOW, value=0.0),
    proposed(105, 2, 1), proposed(106, 3, 1), replied(107, 3), events.Judged(at=108, node="a/3", verdict=FAST, value=0.7),
    # killed here; a/2 was never answered
    started(200, "r2"),
    events.Selected(at=200, operators=("a",)),
    replied(201, 2), events.Judged(at=202, node="a/2", verdict=WRONG, value=None),
    proposed(203, 4, 3), replied(204, 4, kernel=None, problem="empty", cost_usd=0.25),
    proposed(205, 5, 3), replied(206, 5, cost_usd=0.0),
    events.Judged(at=207, node="a/5", verdict=FAST, value=0.7, duplicate_of="a/3"),
    events.Confirmed(at=208, node="a/3", verdict=FAST, value=0.69),
    events.OperatorDone(at=209, variant="a", status="verified", reason="10 us", best="a/3"),
    events.Packaged(at=210, path="/p", kernels=1),
    events.InModel(at=211, relative_error=1e-7, kernel_calls=4, fallback_calls=0),
    events.Note(at=212, level="warning", text="mind"),
    events.RunEnded(at=213, run="r2", status="done", reason="all", exit_code=0),
)


def test_the_state_of_a_whole_journal() -> None:
    state = RunState()
    for event in JOURNAL:
        state.apply(event)
    a = state.operators["a"]
    assert list(state.operators) == ["a", "b"] and state.selected == ("a",)
    assert (state.runs, state.run.run, state.status, state.count) == (2, "r2", "done", len(JOURNAL))
    assert (state.cost_usd, state.tokens_in, state.tokens_out, a.tokens) == (1.75, 50, 25, 75)
    assert state.mean_cost_usd == pytest.approx(1.75 / 4), "free replies tell nothing about the next price"
    assert (a.tried, a.verified, a.pending, a.status, a.best.id) == (5, 2, 0, "verified", "a/3")
    assert dict(state.judged) == {"verified": 2, "wrong": 1, "no kernel": 1, "duplicate": 1}
    assert state.in_model.relative_error == 1e-7 and state.packaged.path == "/p" and not state.package_stale
    assert state.elapsed_s == (108 - 100) + (213 - 200), "time between a kill and the next run is not worked"
    assert [note.text for note in state.notes] == ["mind"] and state.activity == ""
    assert a.tree.nodes["a/3"].visits == 3 and state.node("a/4").outcome == "no kernel" and state.node("b/1") is None


def test_the_state_in_the_middle() -> None:
    state = RunState()
    assert (state.status, state.cost_usd, state.elapsed_s) == ("new", 0.0, 0.0)
    for event in JOURNAL[:8]:
        state.apply(event)
    a = state.operators["a"]
    assert state.status == "running" and a.pending == 2 and a.status == "pending"
    assert state.activity == "a/3: asking p" and a.best.us == 20.0
    assert [node.id for node in a.tree.open_nodes()] == ["a/2", "a/3"]


def test_an_unknown_price_makes_the_cost_unknown() -> None:
    state = RunState()
    for event in (started(1, "r"), proposed(2, 1), replied(3, 1, cost_usd=None)):
        state.apply(event)
    assert state.cost_usd is None and state.operators["a"].unpriced == 1


def test_the_journal_is_read_back_the_same(tmp_path: Path) -> None:
    paths = ProjectPaths(tmp_path)
    with JournalWriter(paths.journal) as writer:
        for event in JOURNAL:
            writer.append(events.encode(event))
    state = load_state(paths)
    assert state.count == len(JOURNAL) and state.operators["a"].best.confirmed.value == 0.69
    with JournalWriter(paths.journal) as writer:
        writer.append(b"\x81\xa4type\xa6future")
    with pytest.raises(ProjectError, match="unknown to this version"):
        load_state(paths)


def test_applying_an_event_does_not_walk_the_tree() -> None:
    """Work per event is counted, not timed: python lines executed grow linearly with the number of events."""

    def lines(count: int) -> int:
        state, total = RunState(), 0

        def trace(frame, kind, argument):
            nonlocal total
            total += kind == "line"
            return trace

        state.apply(started(0, "r"))
        sys.settrace(trace)
        for number in range(1, count + 1):
            state.apply(proposed(number, number))
            state.apply(replied(number, number))
            state.apply(events.Judged(at=number, node=f"a/{number}", verdict=SLOW, value=number / 1000))
        sys.settrace(None)
        return total

    assert lines(800) < 2.2 * lines(400)


def test_reading_a_journal_needs_no_torch() -> None:
    code = ("import forge_tui.engine.state, forge_tui.engine.report, forge_tui.engine.forge, sys; "
            "print([name for name in ('torch', 'numpy', 'textual', 'rich', 'transformers', 'anthropic') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          cwd=Path(__file__).parent.parent)
    assert done.stdout.strip() == "[]"
