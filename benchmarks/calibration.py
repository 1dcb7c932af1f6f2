"""`python -m benchmarks.calibration`: the model of time against measured landscapes: rank correlation, ratios, fitted constants.

    python -m benchmarks.calibration --collect [--seconds 500] [--most 24]   counts of measured settings, by the interpreter
    python -m benchmarks.calibration [--fit]                                 compares; with --fit also fits the constants

Measured times are the files that `python -m benchmarks.landscapes --device cuda:0` writes to `landscapes/DEVICE/`. Counts of the same
settings are collected once, into `counts/`; run `--collect` again to go on. What comes of it is stored in
`results/calibration-DEVICE.json`, whatever it is; constants are changed by hand, in `forge_tui/cuda/host/model.py`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.cases import case
from benchmarks.landscapes import FOLDER, Measurer
from benchmarks.results import FOLDER as RESULTS
from benchmarks.results import header, write
from benchmarks.workloads import WORKLOADS
from forge_tui.cuda.device import H200, DeviceFacts
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.host.model import CONSTANTS, Constants, modelled_us
from forge_tui.cuda.program import KernelInfo
from forge_tui.cuda.target import LaunchCounts, open_target
from forge_tui.engine.builtin.catalog import kernels_for
from forge_tui.engine.judge.trial import Failed
from forge_tui.engine.judge.tuning import Setting
from forge_tui.engine.kernelfile import parse
from forge_tui.errors import KernelFileError

FORMAT = 1
COUNTED = FOLDER.parent / "counts"
MUST_RANK = 0.8
"""Rank correlation that the model must reach within an operator family."""
MUST_HOLD = 0.8
"""Part of the families whose measured best must be among the best modelled tenth."""


NOISE = 0.02
"""Standard deviation of one measured time of a landscape, relative: 20 comparisons of a kernel with itself, of more calls each, spread by 0.5 %
(large calls) to 2.2 % (small ones; results/repeatability-nvidia-h200.json), and events count in steps of 0.032 us."""


class Point(msgspec.Struct):
    """One measured setting with its counts."""

    kernel: str
    settings: dict[str, int]
    us: float
    """Measured."""
    registers: int | None
    counts: tuple[LaunchCounts, ...]


class Family(msgspec.Struct):
    """All measured settings of all kernels on one call."""

    landscape: str
    operator: str
    format: int
    points: list[Point]


# Comparing ------------------------------------------------------------------------------------------------------------------


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation, ties by their mean rank; 0 where one side does not vary."""
    x, y = ranks(a), ranks(b)
    mean = (len(x) + 1) / 2
    top = sum((p - mean) * (q - mean) for p, q in zip(x, y, strict=True))
    bottom = (sum((p - mean) ** 2 for p in x) * sum((q - mean) ** 2 for q in y)) ** 0.5
    return top / bottom if bottom else 0.0


def ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for position in order[begin:end]:
            found[position] = (begin + end + 1) / 2
        begin = end
    return found


def best_decile_holds(measured: Sequence[float], modelled: Sequence[float], within: float = 0.01) -> bool:
    """Whether the best modelled tenth (ties at its edge included) has a setting within `within` of the measured best: settings
    nearer than that are told apart by noise."""
    edge = sorted(modelled)[max(1, round(len(modelled) / 10)) - 1]
    return min(us for us, guess in zip(measured, modelled, strict=True) if guess <= edge) <= (1 + within) * min(measured)


def noise_allows(measured: Sequence[float], spread: float = NOISE, draws: int = 100) -> tuple[float, float]:
    """What a model without any error would reach, did each time vary by `spread` (a standard deviation, relative) when measured again: rank
    correlation, and how often its best tenth holds the measured best."""
    dice = random.Random(1)
    guesses = [[us * dice.lognormvariate(0, spread) for us in measured] for _ in range(draws)]
    return statistics.fmean(spearman(measured, guess) for guess in guesses), statistics.fmean(best_decile_holds(measured, guess) for guess in guesses)


def compare(family: Family, facts: DeviceFacts, constants: Constants = CONSTANTS) -> dict[str, Any]:
    """Rank correlation, ratio and the decile of one family."""
    measured = [point.us for point in family.points]
    modelled = [model(point, facts, constants) for point in family.points]
    ratios = [guess / us for guess, us in zip(modelled, measured, strict=True)]
    chosen = min(range(len(modelled)), key=modelled.__getitem__)
    return {"landscape": family.landscape, "operator": family.operator, "points": len(measured), "spearman": round(spearman(measured, modelled), 4),
            "ratio": round(statistics.median(ratios), 4), "ratio_low": round(min(ratios), 4), "ratio_high": round(max(ratios), 4),
            "best_decile": best_decile_holds(measured, modelled), "best_decile_2": best_decile_holds(measured, modelled, 0.02),
            "near_1": sum(us <= 1.01 * min(measured) for us in measured),
            "near_2": sum(us <= 1.02 * min(measured) for us in measured), "regret": round(measured[chosen] / min(measured), 4)}


