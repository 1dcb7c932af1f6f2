"""Planted faults, each found with its kind and source line, beside near-miss twins that are correct and must run."""

from __future__ import annotations

import pytest
import torch
from hostkit import fault, launch, line_of, needs_nvrtc, run

from benchmarks.hostset.planted import CASES, HEAD, INDEX, Planted

pytestmark = needs_nvrtc


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_planted_fault_and_its_correct_twin(case: Planted) -> None:
    found = case.run(right=False)
    assert found is not None and (found.kind, found.line) == (case.kind, case.line), str(found)
    assert found.kernel == "k" and case.says in found.message, str(found)
    assert case.thread is None or found.thread == case.thread
    assert case.block_index is None or found.block == case.block_index
    assert case.run(right=True) is None


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
