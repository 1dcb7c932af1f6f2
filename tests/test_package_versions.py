"""A package under a torch that lacks, or has in another form, what is private to torch: the model's own results, and no error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conv_models import Block
from hostkit import needs_nvrtc
from packagekit import SPEC, DoublingBackend, Model, aligned, write_package
from test_package_unseen import X, packed, ran
from torch import nn
from torch.nn.modules import module as modules

from forge_tui.engine.cards import CallForm
from forge_tui.engine.package import runtime
from forge_tui.engine.package.runtime import entry, matched, parts, private, traced


def without(path: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a torch without `torch.<path>` has the package say."""
    holder, _, name = path.rpartition(".")
    with monkeypatch.context() as patch:
        patch.delattr(private._found(holder), name)
        return private.unknowable()


@pytest.mark.parametrize("path", private.NEEDED)
def test_without_what_tells_whether_a_kernel_may_run_none_does(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = without(path, monkeypatch)
    assert path in reason and torch.__version__ in reason and not private.UNKNOWABLE
    for place in (entry, traced):
        monkeypatch.setattr(place, "UNKNOWABLE", reason)
    package = runtime.Package(write_package(tmp_path / "p"), DoublingBackend())
    model, plain, x = package.apply(Model()), Model(), aligned(4, 8)
    torch._dynamo.reset()
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(model(x), plain(x))
        assert package.report()["kernels"][0]["calls"] == 0 and package.report()["fallbacks"] == {"torch.nn.functional.relu": {reason: 2}}
        assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(x), plain(x))
    assert package.report()["kernels"][0]["calls"] == 0


LACKING = """
import torch, torch.autograd.forward_ad, torch.overrides
from torch._C._dynamo import guards
from forge_tui.engine.package.runtime import private  # looks once at what there is; the others are imported below
for path in private.NEEDED:
    holder, _, name = path.rpartition(".")
    delattr(private._found(holder), name)
for name in [name for name in vars(torch.nn.modules.module) if name == "_has_any_global_hook"]:
    delattr(torch.nn.modules.module, name)
class Other:
    def __init__(self, tensors): pass
guards.TensorGuards = Other
del guards._empty_strided_cpu
"""


def test_a_torch_without_any_of_it_still_imports_the_package() -> None:
    script = LACKING + """
import sys
for name in [name for name in sys.modules if name.startswith("forge_tui.engine.package")]:
    del sys.modules[name]
from forge_tui.engine.package.runtime import Package, matched, private
assert matched.TensorGuards is None and private.UNKNOWABLE and private.any_global_hook is private._any_of_all
print("imported")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.stdout.strip() == "imported", done.stderr


@needs_nvrtc
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_hooks_of_all_modules_are_seen_without_torchs_own_question(compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.6 has no `_has_any_global_hook`."""
    monkeypatch.setattr(parts, "any_global_hook", private._any_of_all)
    monkeypatch.setattr(matched, "GLOBAL_HOOKS", [])
    monkeypatch.setattr(matched, "any_global_hook", private._any_of_all)
    model, plain, package = packed(Block, tmp_path, X)
    torch._dynamo.reset()
    with package.optimized(model):
        call: Any = torch.compile(model, backend="eager", fullgraph=True) if compiled else model
        for _ in range(2):
            assert torch.allclose(call(X), plain(X), atol=1e-4)
        count = ran(package)
        assert count
        handle = modules.register_module_forward_hook(lambda module, inputs, output: output * 2 if isinstance(module, nn.ReLU) else None)
        try:
            torch._dynamo.reset()
            assert torch.allclose(call(X), plain(X), atol=1e-4)
        finally:
            handle.remove()
        if not compiled:
            monkeypatch.setattr(private, "GLOBAL_HOOKS", [])
            before = ran(package)
            assert torch.equal(call(X), plain(X)) and ran(package) == before, "kept elsewhere: there may be some"


def test_a_dtype_and_a_function_that_this_torch_has_not(tmp_path: Path) -> None:
    forms = (CallForm("torch.nn.functional.relu", (SPEC,), {"inplace": {"type": "dtype", "name": "float3"}}, ("input",)),
             CallForm("torch.nn.functional.softly", (SPEC,), {}, ("input",)))
    package = runtime.Package(write_package(tmp_path / "p", forms=forms), DoublingBackend())
    model, x = package.apply(Model()), aligned(4, 8)
    with torch.no_grad():
        assert torch.equal(model(x), F.relu(x))
