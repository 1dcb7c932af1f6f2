"""Planted faults, each found with its kind and source line, beside near-miss twins that are correct and must run."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hostkit import fault, launch, line_of, needs_nvrtc, run

from forge_tui.cuda.faults import FaultKind
from forge_tui.cuda.host.target import HostTarget
from forge_tui.cuda.program import Workspace

pytestmark = needs_nvrtc


@dataclass
class Planted:
    """A kernel with one mistake on the line marked `// here`, and the edit that makes it right."""

    name: str
    kind: FaultKind
    source: str
    wrong: str
    right: str
    grid: int | tuple[int, ...] = 2
    block: int | tuple[int, ...] = 64
    shared: int = 0
    workspaces: tuple[Workspace, ...] = ()
    arguments: tuple[object, ...] = ("input", "out", 128)
    says: str = ""
    outputs: tuple[str, ...] = ("out",)
    size: int = 128
    thread: int | None = None
    block_index: int | None = None
    options: dict[str, object] = field(default_factory=dict)


HEAD = 'extern "C" __global__ void k(const float* __restrict__ input, float* out, int n) {\n'
INDEX = "  int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;\n"

CASES = [
    Planted("read past the end", "out_of_bounds", HEAD + INDEX + "  out[i] = input[i + @];  // here\n}", "1", "0",
            says="outside input: at byte 512 of 512", thread=63, block_index=1),
    Planted("read before the start", "out_of_bounds", HEAD + INDEX + "  out[i] = input[i - @] +  // here\n 1; }", "1", "0",
            says="4 bytes before its start", thread=0, block_index=0),
    Planted("write past the end", "out_of_bounds", HEAD + INDEX + "  float v = input[i];\n  out[i + @] = v;  // here\n}", "3", "0",
            thread=61, block_index=1),
    Planted("write before the start", "out_of_bounds", HEAD + INDEX + "  float v = input[i];\n  out[i - @] = v;  // here\n}", "2", "0"),
    Planted("missing guard", "out_of_bounds", HEAD + INDEX + "  if (i < n + @)\n    out[i] = input[i]; // here\n}", "1", "0", grid=3),
    Planted("vector past the end", "out_of_bounds",
            HEAD + INDEX + "  if (i < n / 4 + @)\n    ((float4*)out)[i] = ((const float4*)input)[i];  // here\n}", "1", "0", grid=1),
    Planted("null pointer", "out_of_bounds",
            'extern "C" __global__ void k(const float* input, const float* bias, float* out) {\n' + INDEX +
            "  float v = input[i];\n  if (@) v += bias[i];  // here\n  out[i] = v; }", "t > 5", "bias", arguments=("input", None, "out"),
            says="null", thread=6),
    Planted("misaligned float4", "misaligned",
            HEAD + INDEX + "  if (i < 8) {\n    ((float4*)out)[i] = *(const float4*)(input + i * 4 + @);  // here\n }\n  else if (i >= 32) out[i] = 0; }",
            "1", "4", says="multiple of 16"),
    Planted("misaligned store", "misaligned",
            HEAD + INDEX + "  out[i] = input[i]; if (i < 4)\n    *(double*)(out + 2 * i + @) = 1.0;  // here\n}", "1", "2"),
    Planted("store to input", "read_only", HEAD + INDEX + "  out[i] = input[i];\n  float* p = (float*)@; p[i] = 2;  // here\n}", "input", "out",
            says="input"),
    Planted("shared past the end", "out_of_bounds",
            HEAD + INDEX + "  __shared__ float s[64]; s[t] = input[i];\n __syncthreads();\n  out[i] = s[(t + 1) % 64 + (t == 63 ? @ : 0)];  // here\n}",
            "64", "0", says="shared"),
    Planted("dynamic shared too small", "out_of_bounds",
            HEAD + INDEX + "  extern __shared__ float d[];\n  d[t * @] = input[i];  // here\n __syncthreads();\n  out[i] = d[0]; }", "2", "1", shared=256),
    Planted("uninitialized shared", "uninitialized",
            HEAD + INDEX + "  __shared__ float s[64]; if (t < 64 - @) s[t] = input[i];\n __syncthreads();\n  out[i] = s[t ^ 1];  // here\n}", "1", "0",
            thread=62),
    Planted("uninitialized dynamic shared", "uninitialized",
            HEAD + INDEX + "  extern __shared__ float d[];\n if (t @ 32) d[t] = input[i];\n  __syncthreads();\n  out[i] = d[t];  // here\n}", "<", ">= 32 || t <", shared=256),
    Planted("missing barrier, read after write", "race",
            HEAD + INDEX + "  __shared__ float s[64]; s[t] = input[i];\n  @\n  out[i] = s[63 - t];  // here\n}", "", "__syncthreads();"),
    Planted("missing barrier, write after read", "race",
            HEAD + INDEX + "  __shared__ float s[64]; s[t] = input[i]; __syncthreads();\n  float v = s[63 - t];\n  @\n  s[t] = v * 3;  // here\n  __syncthreads(); out[i] = s[t]; }",
            "", "__syncthreads();"),
    Planted("two warps write one word", "race",
            HEAD + INDEX + "  __shared__ float s; if (t % 32 == 0 @)\n    s = t;  // here\n  __syncthreads(); out[i] = s + input[i]; }", "", "&& t == 0"),
    Planted("lanes of one warp write one word", "race",
            HEAD + INDEX + "  __shared__ float s; if (t < @)\n    s = t;  // here\n  __syncthreads(); out[i] = s + input[i]; }", "2", "1"),
    Planted("two lanes write one word in turn", "race",
            HEAD + INDEX + "  __shared__ float s; if (t == 0) s = input[i];\n  @\n  if (t == 1) s = input[i] + 5;  // here\n"
            "  __syncthreads(); out[i] = s; }", "", "__syncwarp();"),
    Planted("a lane reads its neighbour's word", "race",
            HEAD + INDEX + "  __shared__ float s[64]; s[t] = input[i];\n  @\n  out[i] = s[t ^ 1];  // here\n}", "", "__syncwarp();",
            says="another lane of the warp"),
    Planted("tree reduction without a barrier", "race",
            HEAD + INDEX + "  __shared__ float s[128]; s[t] = input[i]; __syncthreads();\n  for (int o = 64; o; o >>= 1) { if (t < o)\n    s[t] += s[t + o];  // here\n @ }\n"
            "  __syncthreads(); out[i] = s[0]; }", "if (o < 8) __syncwarp();", "__syncthreads();", block=128, grid=1),
    Planted("histogram read before the barrier", "race",
            HEAD + INDEX + "  __shared__ int h[64]; h[t] = 0; __syncthreads(); atomicAdd(&h[(int)(input[i] * 0) + 63 - t], 1);\n  @\n  out[i] = h[t]; // here\n}",
            "", "__syncthreads();"),
    Planted("barrier in a divergent branch", "divergent_barrier",
            HEAD + INDEX + "  float v = input[i]; if (@)\n    { __syncthreads(); v += 1; }  // here\n  else v -= 1; __syncthreads(); out[i] = v; }",
            "t < 40", "n > 3"),
    Planted("barrier some threads never reach", "divergent_barrier",
            HEAD + INDEX + "  __shared__ float s[64]; s[t] = 0; for (int j = 0; j < (@); j++)\n    { s[t] += 1; __syncthreads(); }  // here\n"
            "  __syncthreads(); out[i] = s[t] + input[i]; }", "t < 32 ? 2 : 3", "n & 3"),
    Planted("shuffle with lanes missing", "divergent_barrier",
            HEAD + INDEX + "  float v = input[i]; if (t % 32 < 20)\n    v += __shfl_xor_sync(@, v, 1);  // here\n  __syncthreads(); out[i] = v; }", "0xffffffffu", "0xfffffu"),
    Planted("endless loop", "endless",
            HEAD + INDEX + "  float v = input[i]; int j = 0;\n  while (j < n) { v = v * 0.5f + out[i]; // here\n    @; }\n  out[i] = v; }", "v += 1", "j++",
            options={"prefill": True}),
    Planted("waits for a flag nobody sets", "endless",
            HEAD + INDEX + "  volatile float* p = out;\n  while (p[0] == @) { }  // here\n  if (i) out[i] = input[i]; }", "0.f", "2.f", options={"prefill": True}),
    Planted("workspace read before it was written", "uninitialized",
            'extern "C" __global__ void k(const float* input, float* out, float* scratch) {\n' + INDEX +
            "  if (t < @) scratch[i] = input[i];\n __syncthreads();\n  out[i] = scratch[i];  // here\n}", "63", "64",
            workspaces=(Workspace("scratch", "float32", (128,)),), arguments=("input", "out", "scratch"), says="scratch", thread=63),
    Planted("output read before it was written", "uninitialized", HEAD + INDEX + "  @\n  out[i] += input[i];  // here\n}", "", "out[i] = 1; __syncthreads();"),
    Planted("trap", "illegal_instruction", HEAD + INDEX + "  out[i] = input[i]; if (i == @)\n    __trap();  // here\n}", "77", "777", thread=13, block_index=1),
    Planted("local array past its end", "out_of_bounds",
            HEAD + INDEX + "  float v[8]; for (int j = 0; j < 8; j++) v[j] = input[(i + j) % n];\n  int p = (i & 7) + @;\n  v[p] = 1;  // here\n"
            "  float s = 0; for (int j = 0; j < 8; j++) s += v[j] * v[(i + j) & 7]; out[i] = s; }", "1", "0", says="local"),
    Planted("index overflow", "out_of_bounds",
            HEAD + INDEX + "  @ big = 3000000;\n  out[i] = input[(big * (i + 1000) / 3000000 - 1000 + 128) % 128];  // here\n}", "int", "long long"),      # folded by the compiler: the overflow itself is in no instruction
    Planted("product of sizes overflows", "out_of_bounds",
            HEAD + INDEX + "  int row = n * 1000 + i;  // 128064 rows of 131072\n  long long at = @row * (n * 1024);\n  if (i >= 0)\n    out[i] = input[at >> 30];  // here\n}",
            "", "(long long)", arguments=("input", "out", 128), says="its index overflowed 32 bits on line 4: 16384000 << 10 = 16777216000 is no int any more"),
    Planted("unsigned index below zero", "out_of_bounds",
            HEAD + INDEX + "  unsigned at = i;\n  out[i] = input[at - @];  // here\n}", "1u", "0u", says="0 + -1 = -1 is no unsigned"),
    Planted("offset grows in a loop until it overflows", "out_of_bounds",
            HEAD + INDEX + "  int at = i; float v = 0;\n#pragma unroll 1\n  for (int j = 0; j < @; j++) {\n    v += input[at & (at >> 31 | 127)]; // here\n"
            "    at += n << 20; }\n  out[i] = v; }", "40", "12", says="overflowed 32 bits"),
]


def tensors(case: Planted) -> dict[str, torch.Tensor]:
    out = torch.full((case.size,), float("nan"))
    if case.options.get("prefill"):
        out.zero_()
    return {"input": torch.rand(case.size) + 1, "out": out}


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_planted_fault_and_its_correct_twin(case: Planted) -> None:
    plan = launch("k", case.grid, case.block, *case.arguments, shared=case.shared)
    options = {"outputs": case.outputs, "workspaces": case.workspaces}
    if case.options.get("prefill"):
        options["aliases"] = {"out": "out"}      # starts with values, so that reading it is allowed
    source = case.source.replace("@", case.wrong)
    found = fault(source, tensors(case), plan, target=HostTarget(budget=20_000), **options)
    assert (found.kind, found.line) == (case.kind, line_of(source, "// here")), str(found)
    assert found.kernel == "k" and case.says in found.message, str(found)
    assert case.thread is None or found.thread == case.thread
    assert case.block_index is None or found.block == case.block_index
    run(case.source.replace("@", case.right), tensors(case), plan, **options)


def test_what_cannot_be_interpreted_is_named_with_its_line() -> None:
    source = """extern "C" __global__ void k(float* out) {
      unsigned a = 0, b = 0;
      out[threadIdx.x] = 1;
      asm volatile("wgmma.fence.sync.aligned;");  // here
      out[threadIdx.x] = a + b; }"""
    found = fault(source, {"out": torch.zeros(32)}, launch("k", 1, 32, "out"))
    assert found.kind == "not_interpretable" and found.line == line_of(source, "// here")
    assert found.message == "not interpretable: wgmma.fence.sync.aligned at k.cu:4"


def test_an_instruction_that_no_lane_reaches_stops_nobody() -> None:
    source = """extern "C" __global__ void k(float* out, int n) {
      if (n == 5) asm volatile("wgmma.fence.sync.aligned;");
      out[threadIdx.x] = n; }"""
    out = torch.zeros(32)
    run(source, {"out": out}, launch("k", 1, 32, "out", 4))
    assert out.tolist() == [4.0] * 32


def test_the_line_is_the_kernel_files_for_code_of_a_header() -> None:
    source = """#include <cuda_bf16.h>
    extern "C" __global__ void k(const __nv_bfloat16* input, float* out) {
      int i = threadIdx.x;
      __nv_bfloat162 v = __ldg((const __nv_bfloat162*)input + i + 1);  // here
      out[i] = __low2float(v); }"""
    found = fault(source, {"input": torch.zeros(64).bfloat16(), "out": torch.zeros(32)}, launch("k", 1, 32, "input", "out"))
    assert (found.kind, found.line) == ("out_of_bounds", line_of(source, "// here"))


def test_plans_that_do_not_fit_the_kernel() -> None:
    source = 'extern "C" __global__ void k(float* out, int n) { out[threadIdx.x] = n; }'
    out = {"out": torch.zeros(2048)}
    assert "takes 2 arguments; the plan passes 1" in fault(source, out, launch("k", 1, 32, "out")).message
    assert "4 bytes" in fault(source, out, launch("k", 1, 32, 1, 1)).message
    for plan in (launch("k", 1, 1025, "out", 1), launch("k", (1, 70000), 32, "out", 1), launch("k", 1, 32, "out", 1, shared=300_000)):
        assert fault(source, out, plan).kind == "launch"
    assert fault(source, out, launch("nope", 1, 32, "out", 1)).kind in ("launch", "compile")


def test_threads_that_left_do_not_hold_a_barrier_or_a_shuffle() -> None:
    source = """extern "C" __global__ void k(const float* input, float* out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
      __shared__ float s[64]; s[threadIdx.x] = input[i]; __syncthreads();
      float v = s[threadIdx.x] + __shfl_down_sync(__activemask(), s[threadIdx.x], 1); out[i] = v; }"""
    x, out = torch.arange(100.0), torch.zeros(100)
    run(source, {"input": x, "out": out}, launch("k", 2, 64, "input", "out", 100))
    assert out[:31].tolist() == [2.0 * i + 1 for i in range(31)] and out[63] == 126


def test_warp_synchronous_code_with_syncwarp_is_no_race() -> None:
    source = """extern "C" __global__ void k(const float* input, float* out) {
      __shared__ float s[4][32]; int w = threadIdx.x / 32, l = threadIdx.x % 32; s[w][l] = input[threadIdx.x]; __syncwarp();
      for (int o = 16; o; o >>= 1) { float v = l < o ? s[w][l + o] : 0; __syncwarp(); if (l < o) s[w][l] += v; __syncwarp(); }
      out[threadIdx.x] = s[w][0]; }"""
    x, out = torch.arange(128.0), torch.zeros(128)
    run(source, {"input": x, "out": out}, launch("k", 1, 128, "input", "out"))
    assert torch.equal(out, x.reshape(4, 32).sum(1, keepdim=True).expand(4, 32).reshape(-1))


def test_lanes_that_take_turns_between_collectives_are_no_race() -> None:
    source = """extern "C" __global__ void k(const float* input, float* out) {
      __shared__ float s[4]; int w = threadIdx.x / 32, l = threadIdx.x % 32; float v = input[threadIdx.x];
      for (int j = 0; j < 4; j++) { if (l == j) s[w] = v + j; v += __shfl_xor_sync(~0u, v, 1); if (l == 31 - j) s[w] = v * 2; __syncwarp(); }
      out[threadIdx.x] = s[w]; }"""
    run(source, {"input": torch.rand(128), "out": torch.zeros(128)}, launch("k", 1, 128, "input", "out"))


def test_every_thread_storing_the_same_value_is_no_race() -> None:
    source = """extern "C" __global__ void k(const float* input, float* out) {
      __shared__ int any; any = 0; __syncthreads(); if (input[threadIdx.x] > 100) any = 1; __syncthreads(); out[threadIdx.x] = any; }"""
    out = torch.zeros(128)
    run(source, {"input": torch.arange(128.0), "out": out}, launch("k", 1, 128, "input", "out"))
    assert out.tolist() == [1.0] * 128


def test_local_array_read_where_nothing_was_stored() -> None:
    source = HEAD + INDEX + """  float v[8]; for (int j = 0; j < 7; j++) v[j] = input[(i + j) % n];
      out[i] = v[(i * 3) & 7];  // here
    }"""
    found = fault(source, {"input": torch.rand(128), "out": torch.zeros(128)}, launch("k", 2, 64, "input", "out", 128))
    assert (found.kind, found.line, found.thread) == ("uninitialized", line_of(source, "// here"), 5)
