"""Real packages: captured from a small model, built by NVRTC, run by the host target; and installed where Forge is not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import torch
from hostkit import needs_nvrtc
from packaging.requirements import Requirement
from torch import nn
from torch.nn import functional as F

from forge_tui.cuda.device import H200
from forge_tui.engine.builtin.catalog import kernels_for
from forge_tui.engine.capture import capture_model
from forge_tui.engine.cards import OperatorFile
from forge_tui.engine.inputs import ModelInput
from forge_tui.engine.judge.verdict import Timing, Verdict
from forge_tui.engine.kernelfile import parse
from forge_tui.engine.package.export import Exported, Winner, export_package
from forge_tui.engine.package.host_backend import HostBackend
from forge_tui.engine.package.runtime import Package, PackageError
from forge_tui.engine.package.selection import select
from forge_tui.engine.sources import LoadedModel
from forge_tui.errors import ProjectError
from forge_tui.store.kernels import save_kernel
from forge_tui.store.paths import ProjectPaths

pytestmark = needs_nvrtc


class Net(nn.Module):
    """Three spellings of what gets kernels: a module of torch's, a function, a method."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(self.norm(x), dim=-1) + F.gelu(x).sigmoid()


WANTED = ("layer_norm", "softmax", "gelu", "sigmoid")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Exported, nn.Module, torch.Tensor, list[Winner], OperatorFile]:
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("project")
    paths, model, x = ProjectPaths(root), Net().eval(), torch.randn(6, 48)
    cards = capture_model(LoadedModel(model, "test"), [ModelInput((x,), label="test")], torch.device("cpu"), H200).cards()
    winners = []
    for variant in cards.variants:
        if variant.operator.rpartition(".")[2] in WANTED:
            kernel = next(item for item in kernels_for(variant.call)
                          if not parse(item.text, "k.cu").refusal(variant.call, H200))
            settings = parse(kernel.text, "k.cu").points(variant.call, H200)[0]
            winners.append(Winner(variant, save_kernel(paths, kernel.text), Verdict("verified", "right", settings=settings)))
    exported = export_package(paths, cards, winners, H200, root / "out", wheel=True)
    return exported, model, x, winners, cards


def test_every_kernel_runs_in_the_model(built: tuple) -> None:
    exported, model, x, winners, _ = built
    assert exported.kernels == len(winners) == 4 and not exported.left_out
    package = Package(exported.folder / exported.module, HostBackend())
    with torch.no_grad():
        eager = model(x)
        with package.optimized(model):
            forged = model(x)
        assert torch.equal(model(x), eager)
    assert [kernel["calls"] for kernel in package.report()["kernels"]] == [1, 1, 1, 1], package.report()
    assert not torch.equal(forged, eager) and float((forged - eager).norm() / eager.norm()) < 1e-6


def test_every_kernel_is_an_operator(built: tuple) -> None:
    exported, model, x, _, _ = built
    package = Package(exported.folder / exported.module, HostBackend())
    for router in package.routers.values():
        for form in router.forms:
            inputs = [torch.randn(pattern.shape) for pattern in form.entry.inputs]
            assert set(torch.library.opcheck(form.op, inputs).values()) == {"SUCCESS"}
    with torch.no_grad(), package.optimized(model):
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        before = {entry.variant: entry.calls for entry in package.entries}
        expected = compiled(x)
        ran = {entry.operator.rpartition(".")[2]: entry.calls - before[entry.variant] for entry in package.entries}
    assert ran == {"layer_norm": 1, "softmax": 1, "gelu": 1, "sigmoid": 0}, package.report()
    with torch.no_grad():
        assert float((expected - model(x)).norm()) < 1e-5


