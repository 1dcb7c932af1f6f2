"""Planted faults over all kinds the host target looks for, each with the edit that makes it right."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from benchmarks.hostset.races import GRID, RACES
from benchmarks.hostset.record import launch
from forge_tui.cuda.faults import CandidateFault, FaultKind
from forge_tui.cuda.host.target import HostTarget
from forge_tui.cuda.program import Program, Workspace


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
    size: int = 128
    thread: int | None = None
    block_index: int | None = None
    options: dict[str, object] = field(default_factory=dict)
    """`prefill`: the output starts with zeros that may be read."""
    cooperative: bool = False

    def text(self, right: bool) -> str:
        return self.source.replace("@", self.right if right else self.wrong)

    def run(self, right: bool, target: HostTarget | None = None) -> CandidateFault | None:
        """The fault that the kernel, or its right twin, ends with; None where it runs to its end."""
        out = torch.zeros(self.size) if self.options.get("prefill") else torch.full((self.size,), float("nan"))
        tensors = {"input": torch.rand(self.size, generator=torch.Generator().manual_seed(1)) + 1, "out": out}
        plan = launch("k", self.grid, self.block, *self.arguments, shared=self.shared, cooperative=self.cooperative)
        program = Program("k.cu", self.text(right), (), (plan,), self.workspaces, ("input",), ("out",), {"out": "out"} if self.options.get("prefill") else {})
        target = target or (HostTarget() if right else HostTarget(budget=20_000))
        try:
            target.run(program, target.build(program), tensors)
        except CandidateFault as fault:
            return fault
        return None

    @property
    def line(self) -> int:
        """Of the fault."""
        return next(number for number, text in enumerate(self.text(False).splitlines(), 1) if "// here" in text)


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
    Planted("one wait short for asynchronous copies", "uninitialized",
            "#include <cuda_pipeline.h>\n" + HEAD + INDEX + "  __shared__ __align__(16) float4 s[64]; if (t < 16) __pipeline_memcpy_async(&s[t], (const float4*)input + blockIdx.x * 16 + t, 16);\n"
            "  __pipeline_commit(); @ __syncthreads();\n  out[i] = ((float*)s)[t];  // here\n}", "__pipeline_wait_prior(1);", "__pipeline_wait_prior(0);"),
    Planted("local array read where nothing was stored", "uninitialized",
            HEAD + INDEX + "  float v[8]; for (int j = 0; j < @; j++) v[j] = input[(i + j) % n];\n  out[i] = v[(i * 3) & 7];  // here\n}", "7", "8", thread=5),
    Planted("assertion", "illegal_instruction",
            "#include <cassert>\n" + HEAD + INDEX + "  float v = input[i];\n  assert(v < @);  // here\n  out[i] = v; }", "1.9f", "9.f"),
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

FAULTS = [*CASES, *(
    Planted(name, "race", source, wrong, right, grid=4, size=256, arguments=("input", "out", "scratch", "count", 256), cooperative=GRID in source,
            workspaces=(Workspace("scratch", "float32", (256,), 0), Workspace("count", "int32", (1,), 0)), options={"prefill": True})
    for name, (source, wrong, right) in RACES.items())]
"""All of them."""
