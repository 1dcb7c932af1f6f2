"""Regions of code that lives in the user's own file: judged in another process, used where the file has another name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hostkit import needs_nvrtc
from region_kit import package_of

from forge_tui.engine.capture import capture_project
from forge_tui.engine.cards import OperatorFile
from forge_tui.engine.judge.server import Server
from forge_tui.engine.sources.python import load_file
from forge_tui.errors import ProjectError
from forge_tui.specs import short_name
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.project import DeviceConfig, ModelConfig, ProjectConfig, create_project

pytestmark = needs_nvrtc
FILE = '''
import torch
from torch import nn
from torch.nn import functional as F


class MyRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(dim) + 0.5), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def apply_rope(x, cos, sin):
    return x * cos + rotate(x) * sin


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.gate, self.up, self.ln = MyRMSNorm(32), nn.Linear(32, 64), nn.Linear(32, 64), nn.LayerNorm(32)
        self.down = nn.Linear(64, 32)
        self.register_buffer("cos", torch.rand(6, 32))
        self.register_buffer("sin", torch.rand(6, 32))

    def forward(self, x):
        h = apply_rope(self.norm(x), self.cos, self.sin)
        h = self.down(F.silu(self.gate(h)) * self.up(h))
        return self.ln(x + h)


def build_model():
    return Net().eval()


def sample_inputs():
    return torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(0))
'''
USE = '''
import sys, torch
import net
from forge_tui.engine.package.host_backend import HostBackend
from forge_tui.engine.package.runtime import Package
torch.manual_seed(0)
model, x = net.build_model(), net.sample_inputs()
with torch.no_grad():
    eager = model(x)
    package = Package(sys.argv[1], HostBackend())
    with package.optimized(model):
        forged = model(x)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
for other in (forged, compiled):
    assert float((other - eager).norm() / eager.norm()) < 1e-5
print(sorted(kernel["calls"] for kernel in package.report()["kernels"]), package.report()["fallbacks"])
'''


@pytest.fixture
def project(tmp_path: Path) -> tuple[ProjectPaths, OperatorFile]:
    (tmp_path / "net.py").write_text(FILE)
    config = ProjectConfig(format=1, model=ModelConfig(source=str(tmp_path / "net.py")), device=DeviceConfig(target="host"))
    create_project(tmp_path / "p", config)
    return ProjectPaths(tmp_path / "p"), capture_project(ProjectPaths(tmp_path / "p"), config)


def test_regions_of_a_users_file(project: tuple[ProjectPaths, OperatorFile], tmp_path: Path) -> None:
    paths, cards = project
    found = {short_name(variant.operator): variant for variant in cards.variants if variant.covers}
    assert set(found) == {"MyRMSNorm", "apply_rope", "silu+mul", "add+layer_norm"} and all(item.offered for item in found.values())
    assert found["MyRMSNorm"].operator == "forge_user_net.MyRMSNorm"
    loaded = load_file(tmp_path / "net.py", {})
    package = package_of(loaded.model.eval(), tmp_path / "packed", loaded.sample_inputs())
    used = subprocess.run([sys.executable, "-c", USE, package.folder], cwd=tmp_path, capture_output=True, text=True,
                          env={"PYTHONPATH": f"{Path(__file__).parent.parent}:{tmp_path}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
    assert used.returncode == 0, used.stderr
    assert used.stdout.strip() == "[2, 2, 2, 2] {}"


def test_a_worker_finds_the_region_and_notices_that_the_file_changed(project: tuple[ProjectPaths, OperatorFile], tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    paths, cards = project
    norm = next(variant for variant in cards.variants if variant.operator.endswith("MyRMSNorm"))
    monkeypatch.delitem(sys.modules, "forge_user_net")
    Server(paths.root)._find_region(norm)
    assert "forge_user_net" in sys.modules
    (tmp_path / "net.py").write_text(FILE.replace("x.pow(2)", "x.abs()"))
    with pytest.raises(ProjectError, match="is not what it was"):
        Server(paths.root)._find_region(norm)
