"""Guards that a test of shapes cannot reach: other devices and other architectures, for functions and for every kind of region."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hostkit import needs_nvrtc
from region_kit import package_of
from region_models import Stack, Turned
from test_region_guards import CASES, CHANGES, ran
from torch import nn

from forge_tui.engine.package.runtime import Package
from forge_tui.engine.package.runtime.driver import CudaBackend
from forge_tui.engine.package.runtime.router import Router

pytestmark = needs_nvrtc


@pytest.fixture(scope="module", params=CASES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Package, Any]:
    """A model, a package for it that runs on the host target, and the captured arguments."""
    torch.manual_seed(0)
    make, args = CASES[request.param]
    model = make().eval().requires_grad_(False)
    return model, package_of(model, tmp_path_factory.mktemp("region"), *args), args


def reasons(package: Package) -> set[str]:
    return {reason for found in package.report()["fallbacks"].values() for reason in found}


def equal(got: Any, expected: Any) -> bool:
    if isinstance(got, tuple):
        return all(map(equal, got, expected))
    return torch.equal(got, expected) and got.stride() == expected.stride() and got.dtype == expected.dtype and got.device == expected.device


@pytest.mark.parametrize("warm", [False, True], ids=["first", "after a match"])
def test_tensors_of_another_device(made: tuple, warm: bool) -> None:
    """`meta` stands for a device that the package has no kernels for: what comes back is the original's, and nothing was launched."""
    model, package, args = made
    here, there = copy.deepcopy(model), copy.deepcopy(model).to("meta")
    with package.optimized(here), package.optimized(there):
        if warm:
            here(*args)
        before, given = ran(package), tuple(tensor.to("meta") for tensor in args)
        got, expected = there(*given), copy.deepcopy(model).to("meta")(*given)
        assert ran(package) == before and got.device.type == "meta"
        assert (got.shape, got.dtype, got.stride()) == (expected.shape, expected.dtype, expected.stride())
    assert "on meta" in reasons(package)


def test_a_package_for_cuda_on_the_cpu(made: tuple) -> None:
    model, package, args = made
    real, plain = Package(package.folder), copy.deepcopy(model)
    assert isinstance(real.backend, CudaBackend)
    with real.optimized(copy.deepcopy(model)) as forged:
        assert equal(forged(*args), plain(*args)) and equal(forged(*args), plain(*args))
    assert ran(real) == 0 and reasons(real) == {"on cpu"}


def test_a_device_that_no_image_is_for(made: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA backend's own choice of image, for a device that is older than all there is."""
    model, package, args = made
    real, plain = Package(package.folder), copy.deepcopy(model)
    real.backend.device_type = "cpu"  # so that tensors of this machine reach the choice of image
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with real.optimized(copy.deepcopy(model)) as forged, pytest.warns(UserWarning, match="no image for sm_80") as warned:
        for _ in range(3):
            assert equal(forged(*args), plain(*args))
    assert len(warned) == 1 and ran(real) == 0, "said once, not at every call"
    assert len(found := reasons(real)) == 1 and found.pop().startswith("no image for sm_80")


@pytest.mark.gpu
def test_a_gpu_that_no_image_is_for(made: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    model, package, args = made
    real, plain = Package(package.folder), copy.deepcopy(model).cuda()
    given = tuple(tensor.cuda() for tensor in args)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    with real.optimized(copy.deepcopy(model).cuda()) as forged, pytest.warns(UserWarning, match="no image for sm_70"):
        assert equal(forged(*given), plain(*given)) and equal(forged(*given), plain(*given))
    assert ran(real) == 0


@pytest.mark.gpu
def test_regions_on_a_gpu_and_then_elsewhere(made: tuple) -> None:
    """On the GPU the kernel runs; then tensors of the CPU, of `meta`, and of another GPU where there is one."""
    model, package, args = made
    real = Package(package.folder)
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the package's images are for sm_90 and newer")
    with torch.no_grad(), real.optimized(copy.deepcopy(model).cuda()) as forged:
        for _ in range(2):
            forged(*(tensor.cuda() for tensor in args))
        assert ran(real) == 2, real.report()
        for device in ("cpu", "meta", *(f"cuda:{at}" for at in range(1, torch.cuda.device_count()))):
            moved, plain = copy.deepcopy(model).to(device), copy.deepcopy(model).to(device)
            given, before = tuple(tensor.to(device) for tensor in args), ran(real)
            with real.optimized(moved):
                got, expected = moved(*given), plain(*given)
            assert got.device == expected.device and ran(real) == before + device.startswith("cuda")
            assert device != "cpu" or equal(got, expected)
        assert torch.cuda.current_device() == 0


def test_an_older_architecture_among_those_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several regions in one model: each falls back, each says so once, and what is there for the right device is untouched."""
    torch.manual_seed(0)
    model, x = Stack(64).eval().requires_grad_(False), torch.randn(6, 64)
    package = package_of(model, tmp_path, x)
    other = Package(package.folder)
    other.backend.device_type = "cpu"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    expected = model(x)
    with pytest.warns(UserWarning, match="no image for sm_86") as warned, other.optimized(model):
        assert equal(model(x), expected) and equal(model(x), expected)
        with package.optimized(model):
            assert torch.allclose(model(x), expected, atol=1e-5) and ran(package) == 3
    assert len(warned) == 3


@pytest.mark.parametrize("warm", [False, True], ids=["before a match", "after one"])
def test_calls_are_decided_in_full_once(made: tuple, monkeypatch: pytest.MonkeyPatch, warm: bool) -> None:
    """What costs microseconds in Python is not run for calls that repeat, nor for most that do not match."""
    model, package, args = made
    fresh, forged, plain = Package(package.folder, package.backend), copy.deepcopy(model), copy.deepcopy(model)
    decided, decide = [], Router.decide
    monkeypatch.setattr(Router, "decide", lambda self, *rest: (decided.append(self.path), decide(self, *rest))[1])
    with fresh.optimized(forged):
        if warm:
            for _ in range(3):
                forged(*args)
            assert len(decided) == 1 and ran(fresh) == 3
            decided.clear()
        before = ran(fresh)
        for change in ("shape", "stride", "alignment", "grad", "subclass"):
            given = tuple(CHANGES[change](tensor) for tensor in args)
            got, expected = forged(*given), plain(*given)
            assert torch.equal(got, expected) and got.requires_grad == expected.requires_grad, change
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(forged(*args), plain(*args))
        forged.train(), plain.train()
        assert torch.equal(forged(*args), plain(*args)) or isinstance(model, Turned)
        assert ran(fresh) == before + isinstance(model, Turned), fresh.report()  # a function is the same in training
    assert len(decided) <= isinstance(model, Turned), decided
