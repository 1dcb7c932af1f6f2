"""What NVIDIA's tools say of the setting that was judged right: the profiler's figures, the sanitizer's findings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from forge_tui.cuda.profile import KernelProfile, NoProfile, Profile, ncu_profile
from forge_tui.cuda.sanitize import sanitize
from forge_tui.cuda.single import find_tool
from forge_tui.cuda.target import Target
from forge_tui.engine.judge.behaviour import occupancy
from forge_tui.engine.judge.trial import WORDS, Failed, Trial
from forge_tui.engine.judge.tuning import Setting
from forge_tui.engine.judge.verdict import Check, Timing

if TYPE_CHECKING:
    from forge_tui.engine.cards import Variant

NOT_HERE = "the host target checks every access itself"


def has_sanitizer(target: Target) -> bool:
    """Whether this machine's sanitizer can look at what runs on the target."""
    return target.kind == "cuda" and find_tool("compute-sanitizer") is not None


SANITIZED_BYTES = 256 << 20
"""Calls on more are not put under the sanitizer: four copies of the tensors, and one access after another."""

SIGNALS = re.compile(r"\batomic\w+\s*\(|(?<!asm )\bvolatile\b|\b(?:atom|red)\.|\.(?:relaxed|acquire|release)\.")
"""Ways for threads to order their accesses that racecheck does not follow: it knows barriers (its documentation, "Racecheck
Tool"), and reports a race where an atomic and a fence make none."""


def sanitized(setting: Setting, trial: Trial, sample: Mapping[str, torch.Tensor], target: Target) -> list[Check]:
    """A check for each of the sanitizer's tools; one that could not run says so and passes. Raises Failed."""
    if target.kind == "host":
        return [Check("sanitizer", True, detail=f"not run: {NOT_HERE}")]
    assert setting.program and setting.built
    size = sum(spec.span for spec in (*(spec for _, spec in trial.call.tensors()), *trial.call.outputs))
    if size > SANITIZED_BYTES:
        return [Check("sanitizer", True, detail=f"not run: {size >> 20} MiB of tensors, of which every access would take minutes")]
    checks = []
    for found in sanitize(setting.program, setting.built, _tensors(trial, sample), target.index):  # type: ignore[attr-defined]
        name = f"sanitizer {found.tool}"
        if found.tool == "racecheck" and found.errors and SIGNALS.search(setting.program.source):
            checks.append(Check(name, True, detail="no judgement: it follows no atomics, volatile or ordered accesses, by which this kernel "
                                                   f"signals; it says: {found.message}"))
            continue
        if found.errors:
            fault = found.fault or "crashed"
            raise Failed(
                "fault",
                f"{WORDS[fault]}, says {found.tool}: {found.message}",
                Check(name, False, float(found.errors), 0.0, found.message),
                fault=fault,
                line=found.line,
            )
        checks.append(Check(name, True, detail="" if found.ran else f"not run: {found.message}"))
    return checks


def profiled(
    setting: Setting,
    trial: Trial,
    sample: Mapping[str, torch.Tensor],
    target: Target,
    variant: Variant,
    timing: Timing | None,
) -> Profile:
    """By Nsight Compute where it may look; else by image, timing and ceilings."""
    share = None
    if timing is not None and variant.bytes_moved:
        share = variant.bytes_moved / (timing.us * 1e-6) / target.facts.copy_bytes_per_s
    if target.kind == "host":
        return Profile("image", _by_image(setting, target), share, "no GPU: time and share are modelled")
    assert setting.program and setting.built
    try:
        kernels = ncu_profile(setting.program, setting.built, _tensors(trial, sample), target.index)  # type: ignore[attr-defined]
    except NoProfile as reason:
        return Profile("image", _by_image(setting, target), share, str(reason))
    return Profile("ncu", kernels, share)


def _by_image(setting: Setting, target: Target) -> tuple[KernelProfile, ...]:
    """Theoretical occupancy of every launch."""
    assert setting.image
    found = []
    infos = {info.name: info for info in setting.image.kernels}
    for launch in setting.full.launches:
        if 0 in launch.grid:
            continue
        info = infos.get(launch.kernel)
        registers = info.registers if info else None
        shared = launch.shared + ((info.static_shared or 0) if info else 0)
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        resident = occupancy(threads, registers, shared, target.facts)
        found.append(KernelProfile(launch.kernel, occupancy_percent=100 * resident, registers=registers))
    return tuple(found)


def _tensors(trial: Trial, sample: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Inputs with their values, outputs for their size."""
    return {**sample, **{name: buffer.tensor for name, buffer in trial.arena.outputs.items()}}
