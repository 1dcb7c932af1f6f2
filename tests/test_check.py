"""`forge-tui check`: the call from a spec or an example, faults and orders in the report, exit codes and JSON of the command."""

from __future__ import annotations

import json
import os
import re
from itertools import islice
from pathlib import Path

import pytest
import torch
from command_line import forge
from hostkit import line_of, needs_nvrtc

from forge_tui.cuda.device import H200
from forge_tui.engine.builtin.catalog import kernels_for
from forge_tui.engine.check.checking import CheckReport, check_file
from forge_tui.engine.check.examples import examples
from forge_tui.engine.check.inputs import choose, make, parse_spec
from forge_tui.engine.check.page import render
from forge_tui.engine.judge.selftest import exams
from forge_tui.engine.kernelfile import parse
from forge_tui.errors import ProjectError

pytestmark = needs_nvrtc

SCALE = """/*forge
format = 1
operator = "OPERATOR"
[tune]
BLOCK = [64, 128]
[require]
call = "input.dtype == 'float32' and input.contiguous"
fits = "input.numel % BLOCK == 0"
[[launch]]
kernel = "scale"
grid = ["input.numel // BLOCK"]
block = ["BLOCK"]
args = ["input", "out"]
*/
extern "C" __global__ void scale(const float* input, float* out) {
  __shared__ volatile int turn; __shared__ float tile[BLOCK * 32];
  int i = blockIdx.x * BLOCK + threadIdx.x;
  tile[threadIdx.x * 32] = input[i];  // conflict
  BODY
}
"""


def text(body: str, operator: str = "torch.nn.functional.relu") -> str:
    return SCALE.replace("BODY", body).replace("OPERATOR", operator)


RIGHT = "out[i] = fmaxf(tile[threadIdx.x * 32], 0.f);"
PAST = "out[i + 1] = fmaxf(tile[threadIdx.x * 32], 0.f);  // here"


