"""The worked example of the kernel-file form, and small calls to bind kernel files to."""

from __future__ import annotations

from forge_tui.specs import Call, TensorSpec, Value

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
