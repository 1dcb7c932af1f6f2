"""The kernel file as a whole: parse, refuse, spread, bind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forge_tui.cuda.compile import compile_program
from forge_tui.cuda.device import H200
from forge_tui.engine.kernelfile import parse
from forge_tui.errors import KernelFileError
from forge_tui.specs import Call, Dtype, Items
from kernelfile_examples import WORKED, softmax, tensor


def test_the_worked_example_binds():
    file = parse(WORKED, "softmax.cu")
    call = softmax(4, 1024)
    assert file.refusal(call, H200) is None
    points = file.points(call, H200)
    assert len(points) == 6 and points[0] == {"BLOCK": 128, "VEC": 4}
    program = file.bind(call, H200, points[1])
    assert program.macros == (("BLOCK", "128"), ("VEC", "8"), ("COLS", "1024"), ("DTYPE_input", "__nv_bfloat16"),
                              ("DTYPE_out", "__nv_bfloat16"), ("DTYPE_partial", "float"))
    launch, = program.launches
    assert (launch.grid, launch.block, launch.shared) == ((4, 1, 1), (128, 1, 1), 4096)
    assert [(a.kind, a.name, a.value) for a in launch.arguments] == [
        ("pointer", "input", None), ("pointer", "out", None), ("int32", None, 4)]
    workspace, = program.workspaces
    assert (workspace.shape, workspace.fill) == ((4, 2), 0)


@pytest.mark.parametrize(("call", "reason"), [
    (softmax(4, 32768), "cols <= 16384 is false: cols = 32768"),
    (softmax(4, 64, dtype="float16"), "input.dtype == 'bfloat16' is false: input.dtype = 'float16'"),
    (softmax(4, 77), "no setting of [tune] fits: with BLOCK = 128, VEC = 4, cols % VEC == 0 is false: cols = 77, VEC = 4"),
    (softmax(4, 0), "rows: `input.numel // cols` divides by zero"),
    (Call("torch.relu", {"input": tensor(4)}, (tensor(4),)),
     "this file is for torch.nn.functional.softmax, not torch.relu"),
])
def test_refusal_names_the_false_line_with_its_numbers(call: Call, reason: str):
    file = parse(WORKED, "softmax.cu")
    assert file.refusal(call, H200) == reason
    assert file.points(call, H200) == []
    with pytest.raises(KernelFileError):
        file.bind(call, H200, {"BLOCK": 128, "VEC": 4})


FOLDER = Path(__file__).parent / "kernel_files"


def group_norm(*shape: int, groups: int = 32) -> Call:
    spec, vector = tensor(*shape), tensor(shape[1])
    return Call("torch.nn.functional.group_norm",
                {"input": spec, "num_groups": groups, "weight": vector, "bias": vector, "eps": 1e-6}, (spec,))


def pool(*shape: int) -> Call:
    return Call("torch.nn.functional.adaptive_avg_pool2d", {"input": tensor(*shape, dtype="float32"), "output_size": Items((1, 1))},
                (tensor(*shape[:2], 1, 1, dtype="float32"),))


def softmax32(*shape: int) -> Call:
    return Call("torch.nn.functional.softmax", {"input": tensor(*shape), "dim": -1, "_stacklevel": 3, "dtype": Dtype("float32")},
                (tensor(*shape, dtype="float32"),))


MEASURED = {
    "avgpool_bulk": (pool(32, 2048, 7, 7), 34), "avgpool_lanes": (pool(1, 2048, 7, 7), 36),
    "groupnorm_cluster": (group_norm(1, 512, 128, 128), 22), "groupnorm_split": (group_norm(1, 512, 128, 128), 16),
    "groupnorm_stream": (group_norm(1, 128, 1024, 1024), 8), "softmax_any": (softmax32(1, 8, 1, 513), 5),
    "softmax_block": (softmax32(1, 8, 2048, 2048), 18), "softmax_lanes": (softmax32(1, 8, 512, 512), 64),
}
"""Kernels that were measured on an H200, with a shape they were measured at; how many settings are legal there (counted by hand)."""


@pytest.mark.parametrize("name", MEASURED)
def test_measured_kernels_bind_and_build(name: str):
    file = parse((FOLDER / f"{name}.cu").read_text(), f"{name}.cu")
    call, _ = MEASURED[name]
    assert file.refusal(call, H200) is None
    points = file.points(call, H200)
    assert len(points) == MEASURED[name][1]
    program = file.bind(call, H200, points[0])
    image = compile_program(program, kind="cubin", arch="sm_90")
    assert {launch.kernel for launch in program.launches} <= {kernel.name for kernel in image.kernels}


def test_the_example_of_the_documentation_binds_and_builds():
    page = (Path(__file__).parent.parent / "docs" / "kernel-file.md").read_text()
    text = re.search(r"```cuda\n(.*?)```", page, re.S)[1]
    file = parse(text, "softmax.cu")
    assert not file.warnings
    spec = tensor(64, 1000, dtype="float32")
    call = Call("torch.nn.functional.softmax", {"input": spec, "dim": 1, "_stacklevel": 3, "dtype": None}, (spec,))
    assert file.refusal(call, H200) is None
    points = file.points(call, H200)
    assert points[0] == {"BLOCK": 128, "VEC": 1} and {"BLOCK": 64, "VEC": 4} in points
    for settings in (points[0], points[-1]):
        program = file.bind(call, H200, settings)
        assert dict(program.macros)["STEPS"] == str(-(-1000 // (settings["BLOCK"] * settings["VEC"])))
        assert [kernel.name for kernel in compile_program(program, kind="ptx", arch="sm_90").kernels] == ["softmax_rows"]
