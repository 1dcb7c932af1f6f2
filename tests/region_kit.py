"""From a model to a package of the builtin kernels that the judge verified for its regions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from naive_conv import text_for

from forge_tui.cuda.device import H200
from forge_tui.cuda.host.target import HostTarget
from forge_tui.engine.builtin.catalog import kernels_for
from forge_tui.engine.capture import Capture, capture_model
from forge_tui.engine.cards import OperatorFile
from forge_tui.engine.inputs import ModelInput
from forge_tui.engine.judge.judge import judge_text
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.kernelfile import parse
from forge_tui.engine.package.export import Winner, export_package
from forge_tui.engine.package.host_backend import HostBackend
from forge_tui.engine.package.runtime import Package
from forge_tui.engine.sources import LoadedModel
from forge_tui.specs import Call
from forge_tui.store.kernels import save_kernel
from forge_tui.store.paths import ProjectPaths


def captured(model: torch.nn.Module, *args: Any) -> tuple[Capture, OperatorFile]:
    capture = capture_model(LoadedModel(model, "test"), [ModelInput(args, label="test")], torch.device("cpu"), H200)
    return capture, capture.cards()


def verified(capture: Capture, cards: OperatorFile, paths: ProjectPaths) -> list[Winner]:
    """For every offered region the first kernel that the host target verifies: of convolutions a naive one, else a builtin one.
    Fails where there is none."""
    winners = []
    for variant in cards.variants:
        if not (variant.covers and variant.offered):
            continue
        sample = capture.tensors(capture.samples(variant.key)[0], capture.recorder.recording.variants[variant.key])
        tried = []
        for name, text in candidates(variant.call):
            if parse(text, "k.cu").refusal(variant.call, H200):
                continue
            verdict = judge_text(text, "k.cu", variant, [sample], HostTarget(), options=JudgeOptions(time=False, tune_points=1))
            tried.append((name, verdict.sentence))
            if verdict.outcome == "verified":
                winners.append(Winner(variant, save_kernel(paths, text), verdict))
                break
        else:
            raise AssertionError(f"no builtin kernel for {variant.call}: {tried}")
    return winners


def candidates(call: Call) -> list[tuple[str, str]]:
    """Names and texts of kernel files to try."""
    if call.operator.startswith("torch.nn.functional.conv"):
        return [("naive_conv", text_for(call))]
    return [(kernel.name, kernel.text) for kernel in kernels_for(call)]


def package_of(model: torch.nn.Module, folder: Path, *args: Any) -> Package:
    """Captured on these arguments, judged and packed."""
    capture, cards = captured(model, *args)
    paths = ProjectPaths(folder / "project")
    exported = export_package(paths, cards, verified(capture, cards, paths), H200, folder / "out")
    assert not exported.left_out
    return Package(exported.folder / exported.module, HostBackend())
