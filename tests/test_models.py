"""Several language models in one run: gain per dollar decides, and each is asked by its own name."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import messages_server
from scripted import SOFTMAX, ScriptedJudge, kernel, make_project

from forge_tui.engine.events import Judged, Proposed, Replied
from forge_tui.engine.forge import run
from forge_tui.engine.judge.verdict import Timing, Verdict
from forge_tui.engine.options import RunOptions
from forge_tui.engine.search.models import choose_llm
from forge_tui.engine.search.tree import Tree
from forge_tui.engine.state import load_state


def play(gains: dict[str, float], costs: dict[str, float | None], tries: int = 60, fails: float = 0.3) -> Counter[str]:
    """How often each model was asked, when each reply of it gains about so much (or fails) and costs so much."""
    tree, rng, value = Tree("v"), random.Random(1), 0.0
    asked: Counter[str] = Counter()
    for number in range(1, tries + 1):
        llm = choose_llm(tuple(gains), [tree])
        asked[llm] += 1
        parent = max(
            (node for node in tree.nodes.values() if node.value is not None), key=lambda node: node.number, default=None
        )
        tree.propose(
            Proposed(
                at=number,
                node=f"v/{number}",
                variant="v",
                parent=parent.id if parent else None,
                strategy="fusion",
                provider="p",
                model=llm,
            )
        )
        tree.reply(
            Replied(at=number, node=f"v/{number}", kernel=f"k{number}", cost_usd=costs[llm], model=f"{llm}-dated")
        )
        broken = rng.random() < fails
        value = (parent.value if parent else 0.0) + gains[llm] * rng.uniform(0.5, 1.5)
        verdict = Verdict("wrong", "") if broken else Verdict("verified", "", timing=Timing("device", 1.0))
        tree.judge(Judged(at=number, node=f"v/{number}", verdict=verdict, value=None if broken else value))
    return asked


def test_the_better_model_of_equal_price_is_asked_more() -> None:
    asked = play({"a": 0.05, "b": 0.5}, {"a": 0.1, "b": 0.1})
    assert asked["b"] > 2 * asked["a"] > 0


def test_five_times_the_price_needs_five_times_the_gain() -> None:
    asked = play({"dear": 0.2, "cheap": 0.15}, {"dear": 0.5, "cheap": 0.1})
    assert asked["cheap"] > 3 * asked["dear"] > 0


def test_an_unknown_price_leaves_gain_to_decide() -> None:
    asked = play({"a": 0.5, "b": 0.05}, {"a": None, "b": 0.1})
    assert asked["a"] > 2 * asked["b"]


def test_a_run_asks_each_by_its_name_and_price(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=8)
    texts = [f"Idea.\n```cuda\n{kernel(f'verified {30 - number}')}```" for number in range(8)]
    with messages_server.serve(*(messages_server.reply(text) for text in texts)) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        run(
            paths,
            config,
            RunOptions(
                device="host",
                seeds=False,
                package=False,
                provider="anthropic",
                llm="claude-fable-5-1, claude-haiku-4-5",
            ),
            open_judge=ScriptedJudge().open,
        )
        asked = Counter(body["model"] for _, body in server.requests)
    nodes = load_state(paths).operator(SOFTMAX.key).tree.nodes.values()
    assert asked == Counter(node.llm for node in nodes) and asked["claude-haiku-4-5"] > asked["claude-fable-5-1"] >= 1
    costs = {node.llm: node.replied.cost_usd for node in nodes}
    assert costs["claude-fable-5-1"] > 5 * costs["claude-haiku-4-5"]
