"""The calibration of modelled time: its statistics by hand, and a fit that undoes a known distortion."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest

from benchmarks.calibration import Family, Point, best_decile_holds, calibration, compare, fit, loss, model, noise_allows, spearman, spread
from forge_tui.cuda.device import H200
from forge_tui.cuda.host.model import CONSTANTS, Constants, blocks_per_sm, modelled_us
from forge_tui.cuda.program import KernelInfo
from forge_tui.cuda.target import LaunchCounts, LoadStep

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
    other = Constants(issue=1.7, dram_cycles=1150, chain=1.2, barrier_cycles=20, block_cycles=240, sharpness=1.6)
    made = families(other, noise=0.03)
    fitted = fit(made, H200, rounds=12)
    before, after = loss(made, H200, CONSTANTS), loss(made, H200, fitted)
    assert after < before / 2, (before, after)
    for family in made:
        row = compare(family, H200, fitted)
        assert row["spearman"] > 0.97 and 0.85 < row["ratio"] < 1.15, row
    assert before > 0.05


def test_what_is_stored_says_everything_and_is_json() -> None:
    document = calibration(families(CONSTANTS), H200, rounds=0)
    assert json.loads(json.dumps(document))["summary"] == {
        "families": 3, "spearman_median": 1.0, "spearman_worst": 1.0, "rank_enough": 3, "best_decile": 3, "best_decile_2": 3, "ratio_median": 1.0}
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


def test_noise_lowers_what_is_possible_by_as_much_as_settings_lie_together() -> None:
    apart, together = [1.0 + n for n in range(40)], [1.0 + n / 1000 for n in range(40)]
    assert noise_allows(apart, 0.02)[0] > 0.99 and noise_allows(apart, 0.02)[1] == 1
    assert noise_allows(together, 0.02)[0] < 0.7


def test_what_bounds_a_launch_makes_it_longer() -> None:
    """Each term of the model by itself: registers too few for the loads, clusters that do not reach all multiprocessors, a round more, weights that
    the L2 has, code to fetch, results stored in halves of sectors."""
    base = LaunchCounts("k", 1056, 256, 0, 10**6, 10**5, 800_000, 25_600_000, 0, 0, 0, 0, global_least=800_000, global_loaded=700_000, global_stored=100_000,
                        load_rounds=2 * 8448, store_sectors=100_000, issued=800_000, code=200, chain_cycles=300 * 8448)

    def us(count: LaunchCounts = base, registers: int = 32, **changes: object) -> float:
        return modelled_us([msgspec.structs.replace(count, **changes)], H200, [KernelInfo("k", registers=registers)])

    steps = (LoadStep(8448, values=64, live=20),)
    assert us(load_steps=steps) > us() == us(load_steps=(LoadStep(8448, values=8, live=4),))
    assert us(load_steps=steps, registers=32) > us(load_steps=steps, registers=128)
    assert us(blocks=1057) > us(blocks=1056) and us(blocks=1057) - us(blocks=1056) > us(blocks=1058) - us(blocks=1057), "the first block of another round costs most"
    one = {"blocks": 128, "shared_bytes": 200_000}
    assert us(cluster=4, **one) > us(cluster=2, **one), "128 blocks, one an SM: with clusters of 4 they need two rounds"
    assert us(global_common=690_000) < us()
    assert us(code=2000) > us() and us(chain_cycles=3000 * 8448) > us() and us(global_sectors=8_000_000) > us(global_sectors=8_000_000, global_least=8_000_000)
    large = {"global_loaded": 10**7, "global_stored": 10**7, "global_sectors": 2 * 10**7, "global_least": 2 * 10**7, "store_sectors": 10**7}
    assert us(**large | {"global_sectors": 3 * 10**7, "store_sectors": 2 * 10**7}) > us(**large)
    assert us(**{name: value // 50 for name, value in large.items()}) < us(**large) / 20, "what the L2 takes is not written out before the end"
