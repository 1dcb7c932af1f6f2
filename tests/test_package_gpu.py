"""Packages on a real GPU: streams, devices, CUDA graphs, torch.compile, threads, and what a call costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from region_models import Stack
from torch import nn
from torch.nn import functional as F

from forge_tui.cuda.device import DeviceFacts
from forge_tui.engine.builtin.catalog import kernels_for
from forge_tui.engine.capture import capture_model, open_device
from forge_tui.engine.inputs import ModelInput
from forge_tui.engine.judge.verdict import Verdict
from forge_tui.engine.kernelfile import parse
from forge_tui.engine.package.export import Winner, export_package
from forge_tui.engine.package.runtime import Package
from forge_tui.engine.sources import LoadedModel
from forge_tui.store.kernels import save_kernel
from forge_tui.store.paths import ProjectPaths

pytestmark = pytest.mark.gpu

Made = tuple[Package, nn.Module, torch.Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = Stack(256)
        self.norm = nn.LayerNorm(256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norms(F.softmax(self.norm(x), dim=-1))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("project")
    device, facts = open_device("cuda")
    model, x = Net().to(torch.bfloat16).eval(), torch.randn(64, 256, dtype=torch.bfloat16)
    cards = capture_model(LoadedModel(model, "test"), [ModelInput((x,), label="test")], device, facts).cards()
    winners = [winner(root, variant, facts) for variant in cards.variants
               if variant.operator.endswith(("RMSNorm", "softmax", "layer_norm"))]
    exported = export_package(ProjectPaths(root), cards, winners, facts, root / "out")
    assert exported.kernels == 5, exported.left_out
    return Package(exported.folder / exported.module), model, x.cuda()


def winner(root: Path, variant, facts: DeviceFacts) -> Winner:
    more = variant.operator.endswith("OneMoreRMSNorm")
    kernel = next(item for item in kernels_for(variant.call) if item.name.endswith("_plus_one") == more
                  and not parse(item.text, "k.cu").refusal(variant.call, facts))
    settings = parse(kernel.text, "k.cu").points(variant.call, facts)[0]
    return Winner(variant, save_kernel(ProjectPaths(root), kernel.text), Verdict("verified", "right", settings=settings))


def calls(package: Package) -> list[int]:
    return [kernel["calls"] for kernel in package.report()["kernels"]]


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.float() - other.float()).norm() / other.float().norm())


def test_kernels_run_on_the_current_stream(made: Made) -> None:
    package, model, x = made
    with torch.inference_mode(), package.optimized(model):
        expected, before = model(x), calls(package)
        stream = torch.cuda.Stream()
        late = torch.empty_like(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)  # what follows is only right if it waits on this stream
            late.copy_(x)
            result = model(late)
        stream.synchronize()
    assert torch.equal(result, expected) and calls(package) == [count + 1 for count in before]


def test_cuda_graphs_replay_the_kernels(made: Made) -> None:
    package, model, x = made
    with torch.inference_mode(), package.optimized(model):
        expected = model(x)
        graph, held = torch.cuda.CUDAGraph(), x.clone()
        with torch.cuda.graph(graph):
            result = model(held)
        held.copy_(x.flip(0))
        graph.replay()
        assert torch.equal(result, model(x.flip(0).contiguous()))
        held.copy_(x)
        graph.replay()
        assert torch.equal(result, expected)


def test_torch_compile_runs_the_kernels(made: Made) -> None:
    package, model, x = made
    with torch.inference_mode():
        eager = model(x)
        with package.optimized(model):
            before = calls(package)
            compiled = torch.compile(model, fullgraph=True)
            result = compiled(x)
            assert all(now > then for now, then in zip(calls(package), before, strict=True)), package.report()
    assert apart(result, eager) < 0.02


def test_another_device_and_the_cpu(made: Made) -> None:
    package, model, x = made
    with torch.inference_mode():
        if torch.cuda.device_count() > 1:
            there, before = model.to("cuda:1"), calls(package)
            expected = there(x.to("cuda:1"))
            with package.optimized(there):
                assert apart(there(x.to("cuda:1")), expected) < 0.02 and torch.cuda.current_device() == 0
            assert calls(package) == [count + 1 for count in before]
        here = model.cpu()
        expected = here(x.cpu())
        with package.optimized(here):
            assert torch.equal(here(x.cpu()), expected)
        model.cuda()


def test_threads(made: Made) -> None:
    package, model, x = made
    with torch.inference_mode(), package.optimized(model):
        inputs = [x.roll(shift, 0).contiguous() for shift in range(4)]
        expected, failed = [model(item) for item in inputs], []

        def work(index: int) -> None:
            with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(50):
                    if not torch.equal(model(inputs[index]), expected[index]):
                        failed.append(index)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        torch.cuda.synchronize()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed


def test_a_kernel_costs_the_cpu_less_than_the_call_it_replaces(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures are printed; the gate is the order alone, on medians of many rounds."""
    package, model, x = made

    def microseconds(call: Callable[[], object]) -> float:
        samples = []
        for _ in range(30):
            begin = time.thread_time()
            for _ in range(100):
                call()
            samples.append((time.thread_time() - begin) * 1e4)
            torch.cuda.synchronize()
        return sorted(samples)[len(samples) // 2]

    with torch.inference_mode():
        eager = {"norm": microseconds(lambda: model.norm(x)), "region": microseconds(lambda: model.norms.late(x))}
        with package.optimized(model):
            forged = {"norm": microseconds(lambda: model.norm(x)), "region": microseconds(lambda: model.norms.late(x))}
    with capsys.disabled():
        print(f"\nCPU us per call, eager and forged: {eager} {forged}")
    assert forged["region"] < eager["region"]
