"""The order of a judgement, its memory, its draws and its proxies; kernels are Python functions here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from msgspec import structs

from forge_tui.cuda.faults import CandidateFault
from forge_tui.engine.judge.draws import Drawer
from forge_tui.engine.judge.judge import judge_text
from forge_tui.engine.judge.memory import Guarded, core, to_device
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.judge.proxy import proxies, restride
from forge_tui.engine.judge.selftest import variant_of
from forge_tui.engine.judge.verdict import Check, Verdict, eager_off
from forge_tui.engine.operators import tensor_spec
from forge_tui.engine.show import render_verdict
from forge_tui.engine.statistics import statistics
from forge_tui.specs import Call, TensorSpec
from tests.judging import CountingTimer, PythonTarget

PLAN = """/*forge
format = 1
operator = "torch.nn.functional.softmax"

[let]
cols = "input.shape[-1]"
rows = "input.numel // cols"

[tune]
BLOCK = [128, 64, 256]

[[launch]]
kernel = "rows"
grid = ["rows"]
block = ["BLOCK"]
args = ["input", "out", "BLOCK"]
*/
extern "C" __global__ void rows(const float* input, float* out, int block) { }
"""


def softmax_variant(*shape: int):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(5))
    return variant_of("torch.nn.functional.softmax", {"input": x, "dim": -1, "dtype": None})


def judged(kernel, made=None, text: str = PLAN, **options) -> Verdict:
    variant, sample = made or softmax_variant(24, 33)
    return judge_text(text, "rows.cu", variant, [sample], PythonTarget(rows=kernel), timer=CountingTimer(), **options)


def honest(source: torch.Tensor, out: torch.Tensor, block: int) -> None:
    out.copy_(torch.softmax(source, -1))


def test_an_honest_kernel_is_verified_at_its_fastest_setting() -> None:
    verdict = judged(honest)
    assert verdict.verified and verdict.settings == {"BLOCK": 64}
    assert [point.settings["BLOCK"] for point in verdict.points] == [128, 64, 256]
    assert verdict.timing is not None and verdict.timing.kind == "modelled"
    names = [check.name for check in verdict.checks]
    assert names[:4] == ["kernel file", "build", "quick check", "captured sample 1"]
    assert sum(name.startswith("draw ") for name in names) >= 10
    assert names[-3:] == ["repeat 1", "repeat 2", "memory"]
    assert all(check.passed for check in verdict.checks)


def test_a_verdict_repeats_with_its_seed() -> None:
    def wrong_beside_a_spike(source: torch.Tensor, out: torch.Tensor, block: int) -> None:
        honest(source, out, block)
        if float(source.abs().max()) > 1000:
            out[0, 0] = 0.5

    first = judged(wrong_beside_a_spike)
    again = judged(wrong_beside_a_spike, seed=first.seed)
    assert first.outcome == "wrong" and first.seed
    assert (again.sentence, again.worst, again.checks, again.seed) == (first.sentence, first.worst, first.checks, first.seed)
    assert judged(wrong_beside_a_spike).seed != first.seed


def test_a_setting_that_is_wrong_is_a_point_with_a_reason() -> None:
    def wrong_at_64(source: torch.Tensor, out: torch.Tensor, block: int) -> None:
        honest(source, out, block)
        if block == 64:
            out[3, 4] *= 2

    verdict = judged(wrong_at_64)
    assert verdict.verified and verdict.settings == {"BLOCK": 128}
    assert "out[3, 4]" in verdict.points[1].reason and verdict.points[1].us is None


def test_the_next_best_is_taken_where_the_best_falls_late() -> None:
    def wrong_on_large(source: torch.Tensor, out: torch.Tensor, block: int) -> None:
        honest(source, out, block)
        if block == 64 and float(source.abs().max()) > 100:
            out.zero_()

    verdict = judged(wrong_on_large)
    assert verdict.verified and verdict.settings == {"BLOCK": 128}
    assert "draw large" in verdict.points[1].reason


def test_one_given_setting() -> None:
    verdict = judged(honest, settings={"BLOCK": 256})
    assert verdict.settings == {"BLOCK": 256} and len(verdict.points) == 1
    refused = judged(honest, settings={"BLOCK": 5})
    assert refused.outcome == "refused" and "BLOCK = 5" in refused.sentence


def test_refusals_carry_their_line() -> None:
    verdict = judged(honest, text=PLAN.replace('rows = "input.numel // cols"', 'rows = "input.numel / cols"'))
    assert verdict.outcome == "refused" and verdict.line == 7 and "//" in verdict.sentence
    other = judged(honest, text=PLAN.replace("functional.softmax", "functional.relu"))
    assert other.outcome == "refused" and "softmax" in other.sentence


def test_faults_become_outcomes() -> None:
    for kind, outcome in (("race", "fault"), ("not_interpretable", "skipped"), ("endless", "fault")):
        def faulty(source: torch.Tensor, out: torch.Tensor, block: int, kind=kind) -> None:
            raise CandidateFault(kind, "words of the target", kernel="rows", line=21)

        verdict = judged(faulty)
        assert (verdict.outcome, verdict.fault, verdict.line) == (outcome, kind, 21)
        assert "words of the target" in verdict.sentence


def test_memory_outside_the_outputs() -> None:
    def write_input(source, out, block):
        honest(source, out, block)
        source[2, 3] = 0

    def overrun(source, out, block):
        honest(source, out, block)
        out.as_strided((1,), (1,), out.storage_offset() + out.numel() + 2).fill_(1.0)

    def underrun(source, out, block):
        honest(source, out, block)
        out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(1.0)

    def unwritten(source, out, block):
        out[:20] = torch.softmax(source, -1)[:20]

    assert judged(write_input).fault == "read_only"
    assert "8 bytes past the last element of out" in judged(overrun).sentence
    assert "before the first element of out" in judged(underrun).sentence
    assert "nothing was written there" in judged(unwritten).sentence


def test_what_a_former_launch_left_is_no_result() -> None:
    """Writes once, then relies on its output still being there."""
    runs = []

    def lazy(source, out, block):
        if not runs:
            honest(source, out, block)
        runs.append(1)

    assert judged(lazy).outcome == "wrong"


def test_a_computed_nan_is_no_unwritten_element() -> None:
    def nan(source, out, block):
        out.copy_(torch.zeros_like(source) / 0.0)

    sentence = judged(nan).sentence
    assert "nan" in sentence and "nothing was written" not in sentence


def test_changed_weights_at_the_same_address() -> None:
    """A kernel that keeps what it computed from the weights, by their address."""
    table: dict[int, torch.Tensor] = {}
    text = PLAN.replace("functional.softmax", "functional.layer_norm").replace('"input", "out"', '"input", "weight", "out"')
    text = text.replace("const float* input, float* out", "const float* input, const float* weight, float* out")
    weight = torch.rand(33) + 1
    made = variant_of("torch.nn.functional.layer_norm", {"input": torch.randn(24, 33), "normalized_shape": (33,),
                      "weight": weight, "bias": None, "eps": 1e-5}, ("weight",))

    def cached(source, weight, out, block):
        kept = table.setdefault(weight.data_ptr(), weight.clone())
        out.copy_(torch.nn.functional.layer_norm(source, (33,), kept))

    verdict = judged(cached, made, text)
    assert verdict.outcome == "wrong" and "draw fresh weights" in verdict.sentence


def test_in_place_operators() -> None:
    text = PLAN.replace("functional.softmax", "functional.relu")
    made = variant_of("torch.nn.functional.relu", {"input": torch.randn(24, 33)}, aliases={"out": "input"})
    verdict = judged(lambda source, out, block: source.relu_(), made, text)
    assert verdict.verified
    assert judged(lambda source, out, block: None, made, text).outcome == "wrong"


def test_an_in_place_result_has_its_inputs_strides() -> None:
    """A slice of something wider: out of place, eager's result would be dense."""
    text = PLAN.replace("functional.softmax", "functional.relu")
    wide = torch.randn(24, 40)[:, :33]
    variant, sample = variant_of("torch.nn.functional.relu", {"input": wide}, aliases={"out": "input"})
    call = structs.replace(variant.call, outputs=(next(variant.call.tensors())[1],))
    made = structs.replace(variant, call=call), sample
    assert judged(lambda source, out, block: source.relu_(), made, text).verified