def test_another_copy_of_the_runtime_may_hold_the_same_package(built: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own `_runtime` beside Forge's: operators are registered once in a process, whoever does it."""
    import importlib

    exported = built[0]
    monkeypatch.syspath_prepend(exported.folder)
    theirs = importlib.import_module(exported.module)
    ours = Package(exported.folder / exported.module, HostBackend())
    assert theirs.package.library.ns != ours.library.ns and type(theirs.package) is not Package


def test_the_folder_holds_the_evidence_and_the_hash_of_every_file(built: tuple) -> None:
    exported, _, _, winners, _ = built
    module = exported.folder / exported.module
    manifest = tomllib.loads((module / "manifest.toml").read_text())
    assert set(manifest["entries"]) == {winner.variant.key for winner in winners}
    files = {path.relative_to(module).as_posix() for kind in ("entries", "images", "kernels") for path in (module / kind).iterdir()}
    assert files == set(manifest["files"])
    entry = json.loads((module / f"entries/{winners[0].variant.key}.json").read_text())
    assert entry["evidence"]["outcome"] == "verified" and set(entry["images"]) == {"sm_90", "ptx_90"}


def test_an_export_replaces_its_own_and_nothing_else(built: tuple, tmp_path: Path) -> None:
    """Another project's package, a user's files beside it and a user's README stay; a file of an older export does not."""
    exported, _, _, winners, cards = built
    kernels = exported.folder.parent / "kernels"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernels").symlink_to(kernels)
    out = tmp_path / "out"

    def export(name: str, **more: bool) -> Exported:
        return export_package(ProjectPaths(tmp_path / name), cards, winners[:1], H200, out, **more)

    export("one", wheel=True)
    export("two", wheel=True)
    (out / "train.py").write_text("mine")
    (out / ".git").mkdir()
    (out / "forged_one" / "entries" / "old.json").write_text("{}")
    (out / "README.md").write_text("mine too")
    again = export("one")
    assert {item.name for item in out.iterdir()} == {".git", "README.md", "forged_one", "forged_two", "train.py",
                                                     *(f"forged_{name}-0.1.0-py3-none-any.whl" for name in ("one", "two"))}
    assert (out / "train.py").read_text() == "mine" and (out / "README.md").read_text() == "mine too"
    assert not (out / "forged_one" / "entries" / "old.json").exists() and Package(out / "forged_one", HostBackend()).entries
    assert len(again.notes) == 1 and "--wheel writes it anew" in again.notes[0]
    (out / "forged_one" / "manifest.toml").unlink()
    with pytest.raises(ProjectError, match="not a Forge package"):
        export("one")
    assert (out / "forged_one" / "entries").exists()


@pytest.mark.parametrize("kind", ["entries", "images", "kernels"])
def test_a_changed_file_is_refused(built: tuple, tmp_path: Path, kind: str) -> None:
    exported, model, x, _, _ = built
    import shutil

    module = Path(shutil.copytree(exported.folder / exported.module, tmp_path / "copy"))
    for path in (module / kind).iterdir():
        path.write_bytes(path.read_bytes() + b" ")
    if kind == "entries":
        with pytest.raises(PackageError, match="SHA-256"):
            Package(module, HostBackend())
        return
    package = Package(module, HostBackend())
    with torch.no_grad(), pytest.warns(UserWarning, match="SHA-256"):
        expected = model(x)
        with package.optimized(model):
            assert torch.equal(model(x), expected), "no damaged kernel runs"


ELSEWHERE = """
import importlib.util, sys
import torch
import forged_PACKAGE as forged
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(48)
    def forward(self, x):
        return torch.nn.functional.softmax(self.norm(x), dim=-1) + torch.nn.functional.gelu(x).sigmoid()
assert not any(map(importlib.util.find_spec, ("forge_tui", "msgspec", "tomli_w", "textual", "transformers")))
model, saved = Net().eval(), torch.load(sys.argv[1], weights_only=True)
model.load_state_dict(saved["state"])
device = "cuda" if torch.cuda.is_available() else "cpu"
model, x, expected = model.to(device), saved["x"].to(device), saved["expected"].to(device)
with torch.no_grad():
    with forged.optimized(model):
        result = model(x)
report = forged.report()
if device == "cpu":
    assert torch.equal(result, expected), "the original ran"
    assert all(reasons == {"on cpu": 1} for reasons in report["fallbacks"].values()) and len(report["fallbacks"]) == 4, report
    try:
        forged.package.backend.prepare(forged.package.entries[0], torch.device("cuda", 0))
    except Exception as error:
        print(type(error).__name__)
else:
    assert all(kernel["calls"] == 1 for kernel in report["kernels"]), report
    assert float((result - expected).norm() / expected.norm()) < 1e-5
print("ran on", device)
"""


@pytest.mark.gpu
def test_the_installed_wheel_on_a_gpu(built: tuple, tmp_path: Path) -> None:
    assert "ran on cuda" in elsewhere(built, tmp_path)


def test_the_installed_wheel_needs_torch_alone(built: tuple, tmp_path: Path) -> None:
    assert "ran on" in elsewhere(built, tmp_path)


def elsewhere(built: tuple, tmp_path: Path) -> str:
    """Install the wheel, what it requires checked, into a new virtual environment that has torch and what torch requires; use it there."""
    exported, model, x, _, _ = built
    with torch.no_grad():
        torch.save({"state": model.state_dict(), "x": x, "expected": model(x)}, tmp_path / "saved.pt")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "fresh"], check=True)
    python = tmp_path / "fresh/bin/python"
    site = Path(subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True,
                               check=True).stdout.strip())
    for name in required("torch", {}):
        files = metadata.distribution(name).files or []
        for top in {path.parts[0] for path in files} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(metadata.distribution(name).locate_file(top)))
    command = [python, "-I", "-m", "pip", "install", "--no-index", "--quiet", exported.wheel]
    # no folder of wheels and no cap on versions from this machine's settings: another torch would be written through the links
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")} | {"PIP_CONFIG_FILE": os.devnull}
    install = subprocess.run(command, capture_output=True, text=True, env=bare)
    if install.returncode and not re.search(r"No matching distribution found for torch\b", install.stderr):
        # This machine's torch lacks some of its own requirements (a build that brings them some other way).
        install = subprocess.run([*command, "--no-deps"], capture_output=True, text=True, env=bare)
    assert install.returncode == 0, install.stderr
    script = ELSEWHERE.replace("forged_PACKAGE", exported.module)
    result = subprocess.run([python, "-I", "-c", script, tmp_path / "saved.pt"], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    return result.stdout


def required(name: str, found: dict[str, None]) -> list[str]:
    """A distribution and all that it requires here."""
    if name not in found:
        found[name] = None
        for item in map(Requirement, metadata.requires(name) or []):
            if item.marker is None or item.marker.evaluate({"extra": ""}):
                required(item.name, found)
    return list(found)


def test_the_wheel_is_reproducible_and_holds_no_pickle(built: tuple, tmp_path: Path) -> None:
    exported, _, _, winners, cards = built
    paths = ProjectPaths(exported.folder.parent)
    again = export_package(paths, cards, winners, H200, tmp_path / "again", wheel=True)
    assert again.wheel.read_bytes() == exported.wheel.read_bytes()
    names = zipfile.ZipFile(exported.wheel).namelist()
    kinds = {Path(name).suffix for name in names if ".dist-info" not in name}
    assert kinds == {".py", ".json", ".toml", ".cu", ".cubin", ".ptx"}


def test_an_image_for_another_architecture_falls_back_and_says_so_once(built: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA backend's own choice of image, asked as a device of another architecture would."""
    from forge_tui.engine.package.runtime.driver import _image_for

    images = {"sm_90": "a", "ptx_90": "b"}
    assert _image_for(images, 90) == "sm_90" and _image_for(images, 100) == "ptx_90"
    with pytest.raises(PackageError, match="no image for sm_80"):
        _image_for(images, 80)
    exported, model, x, _, _ = built
    package = Package(exported.folder / exported.module)
    package.backend.device_type = "cpu"  # so that the CPU tensors of this machine reach its choice of image
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with torch.no_grad(), pytest.warns(UserWarning, match="no image for sm_80") as warned:
        expected = model(x)
        with package.optimized(model):
            assert torch.equal(model(x), expected) and torch.equal(model(x), expected)
    assert len(warned) == 4, "once for each kernel"


def timed(winner: Winner, interval: tuple[float, float] | None) -> Winner:
    return Winner(winner.variant, winner.kernel, Verdict("verified", "right", timing=Timing("device", 1.0, speedup_interval=interval)))


def test_selection(built: tuple) -> None:
    winners = built[3]
    assert select(winners, "safe") == (winners, []), "nothing is timed against eager on the host target"
    far, close, untimed = (timed(winners[0], (1.3, 1.4)), timed(winners[1], (1.001, 1.2)), timed(winners[2], None))
    chosen, left = select([far, close, untimed], "safe")
    assert chosen == [far] and [reason for _, reason in left] == [
        "its interval begins at 1.001x, below 1.02x", "not timed against eager"]
    assert select([far, close], "all") == ([far, close], [])
    assert select(winners, "soft*, " + winners[0].variant.key)[0] == [
        item for item in winners if "softmax" in item.variant.operator or item is winners[0]]
    with pytest.raises(ProjectError, match="'convolution'"):
        select(winners, "convolution")
