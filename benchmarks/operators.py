"""Builtin kernels on the calls of real models: right, and how fast beside eager, torch.compile and the device's ceiling.

`python -m benchmarks.operators [--only PATTERN] [--points N] [--device cuda:0] [--no-compile]` judges every builtin kernel on every
row of `workloads.py` through the product's own judge and prints one row a workload, misses included.
"""

from __future__ import annotations

import argparse
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.cases import case
from benchmarks.results import store
from benchmarks.workloads import WORKLOADS, Workload
from forge_tui.cuda.target import Target, open_target
from forge_tui.engine.builtin.catalog import kernels_for
from forge_tui.engine.judge.judge import judge_text
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.judge.verdict import Verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="pattern over `MODEL OPERATOR DTYPE SHAPE`")
    parser.add_argument("--points", type=int, default=16, help="most tuning points of a kernel")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None, help="folder for the JSON file; default: benchmarks/results")
    parser.add_argument("--seconds", type=float, default=0.0, help="start no further workload after so long; 0: no limit")
    options = parser.parse_args()
    target = open_target(options.device)
    chosen = [item for item in WORKLOADS if fnmatch(f"{item.model} {item.label}".lower(), options.only.lower())]
    rows: list[dict[str, Any]] = []
    started = time.monotonic()
    for number, item in enumerate(chosen):
        if options.seconds and time.monotonic() - started > options.seconds:
            print(f"stopped before {len(chosen) - number} workloads: --seconds is over", flush=True)
            break
        rows.append(measure(item, target, JudgeOptions(tune_points=options.points), options.seed))
        print(line(rows[-1]), flush=True)
        if target.kind == "cuda":
            torch.cuda.empty_cache()
        store("operators", target.facts, {"rows": rows}, options.out)
    print()
    print("\n".join(line(row) for row in rows))
    print(f"stored in {store('operators', target.facts, {'rows': rows}, options.out)}")


def measure(item: Workload, target: Target, options: JudgeOptions, seed: int | None) -> dict[str, Any]:
    """Judge every builtin kernel on one workload; the row holds the best and every verdict in short."""
    device = "cuda" if target.kind == "cuda" else "cpu"
    variant, sample = case(item, device, target.facts)
    verdicts: list[tuple[str, Verdict]] = []
    for kernel in kernels_for(variant.call):
        verdicts.append((kernel.name, judge_text(kernel.text, f"{kernel.name}.cu", variant, [sample], target, seed=seed, options=options)))
    timed = [(name, verdict) for name, verdict in verdicts if verdict.verified and verdict.timing]
    best = min(timed, key=lambda found: found[1].timing.us, default=None)  # type: ignore[union-attr]
    ceiling_us = variant.bytes_moved / target.facts.copy_bytes_per_s * 1e6
    return {
        "model": item.model, "workload": item.label, "operator": variant.operator, "bytes": variant.bytes_moved,
        "bytes_only_us": ceiling_us, "best": best[0] if best else None,
        "timing": msgspec.to_builtins(best[1].timing) if best else None,
        "share_of_ceiling": ceiling_us / best[1].timing.us if best else None,  # type: ignore[union-attr]
        "settings": best[1].settings if best else None,
        "kernels": [{"kernel": name, "outcome": verdict.outcome, "us": verdict.timing.us if verdict.timing else None,
                     "settings": verdict.settings, "judged_s": verdict.judged_s, "sentence": verdict.sentence,
                     "points": len(verdict.points)} for name, verdict in verdicts],
    }


def line(row: dict[str, Any]) -> str:
    name = f"{row['model'][:16]:16} {row['workload'][:46]:46}"
    timing = row["timing"]
    if timing is None:
        why = "; ".join(f"{item['kernel']}: {item['outcome']}" for item in row["kernels"]) or "no builtin kernel"
        return f"{name} none: {why}"
    speedup = f"{timing['speedup']:.2f}x over {timing['baseline']} {timing['baseline_us']:.1f}" if timing["speedup"] else timing["kind"]
    return f"{name} {timing['us']:8.1f} us  {speedup:30} {row['share_of_ceiling']:4.0%} of ceiling  {row['best']}"


if __name__ == "__main__":
    main()