def test_one_sum_of_many_numbers_may_be_summed_in_any_order() -> None:
    """The mean of 1147 numbers, near zero by cancellation, where eager's only result happens to be ten times as
    exact."""
    x = torch.randn(1147, generator=torch.Generator().manual_seed(0))
    made = variant_of("torch.mean", {"input": x, "dim": (0,), "keepdim": False, "dtype": None})
    text = PLAN.replace("nn.functional.softmax", "mean").replace('cols = "input.shape[-1]"', 'cols = "1147"')

    def by_lanes(source, out, block):
        padded = torch.nn.functional.pad(source, (0, 5)).view(36, 32)
        lanes = torch.zeros(32)
        for row in padded:
            lanes = lanes + row
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2:]
        out.copy_(lanes[0] / 1147)

    def by_one_thread(source, out, block):
        total = torch.zeros(())
        for value in source:
            total = total + value
        out.copy_(total / 1147)

    def careless(source, out, block):
        out.copy_(source.half().mean())

    options = JudgeOptions(tune_points=1)
    for seed in range(4):
        assert judged(by_lanes, made, text, options=options, seed=seed).verified
        assert judged(by_one_thread, made, text, options=options, seed=seed).verified
    assert judged(careless, made, text, options=options).outcome == "wrong"


def test_denormals_may_be_flushed_and_nothing_else() -> None:
    """Float atomics on a GPU's global memory add denormal parts as zeros."""
    made = variant_of("torch.sum", {"input": torch.randn(6, 300), "dim": (-1,), "keepdim": False, "dtype": None})
    text = PLAN.replace("nn.functional.softmax", "sum")

    def flushing(source, out, block):
        out.copy_(torch.where(source.abs() < 2.0**-126, 0.0, source).sum(-1))

    def flushing_more(source, out, block):
        out.copy_(torch.where(source.abs() < 1e-20, 0.0, source).sum(-1))

    options = JudgeOptions(tune_points=1)
    assert judged(flushing, made, text, options=options).verified
    small = torch.randn(6, 300) * 1e-12
    made = variant_of("torch.sum", {"input": small, "dim": (-1,), "keepdim": False, "dtype": None})
    assert "draw small" in judged(flushing_more, made, text, options=options).sentence


