"""Can the figures be believed: a kernel against itself must be no gain, and a winner must time alike in fresh processes.

`python -m benchmarks.repeatability [--selves N] [--processes N]` times copies of one kernel against each other over five operators, and the
same winner in fresh processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import case
from benchmarks.results import about, earlier, header, store
from benchmarks.workloads import WORKLOADS, Workload
from forge_tui.cuda.gpu import GpuTarget
from forge_tui.cuda.statistics import is_gain
from forge_tui.cuda.timing import Contender, Stopwatch
from forge_tui.engine.builtin.catalog import kernels_for
from forge_tui.engine.judge.judge import judge_text
from forge_tui.engine.judge.device_timing import COPIES
from forge_tui.engine.kernelfile import KernelFile, parse

LABELS = ("softmax bf16 (1, 8, 2048, 2048)", "group_norm bf16 (1, 512, 256, 256)", "layer_norm fp32 (1, 1500, 512)",
          "silu bf16 (512, 8192)", "adaptive_avg_pool2d fp32 (32, 2048, 7, 7)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--selves", type=int, default=20, help="comparisons of a kernel with itself, an operator; 0: keep those measured before")
    parser.add_argument("--processes", type=int, default=5, help="fresh processes; 0: keep what was measured before")
    parser.add_argument("--one", default="", help="time the winner of this workload once and print the ratio (used by itself)")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    target = GpuTarget(0)
    if options.one:
        print(json.dumps(winner(target, options.one)))
        return
    before = earlier("repeatability", target.facts)
    body: dict[str, Any] = {key: before[key] for key in ("selves", "processes") if key in before}
    measured = {key: before.get("measured", {}).get(key) or about(before) for key in body}
    if options.selves:
        body["selves"] = [against_itself(target, label, options.selves) for label in LABELS]
        gains, total = (sum(item[word] for item in body["selves"]) for word in ("gains", "comparisons"))
        print(f"a kernel against itself: no gain in {total - gains} of {total}")
    if options.processes:
        body["processes"] = [spread(label, options.processes) for label in LABELS[:1]]
        for item in body["processes"]:
            print(f"{item['workload']}: ratios {', '.join(f'{ratio:.3f}' for ratio in item['ratios'])}; spread {item['spread']:.1%}")
    now = about(header("repeatability"))
    measured |= {key: now for key, wanted in (("selves", options.selves), ("processes", options.processes)) if wanted}
    print(f"stored in {store('repeatability', target.facts, {**body, 'measured': measured}, options.out)}")


def workload(label: str) -> Workload:
    return next(item for item in WORKLOADS if item.label == label)


def against_itself(target: GpuTarget, label: str, times: int) -> dict[str, Any]:
    """Two copies of the same kernel, `times` times, each time on other memory."""
    variant, sample = case(workload(label), "cuda", target.facts)
    files = [parse(kernel.text, f"{kernel.name}.cu") for kernel in kernels_for(variant.call)]
    file: KernelFile = next(item for item in files if not item.refusal(variant.call, target.facts))
    program = file.bind(variant.call, target.facts, file.points(variant.call, target.facts, 1)[0])
    image = target.build(program)
    watch = Stopwatch(target)
    found = []
    for _ in range(times):
        pair: list[list[Any]] = [[], []]
        for _ in range(COPIES):  # inputs are shared and results are each one's own, as when a candidate is timed beside eager
            inputs = {name: tensor.clone() for name, tensor in sample.items()}
            for side in pair:
                results = {name: torch.empty_strided(spec.shape, spec.stride, dtype=getattr(torch, spec.dtype), device="cuda")
                           for name, spec in zip(program.outputs, variant.call.outputs, strict=True)}
                side.append(target.prepare(program, image, {**inputs, **results}))
        candidate, itself = (Contender(name, [item.enqueue for item in side])
                             for name, side in zip(("candidate", "itself"), pair, strict=True))
        comparison = watch.against(candidate, [itself])
        found.append(comparison.speedups["itself"])
    return {"workload": label, "comparisons": times, "gains": sum(is_gain(item) for item in found),
            "intervals": [(item.low, item.value, item.high) for item in found]}


def winner(target: GpuTarget, label: str) -> dict[str, Any]:
    """The first builtin kernel of a workload through the judge."""
    variant, sample = case(workload(label), "cuda", target.facts)
    kernel = next(item for item in kernels_for(variant.call) if not parse(item.text, item.name).refusal(variant.call, target.facts))
    verdict = judge_text(kernel.text, f"{kernel.name}.cu", variant, [sample], target)
    timing = verdict.timing
    return {"ratio": timing.speedup if timing else None, "us": timing.us if timing else None, "outcome": verdict.outcome}


def spread(label: str, processes: int) -> dict[str, Any]:
    """The same winner in fresh processes: (largest - smallest) / median of the ratio to the better baseline."""
    found = []
    for _ in range(processes):
        done = subprocess.run([sys.executable, "-m", "benchmarks.repeatability", "--one", label], capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.strip().splitlines()[-1]))
    ratios = sorted(item["ratio"] for item in found)
    return {"workload": label, "ratios": ratios, "runs": found, "spread": (ratios[-1] - ratios[0]) / ratios[len(ratios) // 2]}


if __name__ == "__main__":
    main()
