"""The real device: build, launch in every way a plan can say, faults told apart, and times that can be believed. Needs a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from forge_tui.cuda.ceilings import ceilings_of, copy_program, empty_program
from forge_tui.cuda.device import H200
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.gpu import GpuTarget
from forge_tui.cuda.program import Argument, Image, Launch, Program, Workspace
from forge_tui.cuda.statistics import Stop, is_gain
from forge_tui.cuda.timing import Contender, Stopwatch
from forge_tui.engine.cards import FORMAT, OperatorFile, Variant, save_operators
from forge_tui.engine.judge.client import JudgeClient
from forge_tui.engine.judge.probe import HONEST
from forge_tui.engine.judge.selftest import variant_of
from forge_tui.engine.kernelfile import parse
from forge_tui.specs import Call
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.tensors import save_tensors
from test_kernelfile import FOLDER, MEASURED

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def target() -> Iterator[GpuTarget]:
    yield GpuTarget(0, measure=False)


@pytest.fixture(scope="module")
def watch(target: GpuTarget) -> Stopwatch:
    return Stopwatch(target)


def built(target: GpuTarget, code: str, *launches: Launch, **more: object) -> tuple[Program, Image]:
    program = Program("k.cu", code, (), launches, **more)  # type: ignore[arg-type]
    return program, target.build(program)


def pointers(*names: str | None) -> tuple[Argument, ...]:
    return tuple(Argument("pointer", name) for name in names)


# -- facts


def test_facts_are_the_devices(target: GpuTarget):
    facts, properties = target.facts, torch.cuda.get_device_properties(0)
    assert (facts.name, facts.sm_count) == (properties.name, properties.multi_processor_count)
    assert facts.cc == properties.major * 10 + properties.minor
    assert facts.max_shared >= 48 * 1024 and facts.shared_per_sm >= facts.max_shared and facts.l2_bytes > 1 << 20
    if facts.name == H200.name:
        for field in ("cc", "sm_count", "max_shared", "l2_bytes", "threads_per_sm", "registers_per_sm", "shared_per_sm", "clock_mhz"):
            assert getattr(facts, field) == getattr(H200, field), field


def test_ceilings_are_measured_once(target: GpuTarget, tmp_path: Path):
    found = ceilings_of(target, tmp_path)
    data_sheet = target.facts.copy_bytes_per_s
    assert 0.6 * data_sheet < found.copy_bytes_per_s < data_sheet
    assert 0.5 < found.launch_us < 20
    assert found.matrix_flops["bfloat16"] > 2 * found.matrix_flops["float32"] > 0
    assert ceilings_of(target, tmp_path) == found             # measured_at included: it was read, not measured again


# -- kernels that were measured elsewhere, against float64


def inputs_of(call: Call) -> dict[str, torch.Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(3)
    return {name: torch.randn(spec.shape, generator=generator, device="cuda").to(getattr(torch, spec.dtype)) for name, spec in call.tensors()}


def outputs_of(call: Call) -> dict[str, torch.Tensor]:
    return {name: torch.full(spec.shape, float("nan"), dtype=getattr(torch, spec.dtype), device="cuda")
            for name, spec in zip(call.output_names(), call.outputs, strict=True)}


def truth(call: Call, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    wide = {name: value.double() for name, value in tensors.items()}
    if call.operator.endswith("softmax"):
        return torch.softmax(wide["input"], -1)
    if call.operator.endswith("group_norm"):
        return torch.nn.functional.group_norm(wide["input"], 32, wide["weight"], wide["bias"], 1e-6)
    return torch.nn.functional.adaptive_avg_pool2d(wide["input"], 1)


@pytest.mark.parametrize("name", MEASURED)
def test_measured_kernels_are_right(target: GpuTarget, name: str):
    call, _ = MEASURED[name]
    file = parse((FOLDER / f"{name}.cu").read_text(), f"{name}.cu")
    tensors = inputs_of(call)
    expected = truth(call, tensors)
    allowed = {"bfloat16": 2.0**-8, "float32": 2.0**-18}[call.outputs[0].dtype]
    points = file.points(call, target.facts, limit=6)
    assert points
    for settings in points:
        program = file.bind(call, target.facts, settings)
        results = outputs_of(call)
        target.run(program, target.build(program), {**tensors, **results})
        error = (results["out"].double() - expected).norm() / expected.norm()
        assert error < allowed, (settings, float(error))      # NaN, an element not written, fails too


# -- everything a launch can say

ADD = """extern "C" __global__ void add(const float* input, const float* bias, float* out, int n, long long stride, float a, double b) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = input[i * stride] * a + (bias ? bias[i] : 0.f) + (float)b;
}"""


@pytest.mark.parametrize("with_bias", [True, False])
def test_arguments_of_every_kind_and_strided_inputs(target: GpuTarget, with_bias: bool):
    base = torch.randn(1000, 7, device="cuda")
    tensors = {"input": base[:, 3], "bias": torch.randn(1000, device="cuda"), "out": torch.empty(1000, device="cuda")}
    arguments = (*pointers("input", "bias" if with_bias else None, "out"), Argument("int32", value=1000), Argument("int64", value=7),
                 Argument("float32", value=0.5), Argument("float64", value=-2.0))
    program, image = built(target, ADD, Launch("add", (8, 1, 1), (128, 1, 1), arguments))
    target.run(program, image, tensors)
    expected = base[:, 3] * 0.5 + (tensors["bias"] if with_bias else 0) - 2.0
    assert torch.allclose(tensors["out"], expected, rtol=1e-6, atol=1e-6)


def test_an_output_in_place(target: GpuTarget):
    code = 'extern "C" __global__ void twice(const float* input, float* out) { out[threadIdx.x] = 2 * input[threadIdx.x]; }'
    program, image = built(target, code, Launch("twice", (1, 1, 1), (64, 1, 1), pointers("input", "out")),
                           inputs=("input",), aliases={"out": "input"})
    x = torch.arange(64.0, device="cuda")
    target.run(program, image, {"input": x})
    assert torch.equal(x, 2 * torch.arange(64.0, device="cuda"))


def test_launches_run_in_order_and_fills_come_first(target: GpuTarget):
    code = """extern "C" __global__ void step(int* scratch, int* out, int i) { scratch[0] = scratch[0] * 3 + i; out[0] = scratch[0]; }