def test_a_call_that_torch_itself_refuses_is_no_fault_of_the_kernel() -> None:
    variant, sample = softmax_variant(24, 33)
    broken = structs.replace(variant, call=structs.replace(variant.call, arguments={**variant.call.arguments, "dim": 7}))
    verdict = judged(honest, (broken, sample))
    assert verdict.outcome == "skipped" and "torch itself refuses" in verdict.sentence


# -- memory

@pytest.mark.parametrize("align", [4, 8, 16, 64, 128, 256])
def test_alignment_is_exactly_what_was_promised(align: int) -> None:
    buffer = Guarded("x", TensorSpec("float32", (7, 5), (5, 1), align), "cpu")
    address = buffer.tensor.data_ptr()
    assert min(256, address & -address) == align


def test_gaps_between_strided_elements_are_guarded() -> None:
    buffer = Guarded("x", TensorSpec("float32", (4, 3), (5, 1)), "cpu")
    buffer.poison(b"abcdefgh")
    buffer.tensor.fill_(1.0)
    assert buffer.overrun() == ""
    buffer.tensor.as_strided((1,), (1,), buffer.tensor.storage_offset() + 9).fill_(1.0)
    assert "gap" in buffer.overrun()


def test_expanded_and_overlapping_tensors() -> None:
    base = torch.arange(6.0)
    expanded = base[:3].expand(4, 3)
    assert core(expanded).shape == (1, 3)
    assert core(base.unfold(0, 3, 1)).shape == (6,)
    for tensor in (expanded, base.unfold(0, 3, 1), torch.randn(5, 4).t(), torch.empty(0, 3)):
        moved = to_device(tensor, "cpu")
        assert torch.equal(moved, tensor) and moved.stride() == tensor.stride()


# -- draws

@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_draws_are_the_same_bits_for_the_same_seed(dtype: torch.dtype) -> None:
    variant, sample = variant_of("torch.nn.functional.softmax", {
        "input": torch.randn(6, 10).to(dtype).t(), "dim": -1, "dtype": None})
    first, same, other = (Drawer(variant.call, [sample], variant.statistics, seed) for seed in (11, 11, 12))
    names = first.names()
    assert len(names) >= 10
    different = 0
    for name in names:
        a, b, c = (drawer.make(name)["input"] for drawer in (first, same, other))
        assert a.dtype == dtype and a.shape == (10, 6) and a.stride() == (1, 10)
        assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)), name
        different += not torch.equal(a, c)
    assert different >= 7


