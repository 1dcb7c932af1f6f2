"""conv2d + batch_norm + relu of ResNet-50 at batch 1 in one kernel: how exact, how fast beside eager, and which settings, layer by layer.

`python -m benchmarks.convolutions [--layers N] [--points N] [--seconds S]` builds up to N settings of the builtin kernel for every layer
(in as many processes as there are cores), times each of them and eager, and compares every result with float64. Beside the layers' sums it
measures the best settings of all 53 layers in a row, as one graph.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.operators import build_one
from benchmarks.results import earlier, store
from forge_tui.cuda.device import DeviceFacts
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.gpu import GpuTarget
from forge_tui.cuda.program import Image, Program
from forge_tui.cuda.timing import Contender, Stop, Stopwatch
from forge_tui.engine.builtin.catalog import kernels_for
from forge_tui.engine.builtin.families import convolution
from forge_tui.engine.kernelfile import parse
from forge_tui.engine.operators import describe
from forge_tui.errors import ForgeError

REGION = "torch.nn.functional.conv2d+torch.nn.functional.batch_norm+torch.nn.functional.relu"
QUICK = Stop(least=7, most=15, spread=0.05, seconds=0.008)
"""About 10 ms a setting: there are hundreds."""


@dataclass(frozen=True)
class Layer:
    """Convolutions of ResNet-50 at 224 pixels that have one shape."""

    count: int
    channels: int
    out: int
    size: int
    """Of the input, in pixels."""
    kernel: int
    stride: int
    dtype: str = "float32"

    @property
    def label(self) -> str:
        return f"{self.channels}->{self.out} k{self.kernel} s{self.stride} @{(self.size - 1) // self.stride + 1}"


LAYERS = [Layer(*row) for row in (
    (1, 3, 64, 224, 7, 2), (1, 64, 64, 56, 1, 1), (3, 64, 64, 56, 3, 1), (4, 64, 256, 56, 1, 1), (2, 256, 64, 56, 1, 1), (1, 256, 128, 56, 1, 1),
    (1, 128, 128, 56, 3, 2), (4, 128, 512, 28, 1, 1), (1, 256, 512, 56, 1, 2), (3, 512, 128, 28, 1, 1), (3, 128, 128, 28, 3, 1),
    (1, 512, 256, 28, 1, 1), (1, 256, 256, 28, 3, 2), (6, 256, 1024, 14, 1, 1), (1, 512, 1024, 28, 1, 2), (5, 1024, 256, 14, 1, 1),
    (5, 256, 256, 14, 3, 1), (1, 1024, 512, 14, 1, 1), (1, 512, 512, 14, 3, 2), (3, 512, 2048, 7, 1, 1), (1, 1024, 2048, 14, 1, 2),
    (2, 2048, 512, 7, 1, 1), (2, 512, 512, 7, 3, 1), (3, 64, 64, 56, 3, 1, "float16"), (4, 128, 512, 28, 1, 1, "float16"),
    (5, 256, 256, 14, 3, 1, "float16"), (2, 512, 512, 7, 3, 1, "float16"))]
WHOLE = 53
"""Convolutions of the network."""


@dataclass
class Setting:
    """One setting of the kernel for a layer."""

    tiles: dict[str, int]
    program: Program
    image: Image | None = None
    problem: str = ""
    prepared: Any = None
    us: float | None = None


@dataclass
class Row:
    """A layer with its tensors and settings."""

    layer: Layer
    arguments: dict[str, Any]
    result: torch.Tensor
    """Eager's."""
    settings: list[Setting] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=len(LAYERS), help="the first so many of the list")
    parser.add_argument("--points", type=int, default=16, help="most settings of a layer, in the order of the file")
    parser.add_argument("--seconds", type=float, default=0.0, help="start no further layer after so long; 0: no limit")
    parser.add_argument("--out", type=Path, default=None, help="folder for the JSON file; default: benchmarks/results")
    options = parser.parse_args()
    started = time.monotonic()
    target = GpuTarget(0)
    watch = Stopwatch(target)
    rows = [row_of(layer, "cuda", target.facts, options.points) for layer in LAYERS[:options.layers]]
    print(f"{sum(len(row.settings) for row in rows)} settings built in {build_all(rows, f'sm_{target.facts.cc}'):.1f} s", flush=True)
    done: list[Row] = []
    report: list[dict[str, Any]] = []
    for row in rows:
        if options.seconds and time.monotonic() - started > options.seconds:
            print(f"stopped before {len(rows) - len(done)} layers: --seconds is over", flush=True)
            break
        report.append(measure(row, target, watch))
        done.append(row)
        print(line(report[-1]), flush=True)
    kept = {key: value for key, value in earlier("convolutions", target.facts).items() if key == "at_batch_32"}  # of another command
    body = {**kept, "rows": report, "sums": {**sums(report), **in_a_row(done, watch)}}
    print(f"stored in {store('convolutions', target.facts, body, options.out)}")


