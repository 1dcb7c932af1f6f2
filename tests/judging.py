"""Shared by the judging tests: variants made from real calls, and a stand-in target that runs Python in place of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forge_tui.cuda.device import H200
from forge_tui.cuda.program import Image, Program
from forge_tui.cuda.target import LaunchCounts, RunReport
from forge_tui.engine.cards import Statistics, Variant, variant_key
from forge_tui.engine.judge.verdict import Timing
from forge_tui.engine.operators import describe, lookup, named_tensors


def statistics_of(tensor: torch.Tensor) -> Statistics:
    values = tensor.double()
    finite = values[values.isfinite()]
    some = finite if finite.numel() else torch.zeros(1, dtype=torch.float64)
    ordered = bool((values.diff(dim=-1) >= 0).all()) if values.dim() and values.shape[-1] > 1 else False
    return Statistics(float(some.min()), float(some.max()), float(some.mean()), float(some.std(correction=0)),
                      float((values == 0).double().mean()) if values.numel() else 0.0,
                      1 - finite.numel() / max(values.numel(), 1), bool((some == some.round()).all()), ordered)


def make_variant(operator: str, arguments: dict[str, Any], weights: tuple[str, ...] = (),
                 aliases: dict[str, str] | None = None) -> tuple[Variant, dict[str, torch.Tensor]]:
    """A variant of one real call, and its sample."""
    sample = dict(named_tensors(arguments))
    names = {id(sample[name]): name for name in weights}
    outputs = lookup(operator).call(arguments)
    call = describe(operator, arguments, outputs, lambda tensor: names.get(id(tensor)), aliases)
    moved = sum(tensor.numel() * tensor.element_size() for tensor in (*sample.values(), *outputs))
    variant = Variant(key=variant_key(call), call=call, calls=1, time_us=1.0, bytes_moved=moved, operations=0, floor_us=1.0,
                      statistics={name: statistics_of(tensor) for name, tensor in sample.items()}, samples=("sample",),
                      modules=("",))
    return variant, sample


class PythonTarget:
    """A `Target` whose kernels are Python functions by name: for what does not depend on the interpreter."""

    kind = "host"
    facts = H200

    def __init__(self, **kernels: Callable[..., None]) -> None:
        self.kernels = kernels
        self.runs = 0

    def build(self, program: Program) -> Image:
        return Image("ptx", "sm_90", program.build_key().encode(), program.build_key())

    def run(self, program: Program, image: Image, tensors: dict[str, torch.Tensor],
            workspaces: dict[str, torch.Tensor] | None = None) -> RunReport:
        counts = []
        for launch in program.launches:
            self.runs += 1
            everything = {**tensors, **(workspaces or {})}
            values = [everything[a.name] if a.name in everything else a.value for a in launch.arguments]
            self.kernels[launch.kernel](*values)
            blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
            counts.append(LaunchCounts(launch.kernel, blocks, launch.block[0], 1000 * blocks, 40 * blocks, 10 * blocks,
                                       40 * blocks, 4096 * blocks, 0, 0, 0, 0))
        return RunReport(tuple(counts))


class CountingTimer:
    """Microseconds by launches and blocks: enough to rank settings."""

    def quick(self, setting, trial):
        return sum(count.threads * count.blocks for count in setting.counts) / 1000, None

    def full(self, setting, trial, samples):
        return Timing("modelled", self.quick(setting, trial)[0])
