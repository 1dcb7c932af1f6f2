"""The calibration of modelled time: its statistics by hand, and a fit that undoes a known distortion."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest

from benchmarks.calibration import Family, Point, best_decile_holds, calibration, compare, fit, loss, model, spearman, spread
from forge_tui.cuda.device import H200
from forge_tui.cuda.host.model import CONSTANTS, Constants, blocks_per_sm, modelled_us
from forge_tui.cuda.program import KernelInfo
from forge_tui.cuda.target import LaunchCounts

MODELLED = Path(__file__).parent.parent / "benchmarks/landscapes/modelled"


def counted(dice: random.Random) -> LaunchCounts:
    """A launch of a kind that kernels are: blocks, loads of some width, a little or much arithmetic."""
    blocks, warps, wide = dice.choice((64, 528, 4096)), dice.choice((1, 4, 8)), dice.choice((4, 8, 16))
    requests = blocks * warps * dice.choice((4, 16, 64))
    sectors = requests * wide
    return LaunchCounts("k", blocks, 32 * warps, 0, requests * dice.choice((5, 40, 200)), requests, sectors, sectors * 32, requests, requests * dice.choice((1, 4)),
                        blocks * dice.choice((0, 8)), 1024, global_loaded=sectors // dice.choice((1, 2)), global_stored=sectors // 4)


def families(constants: Constants, noise: float = 0.0) -> list[Family]:
    """Measured by a device whose constants are others."""
    dice = random.Random(3)
    found = []
    for name in ("a", "b", "c"):
        points = []
        for _ in range(25):
            counts = (counted(dice),)
            us = modelled_us(counts, H200, (), constants) * dice.uniform(1 - noise, 1 + noise)
            points.append(Point(name, {"I": len(points)}, us, None, counts))
        found.append(Family(f"model: {name}", name, 1, points))
    return found


def test_rank_correlation_and_decile_by_hand() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == 1 and spearman([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    assert spearman([1, 2, 3], [5, 5, 5]) == 0
    assert spearman([1, 2, 3, 4], [1, 1, 2, 2]) == pytest.approx(0.8944, abs=1e-4)
    measured = list(range(10, 30))
    assert best_decile_holds(measured, measured) and not best_decile_holds(measured, measured[::-1])
    assert best_decile_holds([100, 100.5, 200] * 10, [2, 1, 3] * 10), "half a percent from the best is the best"
    assert [record["us"] for record in spread([{"us": us} for us in (5, 3, 9, 1, 7)], 3)] == [1, 5, 9]


def test_a_fit_undoes_a_distortion_of_known_constants() -> None:
    other = Constants(machine_per_ptx=2.0, latency_cycles=1100, in_flight=2.5, barrier_cycles=90, sharpness=1.5)
    made = families(other, noise=0.03)
    fitted = fit(made, H200, rounds=12)
    before, after = loss(made, H200, CONSTANTS), loss(made, H200, fitted)
    assert after < before / 2, (before, after)
    for family in made:
        row = compare(family, H200, fitted)
        assert row["spearman"] > 0.97 and 0.85 < row["ratio"] < 1.15, row
    assert min(compare(family, H200, CONSTANTS)["ratio"] for family in made) < 0.85


def test_what_is_stored_says_everything_and_is_json() -> None:
    document = calibration(families(CONSTANTS), H200, rounds=0)
    assert json.loads(json.dumps(document))["summary"] == {
        "families": 3, "spearman_median": 1.0, "spearman_worst": 1.0, "rank_enough": 3, "best_decile": 3, "ratio_median": 1.0}
    assert document["constants"] == msgspec.to_builtins(CONSTANTS) and all(row["regret"] == 1 for row in document["rows"])


def test_the_ranks_of_a_stored_landscape_survive_a_monotonic_distortion_and_not_a_shuffle() -> None:
    document = json.loads((MODELLED / "softmax-bf16-2048-256.json").read_text())
    us = [point["us"] for entry in document["families"] for point in entry["points"] if point["us"] is not None]
    dice = random.Random(1)
    assert spearman(us, [3 + value ** 1.7 for value in us]) == pytest.approx(1) and best_decile_holds(us, [3 + value ** 1.7 for value in us])
    assert spearman(us, [value * dice.lognormvariate(0, 0.02) for value in us]) > 0.8
    assert abs(spearman(us, dice.sample(us, len(us)))) < 0.5


def test_registers_and_the_l2_count() -> None:
    dice = random.Random(8)
    launch = msgspec.structs.replace(counted(dice), threads=256, shared_bytes=0)
    assert blocks_per_sm(launch, H200) == 8 and blocks_per_sm(launch, H200, 32) == 8 and blocks_per_sm(launch, H200, 128) == 2
    assert modelled_us([launch], H200, [KernelInfo("k", registers=255)]) >= modelled_us([launch], H200)
    small = msgspec.structs.replace(launch, blocks=4096, global_requests=100_000, global_sectors=1_000_000, global_loaded=600_000, global_stored=400_000, warp_instructions=1000)
    large = msgspec.structs.replace(small, global_sectors=10_000_000, global_loaded=6_000_000, global_stored=4_000_000, global_requests=1_000_000)
    alone = modelled_us([small], H200)
    assert modelled_us([small, small], H200) < 2 * alone, "the second finds the first one's bytes in the L2"
    assert modelled_us([large, large], H200) == 2 * modelled_us([large], H200)
    point = Point("k", {}, 1.0, 255, (launch,))
    assert model(point, H200, CONSTANTS) == modelled_us([launch], H200, [KernelInfo("k", registers=255)])