extern "C" __global__ void never(int* out) { out[0] = -1; }"""
    launches = [Launch("step", (1, 1, 1), (1, 1, 1), (*pointers("scratch", "out"), Argument("int32", value=i))) for i in range(5)]
    launches.insert(2, Launch("never", (0, 1, 1), (1, 1, 1), pointers("out")))
    program, image = built(target, code, *launches, workspaces=(Workspace("scratch", "int32", (1,), 0),))
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    prepared = target.prepare(program, image, {"out": out})
    for _ in range(3):                                        # the same each time: the fill is of every call
        prepared.enqueue()
        target.wait()
        assert out.item() == ((((0 * 3 + 0) * 3 + 1) * 3 + 2) * 3 + 3) * 3 + 4


def test_large_shared_memory(target: GpuTarget):
    code = """extern "C" __global__ void k(int* out, int n) { extern __shared__ int s[]; for (int i = 0; i < n; ++i) s[i] = i;
    out[0] = s[n - 1]; }"""
    size = target.facts.max_shared
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    small, image = built(target, code, Launch("k", (1, 1, 1), (1, 1, 1), (*pointers("out"), Argument("int32", value=10)), 100))
    large = Program("k.cu", code, (), (Launch("k", (1, 1, 1), (1, 1, 1), (*pointers("out"), Argument("int32", value=size // 4)), size),))
    first = target.prepare(large, image, {"out": out})
    target.run(small, image, {"out": out})                   # asking for less takes nothing back
    first.enqueue()
    target.wait()
    assert out.item() == size // 4 - 1


def test_clusters(target: GpuTarget):
    code = """extern "C" __global__ void k(int* out) { unsigned rank, size; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size)); out[blockIdx.x] = rank * 100 + size; }"""
    if target.facts.max_cluster < 2:
        pytest.skip("no clusters on this architecture")
    for size in (2, 8, target.facts.max_cluster):
        out = torch.zeros(2 * size, dtype=torch.int32, device="cuda")
        program, image = built(target, code, Launch("k", (2 * size, 1, 1), (32, 1, 1), pointers("out"), cluster=(size, 1, 1)))
        target.run(program, image, {"out": out})
        assert out.tolist() == [rank * 100 + size for rank in range(size)] * 2


def test_cooperative_launch(target: GpuTarget):
    code = """#include <cooperative_groups.h>