def row_of(layer: Layer, device: str, facts: DeviceFacts, points: int) -> Row:
    """The layer with drawn tensors (activations, weights and statistics as in a trained network) and up to `points` settings. Raises ForgeError
    where the kernel does not take it."""
    torch.manual_seed(0)
    dtype = getattr(torch, layer.dtype)
    depth = layer.channels * layer.kernel**2

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device)

    tensors = {"input": draw(1, layer.channels, layer.size, layer.size).relu(),
               "weight": draw(layer.out, layer.channels, layer.kernel, layer.kernel) * (2 / depth) ** 0.5,
               "running_mean": draw(layer.out) * 0.1, "running_var": draw(layer.out).abs() + 0.5,
               "norm_weight": draw(layer.out).abs(), "norm_bias": draw(layer.out) * 0.1}
    pad = layer.kernel // 2
    arguments = {**{name: tensor.to(dtype) for name, tensor in tensors.items()}, "bias": None, "stride": (layer.stride,) * 2,
                 "padding": (pad, pad), "dilation": (1, 1), "groups": 1, "training": False, "momentum": 0.1, "eps": 1e-5}
    row = Row(layer, arguments, eager(arguments))
    call = describe(REGION, arguments, (row.result,))
    listed, convolution.POINTS = convolution.POINTS, max(points, convolution.POINTS)     # more than a file lists: what does the model miss?
    try:
        (kernel,) = kernels_for(call)
    finally:
        convolution.POINTS = listed
    file = parse(kernel.text, f"{kernel.name}.cu")
    if why := file.refusal(call, facts):
        raise ForgeError(f"the builtin kernel refuses {layer.label}: {why}", cure="measure on a device of compute capability 9.0 or more")
    row.settings = [Setting(tiles, file.bind(call, facts, tiles)) for tiles in file.points(call, facts, points)]
    return row


def eager(a: dict[str, Any]) -> torch.Tensor:
    """The three operators one after the other."""
    with torch.no_grad():
        result = F.conv2d(a["input"], a["weight"], a["bias"], a["stride"], a["padding"], a["dilation"], a["groups"])
        result = F.batch_norm(result, a["running_mean"], a["running_var"], a["norm_weight"], a["norm_bias"], False, a["momentum"], a["eps"])
        return F.relu(result)


def build_all(rows: list[Row], arch: str) -> float:
    """Build every setting, one process a core; returns the seconds it took."""
    begin = time.monotonic()
    settings = [setting for row in rows for setting in row.settings]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        built = pool.map(partial(build_one, arch=arch), [setting.program for setting in settings], chunksize=2)
        for setting, outcome in zip(settings, built, strict=True):
            if isinstance(outcome, Image):
                setting.image = outcome
            else:
                setting.problem = outcome
    return time.monotonic() - begin


