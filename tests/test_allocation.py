"""Operators share a budget: the next try goes where a dollar is expected to save most, and none where that is too
little."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted import NORM, SOFTMAX, ScriptedJudge, kernel, make_project
from test_search import add

import messages_server
from forge_tui.engine import events
from forge_tui.engine.allocation import FIRST_SHARE, Search, too_little, worth_of
from forge_tui.engine.forge import run
from forge_tui.engine.judge.verdict import Timing, Verdict
from forge_tui.engine.options import RunOptions
from forge_tui.engine.search.tree import Tree
from forge_tui.engine.state import OperatorState


def search(*times: float | None, cost: float | None = 0.0, variant=SOFTMAX) -> Search:
    """A search that came to these times, None for failures. SOFTMAX: 4 calls of 50 us, floor 4 us."""
    tree = Tree("v")
    for number, us in enumerate(times, 1):
        add(tree, number, None)
        tree.reply(events.Replied(at=number, node=f"v/{number}", kernel=f"k{number}", cost_usd=cost))
        verdict = Verdict("verified", "", timing=Timing("device", us)) if us else Verdict("wrong", "")
        tree.judge(events.Judged(at=number, node=f"v/{number}", verdict=verdict, value=-us if us else None))
    return Search(variant, OperatorState("v", tree))


def test_nothing_tried_yet_expects_a_part_of_all_that_can_be_saved() -> None:
    assert search().expected_us == pytest.approx(FIRST_SHARE * 4 * (50 - 4))


def test_gains_raise_the_expectation_and_failures_lower_it() -> None:
    fresh, gaining, stuck = search(), search(40.0, 30.0, 20.0), search(40.0, None, None, None, None)
    assert (
        gaining.expected_us / gaining.saving_us
        > fresh.expected_us / fresh.saving_us
        > stuck.expected_us / stuck.saving_us
    )
    assert search(40.0, None).expected_us < search(40.0, 25.0).expected_us * 2
    assert (
        search(40.0, None, None, None, None, 20.0).expected_us > search(40.0, 20.0, None, None, None, None).expected_us
    ), "the latest tries say most"


def test_what_costs_more_must_save_more() -> None:
    assert worth_of(search(40.0, cost=0.1)) == pytest.approx(10 * worth_of(search(40.0, cost=1.0)))
    assert worth_of(search(), 0.5) == pytest.approx(2 * search().expected_us), "nothing paid yet: as others"
    assert worth_of(search(40.0, cost=None)) == search(40.0, cost=None).expected_us


def test_too_little_needs_a_known_cost() -> None:
    poor = search(5.0, None, None, None, cost=0.1)
    assert too_little(poor, 50.0) and not too_little(poor, 0.0) and not too_little(search(5.0, None, cost=None), 50.0)
    add(poor.tree, 9, None)
    assert not too_little(poor, 1e9), "what is in flight may change it"


def test_a_try_in_flight_halves_what_the_next_is_expected_to_save() -> None:
    one = search(40.0)
    before = one.expected_us
    add(one.tree, 2, None)
    assert one.expected_us == pytest.approx(before / 2)


def test_a_run_ends_where_a_dollar_saves_too_little(tmp_path: Path, monkeypatch) -> None:
    """Each reply costs 0.0018 dollars; nothing gets better after the first."""
    import msgspec

    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    paths, config = make_project(tmp_path / "p", SOFTMAX, NORM, iterations=30)
    config = msgspec.structs.replace(config, budget=msgspec.structs.replace(config.budget, least_us_per_usd=3000.0))
    texts = [f"Idea.\n```cuda\n{kernel('verified 30', str(number))}```" for number in range(60)]
    with messages_server.serve(*(messages_server.reply(text) for text in texts)) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        result = run(
            paths,
            config,
            RunOptions(device="host", seeds=False, package=False, provider="anthropic"),
            open_judge=ScriptedJudge().open,
        )
    assert result.status == "done" and all(3 <= item.tried < 30 for item in result.operators)
    assert all("another dollar is expected to save less than 3000 us" in item.reason for item in result.operators)
