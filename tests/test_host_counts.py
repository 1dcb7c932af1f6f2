"""Counts of the host target against what can be counted by hand, and the order of modelled times."""

from __future__ import annotations

import msgspec
import torch
from hostkit import launch, needs_nvrtc, run

from forge_tui.cuda.device import H200
from forge_tui.cuda.host.model import modelled_us
from forge_tui.cuda.target import LaunchCounts

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
    assert modelled_us([far], H200) > modelled_us([near], H200) > H200.launch_us


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