def model(point: Point, facts: DeviceFacts, constants: Constants) -> float:
    """Modelled microseconds. Registers are the compiler's for the kernel with the most; they bound the blocks of a multiprocessor."""
    infos = tuple(KernelInfo(c.kernel, registers=point.registers) for c in point.counts) if point.registers else ()
    return modelled_us(point.counts, facts, infos, constants)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"families": len(rows), "spearman_median": round(statistics.median(row["spearman"] for row in rows), 4),
            "spearman_worst": min(row["spearman"] for row in rows), "rank_enough": sum(row["spearman"] >= MUST_RANK for row in rows),
            "best_decile": sum(row["best_decile"] for row in rows), "best_decile_2": sum(row["best_decile_2"] for row in rows),
            "ratio_median": round(statistics.median(row["ratio"] for row in rows), 4)}


# Fitting --------------------------------------------------------------------------------------------------------------------


def loss(families: Sequence[Family], facts: DeviceFacts, constants: Constants) -> float:
    """What a fit makes small: lost rank correlation, and the spread of ratios around 1 (in log2, a quarter as heavy)."""
    import math

    total = 0.0
    for family in families:
        measured = [point.us for point in family.points]
        modelled = [model(point, facts, constants) for point in family.points]
        off = statistics.fmean(abs(math.log2(guess / us)) for guess, us in zip(modelled, measured, strict=True))
        total += 1 - spearman(measured, modelled) + 0.25 * off
    return total / len(families)


BOUNDS: dict[str, tuple[float, float]] = {
    "dram_cycles": (450, 1200), "issue": (1.0, 1.7), "chain": (1.0, 2.5), "barrier_cycles": (10, 100), "block_cycles": (100, 250),
    "cold_us": (0.05, 0.6), "fetch_cycles": (0.1, 4.0), "l2_kept": (0.2, 1.0), "refill": (0.05, 1.0), "sharpness": (1.5, 12.0),
}
"""Where a constant may lie and still mean what its name says."""


START = Constants(dram_cycles=600, issue=1.2, chain=1.5, barrier_cycles=30, block_cycles=150, cold_us=0.3, fetch_cycles=1.0, l2_kept=0.7,
                  refill=0.5, sharpness=4.0)
"""Round figures that no fit has made: where one begins that must not know what it is tried on. (Which terms the model has was chosen with all
landscapes in view.)"""


def fit(families: Sequence[Family], facts: DeviceFacts, begin: Constants = CONSTANTS, rounds: int = 60, seed: int = 1) -> Constants:
    """Constants that fit better: steps along one constant at a time, shorter and shorter, from `begin`."""
    dice, best, step = random.Random(seed), begin, 0.5
    lowest = loss(families, facts, best)
    for number in range(rounds):
        names = list(BOUNDS)
        dice.shuffle(names)
        improved = False
        for name in names:
            low, high = BOUNDS[name]
            for sign in (1, -1):
                now = getattr(best, name)
                moved = min(high, max(low, now * (1 + step) ** sign if now else step * (high - low) * dice.random()))
                tried = msgspec.structs.replace(best, **{name: round(moved, 4)})
                value = loss(families, facts, tried)
                if value < lowest - 1e-6:
                    best, lowest, improved = tried, value, True
                    break
        if not improved:
            step /= 2
        if step < 0.02:
            break
        del number
    return best


def held_out(families: Sequence[Family], facts: DeviceFacts, rounds: int) -> list[dict[str, Any]]:
    """Each operator with the constants fitted on all the others: what a fit is worth on operators it has not seen."""
    rows = []
    for operator in dict.fromkeys(family.operator for family in families):
        fitted = fit([family for family in families if family.operator != operator], facts, START, rounds)
        rows += [compare(family, facts, fitted) for family in families if family.operator == operator]
    return rows


# Collecting -----------------------------------------------------------------------------------------------------------------