def test_draws_stay_within_what_the_operator_takes() -> None:
    ids = torch.tensor([[3, 1, 4], [1, 5, 9]])
    variant, sample = variant_of("torch.nn.functional.embedding", {
        "input": ids, "weight": torch.randn(50, 8), "padding_idx": None, "max_norm": None, "norm_type": 2.0,
        "scale_grad_by_freq": False, "sparse": False}, ("weight",))
    drawer = Drawer(variant.call, [sample], variant.statistics, 3)
    seen = set()
    for name in drawer.names():
        drawn = drawer.make(name)["input"]
        assert drawn.dtype == torch.int64 and 0 <= int(drawn.min()) and int(drawn.max()) < 50
        seen |= set(drawn.flatten().tolist())
    assert max(seen) > 9


def test_masks_keep_their_extreme_values() -> None:
    low = torch.finfo(torch.float32).min
    mask = torch.where(torch.rand(8, 64, generator=torch.Generator().manual_seed(1)) < 0.3, low, 0.0)
    variant, sample = variant_of("torch.add", {"input": torch.randn(8, 64), "other": mask, "alpha": 1})
    drawn = Drawer(variant.call, [sample], variant.statistics, 3).make("like the captured")["other"]
    assert set(drawn.unique().tolist()) == {low, 0.0}


def test_the_spike_and_the_changed_element_are_anywhere() -> None:
    variant, sample = softmax_variant(16, 64)
    places = set()
    for seed in range(12):
        drawer = Drawer(variant.call, [sample], variant.statistics, seed)
        places.add(int(drawer.make("one spike")["input"].abs().argmax()))
        changed = drawer.make("one element changed")["input"] != sample["input"]
        assert int(changed.sum()) == 1
    assert len(places) > 8


# -- proxies

def test_a_large_call_is_judged_on_a_reduced_one() -> None:
    verdict = judged(honest, softmax_variant(4099, 301))
    assert verdict.verified and verdict.proxy == "input.shape[0] 4099 -> 387"
    assert verdict.counts[0].blocks == 4099
    assert verdict.counts[0].global_bytes == pytest.approx(4096 * 4099, rel=1e-6)
    assert "reduced" in verdict.sentence


def test_a_plan_that_differs_on_the_proxy_is_not_represented() -> None:
    """Two paths, by size: a small proxy would take the other one."""
    text = PLAN.replace('args = ["input", "out", "BLOCK"]', 'args = ["input", "out", "BLOCK"]\nwhen = "rows > 1000"')
    text = text.replace("*/", '\n[[launch]]\nkernel = "rows"\ngrid = ["rows"]\nblock = [32]\nargs = ["input", "out", "BLOCK"]\n'
                              'when = "rows <= 1000"\n*/')
    verdict = judged(honest, softmax_variant(4096, 301), text)
    assert verdict.verified and verdict.proxy == "input.shape[0] 4096 -> 1728"


def test_cut_strides_keep_the_layout() -> None:
    channels_last = TensorSpec("float32", (8, 64, 14, 14), (64 * 196, 1, 14 * 64, 64))
    assert restride(channels_last, (2, 64, 14, 14)) == (64 * 196, 1, 14 * 64, 64)
    assert restride(channels_last, (8, 16, 14, 14)) == (16 * 196, 1, 14 * 16, 16)
    padded = TensorSpec("float32", (8, 10), (16, 1))
    assert restride(padded, (4, 10)) == (16, 1)
    expanded = TensorSpec("float32", (8, 10), (0, 1))
    assert restride(expanded, (4, 10)) == (0, 1)


