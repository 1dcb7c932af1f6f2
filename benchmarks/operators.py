"""Builtin kernels on the calls of real models: right, and how fast beside eager, torch.compile and the device's ceiling.

`python -m benchmarks.operators [--only PATTERN] [--points N] [--seconds S]` builds every builtin kernel with up to N settings for every
row of `workloads.py` (in as many processes as there are cores), times them all, and puts the fastest through the product's own
judge: full checks and paired timing against eager and torch.compile. One row a workload, misses included.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.cases import case
from benchmarks.results import about, earlier, header, store
from benchmarks.workloads import WORKLOADS, Workload
from forge_tui.cuda.compile import compile_program
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.gpu import GpuTarget
from forge_tui.cuda.program import Image, Program
from forge_tui.cuda.timing import Contender, Stopwatch
from forge_tui.engine.builtin.catalog import kernels_for
from forge_tui.engine.cards import Variant
from forge_tui.engine.judge.device_timing import compiled
from forge_tui.engine.judge.judge import judge
from forge_tui.engine.kernelfile import KernelFile, parse
from forge_tui.specs import Call

FINALISTS = 3
"""Candidates of a workload that may be judged until one is verified."""
BASELINES = 6
"""Processes that run torch.compile, each with a CUDA context of its own."""


@dataclass
class Candidate:
    """One kernel file with one setting, for one workload."""

    workload: Workload
    variant: Variant
    name: str
    file: KernelFile
    settings: dict[str, int]
    program: Program
    image: Image | None = None
    us: float | None = None
    problem: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="pattern over `MODEL OPERATOR DTYPE SHAPE`; the other rows stay as they were measured before")
    parser.add_argument("--points", type=int, default=16, help="most tuning points of a kernel")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None, help="folder for the JSON file; default: benchmarks/results")
    parser.add_argument("--seconds", type=float, default=0.0, help="start no further workload after so long; 0: no limit")
    options = parser.parse_args()
    started = time.monotonic()
    target = GpuTarget(0)
    chosen = [item for item in WORKLOADS if fnmatch(f"{item.model} {item.label}".lower(), options.only.lower())]
    candidates = [found for item in chosen for found in candidates_of(item, target, options.points)]
    seconds = build_all(candidates, f"sm_{target.facts.cc}")
    print(f"{len(candidates)} candidates of {len(chosen)} workloads and their torch.compile baselines built in {seconds:.1f} s", flush=True)
    before = earlier("operators", target.facts)
    known = {(row["model"], row["workload"]): {"measured": about(before), **row} for row in before.get("rows", [])}
    now = about(header("operators"))
    for number, item in enumerate(chosen):
        if options.seconds and time.monotonic() - started > options.seconds:
            print(f"stopped before {len(chosen) - number} workloads: --seconds is over", flush=True)
            break
        row = measure(item, [found for found in candidates if found.workload is item], target, options.seed)
        known[item.model, item.label] = {**row, "measured": now}
        print(line(row), flush=True)
        torch.cuda.empty_cache()
        rows = [known[key] for every in WORKLOADS if (key := (every.model, every.label)) in known]
        path = store("operators", target.facts, {"rows": rows}, options.out)
    print(f"stored in {path}")


def candidates_of(item: Workload, target: GpuTarget, points: int) -> list[Candidate]:
    """Every builtin kernel that takes the call, with up to `points` settings each."""
    variant, _ = case(item, "cuda", target.facts)
    found = []
    for kernel in kernels_for(variant.call):
        file = parse(kernel.text, f"{kernel.name}.cu")
        if not file.refusal(variant.call, target.facts):
            for settings in file.points(variant.call, target.facts, points):
                found.append(Candidate(item, variant, kernel.name, file, settings, file.bind(variant.call, target.facts, settings)))
    torch.cuda.empty_cache()
    return found


def build_all(candidates: list[Candidate], arch: str) -> float:
    """Build every candidate, one process a core, and the baselines beside them; returns the seconds it took."""
    begin = time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawn) as pool, ProcessPoolExecutor(BASELINES, mp_context=spawn) as others:
        others.map(compile_baseline, list({item.workload.label: item.variant.call for item in candidates}.values()))
        build = functools.partial(build_one, arch=arch)
        for item, outcome in zip(candidates, pool.map(build, [item.program for item in candidates], chunksize=4), strict=True):
            if isinstance(outcome, Image):
                item.image = outcome
            else:
                item.problem = outcome
    return time.monotonic() - begin


def build_one(program: Program, arch: str) -> Image | str:
    """The image, or what the compiler says."""
    try:
        return compile_program(program, kind="cubin", arch=arch)
    except CandidateFault as fault:
        return f"{fault.kind}: {fault.message[:300]}"


def compile_baseline(call: Call) -> None:
    """Leave what torch.compile makes of the call in its cache on disk, where the judge's own compilation finds it."""
    compiled(call)
    torch.cuda.empty_cache()


def measure(item: Workload, candidates: list[Candidate], target: GpuTarget, seed: int | None) -> dict[str, Any]:
    """Time every candidate alone, judge the fastest; the next one where it is not verified."""
    variant, sample = case(item, "cuda", target.facts)
    results = {name: torch.empty_strided(spec.shape, spec.stride, dtype=getattr(torch, spec.dtype), device="cuda")
               for name, spec in zip(variant.call.output_names(), variant.call.outputs, strict=True)}
    watch = Stopwatch(target)
    for found in candidates:
        if found.image is not None:
            try:
                prepared = target.prepare(found.program, found.image, {**sample, **results})
                found.us = watch.alone(Contender(found.name, [prepared.enqueue])).value
            except CandidateFault as fault:
                found.problem = str(fault)
    verdicts = []
    best = None
    for found in sorted((found for found in candidates if found.us is not None), key=lambda found: found.us)[:FINALISTS]:
        verdict = judge(found.file, variant, [sample], target, seed=seed, settings=found.settings)
        verdicts.append({"kernel": found.name, "settings": found.settings, "outcome": verdict.outcome, "sentence": verdict.sentence,
                         "judged_s": verdict.judged_s, "seed": verdict.seed, "timing": msgspec.to_builtins(verdict.timing)})
        if verdict.verified and verdict.timing:
            best = verdicts[-1]
            break
    ceiling_us = variant.bytes_moved / target.facts.copy_bytes_per_s * 1e6
    return {
        "model": item.model, "workload": item.label, "operator": variant.operator, "bytes": variant.bytes_moved,
        "bytes_only_us": ceiling_us, "best": best["kernel"] if best else None, "timing": best["timing"] if best else None,
        "settings": best["settings"] if best else None, "share_of_ceiling": ceiling_us / best["timing"]["us"] if best else None,
        "judged": verdicts,
        "kernels": {name: min((found.us for found in candidates if found.name == name and found.us), default=None)
                    for name in dict.fromkeys(found.name for found in candidates)},
        "problems": sorted({f"{found.name}: {found.problem}" for found in candidates if found.problem})[:8],
        "candidates": len(candidates),
    }


def line(row: dict[str, Any]) -> str:
    name = f"{row['model'][:16]:16} {row['workload'][:46]:46}"
    timing = row["timing"]
    if timing is None:
        why = "; ".join(f"{item['kernel']}: {item['outcome']}" for item in row["judged"]) or "no builtin kernel takes it"
        return f"{name} none: {why}"
    speedup = f"{timing['speedup']:.2f}x over {timing['baseline']} {timing['baseline_us']:.1f}"
    return f"{name} {timing['us']:8.1f} us  {speedup:30} {row['share_of_ceiling']:4.0%} of ceiling  {row['best']}"


if __name__ == "__main__":
    main()
