"""The kernel file as a whole: parse, refuse, spread, bind."""

from __future__ import annotations

import pytest

from forge_tui.cuda.device import H200
from forge_tui.engine.kernelfile import parse
from forge_tui.errors import KernelFileError
from forge_tui.specs import Call, Dtype, Items, TensorSpec, Value

WORKED = '''/*forge
format = 1
language = "cuda"                       # the default; others may follow in the same form
operator = "torch.nn.functional.softmax"

[let]                                   # integer expressions over the call
cols = "input.shape[-1]"
rows = "input.numel // cols"

[tune]                                  # each combination is one build; names become macros
BLOCK = [128, 256, 512]
VEC = [4, 8]

[require]                               # the call and the settings this file is for
call = ["input.dtype == 'bfloat16'", "input.contiguous", "cols <= 16384"]
fits = "cols % VEC == 0"

[define]                                # build-time constants; names become macros
COLS = "cols"

[[workspace]]                           # scratch the launcher provides, optional
name = "partial"
dtype = "float32"
shape = ["rows", "2"]
fill = 0                                # omitted: left as garbage on purpose

[[launch]]                              # run in order on one stream
kernel = "softmax_rows"
grid = ["rows"]
block = ["BLOCK"]
shared = "cols * 4"
args = ["input", "out", "rows"]
*/
#include <cuda_bf16.h>
extern "C" __global__ void softmax_rows(const __nv_bfloat16* __restrict__ input,
                                        __nv_bfloat16* __restrict__ out, int rows) { /* ... */ }
'''


def tensor(*shape: int, dtype: str = "bfloat16") -> TensorSpec:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= size
    return TensorSpec(dtype, shape, tuple(reversed(stride)))


def softmax(*shape: int, dtype: str = "bfloat16", **more: Value) -> Call:
    spec = tensor(*shape, dtype=dtype)
    return Call("torch.nn.functional.softmax", {"input": spec, "dim": -1, "_stacklevel": 3, "dtype": None, **more}, (spec,))


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
