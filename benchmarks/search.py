"""Policies compared on stored landscapes, with no device and no model: best so far against iterations, with intervals.

`python -m benchmarks.search [--kind KIND] [--seeds 200] [--iterations 20] [--policies uct,band]` searches every
landscape of `benchmarks/landscapes/KIND/` with every policy and seed. KIND `modelled` has the host target's modelled
times, any other is a device's measured ones; by default all there are, each reported apart.
"""

from __future__ import annotations

import argparse
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.recorded import FAILS, MENDS, Landscape, load
from benchmarks.results import FOLDER, header, write
from forge_tui.engine.search import POLICIES, open_policy

LANDSCAPES = Path(__file__).parent / "landscapes"
SHOWN = (1, 5, 10, 20, 50)
DEFAULT = "uct"
WANTED = 0.95
SCALED_SEEDS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="", help="folder under benchmarks/landscapes; default: each of them")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    kinds = [options.kind] if options.kind else sorted(path.name for path in LANDSCAPES.iterdir() if path.is_dir())
    for kind in kinds:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        body = compare(load(LANDSCAPES / kind), options.policies.split(","), seeds, options.iterations)
        report(kind, body)
        path = write(options.out / f"search-{kind}.json",
                     {**header("search"), "landscapes_kind": kind, "writer": {"fails": FAILS, "mends": MENDS}, **body})
        print(f"stored in {path}")


def compare(landscapes: list[Landscape], policies: list[str], seeds: range, iterations: int) -> dict[str, Any]:
    """Curves by policy: the mean over landscapes of each seed's search, then over seeds."""
    with ProcessPoolExecutor(min(2, len(os.sched_getaffinity(0)))) as pool:
        futures = {
            (name, index): pool.submit(_searches, landscape, name, seeds, iterations)
            for name in policies
            for index, landscape in enumerate(landscapes)
        }
        scaled = [
            pool.submit(_alike, landscape, name, seeds[:SCALED_SEEDS], iterations)
            for name in policies
            for landscape in landscapes
        ]
        curves = {key: future.result() for key, future in futures.items()}
        alike = [same for future in scaled for same in future.result()]
    marks = [number for number in SHOWN if number <= iterations]
    found: dict[str, Any] = {}
    for name in policies:
        by_seed = [
            [
                statistics.mean(curves[name, index][place][mark - 1] for index in range(len(landscapes)))
                for mark in marks
            ]
            for place in range(len(seeds))
        ]
        found[name] = {
            "mean": {mark: statistics.mean(row[place] for row in by_seed) for place, mark in enumerate(marks)},
            "half_width": {
                mark: 1.96 * statistics.stdev([row[place] for row in by_seed]) / len(by_seed) ** 0.5
                for place, mark in enumerate(marks)
            },
            "by_landscape": {
                landscape.name: statistics.mean(curve[marks[-1] - 1] for curve in curves[name, index])
                for index, landscape in enumerate(landscapes)
            },
        }
    return {
        "iterations": iterations,
        "same_choices_at_1000_times": {"searches": len(alike), "same": sum(alike)},
        "seeds": [seeds.start, seeds.stop],
        "policies": found,
        "landscapes": [
            {
                "name": item.name,
                "times": item.times,
                "points": len(item.points),
                "best_us": item.best_us,
                "failing": sum(point.us is None for point in item.points),
                "within_5_percent": sum(
                    point.us is not None and point.us <= 1.05 * item.best_us for point in item.points
                ),
            }
            for item in landscapes
        ],
    }


def _searches(landscape: Landscape, name: str, seeds: range, iterations: int) -> list[list[float]]:
    return [landscape.search(open_policy(name, seed), iterations)[1] for seed in seeds]


def _alike(landscape: Landscape, name: str, seeds: range, iterations: int) -> list[bool]:
    """By seed: whether the same search with all times multiplied by 1000 makes the same moves."""
    return [
        landscape.search(open_policy(name, seed), iterations)[0]
        == landscape.search(open_policy(name, seed), iterations, scale=1000.0)[0]
        for seed in seeds
    ]


def report(kind: str, body: dict[str, Any]) -> None:
    landscapes, policies = body["landscapes"], body["policies"]
    seeds = body["seeds"][1] - body["seeds"][0]
    print(
        f"{kind}: {len(landscapes)} landscapes, {sum(item['points'] for item in landscapes)} points, {seeds} seeds; times "
        f"{landscapes[0]['times']}"
    )
    marks = list(next(iter(policies.values()))["mean"])
    print(f"{'best speed so far / best there is':34}" + "".join(f"{'at ' + str(mark):>16}" for mark in marks))
    for name in sorted(policies, key=lambda name: -policies[name]["mean"][marks[-1]]):
        found = policies[name]
        print(
            f"  {name:32}" + "".join(f"{found['mean'][mark]:9.3f} ±{found['half_width'][mark]:.3f}" for mark in marks)
        )
    scaled = body["same_choices_at_1000_times"]
    print(f"with all times multiplied by 1000: the same choices in {scaled['same']} of {scaled['searches']} searches")
    if DEFAULT in policies:
        print("\n".join(verdicts(policies, marks[-1])))


def verdicts(policies: dict[str, Any], mark: int) -> list[str]:
    """What can be said of the default policy at the last mark, in sentences."""
    mine, width = policies[DEFAULT]["mean"][mark], policies[DEFAULT]["half_width"][mark]
    lines = [
        f"{DEFAULT} at {mark}: {mine:.1%} of the exhaustive best, {'at least' if mine >= WANTED else 'LESS than'} {WANTED:.0%}"
    ]
    for name, found in policies.items():
        if name != DEFAULT:
            other, its = found["mean"][mark], found["half_width"][mark]
            apart = "intervals apart" if abs(mine - other) > width + its else "intervals overlap"
            lines.append(f"  {'above' if mine > other else 'NOT above'} {name}: {mine - other:+.3f}, {apart}")
    return lines


if __name__ == "__main__":
    main()