extern "C" __global__ void k(int* seen, int* out) { atomicAdd(seen, 1); cooperative_groups::this_grid().sync();
    if (threadIdx.x == 0) out[blockIdx.x] = *(volatile int*)seen; }"""
    blocks = target.facts.sm_count
    out = torch.zeros(blocks, dtype=torch.int32, device="cuda")
    launch = Launch("k", (blocks, 1, 1), (64, 1, 1), pointers("seen", "out"), cooperative=True)
    program, image = built(target, code, launch, workspaces=(Workspace("seen", "int32", (1,), 0),))
    target.run(program, image, {"out": out})
    assert out.tolist() == [64 * blocks] * blocks


def test_programmatic_dependent_launch(target: GpuTarget):
    code = """extern "C" __global__ void first(int* out) { out[threadIdx.x] = threadIdx.x; }
extern "C" __global__ void second(int* out) { asm volatile("griddepcontrol.wait;" ::: "memory"); out[threadIdx.x] += 1000; }"""
    if target.facts.cc < 90:
        pytest.skip("no programmatic dependent launch on this architecture")
    out = torch.zeros(256, dtype=torch.int32, device="cuda")
    program, image = built(target, code, Launch("first", (1, 1, 1), (256, 1, 1), pointers("out")),
                           Launch("second", (1, 1, 1), (256, 1, 1), pointers("out"), pdl=True))
    target.run(program, image, {"out": out})
    assert out.tolist() == [1000 + i for i in range(256)]


def test_on_torchs_current_stream_and_in_a_graph(target: GpuTarget):
    code = 'extern "C" __global__ void inc(int* out) { out[0] += 1; }'
    program, image = built(target, code, Launch("inc", (1, 1, 1), (1, 1, 1), pointers("out")))
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    prepared = target.prepare(program, image, {"out": out})
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)                         # ten milliseconds: another stream would be first
        out.fill_(41)
        prepared.enqueue()
        target.wait()
    assert out.item() == 42
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prepared.enqueue()
    for _ in range(5):
        graph.replay()
    prepared.enqueue()
    target.wait()
    assert out.item() == 48


def test_images_are_loaded_once_and_dropped(target: GpuTarget):
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    for number in range(140):                                 # more than are kept
        code = f'extern "C" __global__ void k(int* out) {{ out[0] = {number}; }}'
        program, image = built(target, code, Launch("k", (1, 1, 1), (1, 1, 1), pointers("out")))
        target.run(program, image, {"out": out})
        assert out.item() == number
    assert len(target._images) <= 128


# -- refusals and faults


@pytest.mark.parametrize(("change", "kind"), [
    ({"block": (1025, 1, 1)}, "launch"), ({"shared": 1 << 20}, "launch"), ({"grid": (1, 70_000, 1)}, "launch"),
    ({"grid": (100_000, 1, 1), "cooperative": True}, "launch"), ({"kernel": "other"}, "compile"),
    ({"arguments": ()}, "launch"), ({"arguments": (Argument("int32", value=1),)}, "launch"),
])
def test_refused_launches_leave_the_device_usable(target: GpuTarget, change: dict, kind: str):
    code = 'extern "C" __global__ void k(int* out) { out[0] = 5; }'
    fields = {"kernel": "k", "grid": (1, 1, 1), "block": (1, 1, 1), "arguments": pointers("out"), **change}
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    with pytest.raises(CandidateFault) as caught:
        program, image = built(target, code, Launch(**fields))
        target.run(program, image, {"out": out})
    assert caught.value.kind == kind and target.lost is None
    program, image = built(target, code, Launch("k", (1, 1, 1), (1, 1, 1), pointers("out")))
    target.run(program, image, {"out": out})
    assert out.item() == 5


FAULTY = {
    "out_of_bounds": "out[(1ll << 40) + threadIdx.x] = 1;",
    "misaligned": "*(double*)((char*)out + 1) = 1;",
    "endless": "while (*(volatile int*)out == 0) {}",
    "crashed": "asm volatile(\"trap;\");",
}
SCRIPT = """
import sys, torch
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.gpu import GpuTarget
from forge_tui.cuda.program import Argument, Launch, Program
from forge_tui.errors import MissingEnvironment
target = GpuTarget(0, deadline_s=2.0, measure=False)
program = Program("k.cu", 'extern "C" __global__ void k(int* out) { ' + sys.argv[1] + ' }', (),
                  (Launch("k", (1, 1, 1), (1, 1, 1), (Argument("pointer", "out"),)),))
