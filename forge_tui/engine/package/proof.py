"""The model with its package's kernels inside, compared with the model as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from msgspec import Struct

from forge_tui.engine.events import KernelUse
from forge_tui.engine.forward import open_model, run_forward
from forge_tui.engine.package.compare import relative_error, tensors_of
from forge_tui.engine.package.runtime import Backend, Package
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import ProjectConfig


class Agreement(Struct, frozen=True):
    """How the forged model compares with eager on the project's inputs."""

    relative_error: float
    """Largest over the floating-point outputs: norm of the difference over norm of eager's. inf where the pattern of
    non-finite values differs."""
    kernel_calls: int
    fallback_calls: int
    """Calls of captured functions for which the original ran."""
    fallbacks: dict[str, dict[str, int]]
    """By function and reason."""
    outputs: int
    """Tensors compared."""
    kernels: tuple[KernelUse, ...] = ()
    """Each kernel's calls, and those that its guards sent to the original."""


def run_in_model(paths: ProjectPaths, config: ProjectConfig, package: Path, target: Literal["host", "cuda"],
                 progress: Callable[[str], None] = lambda _: None) -> Agreement:
    """Run the project's model eager and with the package at `package` (its importable folder), and compare the outputs.

    Errors of the model are the same ProjectErrors as at capture.
    """
    progress("loading the model")
    loaded, inputs = open_model(config, paths.root)
    backend: Backend | None = None
    device = torch.device("cuda" if target == "cuda" else "cpu")
    if target == "host":
        from forge_tui.engine.package.host_backend import HostBackend

        backend = HostBackend()
    forged = Package(package, backend)
    model = loaded.model.to(device)
    worst, count = 0.0, 0
    with torch.inference_mode():
        for item in inputs:
            item = item.to(device)
            progress(f"eager: {item.label}")
            before = [tensor.clone() for tensor in tensors_of(run_forward(loaded, item))]
            progress(f"forged: {item.label}")
            with forged.optimized(model):
                after = list(tensors_of(run_forward(loaded, item)))
            apart = [relative_error(new, old) for new, old in zip(after, before, strict=False)]
            worst = max([worst, *apart, *([math.inf] if len(after) != len(before) else [])])
            count += len(before)
    report = forged.report()
    return Agreement(worst, sum(kernel["calls"] for kernel in report["kernels"]),
                     sum(sum(reasons.values()) for reasons in report["fallbacks"].values()), report["fallbacks"], count,
                     tuple(KernelUse(kernel["variant"], kernel["calls"], kernel["fallbacks"]) for kernel in report["kernels"]))