def test_a_clean_file_as_text(tmp_path: Path) -> None:
    (tmp_path / "scale.cu").write_text(text(RIGHT))
    done = forge("check", "scale.cu", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    line = line_of(text(RIGHT), "// conflict")
    for words in ("✓ clean  scale.cu", "no fault in 5 orders of warps, results right", "input=float32(64, 1024)", "BLOCK=64  (one of 2",
                  f"32-way bank conflict at line {line} (shared store)", "registers", "nothing was timed"):
        assert words in done.stdout, done.stdout
    assert "\x1b" not in done.stdout


def test_a_fault_as_json(tmp_path: Path) -> None:
    (tmp_path / "scale.cu").write_text(text(PAST))
    done = forge("check", "scale.cu", "--json", "--inputs", "input=float32(32, 16)", "--set", "BLOCK=128", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    document = json.loads(done.stdout)
    assert (document["schema_version"], document["status"], document["settings"]) == (1, "fault", {"BLOCK": 128})
    (fault,) = document["faults"]
    assert (fault["kind"], fault["line"], fault["block"], fault["thread"]) == ("out_of_bounds", line_of(text(PAST), "// here"), [3, 0, 0], [127, 0, 0])
    assert document["inputs"] == {"input": "float32(32, 16)"} and document["inputs_by"] == "--inputs" and fault["cure"]


def test_what_cannot_be_used_is_said_and_is_code_2(tmp_path: Path) -> None:
    (tmp_path / "scale.cu").write_text(text(RIGHT))
    os.mkfifo(tmp_path / "pipe.cu")
    for arguments, words in ((["missing.cu"], "cannot be read"), (["pipe.cu"], "not a regular file"),
                             (["scale.cu", "--inputs", "input=float32(3), input=float32(4)"], "given twice"), (["scale.cu", "--inputs", "float32(3)"], "every argument needs its name")):
        done = forge("check", *arguments, cwd=tmp_path)
        assert done.returncode == 2 and words in done.stderr and "fix:" in done.stderr and done.stdout == "", done.stderr


def test_every_faulty_exam_that_an_example_shows_is_found() -> None:
    found = {}
    for name in ("missing_barrier", "divergent_barrier", "misaligned", "uninitialized_workspace", "reads_past_the_end", "does_not_compile"):
        exam = next(exam for exam in exams() if exam.name == name)
        found[name] = check_file(exam.text, f"{name}.cu", "input=float32(1000, offset=1)" if name == "misaligned" else "")
    kinds = {name: report.faults[0].kind if report.faults else report.status for name, report in found.items()}
    assert kinds == {"missing_barrier": "race", "divergent_barrier": "divergent_barrier", "misaligned": "misaligned",
                     "uninitialized_workspace": "uninitialized", "reads_past_the_end": "out_of_bounds", "does_not_compile": "compile"}
    assert found["does_not_compile"].status == "no_build" and found["does_not_compile"].faults[0].line is not None


def test_an_order_bug_is_wrong_in_the_order_that_shows_it() -> None:
    body = "if (threadIdx.x % 32 == 0) turn = threadIdx.x; __syncthreads(); out[i] = fmaxf(tile[threadIdx.x * 32], 0.f) + (turn == 0 ? 1 : 0);"
    report = check_file(text(body), "order.cu", "input=float32(128)")
    assert report.status == "wrong" and "results depend on whose turn it is" in report.sentence and "last warp first" in report.sentence
    assert {run.order: run.outcome for run in report.runs}["first warp first"] == "right"
    unknown = check_file(text(body, "my.op"), "order.cu", "input=float32(128), out=float32(128)")
    assert unknown.status == "wrong" and "depend on the order of warps: last warp first" in unknown.sentence


def test_results_of_an_operator_torch_does_not_know_are_not_compared() -> None:
    report = check_file(text(RIGHT, "my.op"), "scale.cu", "input=float32(128), out=float32(128)")
    assert report.status == "clean" and {run.outcome for run in report.runs} == {"not compared"}
    with pytest.raises(ProjectError, match="no example call of my.op"):
        check_file(text(RIGHT, "my.op"), "scale.cu")


def test_wrong_refused_and_not_interpretable_are_told_apart() -> None:
    assert check_file(text("out[i] = input[i];"), "k.cu").status == "wrong"
    assert check_file(text(RIGHT).replace("format = 1", "format = 9"), "k.cu").status == "refused"
    odd = check_file(text('asm volatile("wgmma.fence.sync.aligned;"); ' + RIGHT), "k.cu")
    assert odd.status == "skipped" and odd.sentence.startswith("not interpretable: wgmma.fence.sync.aligned at k.cu:")


def test_specs() -> None:
    given = parse_spec("input=int64(4, 3, high=7, seed=5), weight=bfloat16(7, 8, transposed=True), dim=-1, mode='a', dtype=float16, tensors=[float32(2), float32()]")
    assert given["input"].dtype == torch.int64 and given["input"].shape == (4, 3) and int(given["input"].max()) < 7
    assert given["weight"].stride() == (1, 7) and given["dtype"] is torch.float16 and [t.dim() for t in given["tensors"]] == [1, 0]
    for wrong in ("input=float31(3)", "input=float32(-1)", "input=float32(3, wide=1)", "input=(", "input=os.system('x')", "input=float32(1000000, 1000000)",
                  "**x", "input=float32('a')", "input=float32(4, offset=-1)"):
        with pytest.raises(ProjectError):
            parse_spec(wrong)


@pytest.mark.parametrize("operator", ["torch.add+torch.nn.functional.relu", "torch.nn.functional.silu+torch.mul",
                                      "torch.nn.functional.conv2d+torch.nn.functional.batch_norm"])
def test_arguments_that_a_region_lacks_are_named(operator: str) -> None:
    with pytest.raises(ProjectError, match="needs|refuses"):
        make(operator, {"input": torch.randn(2, 3, 8, 8)}, "--inputs")


def test_the_example_is_one_the_guards_admit() -> None:
    file = parse(text(RIGHT).replace("input.contiguous", "input.ndim == 1 and input.contiguous").replace("% BLOCK == 0", "% 8 == 0"), "k.cu")
    assert choose(file, "", H200).call.outputs[0].shape == (1000,)
    with pytest.raises(ProjectError, match="float32"):
        choose(file, "input=bfloat16(64)", H200)
    with pytest.raises(ProjectError, match="refuses these arguments|does not take these"):
        choose(file, "input=float32(64), wrong=3", H200)


def test_the_page_fits_narrow_terminals_and_colour_is_never_the_only_sign() -> None:
    report: CheckReport = check_file(text(PAST), "scale.cu", "input=float32(128)")
    plain, painted = (render(report, text(PAST), 60, colour) for colour in (False, True))
    assert max(map(len, plain.splitlines())) <= 60 and "> " in plain and "out of bounds at scale.cu:" in plain
    assert "\x1b[" in painted and plain.splitlines()[0].startswith("✗ fault")


ROWS = ["torch.nn.functional.silu+torch.mul", "torch.nn.functional.gelu+torch.mul", "torch.nn.functional.group_norm+torch.nn.functional.silu",
        "torch.nn.functional.batch_norm+torch.nn.functional.relu", "torch.nn.functional.layer_norm+torch.nn.functional.relu",
        "torch.nn.functional.conv2d+torch.nn.functional.batch_norm+torch.nn.functional.relu", "torch.nn.functional.conv2d+torch.nn.functional.batch_norm",
        "torch.add+torch.nn.functional.relu", "torch.add+torch.nn.functional.layer_norm"]


@pytest.mark.parametrize("operator", ROWS)
def test_the_kernels_that_ship_for_a_region_take_one_of_its_examples(operator: str) -> None:
    calls = [make(operator, given, "example").call for given in islice(examples(operator), 4)]
    texts = {kernel.text for call in calls for kernel in kernels_for(call)}
    assert texts and all(choose(parse(text, "k.cu"), "", H200).call.operator == operator for text in texts)
    if "conv" not in operator:
        assert check_file(min(texts, key=len), "k.cu", orders=("in step",)).status == "clean"


@pytest.mark.parametrize(("operator", "arguments", "words"), [
    ("region_models.LateRMSNorm", '"input", "weight", "out", { float = "variance_epsilon" }',
     "write --inputs 'input=float32(SIZES), weight=float32(SIZES), variance_epsilon=NUMBER' with your"),
    ("region_functions.apply_rotary_to_one", '"x", "cos", "sin", "out"',
     "write --inputs 'x=float32(SIZES), cos=float32(SIZES), sin=float32(SIZES), unsqueeze_dim=1"),
    ("torch.add+region_models.LateRMSNorm", '"input", "other", "weight", "out0", "out1"',
     "write --inputs 'input=float32(SIZES), other=float32(SIZES), weight=float32(SIZES)"),
    ("my.Norm", '"input", "weight", "out"', "weight=float32(SIZES), out=float32(SIZES)' with your sizes and numbers"),
    ("my.op", '"tensors[1]", "out0", "out1"', "'tensors=[float32(SIZES), float32(SIZES)], input=float32(SIZES), out0=float32(SIZES), out1=float32(SIZES)'"),
    ("torch.nn.functional.linear", '"input", "weight", "out"', "write --inputs 'input=float32(64, 256), weight=float32(128, 256), bias=float32(128)':"),
    ("torch.add+torch.nn.functional.relu", '"input", "other", "out"', "write --inputs 'input=float32(64, 1024), other=float32(64, 1024), returns_sum=False':"),
])
def test_the_cure_is_of_the_files_own_operator(operator: str, arguments: str, words: str) -> None:
    """Whatever is wrong: a spec that cannot be read, one that the operator refuses, an example that does not fit."""
    parameters = ", ".join(f"float{'' if 'float =' in one else '*'} {name}" for one, name in zip(arguments.split(", "), "abcde", strict=False))
    file = parse(re.sub(r"args = .*", f"args = [{arguments}]", text(RIGHT, operator).replace("const float* input, float* out", parameters)), "k.cu")
    with pytest.raises(ProjectError) as found:
        choose(file, "float32(3)", H200)
    assert words in found.value.cure and "dim" not in found.value.cure.replace("unsqueeze_dim", "")
    assert re.search(r"--inputs '(.*?)'", found.value.cure)
    parse_spec(re.search(r"--inputs '(.*?)'", found.value.cure)[1].replace("SIZES", "4, 8").replace("NUMBER", "1e-6"))
