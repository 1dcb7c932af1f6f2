"""From text to verdict: how long a build and a whole judgement take, beside a torch extension build of the same kernel.

`python -m benchmarks.turnaround [--no-extension]` builds every builtin kernel's first setting (no cache), judges one operator of about
100 us with 16 settings, and builds one of the kernels the usual way, with torch's C++ extension machinery, in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.cases import case
from benchmarks.results import earlier, header, store
from benchmarks.workloads import WORKLOADS, Workload
from forge_tui.cuda.program import Image, Program
from forge_tui.cuda.target import Target, open_target
from forge_tui.engine.builtin.catalog import kernels_for
from forge_tui.engine.judge.judge import judge_text
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.kernelfile import parse
from forge_tui.errors import KernelFileError

EXTENSION = """
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
{source}
torch::Tensor run(torch::Tensor input, int64_t n) {{
    auto out = torch::empty_like(input);
    scale<<<(n + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(input.data_ptr<float>(), out.data_ptr<float>(), (int)n);
    return out;
}}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("run", &run); }}
"""
KERNEL = """extern "C" __global__ void scale(const float* __restrict__ input, float* __restrict__ out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = 1.5f * input[i];
}
"""
PLAN = """/*forge
format = 1
operator = "torch.mul"
[[launch]]
kernel = "scale"
grid = ["ceil_div(input.numel, 256)"]
block = ["256"]
args = ["input", "out", "input.numel"]
*/
"""
JUDGED = Workload("turnaround", F.softmax, (1, 16, 2048, 2048), torch.bfloat16, lambda x: ((x,), {"dim": -1, "dtype": torch.float32}))
"""About 100 us on an H200: 384 MiB."""

PLAIN = Workload("turnaround", torch.mul, (1 << 20,), torch.float32, lambda x: ((x, 1.5), {}))


class TimedBuilds:
    """Times the builds of a target while it is entered, so that the rest of a judgement is what holds the device.

    The target stays the same object: what is kept for it, the judge's comparison kernels for one, is not made anew.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self.build_s = 0.0
        self.builds = 0

    def __enter__(self) -> TimedBuilds:
        self._build = self._target.build
        self._target.build = self._timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self._target.build = self._build  # type: ignore[method-assign]

    def _timed(self, program: Program) -> Image:
        begin = time.perf_counter()
        image = self._build(program)
        self.build_s += time.perf_counter() - begin
        self.builds += 1
        return image


class Phases:
    """What a judgement says it is doing, and how long each took, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._doing, self._since = "beginning", time.perf_counter()

    def __call__(self, what: str, done: int, of: int) -> None:
        now = time.perf_counter()
        self.seconds[self._doing] = self.seconds.get(self._doing, 0.0) + now - self._since
        self._doing, self._since = what, now

    def ended(self) -> dict[str, float]:
        self("ended", 0, 0)
        return self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-extension", action="store_true", help="leave out the minute that the extension takes")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    target = open_target(options.device)
    target.cache = None  # type: ignore[attr-defined]  # every build is one
    body: dict[str, Any] = {"build": builds(target), "judgement": judgement(target)}
    print(f"build of one candidate: median {body['build']['median_s'] * 1e3:.0f} ms, worst {body['build']['worst_s'] * 1e3:.0f} ms "
          f"({body['build']['worst']}), over {len(body['build']['seconds'])} builtin kernels")
    for item in body["judgement"]:
        print(f"judged {item['kernel']}: {item['outcome']} in {item['seconds']:.2f} s, {item['points']} settings, "
              f"device held {item['held_s']:.2f} s, {item['us'] or 0:.1f} us a call ({item['run']})")
    if options.no_extension:
        body |= {key: value for key, value in earlier("turnaround", target.facts).items() if key == "extension"}
    else:
        body["extension"] = extension(target) | {"command": header("turnaround")["command"]}
        print(f"the same small kernel: {body['extension']['forge_s'] * 1e3:.0f} ms here, "
              f"{body['extension']['extension_s']:.1f} s as a torch extension")
    print(f"stored in {store('turnaround', target.facts, body, options.out)}")


def builds(target: Target) -> dict[str, Any]:
    """Seconds to build each builtin kernel's first setting for the first workload it takes."""
    device = "cuda" if target.kind == "cuda" else "cpu"
    seconds: dict[str, float] = {}
    small = [item for item in WORKLOADS if torch.Size(item.shape).numel() < 1 << 24]
    target.build(parse(PLAN + KERNEL, "warm.cu").bind(case(PLAIN, device, target.facts)[0].call, target.facts, {}))
    for item in small:
        variant, _ = case(item, device, target.facts)
        for kernel in kernels_for(variant.call):
            file = parse(kernel.text, f"{kernel.name}.cu")
            try:
                if kernel.name in seconds or file.refusal(variant.call, target.facts):
                    continue
                program = file.bind(variant.call, target.facts, file.points(variant.call, target.facts, 1)[0])
            except (KernelFileError, IndexError):  # not for this call
                continue
            begin = time.perf_counter()
            target.build(program)
            seconds[kernel.name] = time.perf_counter() - begin
    worst = max(seconds, key=lambda name: seconds[name])
    return {"seconds": seconds, "median_s": statistics.median(seconds.values()), "worst": worst, "worst_s": seconds[worst]}


def judgement(target: Target) -> list[dict[str, Any]]:
    """One operator of about 100 us through the whole judgement with 16 settings; the first run also compiles the baseline."""
    variant, sample = case(JUDGED, "cuda" if target.kind == "cuda" else "cpu", target.facts)
    kernel = kernels_for(variant.call)[0]
    found = []
    for run in ("first of its operator", "second", "third"):
        phases = Phases()
        with TimedBuilds(target) as timed:
            begin = time.perf_counter()
            verdict = judge_text(kernel.text, f"{kernel.name}.cu", variant, [sample], target, options=JudgeOptions(tune_points=16),
                                 progress=phases)
            seconds = time.perf_counter() - begin
        found.append({"run": run, "kernel": kernel.name, "outcome": verdict.outcome, "sentence": verdict.sentence, "seconds": seconds,
                      "build_s": timed.build_s, "builds": timed.builds, "held_s": seconds - timed.build_s, "points": len(verdict.points), "phases_s": phases.ended(),
                      "us": verdict.timing.us if verdict.timing else None})
    return found


def extension(target: Target) -> dict[str, Any]:
    """The same kernel as a candidate and as a torch C++ extension."""
    from torch.utils.cpp_extension import load

    variant, sample = case(PLAIN, "cuda", target.facts)
    begin = time.perf_counter()
    target.build(parse(PLAN + KERNEL, "scale.cu").bind(variant.call, target.facts, {}))
    forge_s = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "scale.cu"
        source.write_text(EXTENSION.format(source=KERNEL))
        begin = time.perf_counter()
        module = load("scale_extension", [str(source)], build_directory=folder, extra_cuda_cflags=["-arch=sm_90"])
        extension_s = time.perf_counter() - begin
        right = torch.equal(module.run(sample["input"], sample["input"].numel()), sample["input"] * 1.5)
    return {"forge_s": forge_s, "extension_s": extension_s, "extension_right": right}


if __name__ == "__main__":
    main()
