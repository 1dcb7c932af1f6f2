"""`export --arch`: images for architectures that are not the judged device's, and what is said where there can be
none."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path

import pytest
import torch

from forge_tui.cuda import bulk
from forge_tui.cuda.device import H200
from forge_tui.cuda.image import read_cubin
from forge_tui.engine.cards import FORMAT, CallForm, OperatorFile
from forge_tui.engine.judge.probe import HONEST, probe_variant
from forge_tui.engine.judge.verdict import Verdict
from forge_tui.engine.package import architectures
from forge_tui.engine.package.export import Winner, export_package
from forge_tui.errors import ProjectError
from forge_tui.store.paths import ProjectPaths
from hostkit import needs_nvrtc
from msgspec import structs

pytestmark = needs_nvrtc


def winner(paths: ProjectPaths, text: str) -> Winner:
    variant, _ = probe_variant()
    digest = hashlib.sha256(text.encode()).hexdigest()
    paths.kernels.mkdir(parents=True, exist_ok=True)
    paths.kernel(digest).write_text(text)
    spec = variant.call.outputs[0]
    variant = structs.replace(
        variant, forms=(CallForm("torch.nn.functional.relu", (spec,), {"inplace": False}, ("input",)),)
    )
    return Winner(variant, digest, Verdict("verified", "right"))


def exported(tmp_path: Path, text: str, *archs: str):
    paths = ProjectPaths(tmp_path / "project")
    won = winner(paths, text)
    cards = OperatorFile(FORMAT, "a test", H200, "cpu", 1.0, (won.variant,), (), str(torch.__version__))
    result = export_package(paths, cards, [won], H200, tmp_path / "out", archs=archs)
    module = result.folder / result.module
    entry = json.loads(next((module / "entries").glob("*.json")).read_text())
    return result, module, entry


@pytest.mark.parametrize("nvcc", [True, False])
def test_images_for_further_architectures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvcc: bool) -> None:
    if nvcc and bulk.find_nvcc() is None:
        pytest.skip("no nvcc on this machine")
    if not nvcc:
        monkeypatch.setattr(architectures, "find_nvcc", lambda: None)
    result, module, entry = exported(tmp_path, HONEST, "sm_80", "sm_90", "sm_100", "sm_80")
    assert result.kernels == 1 and not result.notes
    assert set(entry["images"]) == {"sm_80", "sm_90", "sm_100", "ptx_90"}
    for arch in ("sm_80", "sm_90", "sm_100"):
        assert read_cubin((module / "images" / entry["images"][arch]).read_bytes()).arch == int(arch[3:])
    listed = tomllib.loads((module / "manifest.toml").read_text())["files"]
    assert all(f"images/{name}" in listed for name in entry["images"].values())
    assert (tmp_path / "project/build/bulk/build.ninja").is_file() == nvcc


def test_what_cannot_be_built_is_said(tmp_path: Path) -> None:
    picky = HONEST.replace("[[launch]]", '[require]\ncall = ["cc >= 90"]\n\n[[launch]]')
    result, _, entry = exported(tmp_path, picky, "sm_80", "sm_199")
    assert set(entry["images"]) == {"sm_90", "ptx_90"}
    assert any("sm_80" in note and "cc >= 90" in note for note in result.notes)
    assert any("sm_199" in note for note in result.notes)
    with pytest.raises(ProjectError, match="no such architecture"):
        exported(tmp_path, HONEST, "hopper")


def test_what_nvcc_does_not_take_is_built_by_nvrtc(tmp_path: Path) -> None:
    """A function without a mark is device code to NVRTC and host code to nvcc."""
    text = HONEST.replace('extern "C"', 'float twice(float x) { return x + x; }\nextern "C"').replace(
        "input[i] :", "twice(input[i]) * 0.5f :"
    )
    result, _, entry = exported(tmp_path, text, "sm_80")
    assert not result.notes and "sm_80" in entry["images"]