def measure(row: Row, target: GpuTarget, watch: Stopwatch) -> dict[str, Any]:
    """Eager and every setting of a layer: device time, CPU time of a call, error in norm against float64, relative."""
    exact = eager({name: value.double() if isinstance(value, torch.Tensor) else value for name, value in row.arguments.items()})

    def error(result: torch.Tensor) -> float:
        return float((result.double() - exact).norm() / exact.norm())

    run = partial(eager, row.arguments)
    allowed, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    without_tf32 = error(run())
    torch.backends.cudnn.allow_tf32 = allowed
    item: dict[str, Any] = {
        "dtype": row.layer.dtype, "layer": row.layer.label, "count": row.layer.count, "eager_error": error(row.result),
        "eager_error_no_tf32": without_tf32, "eager_us": watch.alone(Contender("eager", [run]), QUICK).value,
        "eager_cpu_us": watch.launch_cost_us(run, 30)}
    tensors = {name: value for name, value in row.arguments.items() if isinstance(value, torch.Tensor)}
    errors = []
    for setting in row.settings:
        if setting.image is None:
            continue
        out = torch.full_like(row.result, float("nan"))
        try:
            prepared = target.prepare(setting.program, setting.image, {**tensors, "out": out})
            target.enqueue(prepared)
            target.wait()
            errors.append(error(out))
            setting.us = watch.alone(Contender("kernel", [prepared.enqueue]), QUICK).value
            setting.prepared = prepared
        except CandidateFault as fault:
            setting.problem = str(fault)
    good = [setting for setting in row.settings if setting.us is not None]
    if good:
        best = fastest(row)
        item |= {"first_us": good[0].us, "best_us": best.us, "best": best.tiles, "guess": row.settings.index(best), "error": max(errors),
                 "cpu_us": watch.launch_cost_us(best.prepared.enqueue, 100)}
    return {**item, "settings": [_told(setting) for setting in row.settings]}


def fastest(row: Row) -> Setting:
    """Of the settings that were timed, at least one."""
    return min((setting for setting in row.settings if setting.us is not None), key=lambda setting: setting.us or 0.0)


def _told(setting: Setting) -> dict[str, Any]:
    """On one line each: the values in the order of the tunables."""
    told: dict[str, Any] = {"tiles": " ".join(str(value) for value in setting.tiles.values()), "us": setting.us}
    if setting.image is not None:
        told |= {"registers": setting.image.kernels[0].registers, "spill": setting.image.kernels[0].spill_bytes}
    return {**told, "problem": setting.problem} if setting.problem else told


def sums(report: list[dict[str, Any]]) -> dict[str, float]:
    """Of the float32 layers that were timed, each as often as the network has it."""
    whole = [item for item in report if item["dtype"] == "float32" and "best_us" in item]
    names = ("eager_us", "first_us", "best_us", "eager_cpu_us", "cpu_us")
    return {"layers": sum(item["count"] for item in whole), **{name: sum(item[name] * item["count"] for item in whole) for name in names}}


def in_a_row(rows: list[Row], watch: Stopwatch) -> dict[str, float]:
    """The best settings of all float32 layers as one graph, the caches cold before it; empty where a layer is missing."""
    timed = [row for row in rows if row.layer.dtype == "float32" and any(setting.us is not None for setting in row.settings)]
    chain = [fastest(row).prepared for row in timed for _ in range(row.layer.count)]
    if len(chain) != WHOLE:
        return {}
    return {"chain_graph_us": watch.alone(Contender("chain", [lambda: [prepared.enqueue() for prepared in chain]]), QUICK).value}


def line(item: dict[str, Any]) -> str:
    name = f"{item['dtype']:8} {item['layer']:26} x{item['count']} eager {item['eager_us']:6.1f} (cpu {item['eager_cpu_us']:5.1f})"
    if "best_us" not in item:
        return f"{name}  nothing timed: {'; '.join(sorted({one['problem'] for one in item['settings'] if 'problem' in one}))[:200]}"
    return (f"{name}  first {item['first_us']:6.1f}  best {item['best_us']:6.1f} #{item['guess']:<2} {list(item['best'].values())!s:30} "
            f"error {item['error']:.1e}, eager {item['eager_error']:.1e}")


if __name__ == "__main__":
    main()
