"""The real profiler, sanitizer and comparison kernels on a GPU. With FORGE_SAVE=FOLDER what the tools print is kept
there."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
import torch

from forge_tui.cuda import profile, sanitize
from forge_tui.cuda.gpu import GpuTarget
from forge_tui.cuda.program import Argument, Launch, Program
from forge_tui.cuda.single import find_tool, job_folder, run_under
from forge_tui.engine.judge.fused import FusedComparer
from forge_tui.engine.judge.tolerance import Comparer

pytestmark = pytest.mark.gpu
N = 1 << 16


@pytest.fixture(scope="module")
def target() -> GpuTarget:
    return GpuTarget(0, measure=False)


def program(body: str, threads: int = 256, blocks: int = N // 256) -> Program:
    source = f'extern "C" __global__ void k(const float* input, float* out, int n) {{\n{body}\n}}\n'
    arguments = (Argument("pointer", "input"), Argument("pointer", "out"), Argument("int32", value=N))
    return Program("k.cu", source, (), (Launch("k", (blocks, 1, 1), (threads, 1, 1), arguments),), inputs=("input",))


HONEST = "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) out[i] = 2.f * input[i];"
FAULTY = {
    "memcheck": HONEST.replace("out[i]", "out[i + 256]"),
    "racecheck": "    __shared__ float s[256];\n    s[threadIdx.x] = input[threadIdx.x];\n    out[threadIdx.x] = s[255 - threadIdx.x];",
    "initcheck": "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    out[i] += input[i];",
    "synccheck": "    if (threadIdx.x % 2) __syncthreads();\n    out[threadIdx.x] = input[threadIdx.x];",
}


def tensors() -> dict[str, torch.Tensor]:
    return {"input": torch.randn(N), "out": torch.empty(N)}


def keep(name: str, text: str) -> None:
    if os.environ.get("FORGE_SAVE"):
        folder = Path(os.environ["FORGE_SAVE"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.txt").write_text(text)


def test_the_child_runs_a_program_alone(target: GpuTarget):
    honest, wild = program(HONEST), program(HONEST.replace("out[i]", "out[i + (1ll << 40)]"))
    for item, good in ((honest, True), (wild, False)):
        with job_folder(item, target.build(item), tensors(), 0) as folder:
            run = run_under([], folder, 60.0)
        assert (run.status == 0) == good, run.output
    torch.zeros(1, device="cuda")  # this process is none the worse for it
    target.wait()


def test_the_profiler(target: GpuTarget):
    tool = find_tool("ncu")
    if tool is None:
        pytest.skip("ncu is not installed")
    item = program(HONEST)
    with job_folder(item, target.build(item), tensors(), 0) as folder:
        for name, reasons in (("ncu", profile.REASONS), ("ncu-basic", ())):
            run = run_under([tool, *profile.arguments(reasons)], folder, 100.0)
            keep(name, run.output)
            try:
                (found,) = profile.parse(run)
            except profile.NoProfile as reason:
                print(name, reason)
                assert re.search("performance counters|Failed to find metric", str(reason)), run.output
                continue
            print(name, found)
            assert (
                found.kernel == "k"
                and found.registers
                and found.dram_percent is not None
                and 0 <= found.dram_percent <= 100
            )
            assert not reasons or found.stalls


@pytest.mark.parametrize("tool", sanitize.TOOLS)
def test_the_sanitizer(target: GpuTarget, tool: sanitize.Tool):
    command = find_tool("compute-sanitizer")
    if command is None:
        pytest.skip("compute-sanitizer is not installed")
    for name, body in (("honest", HONEST), ("faulty", FAULTY[tool])):
        item = program(body, blocks=N // 256 if body in (HONEST, FAULTY["memcheck"], FAULTY["initcheck"]) else 1)
        with job_folder(item, target.build(item), tensors(), 0) as folder:
            run = run_under([command, *sanitize.arguments(tool)], folder, 60.0)
        keep(f"{tool}-{name}", run.output)
        found = sanitize.parse(tool, run, item.filename)
        print(name, found)
        assert found.ran, found.message
        assert found.clean == (name == "honest"), run.output
        if name == "faulty":
            assert found.kernel == "k" and found.line is not None and 2 <= found.line <= 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_compared_as_in_torch(target: GpuTarget, dtype: torch.dtype):
    truth = torch.randn(
        64, 1000, 77, dtype=torch.float64, device="cuda", generator=torch.Generator("cuda").manual_seed(1)
    )
    eager, candidate = truth.to(dtype), truth.to(dtype).clone()
    candidate[3, 7, 70] += 0.5
    results = []
    for comparer in (Comparer("out", eager, candidate), FusedComparer("out", eager, candidate, target)):
        comparer.add((), truth)
        results.append(comparer.result())
    plain, other = results
    assert (plain.passed, plain.reason, plain.worst) == (other.passed, other.reason, other.worst)
    assert other.figure == pytest.approx(plain.figure, rel=1e-9)


def test_comparing_384_mebibytes_takes_milliseconds(target: GpuTarget):
    """Of a bfloat16 softmax to float32: printed, as times are no gates; the number of waits is what the host tests
    hold."""
    truth = torch.softmax(torch.randn(16, 2048, 2048, dtype=torch.float64, device="cuda"), -1)
    eager, candidate = truth.float(), truth.float()
    for _ in range(3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        comparer = FusedComparer("out", eager, candidate, target)
        comparer.add((), truth)
        assert comparer.result().passed
        print(f"compared in {(time.perf_counter() - begin) * 1e3:.2f} ms")


def test_a_whole_judgement(target: GpuTarget):
    """A softmax of 384 MiB with 16 settings: how long each of three judgements takes is printed."""
    from forge_tui.engine.builtin.catalog import kernels_for
    from forge_tui.engine.judge.judge import judge_text
    from forge_tui.engine.judge.options import JudgeOptions
    from forge_tui.engine.judge.selftest import variant_of

    variant, sample = variant_of(
        "torch.nn.functional.softmax",
        {"input": torch.randn(1, 16, 2048, 2048).to(torch.bfloat16), "dim": -1, "dtype": torch.float32},
    )
    sample = {name: value.cuda() for name, value in sample.items()}
    kernel = kernels_for(variant.call)[0]
    times: dict[str, float] = {}

    def progress(what: str, done: int, of: int) -> None:
        now = time.perf_counter()
        times[doing[0]] = times.get(doing[0], 0.0) + now - doing[1]  # type: ignore[operator]
        doing[:] = [what, now]

    for _ in range(3):
        doing: list = ["start", time.perf_counter()]
        times.clear()
        verdict = judge_text(
            kernel.text, f"{kernel.name}.cu", variant, [sample], target, options=JudgeOptions(), progress=progress
        )
        progress("end", 0, 0)
        print(
            f"{verdict.judged_s:.2f} s, {len(verdict.points)} settings:",
            {name: round(value, 3) for name, value in times.items()},
        )
        assert verdict.verified, verdict.sentence


def test_announced_builds_are_the_same_builds(target: GpuTarget):
    target.warm()
    items = [program(HONEST.replace("2.f", f"{scale}.f")) for scale in range(3, 11)]
    target.expect(items)
    begin = time.perf_counter()
    keys = [target.build(item).key for item in items]
    print(f"8 announced builds: {time.perf_counter() - begin:.2f} s")
    target.expect([])
    begin = time.perf_counter()
    assert keys == [target.build(item).key for item in items]
    print(f"8 builds one by one: {time.perf_counter() - begin:.2f} s")


def test_a_candidate_is_sanitized_and_profiled_by_the_judge(target: GpuTarget):
    from forge_tui.engine.judge.judge import judge_text
    from forge_tui.engine.judge.options import JudgeOptions
    from forge_tui.engine.judge.probe import HONEST as GOOD
    from forge_tui.engine.judge.probe import probe_variant
    from forge_tui.engine.show import render_verdict

    variant, sample = probe_variant()
    verdict = judge_text(
        GOOD,
        "honest.cu",
        variant,
        [{name: value.cuda() for name, value in sample.items()}],
        target,
        options=JudgeOptions(sanitize=True, profile=True),
    )
    print("\n".join(render_verdict(verdict)))
    assert verdict.verified, verdict.sentence
    assert verdict.profile is not None and verdict.profile.kernels[0].kernel == "probe"
    assert [check.name for check in verdict.checks if check.name.startswith("sanitizer")] == [
        f"sanitizer {tool}" for tool in sanitize.TOOLS
    ]
