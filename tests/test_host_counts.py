"""Counts of the host target against what can be counted by hand, and the order of modelled times."""

from __future__ import annotations

import msgspec
import torch
from hostkit import launch, line_of, needs_nvrtc, run

from forge_tui.cuda.device import H200
from forge_tui.cuda.host.model import modelled_us
from forge_tui.cuda.host.target import HostTarget
from forge_tui.cuda.program import KernelInfo, Program
from forge_tui.cuda.remarks import remarks
from forge_tui.cuda.target import LaunchCounts
from forge_tui.engine.judge.proxy import _scaled

pytestmark = needs_nvrtc

COPY = """extern "C" __global__ void k(const float* input, float* out, int step) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; out[i] = input[i * step % 65536]; }"""


def count(source: str, *plan: object, size: int = 65536, block: int = 128, **options: object) -> LaunchCounts:
    tensors = {"input": torch.rand(65536), "out": torch.zeros(size)}
    return run(source, tensors, launch("k", size // block, block, *plan), **options).counts[0]      # type: ignore[arg-type]


def test_sectors_of_coalesced_and_strided_loads() -> None:
    near, far = count(COPY, "input", "out", 1), count(COPY, "input", "out", 8)
    warps = 65536 // 32
    assert near.global_requests == far.global_requests == 2 * warps
    assert near.global_bytes == far.global_bytes == 2 * 65536 * 4
    assert near.global_sectors == 8 * warps
    assert far.global_sectors == (32 + 4) * warps
    assert near.thread_instructions == 32 * near.warp_instructions
    assert modelled_us([near], H200) > H200.launch_us


def test_sectors_of_16_byte_loads() -> None:
    source = """extern "C" __global__ void k(const float4* input, float4* out) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; out[i] = input[i]; }"""
    tensors = {"input": torch.rand(65536), "out": torch.zeros(65536)}
    (counts,) = run(source, tensors, launch("k", 128, 128, "input", "out")).counts
    assert counts.global_requests == 2 * 512 and counts.global_sectors == 2 * 512 * 16


def test_bank_conflicts() -> None:
    source = """extern "C" __global__ void k(const float* input, float* out, int step) {
      __shared__ float s[128 * 33]; int t = threadIdx.x; s[t * STEP] = input[t]; __syncthreads();
      out[blockIdx.x * blockDim.x + t] = s[t * STEP] + step; }"""
    conflicts = {}
    for step in (1, 2, 32, 33):
        counts = count(source.replace("STEP", str(step)), "input", "out", step, size=1024)
        assert counts.shared_requests == 2 * 32 and counts.barriers == 8 and counts.shared_bytes == 128 * 33 * 4
        conflicts[step] = counts.shared_waves // counts.shared_requests
    assert conflicts == {1: 1, 2: 2, 32: 32, 33: 1}


def test_wide_shared_accesses_have_no_conflicts_of_their_own() -> None:
    source = """extern "C" __global__ void k(const float4* input, float* out) {
      __shared__ float4 s[128]; int t = threadIdx.x; s[t] = input[t]; __syncthreads(); 
      float4 v = s[127 - t]; out[blockIdx.x * blockDim.x + t] = v.x + v.y * 2 + v.z * 3 + v.w * 4; }"""
    counts = count(source, "input", "out", size=1024)
    assert counts.shared_waves == counts.shared_requests


def test_divergence_counts_threads_and_warps_apart() -> None:
    source = """extern "C" __global__ void k(const float* input, float* out) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; float v = input[i];
      if (threadIdx.x < 4) for (int j = 0; j < 1000; j++) v = v * 1.5f + out[i];
      out[i] = v; }"""
    counts = count(source, "input", "out", size=1024, aliases={"out": "out"})
    assert counts.warp_instructions * 32 > 4 * counts.thread_instructions


def test_counts_do_not_depend_on_how_blocks_are_cut_into_chunks() -> None:
    few, many = count(COPY, "input", "out", 4, size=8192), count(COPY, "input", "out", 4, size=8192 * 40)
    for name in ("thread_instructions", "warp_instructions", "global_requests", "global_sectors", "global_bytes"):
        assert getattr(many, name) == 40 * getattr(few, name), name


def test_modelled_time_grows_with_work() -> None:
    base = LaunchCounts(kernel="k", blocks=4096, threads=256, thread_instructions=10**8, warp_instructions=10**8 // 32, global_requests=10**6,
                        global_sectors=8 * 10**6, global_bytes=256 * 10**6, shared_requests=0, shared_waves=0, barriers=0, shared_bytes=0)
    us = modelled_us([base], H200)
    ideal = 256e6 / H200.copy_bytes_per_s * 1e6
    assert ideal <= us <= 2 * ideal + H200.launch_us
    for change in ({"global_sectors": 16 * 10**6}, {"warp_instructions": 10**9}, {"shared_waves": 10**9}):
        assert modelled_us([msgspec.structs.replace(base, **change)], H200) > us
    assert modelled_us([base, base], H200) == 2 * us


WASTEFUL = """extern "C" __global__ void k(const float* input, float* out, int step) {
  __shared__ float s[32 * 33]; int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  float v = input[i * 8 % 65536];  // scattered
  s[t * STEP] = v;  // conflict
  __syncthreads(); v = s[(t ^ 1) * STEP];
  if (t % 2)  // split
    for (int j = 0; j < step; j++) v = v * 1.5f + __int_as_float(__clz(j));
  atomicAdd(&out[0], v);  // contention
}"""


def test_remarks_name_the_line_and_the_ways() -> None:
    source = WASTEFUL.replace("STEP", "32")
    tensors = {"input": torch.rand(65536), "out": torch.zeros(1)}
    (counts,) = run(source, tensors, launch("k", 64, 32, "input", "out", 100), aliases={"out": "out"}).counts
    found = {remark.kind: remark for remark in reversed(remarks([counts]))}
    at = {kind: line_of(source, f"// {mark}") for kind, mark in
          (("scattered", "scattered"), ("bank_conflict", "conflict"), ("divergence", "split"), ("contention", "contention"))}
    assert {kind: found[kind].line for kind in at} == at
    assert found["bank_conflict"].text == f"32-way bank conflict at line {at['bank_conflict']} (shared store): 2,048 passes where 64 would do"
    assert found["scattered"].text.endswith(": 2,048 sectors where 256 would do")
    assert counts.atomics == 64 and counts.atomic_passes == counts.atomic_hottest == 2048 and "hot_address" in found
    assert counts.global_least == 256 + 64 and counts.divergent_branches >= 64
    assert sum(c.threads for c in counts.classes) == counts.thread_instructions
    assert sum(c.warps for c in counts.classes) == counts.warp_instructions
    by_name = {c.name: c for c in counts.classes}
    assert by_name["atomic"].threads == 2048 and by_name["shared"].threads == 4096


def test_a_tidy_kernel_draws_no_remark() -> None:
    counts = count(COPY, "input", "out", 1)
    assert remarks([counts]) == [] and counts.global_least == counts.global_sectors and counts.lines == ()
    tidy = WASTEFUL.replace("STEP", "1").replace("i * 8 % 65536", "i").replace("t % 2", "blockIdx.x % 2").replace("atomicAdd(&out[0], v)", "out[i] = v")
    tensors = {"input": torch.rand(2048), "out": torch.zeros(2048)}
    assert remarks(run(tidy, tensors, launch("k", 64, 32, "input", "out", 100)).counts) == []


def test_counts_of_a_reduced_call_grow_with_it() -> None:
    tensors = {"input": torch.rand(65536), "out": torch.zeros(1)}
    (counts,) = run(WASTEFUL.replace("STEP", "32"), tensors, launch("k", 64, 32, "input", "out", 100), aliases={"out": "out"}).counts
    grown = _scaled(counts, 640, 10.0)
    assert remarks([grown])[0].text == "32-way bank conflict at line 4 (shared store): 20,480 passes where 640 would do"
    assert grown.atomic_hottest == 20480 and grown.classes[0].threads == 10 * counts.classes[0].threads


def test_registers_and_spills_come_from_the_compiler_without_a_device() -> None:
    body = "".join(f"  float a{j} = input[{j} * 32 + threadIdx.x];\n" for j in range(64))
    total = " + ".join(f"a{j} * a{63 - j}" for j in range(64))
    source = 'extern "C" __global__ void __launch_bounds__(1024, 2) k(const float* input, float* out) {\n' \
        f"{body}  __syncthreads();\n  out[threadIdx.x] = {total}; }}"
    (info,) = HostTarget().resources(Program("k.cu", source, (), ()))
    assert info.name == "k" and info.registers == 32 and info.spill_bytes > 0
    base = LaunchCounts("k", 1, 32, 1, 1, 1, 1, 4, 0, 0, 0, 0, local_bytes=64)
    assert [remark.kind for remark in remarks([base], [info])] == ["spills", "local_memory"]
    assert remarks([base], [KernelInfo("k", registers=32, spill_bytes=0)])[0].kind == "local_memory"


def test_rounds_of_loads_are_chains_of_need() -> None:
    """Four loads side by side are one wait, guards or not; a load whose address is loaded is another."""
    head = 'extern "C" __global__ void k(const int* __restrict__ input, int* out, int n) { int i = blockIdx.x * 128 + threadIdx.x, v[4];\n'
    add = " out[i] = v[0] + v[1] + v[2] + v[3]; }"
    bodies = {"side by side": (" for (int j = 0; j < 4; j++) v[j] = input[(i + j * 128) % n];" + add, 1),
              "guarded": (" for (int j = 0; j < 4; j++) { v[j] = j; if (i + j < n) v[j] = input[i + j * 7]; }" + add, 1),
              "chased": (" v[0] = i; for (int j = 0; j < 3; j++) v[j + 1] = input[v[j] & 1023];" + add, 3),
              "one after the other": (" int t = 0;\n#pragma unroll 1\n for (int j = 0; j < 5; j++) t += input[(i + j * t) & 1023]; out[i] = t; }", 5)}
    for name, (body, waits) in bodies.items():
        tensors = {"input": torch.randint(0, 1000, (65536,), dtype=torch.int32), "out": torch.zeros(1024, dtype=torch.int32)}
        (counts,) = run(head + body, tensors, launch("k", 8, 128, "input", "out", 60000)).counts
        assert counts.load_rounds == waits * 8 * 4, (name, counts.load_rounds / 32)
        assert counts.global_stored == 128 and counts.global_loaded > 0


def test_what_the_l2_sees_is_told_from_what_dram_sees() -> None:
    """Blocks that all read one row of weights: common; each its own: not. A store of every second word touches sectors in pieces."""
    source = """extern "C" __global__ void k(const float* input, float* out, int step) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; out[i] = input[i] + input[threadIdx.x] * step; }"""
    counts = count(source, "input", "out", 3, size=8192)
    assert counts.global_loaded == 2 * 8192 // 8 and counts.global_common == 8192 // 8 == counts.global_stored == counts.store_sectors
    halves = """extern "C" __global__ void k(const float* input, float4* out) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; float4 v = ((const float4*)input)[i % 1024]; out[2 * i] = v; out[2 * i + 1] = v; }"""
    (counts,) = run(halves, {"input": torch.rand(4096), "out": torch.zeros(8192)}, launch("k", 8, 128, "input", "out")).counts
    assert counts.store_sectors == 2 * counts.global_stored == 2 * 1024


def test_copies_past_the_registers_and_clusters_are_told() -> None:
    source = """#include <cuda_pipeline.h>
extern "C" __global__ void k(const float4* input, float* out) {
      __shared__ float4 s[128]; int t = threadIdx.x; __pipeline_memcpy_async(s + t, input + t, 16); __pipeline_commit(); __pipeline_wait_prior(0);
      __syncthreads(); out[blockIdx.x * 128 + t] = s[127 - t].x; }"""
    counts = count(source, "input", "out", size=1024)
    assert counts.async_sectors == 8 * 4 * 16 and counts.load_steps == () and counts.cluster == 1
    tensors = {"input": torch.rand(65536), "out": torch.zeros(65536)}
    clustered = launch("k", 512, 128, "input", "out", 1, cluster=(4, 1, 1))
    assert run(COPY, tensors, clustered).counts[0].cluster == 4


def test_steps_of_loads_know_what_else_is_in_registers() -> None:
    head = 'extern "C" __global__ void k(const float4* __restrict__ input, const float4* __restrict__ w, float* out) { int i = blockIdx.x * 128 + threadIdx.x;\n'
    body = """  float4 a = input[i], b = input[i + 1024]; float t = a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
      t += __shfl_xor_sync(~0u, t, 1);
      if (t > 1e30f) __trap();
      float4 u = w[threadIdx.x], v = w[threadIdx.x + 128];
      out[i] = a.x * u.x + a.y * u.y + a.z * u.z + a.w * u.w + b.x * v.x + b.y * v.y + b.z * v.z + b.w * v.w + t; }"""
    tensors = {"input": torch.rand(16384), "w": torch.rand(1024), "out": torch.zeros(1024)}
    (counts,) = run(head + body, tensors, launch("k", 8, 128, "input", "w", "out")).counts
    first, second = sorted(counts.load_steps, key=lambda step: step.live)
    assert (first.warps, first.values) == (32, 8) and (second.warps, second.values) == (32, 8)
    assert second.live - first.live >= 8, "the second finds the first one's eight values alive"
    assert counts.load_rounds == 2 * 32, "loads that went out together are waited for together"


def test_chains_and_issues_follow_what_instructions_need() -> None:
    """Sixteen sums side by side issue as much as sixteen one after the other, and are done sooner; divisions take more than one."""
    head = 'extern "C" __global__ void k(const float* input, float* out, float x) { int i = blockIdx.x * 128 + threadIdx.x; float v[16], t = input[i];\n'
    chained = " for (int j = 0; j < 64; j++) t = t * x + 1.f; out[i] = t; }"
    spread = " for (int j = 0; j < 16; j++) v[j] = t + j; for (int n = 0; n < 4; n++) for (int j = 0; j < 16; j++) v[j] = v[j] * x + 1.f;\n" \
        " t = 0; for (int j = 0; j < 16; j++) t += v[j]; out[i] = t; }"
    divided = " for (int j = 0; j < 64; j++) t = x / (t + 1.f); out[i] = t; }"
    found = {name: count(head + "#pragma unroll\n" + body, "input", "out", 1.5, size=1024) for name, body in
             (("chained", chained), ("spread", spread), ("divided", divided))}
    warps = 32
    assert 64 * 4 <= found["chained"].chain_cycles / warps < 64 * 4 + 100
    assert found["spread"].issued > found["chained"].issued and found["spread"].chain_cycles < found["chained"].chain_cycles
    assert found["divided"].issued > 5 * found["chained"].issued
    assert found["chained"].code * warps == found["chained"].issued, "no loop: each instruction is fetched once and run by each warp"


def test_warps_are_counted_where_blocks_have_few_lanes_at_work() -> None:
    """Every fourth block has one lane of each sixteen at work: as many warps as the others, whichever block is looked at."""
    source = """extern "C" __global__ void k(const float* input, float* out) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; float v = input[i];
      if (blockIdx.x % 4 < 3 || threadIdx.x % 16 == 0) for (int j = 0; j < 100; j++) v = v * 1.5f + out[i];
      out[i] = v; }"""
    counts = count(source, "input", "out", size=65536, block=64, aliases={"out": "out"})
    each = counts.warp_instructions / (65536 // 32)
    alone = count(source.replace("blockIdx.x % 4 < 3 ||", "blockIdx.x >= 0 ||"), "input", "out", size=65536, block=64, aliases={"out": "out"})
    assert 0.9 < each / (alone.warp_instructions / (65536 // 32)) < 1.1


def test_what_a_guard_skips_is_not_waited_for() -> None:
    source = """extern "C" __global__ void k(const int* __restrict__ input, int* out, int n) {
      int i = blockIdx.x * 128 + threadIdx.x, v = i; if (n < 0) v += input[i]; out[i] = v; }"""
    tensors = {"input": torch.ones(1024, dtype=torch.int32), "out": torch.zeros(1024, dtype=torch.int32)}
    rounds = [run(source, tensors, launch("k", 8, 128, "input", "out", n)).counts[0].load_rounds for n in (1, -1)]
    assert rounds == [0, 32]
