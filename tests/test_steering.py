"""A person's moves: honoured by every policy, recorded once, taken up by a running engine or by the next."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from scripted import SOFTMAX, ScriptedJudge, kernel, make_project, write_writer
from test_search import add

from forge_tui.engine import events, steering
from forge_tui.engine.forge import run
from forge_tui.engine.halt import StopReason, Watch
from forge_tui.engine.options import RunOptions, resolve
from forge_tui.engine.search import POLICIES, open_policy
from forge_tui.engine.search.policy import Move
from forge_tui.engine.search.tree import Tree
from forge_tui.engine.state import load_state
from forge_tui.errors import ProjectError
from forge_tui.store.paths import ProjectPaths

KEY = SOFTMAX.key


def steer(tree: Tree, action: str, number: int | None, text: str = "") -> None:
    node = f"v/{number}" if number else "v"
    tree.steer(events.Steered(at=0, request=f"{action}{number}{text}", action=action, node=node, text=text))


def grown() -> Tree:
    """1 (fast) with children 3 and 4; 2 with child 5; 6 is a failure of 2."""
    tree = Tree("v")
    add(tree, 1, None, "verified", 1.0)
    add(tree, 2, None, "verified", 0.1)
    add(tree, 3, 1, "verified", 1.4)
    add(tree, 4, 1, "verified", 0.9)
    add(tree, 5, 2, "verified", 0.2)
    add(tree, 6, 2, "wrong")
    return tree


def moves(tree: Tree, name: str, count: int = 25) -> list[Move]:
    """What a policy chooses one after the other, every choice coming to something a little worse."""
    found = []
    for number in range(len(tree.nodes) + 1, len(tree.nodes) + 1 + count):
        move = open_policy(name, seed=number).select(tree)
        found.append(move)
        parent = int(move.parent.partition("/")[2]) if move.parent else None
        add(
            tree,
            number,
            parent,
            "verified" if number % 3 else "wrong",
            0.05 if number % 3 else None,
            move.strategy,
            move.origin,
        )
    return found


def below(tree: Tree, name: str | None, top: str) -> bool:
    return name is not None and any(node.id == top for node in tree.nodes[name].lineage())


@pytest.mark.parametrize("name", sorted(POLICIES))
class TestEveryPolicy:
    def test_builds_on_nothing_that_is_pruned(self, name: str) -> None:
        tree = grown()
        steer(tree, "prune", 1)
        assert not any(below(tree, move.parent, "v/1") for move in moves(tree, name))
        steer(tree, "unprune", 1)
        steer(tree, "prune", 2)
        assert not any(below(tree, move.parent, "v/2") for move in moves(tree, name))

    def test_builds_only_within_pins(self, name: str) -> None:
        tree = grown()
        steer(tree, "pin", 2)
        assert all(below(tree, move.parent, "v/2") for move in moves(tree, name))
        steer(tree, "unpin", 2)
        assert open_policy(name, 1).select(tree) == open_policy(name, 1).choose(tree)

    def test_a_pinned_failure_is_mended_and_given_up_at_last(self, name: str) -> None:
        tree = grown()
        steer(tree, "pin", 6)
        first = open_policy(name, 0).select(tree)
        assert (first.parent, first.origin) == ("v/6", "repair")
        add(tree, 7, 6, "wrong", origin="repair")
        add(tree, 8, 7, "wrong", origin="repair")
        assert open_policy(name, 0).select(tree).origin in ("search", "repair"), "the pin holds nothing any more"

    def test_hears_a_hint_at_once_and_once(self, name: str) -> None:
        tree = grown()
        steer(tree, "hint", 4, "use the read-only path")
        move = open_policy(name, 5).select(tree)
        assert move.parent == "v/4" and move.origin == "search"
        add(tree, 7, 4, "verified", 0.3, move.strategy)
        assert tree.nodes["v/7"].hints == ("use the read-only path",)
        assert open_policy(name, 5).select(tree) == open_policy(name, 5).choose(tree)


def forge(paths: ProjectPaths, config, provider: str, on_event=lambda event: None, **options):
    return run(
        paths,
        config,
        RunOptions(device="host", seeds=False, package=False, provider=provider, **options),
        on_event,
        ScriptedJudge().open,
    )


def test_requests_are_taken_up_once_and_recorded(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=3)
    provider = write_writer(
        tmp_path, kernel("verified 20"), kernel("verified 19"), kernel("verified 18"), kernel("verified 17")
    )
    seen: list = []

    def on_event(event) -> None:
        seen.append(event)
        if isinstance(event, events.Judged) and event.node == f"{KEY}/1":
            steering.add_kernel(paths, f"{KEY}/1", kernel("verified 5", "mine"), "edited\nby hand")
            steering.attach_hint(paths, f"{KEY}/1", "mind the tail")
            steering.prune(paths, f"{KEY}/99")
            (paths.steering / "0.json").write_text("{")

    result = forge(paths, config, provider, on_event)
    state = load_state(paths)
    tree = state.operator(KEY).tree
    mine = next(node for node in tree.nodes.values() if node.origin == "human")
    assert mine.verified and mine.parent.id == f"{KEY}/1" and mine.replied.idea == "edited by hand"
    assert (
        result.operators[0].best_us == 5 and result.operators[0].best_kernel == mine.kernel and result.cost_usd is None
    )
    assert len(tree.nodes) == 4 and tree.asked == 3, "a person's kernel costs no iteration"
    hinted = next(node for node in tree.nodes.values() if node.parent.id == f"{KEY}/1" and node.origin != "human")
    assert "A person adds: mind the tail" in (paths.replies / hinted.replied.prompt_file).read_text()
    notes = [event.text for event in seen if isinstance(event, events.Note)]
    assert any("no kernel of this project" in text for text in notes) and any("is no request" in text for text in notes)
    assert list(steering.pending(paths)) == [] and (paths.steering / "0.bad").exists()


def test_a_request_without_an_engine_waits_for_the_next_run(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=2)
    provider = write_writer(tmp_path, kernel("verified 20"), kernel("verified 19"))
    forge(paths, config, provider)
    steering.add_kernel(paths, KEY, kernel("verified 7"))
    steering.add_kernel(paths, "0123456789ab", kernel("verified 1"))
    result = forge(paths, config, provider)
    assert result.operators[0].best_us == 7 and result.operators[0].tried == 3
    assert [request.node for _, request in steering.pending(paths)] == ["0123456789ab"], "another operator's waits"


def test_a_request_recorded_before_a_kill_is_not_taken_up_again(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=2)
    provider = write_writer(tmp_path, kernel("verified 20"), kernel("verified 19"))
    steering.add_kernel(paths, KEY, kernel("verified 7"))
    file, _ = next(steering.pending(paths))
    saved = file.read_bytes()
    forge(paths, config, provider)
    file.write_bytes(saved)  # as if the engine had died before it deleted the file
    forge(paths, config, provider)
    nodes = load_state(paths).operator(KEY).tree.nodes.values()
    assert sum(node.origin == "human" for node in nodes) == 1 and not file.exists()


def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    paths = ProjectPaths(tmp_path)
    with pytest.raises(ProjectError, match="more than 1 MiB"):
        steering.add_kernel(paths, KEY, "x" * (1 << 20) + "x")
    with pytest.raises(ProjectError, match="4000 characters"):
        steering.attach_hint(paths, KEY, "x" * 4001)


def test_threads_may_leave_requests_at_once(tmp_path: Path) -> None:
    paths = ProjectPaths(tmp_path)
    threads = [threading.Thread(target=steering.pin, args=(paths, f"{KEY}/{number}")) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {request.node for _, request in steering.pending(paths)} == {f"{KEY}/{number}" for number in range(20)}


def test_a_paused_run_judges_what_is_in_flight_and_asks_for_nothing_until_it_goes_on(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=3)
    seen: list[events.AnyEvent] = []

    def on_event(event: events.AnyEvent) -> None:
        seen.append(event)
        if isinstance(event, events.Proposed) and len(seen) < 5:
            paths.pause_request.touch()
            threading.Timer(1.0, paths.pause_request.unlink).start()

    options = RunOptions(
        device="host", seeds=False, package=False, provider=write_writer(tmp_path, kernel("verified 20"))
    )
    run(paths, config, options, on_event, ScriptedJudge().open)
    words = [event.text for event in seen if isinstance(event, events.Note)]
    kinds = [type(event) for event in seen]
    begun = words.index("paused: what is in flight is judged, nothing new is asked for")
    assert words[begun + 1] == "going on"
    during = kinds[kinds.index(events.Note, kinds.index(events.Proposed)) + 1 :]
    assert during.index(events.Judged) < during.index(events.Note) < during.index(events.Proposed)
    assert not paths.pause_request.exists()


def test_a_time_limit_does_not_run_while_a_run_is_paused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("forge_tui.engine.halt.time.monotonic", lambda: now[0])
    paths, config = make_project(tmp_path / "p", SOFTMAX)
    watch = Watch(paths, resolve(config, RunOptions(time_limit_s=10.0)), load_state(paths))
    now[0] = 9.0
    paths.pause_request.touch()
    assert watch.paused()
    now[0] = 50.0
    assert watch.check(0) is None
    paths.pause_request.unlink()
    assert not watch.paused() and watch.check(0) is None
    now[0] = 51.5
    assert watch.check(0) is StopReason.TIME