def collect(measured: Path, out: Path, most: int, deadline: float) -> None:
    """Counts of at most `most` measured settings of each kernel, spread over all, the fastest among them."""
    target = open_target("host")
    documents = {path: json.loads(path.read_text()) for path in measured.glob("*.json")}
    for path, document in sorted(documents.items(), key=lambda pair: pair[1]["bytes"]):      # small calls first: they are soon counted
        label = document["landscape"].partition(": ")[2]
        item = next(item for item in WORKLOADS if item.label == label)
        where = out / path.name
        family = msgspec.json.decode(where.read_bytes(), type=Family) if where.exists() else Family(document["landscape"], document["operator"], FORMAT, [])
        done = {(point.kernel, tuple(sorted(point.settings.items()))) for point in family.points}
        variant, sample = case(item, "cpu", target.facts)
        measurer = Measurer(target, variant, sample)
        kernels = {kernel.name: kernel for kernel in kernels_for(variant.call)}
        for entry in document["families"]:
            if entry["name"] not in kernels:
                continue
            file = parse(kernels[entry["name"]].text, f"{entry['name']}.cu")
            proxy = None
            for record in spread([record for record in entry["points"] if record["us"] is not None], most):
                if (entry["name"], tuple(sorted(record["settings"].items()))) in done:
                    continue
                if time.monotonic() > deadline:
                    return
                try:
                    setting = Setting(record["settings"], file.bind(variant.call, target.facts, record["settings"]))
                    setting.build(target)
                    proxy = proxy or measurer.proxy_of(file, setting)
                    measurer.point(file, setting, proxy)
                except (CandidateFault, KernelFileError, Failed) as problem:      # the kernel has changed since, or is not interpretable
                    print(f"{entry['name']} {record['settings']}: {str(problem).splitlines()[0][:100]}", flush=True)
                    if "endless" in (getattr(problem, "kind", ""), getattr(problem, "fault", "")):
                        break      # too slow to interpret here, and the next setting will be as well
                    continue
                counts = tuple(msgspec.structs.replace(count, lines=()) for count in setting.counts)
                family.points.append(Point(entry["name"], record["settings"], record["us"], record["registers"], counts))
            where.parent.mkdir(parents=True, exist_ok=True)
            where.write_bytes(msgspec.json.encode(family).replace(b'{"kernel":"%s","settings"' % entry["name"].encode(), b'\n{"kernel":"%s","settings"' % entry["name"].encode()) + b"\n")
        print(f"{label:44} {len(family.points)} points", flush=True)


def spread(records: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most `most` of them, over the whole range of times, fastest and slowest included."""
    ordered = sorted(records, key=lambda record: record["us"])
    if len(ordered) <= most:
        return ordered
    return [ordered[round(position * (len(ordered) - 1) / (most - 1))] for position in range(most)]


def families_in(folder: Path) -> list[Family]:
    return [msgspec.json.decode(path.read_bytes(), type=Family) for path in sorted(folder.glob("*.json"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, default=FOLDER / "nvidia-h200")
    parser.add_argument("--counted", type=Path, default=COUNTED)
    parser.add_argument("--collect", action="store_true")
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--most", type=int, default=24)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.collect:
        collect(options.measured, options.counted, options.most, time.monotonic() + options.seconds)
        return
    families = families_in(options.counted)
    document = calibration(families, H200, options.rounds if options.fit else 0)
    device = re.sub(r"[^a-z0-9]+", "-", options.measured.name)
    print("\n".join(told(document)))
    print(write(RESULTS / f"calibration-{device}.json", {**header("calibration"), **document}))


def calibration(families: Sequence[Family], facts: DeviceFacts, rounds: int) -> dict[str, Any]:
    """Everything that is stored. rounds: of a fit; 0: none."""
    rows = [compare(family, facts) for family in families]
    for row, family in zip(rows, families, strict=True):
        rank, holds = noise_allows([point.us for point in family.points])
        row.update(noise_spearman=round(rank, 3), noise_best_decile=round(holds, 2))
    blind = [compare(msgspec.structs.replace(family, points=[msgspec.structs.replace(point, registers=None) for point in family.points]), facts)
             for family in families]
    document: dict[str, Any] = {"device": facts.name, "constants": msgspec.to_builtins(CONSTANTS), "rows": rows, "noise": NOISE, "summary": summary(rows),
                                "registers_unknown": summary(blind)}
    if rounds:
        fitted = fit(families, facts, rounds=rounds)
        again = [compare(family, facts, fitted) for family in families]
        apart = held_out(families, facts, rounds)
        document["fitted"] = {"constants": msgspec.to_builtins(fitted), "summary": summary(again), "rows": again,
                              "held_out": {"summary": summary(apart), "rows": apart}}
    return document


def told(document: dict[str, Any]) -> Iterator[str]:
    yield from _table("constants as they are", document["rows"], document["summary"])
    if "fitted" in document:
        yield from _table("fitted", document["fitted"]["rows"], document["fitted"]["summary"])
        yield f"held out: {document['fitted']['held_out']['summary']}"
        yield str(document["fitted"]["constants"])


def _table(title: str, rows: Iterable[dict[str, Any]], total: dict[str, Any]) -> Iterator[str]:
    yield f"{title}: {total}"
    for row in rows:
        yield (f"  {row['landscape'][:60]:60} {row['points']:4} points  rank {row['spearman']:6.3f}  ratio {row['ratio']:.2f} "
               f"[{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]  best decile {'yes' if row['best_decile'] else 'no '}  regret {row['regret']:.2f}")


if __name__ == "__main__":
    main()
