"""The judge tried on itself: before a worker judges anything, a kernel that writes a constant must fail, an honest
one pass.

If either verdict is wrong, nothing this machine says of a kernel can be believed, and the run stops.
"""

from __future__ import annotations

import torch

from forge_tui.cuda.target import Target
from forge_tui.engine.cards import Statistics, Variant, variant_key
from forge_tui.engine.judge.judge import judge_text
from forge_tui.engine.judge.memory import to_device
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.operators import describe, lookup
from forge_tui.errors import ForgeError

_PLAN = """/*forge
format = 1
operator = "torch.nn.functional.relu"

[[launch]]
kernel = "probe"
grid = ["ceil_div(input.numel, 128)"]
block = [128]
args = ["input", "out", "input.numel"]
*/
extern "C" __global__ void probe(const float* input, float* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = %s;
}
"""
CONSTANT = _PLAN % "0.25f"
HONEST = _PLAN % "input[i] < 0.0f ? 0.0f : input[i]"
ELEMENTS = 1000


def probe_variant() -> tuple[Variant, dict[str, torch.Tensor]]:
    """relu on a thousand numbers, and its sample."""
    sample = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(1))
    call = describe("torch.nn.functional.relu", {"input": sample}, lookup("torch.nn.functional.relu").call({"input": sample}))
    statistics = {"input": Statistics(float(sample.min()), float(sample.max()), 0.0, 1.0, 0.0, 0.0, False, False)}
    variant = Variant(key=variant_key(call), call=call, calls=1, time_us=1.0, bytes_moved=8 * ELEMENTS, operations=ELEMENTS,
                      floor_us=1.0, statistics=statistics, samples=(), modules=())
    return variant, {"input": sample}


def probe(target: Target) -> None:
    """Raises ForgeError, `the judge is broken`."""
    variant, sample = probe_variant()
    if target.kind == "cuda":
        sample = {name: to_device(tensor, "cuda") for name, tensor in sample.items()}
    options = JudgeOptions(time=False)
    for text, wanted in ((CONSTANT, "wrong"), (HONEST, "verified")):
        verdict = judge_text(text, "probe.cu", variant, [sample], target, options=options)
        if verdict.outcome != wanted:
            what = "a kernel that writes a constant" if wanted == "wrong" else "a correct kernel"
            raise ForgeError(f"the judge is broken: {what} got the verdict `{verdict.outcome}` ({verdict.sentence})",
                             where="the judge's own probe", cure="run `forge-tui doctor`, and report this")