try:
    target.run(program, target.build(program), {"out": torch.zeros(4, dtype=torch.int32, device="cuda")})
except CandidateFault as fault:
    print("fault", fault.kind, target.lost.kind)
try:
    target.run(program, target.build(program), {})
except MissingEnvironment as error:
    print("then", error.exit_code, flush=True)
import os
os._exit(0)
"""


@pytest.mark.parametrize("kind", FAULTY)
def test_faults_are_told_apart_and_end_the_context(kind: str):
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", SCRIPT, FAULTY[kind]], capture_output=True, text=True, timeout=120, cwd=root,
                          env={**os.environ, "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"})
    said = done.stdout.split()
    if kind == "crashed" and said[1:2] == ["illegal_instruction"]:
        kind = "illegal_instruction"                          # what a trap is called differs between architectures
    assert said == ["fault", kind, kind, "then", "3"], done.stderr


# -- times


def copies(target: GpuTarget, size: int, passes: int = 1) -> Contender:
    """Copies `size` bytes, `passes` times over, on three sets of buffers."""
    program = copy_program(size // 16, 256, 4)
    program = Program(program.filename, program.source, program.macros, program.launches * passes, inputs=program.inputs)
    image = target.build(program)
    runs = []
    for _ in range(3):
        source = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
        runs.append(target.prepare(program, image, {"input": source, "out": torch.empty_like(source)}).enqueue)
    return Contender(f"copy {passes}", runs)


def test_a_launch_costs_the_cpu_little(target: GpuTarget, watch: Stopwatch):
    program = copy_program(1024, 256, 4)
    buffer = torch.zeros(16 * 1024, dtype=torch.uint8, device="cuda")
    prepared = target.prepare(program, target.build(program), {"input": buffer, "out": torch.empty_like(buffer)})
    costs = sorted(watch.launch_cost_us(prepared.enqueue) for _ in range(5))
    print(f"launch cost, us: {costs}")
    assert costs[2] <= 6.0


def test_a_copy_is_as_fast_as_memory(target: GpuTarget, watch: Stopwatch):
    us = watch.alone(copies(target, 256 << 20), Stop(least=15, most=30, spread=0.01, seconds=0.2)).value
    rate = 2 * (256 << 20) / us * 1e6
    print(f"copy: {rate / 1e12:.2f} TB/s of {target.facts.copy_bytes_per_s / 1e12:.2f}")
    assert 0.6 < rate / target.facts.copy_bytes_per_s < 1.0


def test_twice_the_work_takes_twice_the_time(target: GpuTarget, watch: Stopwatch):
    found = watch.against(copies(target, 256 << 20), [copies(target, 256 << 20, 2)])
    print(found)
    assert found.method == "stream" and 1.85 < found.speedups["copy 2"].value < 2.15 and is_gain(found.speedups["copy 2"])


def test_short_calls_are_timed_by_graph_replay(target: GpuTarget, watch: Stopwatch):
    program = empty_program()
    prepared = target.prepare(program, target.build(program), {})
    empty = Contender("empty", [prepared.enqueue])
    found = watch.against(empty, [copies(target, 1 << 20)])
    print(found)
    assert found.method == "graph" and 0.5 < found.candidate_us.value < 10
    x = torch.randn(1 << 20, device="cuda")
    eager = watch.against(Contender("candidate", [lambda: torch.relu(x)]), [Contender("eager", [lambda: torch.relu(x)])])
    assert eager.method == "graph" and not is_gain(eager.speedups["eager"])


@pytest.mark.parametrize("size", [1 << 16, 4 << 20, 64 << 20, 512 << 20])
def test_a_kernel_against_itself_is_no_gain(target: GpuTarget, watch: Stopwatch, size: int):
    gains = []
    for _ in range(8):
        candidate, baseline = copies(target, size), copies(target, size)
        baseline.name = "itself"
        gains.append(watch.against(candidate, [baseline]).speedups["itself"])
    print([f"{gain.value:.4f} [{gain.low:.4f}, {gain.high:.4f}]" for gain in gains])
    assert sum(is_gain(gain) for gain in gains) <= 1


# -- the judge on this target


def test_the_judge_times_against_eager_and_compile(target: GpuTarget):
    from forge_tui.engine.judge.judge import judge_text
    from forge_tui.engine.judge.options import JudgeOptions
    from forge_tui.engine.judge.selftest import variant_of

    variant, sample = variant_of("torch.nn.functional.softmax", {
        "input": torch.randn(1, 8, 512, 512).to(torch.bfloat16), "dim": -1, "dtype": torch.float32})
    sample = {name: value.cuda() for name, value in sample.items()}
    text = (FOLDER / "softmax_block.cu").read_text()
    verdict = judge_text(text, "softmax_block.cu", variant, [sample], target, options=JudgeOptions())
    print(verdict.sentence, verdict.timing)
    assert verdict.verified, verdict.sentence
    assert verdict.timing.kind == "device" and verdict.timing.speedup is not None and verdict.timing.baseline in ("eager", "compile")
    assert len([point for point in verdict.points if point.us]) >= 8


@pytest.fixture
def relu_project(tmp_path: Path) -> tuple[ProjectPaths, Variant]:
    """A project folder with one captured call."""
    paths = ProjectPaths(tmp_path)
    variant, sample = variant_of("torch.nn.functional.relu", {"input": torch.randn(2000)})
    save_tensors(paths.captures / "sample", sample, {"weights": {}})
    save_operators(paths, OperatorFile(FORMAT, "a test", H200, "device", 1.0, (variant,), (), str(torch.__version__)))
    return paths, variant


def test_a_worker_that_lost_its_device_is_replaced(relu_project: tuple[ProjectPaths, Variant]):
    paths, variant = relu_project
    wild = HONEST.replace("out[i] =", "out[i + (1ll << 40)] =")
    notes: list[str] = []
    with JudgeClient(paths, "cuda:0", on_note=notes.append) as client:
        for _ in range(3):
            faulty = client.judge(variant.key, wild, "wild.cu")
            assert (faulty.outcome, faulty.fault) == ("fault", "out_of_bounds"), faulty.sentence
            assert client.judge(variant.key, HONEST, "honest.cu").verified
        assert client.statistics()["workers started"] == 4 and len(notes) == 3


def test_every_confirmation_has_a_process_that_judged_nothing(relu_project: tuple[ProjectPaths, Variant]):
    paths, variant = relu_project
    pids = []
    with JudgeClient(paths, "cuda:0") as client:
        for _ in range(3):
            verdict = client.confirm(variant.key, HONEST, "honest.cu", settings={})
            assert verdict.verified and verdict.timing is not None, verdict.sentence
            pids += client.pids()
        assert len(set(pids)) == 3 == client.statistics()["workers started"]


def test_repeats_run_beside_other_work(target: GpuTarget):
    """The load is on the device while a candidate runs, and gone afterwards."""
    program = copy_program(1024, 256, 4)
    buffer = torch.ones(16 * 1024, dtype=torch.uint8, device="cuda")
    out = torch.zeros_like(buffer)
    image = target.build(program)
    with target.under_load():
        target.run(program, image, {"input": buffer, "out": out})
        assert torch.equal(buffer, out)
    before = torch.cuda.memory_allocated()
    with target.under_load():
        assert torch.cuda.memory_allocated() > before
    assert torch.cuda.memory_allocated() == before


def test_a_fault_under_load_is_the_candidates(target: GpuTarget):
    with pytest.raises(ValueError, match="its own"), target.under_load():
        raise ValueError("its own")
    target.wait()
