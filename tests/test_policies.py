"""What each policy is known by, beyond the contract that all keep; and the figures of behaviour that `band` reads."""

from __future__ import annotations

import pytest
from test_search import add

from forge_tui.cuda.device import H200
from forge_tui.cuda.program import KernelInfo, Launch
from forge_tui.engine.events import Judged, Proposed, Replied
from forge_tui.engine.judge.behaviour import Behaviour, behaviour_of, occupancy
from forge_tui.engine.judge.verdict import Timing, Verdict
from forge_tui.engine.search import open_policy
from forge_tui.engine.search.band import CLUSTERS, TARGETS, Band, features, gain
from forge_tui.engine.search.simple import BEAM_BRANCH, BEAM_WIDTH, ISLANDS
from forge_tui.engine.search.strategies import NAMES
from forge_tui.engine.search.tree import Tree


def known(
    tree: Tree, number: int, parent: int | None, value: float, behaviour: Behaviour, strategy: str = "split"
) -> None:
    """A verified node whose behaviour is known."""
    name = f"v/{number}"
    tree.propose(
        Proposed(
            at=number, node=name, variant="v", parent=f"v/{parent}" if parent else None, strategy=strategy, provider="p"
        )
    )
    tree.reply(Replied(at=number, node=name, kernel=f"k{number}"))
    verdict = Verdict("verified", "", timing=Timing("device", 10.0), behaviour=behaviour)
    tree.judge(Judged(at=number, node=name, verdict=verdict, value=value))


def chosen(tree: Tree, name: str, count: int = 30) -> list[tuple[str | None, str]]:
    moves = [open_policy(name, seed).select(tree) for seed in range(count)]
    return [(move.parent, move.strategy) for move in moves]


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "share"),
    [
        (256, 40, 2048, 0.75),  # 6 blocks by registers: 40 x 32 are five units of 256, times 8 warps
        (1024, 64, 0, 0.5),  # one block holds all 65536 registers
        (32, 16, 0, 0.5),  # 32 blocks at the most
        (128, None, 100 << 10, 0.125),  # two blocks by shared memory
        (256, 33, 0, 0.75),  # 33 registers are given as 40
    ],
)
def test_occupancy_as_worked_out_by_hand_for_9_0(
    threads: int, registers: int | None, shared: int, share: float
) -> None:
    assert occupancy(threads, registers, shared, H200) == share


def test_behaviour_is_that_of_the_largest_launch() -> None:
    launches = [
        Launch("tail", (1, 1, 1), (32, 1, 1), ()),
        Launch("main", (1000, 1, 1), (16, 16, 1), (), shared=1024),
        Launch("none", (0, 1, 1), (1024, 1, 1), ()),
    ]
    found = behaviour_of(
        launches, [KernelInfo("main", 40, 1024)], H200, us=10.0, bytes_moved=int(H200.copy_bytes_per_s * 5e-6)
    )
    assert found == Behaviour(40, 2048, 256, 0.75, dram=pytest.approx(0.5))
    assert behaviour_of(launches[2:], [], H200) is None


class TestBand:
    BUSY = Behaviour(32, 0, 256, 1.0, dram=0.9, sm=0.1)

    def test_what_works_on_a_saturated_resource_is_masked(self) -> None:
        tree = Tree("v")
        for number in range(1, 6):
            known(tree, number, None, number / 10, self.BUSY)
        strategies = {strategy for _, strategy in chosen(tree, "band", 60)}
        assert strategies == {name for name in NAMES if TARGETS[name] != "dram"}

    def test_all_masked_is_none_masked(self) -> None:
        tree = Tree("v")
        known(tree, 1, None, 0.0, Behaviour(32, 0, 256, 1.0, dram=0.9, sm=0.8, l2=0.75))
        assert {strategy for _, strategy in chosen(tree, "band", 80)} == set(NAMES)

    def test_kernels_that_behave_alike_are_one_cluster(self) -> None:
        tree = Tree("v")
        kinds = [Behaviour(16, 0, 64, 0.3), Behaviour(128, 0, 512, 0.5), Behaviour(32, 90000, 1024, 0.9)]
        for number in range(1, 13):
            known(tree, number, None, (number % 3) / 2 + number / 1000, kinds[number % 3])
        clusters, representatives = Band(1)._clusters(tree, list(tree.nodes.values()))
        assert len(representatives) == CLUSTERS
        assert all(
            len({clusters[f"v/{number}"] for number in range(1, 13) if number % 3 == kind}) == 1 for kind in range(3)
        )
        assert features(tree.nodes["v/3"])[1:] == (16.0, 0.0, 6.0, 0.3)

    def test_the_reward_is_the_positive_relative_gain(self) -> None:
        tree = Tree("v")
        add(tree, 1, None, "verified", 0.0)
        add(tree, 2, 1, "verified", 0.6931471805599453)
        add(tree, 3, 1, "verified", -0.5)
        add(tree, 4, 1, "wrong")
        assert [gain(tree.nodes[f"v/{number}"]) for number in (2, 3, 4)] == [pytest.approx(0.5), 0.0, 0.0]


def test_linear_goes_on_from_the_latest_be_it_worse() -> None:
    tree = Tree("v")
    add(tree, 1, None, "verified", 1.0)
    add(tree, 2, 1, "verified", 0.2)
    assert open_policy("linear", 0).select(tree).parent == "v/2"
    add(tree, 3, 2, "no_build")
    move = open_policy("linear", 0).select(tree)
    assert (move.parent, move.origin) == ("v/3", "repair")


def test_a_beam_begins_wide_and_gives_each_of_its_best_as_many_children() -> None:
    tree, parents = Tree("v"), []
    policy = open_policy("beam", 0)
    for number in range(1, 1 + BEAM_WIDTH + 2 * BEAM_WIDTH * BEAM_BRANCH):
        move = policy.select(tree)
        parents.append(move.parent)
        add(
            tree,
            number,
            int(move.parent.partition("/")[2]) if move.parent else None,
            "verified",
            number / 100,
            move.strategy,
        )
    size = BEAM_WIDTH * BEAM_BRANCH
    assert parents[:BEAM_WIDTH] == [None] * BEAM_WIDTH
    first = parents[BEAM_WIDTH : BEAM_WIDTH + size]
    assert first == [name for number in range(BEAM_WIDTH, 0, -1) for name in [f"v/{number}"] * BEAM_BRANCH]
    assert set(parents[BEAM_WIDTH + size :]) == {f"v/{BEAM_WIDTH + size - place}" for place in range(BEAM_WIDTH)}


def test_islands_stay_apart_until_they_migrate() -> None:
    tree = Tree("v")
    for number in range(1, 7):
        add(tree, number, None, "verified", number / 10)
    assert {parent for parent, _ in chosen(tree, "evolve")} == {"v/1", "v/4"}, "the first island's turn: 1 and 4"
    for number in range(7, 10):
        add(tree, number, None, "verified", 0.01)
    assert len(tree.nodes) % ISLANDS == 0
    assert {parent for parent, _ in chosen(tree, "evolve", 60)} == {"v/1", "v/4", "v/7", "v/6"}, (
        "and the last island's best, 6"
    )