def test_proxies_of_every_layout_give_the_operators_own_results() -> None:
    x = torch.randn(64, 48, 9, 11)
    vectors = {name: torch.rand(48) + 0.5 for name in ("running_mean", "running_var", "weight", "bias")}
    for source in (x, x.contiguous(memory_format=torch.channels_last), x.transpose(2, 3)):
        arguments = {"input": source, **vectors, "training": False, "momentum": 0.1, "eps": 1e-5}
        variant, sample = variant_of("torch.nn.functional.batch_norm", arguments, tuple(vectors))
        small = next(iter(proxies(variant.call, sample, 20_000)))
        cut = small.cut(sample)
        assert small.cuts and small.call.outputs[0].numel <= 20_000
        assert torch.equal(cut["input"], source[tuple(slice(0, size) for size in cut["input"].shape)])
        for name, spec in small.call.tensors():
            assert tuple(cut[name].shape) == spec.shape and tuple(cut[name].stride()) == spec.stride


# -- bounds

MEMORY = """
import resource, sys, torch
from tests.judging import CountingTimer, PythonTarget
from tests.test_judge import PLAN, honest
from forge_tui.engine.judge.judge import judge_text
from forge_tui.engine.judge.selftest import variant_of
from forge_tui.engine.judge.reference import compare
torch.set_num_threads(1)
x = torch.zeros(1 << 14, 1 << 12).copy_(torch.randn(1 << 12))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
variant, sample = variant_of("torch.nn.functional.softmax", {"input": x, "dim": -1, "dtype": None})
own = (torch.softmax(x, -1),)
assert all(item.passed for item in compare(variant.call, sample, own, (own[0],)))
verdict = judge_text(PLAN, "rows.cu", variant, [sample], PythonTarget(rows=honest), timer=CountingTimer(), seed=1)
assert verdict.verified, verdict.sentence
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_judging_a_256_mib_output_takes_bounded_memory() -> None:
    """Input and output are 256 MiB each; the peak, the input itself included, stays within three times both."""
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", MEMORY], cwd=root, capture_output=True, text=True,
                          env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)})
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) + 256 * 1024 <= 3 * 512 * 1024


def test_no_probe_without_a_judge_that_works() -> None:
    """The probe itself: a judge that lets a constant pass stops the run."""
    from forge_tui.engine.judge import probe as module
    from forge_tui.errors import ForgeError

    outcomes = iter(["verified"])
    original = module.judge_text
    module.judge_text = lambda *args, **kwargs: Verdict(next(outcomes), "whatever")
    try:
        with pytest.raises(ForgeError, match="the judge is broken"):
            module.probe(PythonTarget())
    finally:
        module.judge_text = original


def test_every_draw_can_be_made_in_every_layout() -> None:
    from tests import builtin_cases, norm_cases

    for family in ({**builtin_cases.FAMILIES, **norm_cases.FAMILIES}).values():
        for case in family.values():
            item = case(torch.bfloat16)
            sample = item.tensors
            drawer = Drawer(item.call, [sample], {name: statistics([tensor]) for name, tensor in sample.items()}, 1)
            specs = dict(item.call.tensors())
            for name in drawer.names():
                for key, tensor in drawer.make(name).items():
                    assert (tuple(tensor.shape), tuple(tensor.stride())) == (specs[key].shape, specs[key].stride)


def test_where_eager_itself_is_off_a_person_is_told() -> None:
    def verdict(error: float) -> Verdict:
        return Verdict("verified", "right", (Check("captured sample 1", True, 0.001, 0.1, eager=error), Check("draw large", True, eager=0.5)))

    assert eager_off(verdict(0.002)) == ""
    assert "3.4% off on the captured inputs" in eager_off(verdict(0.034))
    assert any("3.4% off" in line for line in render_verdict(verdict(0.034)))


@pytest.mark.parametrize("values", [torch.tensor([0, 5, 2**63 - 1]), torch.tensor([-2**63, 2**63 - 1]),
                                    torch.tensor([1, 7, 60000], dtype=torch.uint16), torch.tensor([3, 2**31], dtype=torch.uint32)], ids=str)
def test_draws_of_integers_at_the_ends_of_their_range(values: torch.Tensor) -> None:
    call = Call("torch.add", {"input": tensor_spec(values), "other": 1}, (tensor_spec(values),))
    drawer = Drawer(call, [{"input": values}], {"input": statistics([values])}, 3)
    for name in drawer.names():
        drawn = drawer.make(name)["input"]
        assert drawn.dtype == values.dtype and drawn.shape == values.shape
        low, high = int(values.to(torch.int64).min()), int(values.to(torch.int64).max())
        assert all(low <= int(item) <= high for item in drawn.to(torch.int64))
