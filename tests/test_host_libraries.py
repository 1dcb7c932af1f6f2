"""What NVIDIA's own device headers make of barriers, pipelines and clusters, as people write it with them."""

from __future__ import annotations

import torch
from hostkit import launch, needs_nvrtc, run

pytestmark = needs_nvrtc


def test_a_barrier_object_with_a_bulk_copy_in_and_out() -> None:
    source = """#include <cuda/barrier>
      using barrier = cuda::barrier<cuda::thread_scope_block>;
      namespace engine = cuda::device::experimental;
      extern "C" __global__ void k(const int* input, int* out) {
        __shared__ alignas(16) int tile[512];
        #pragma nv_diag_suppress static_var_with_dynamic_init
        __shared__ barrier arrived;
        if (threadIdx.x == 0) { init(&arrived, blockDim.x); engine::fence_proxy_async_shared_cta(); }
        __syncthreads();
        if (threadIdx.x == 0) cuda::memcpy_async(tile, input + blockIdx.x * 512, cuda::aligned_size_t<16>(sizeof(tile)), arrived);
        arrived.wait(arrived.arrive());
        for (int i = threadIdx.x; i < 512; i += blockDim.x) tile[i] = tile[i] * 3 + blockIdx.x;
        engine::fence_proxy_async_shared_cta();
        __syncthreads();
        if (threadIdx.x == 0) {
          engine::cp_async_bulk_shared_to_global(out + blockIdx.x * 512, tile, sizeof(tile));
          engine::cp_async_bulk_commit_group(); engine::cp_async_bulk_wait_group_read<0>(); } }"""
    x = torch.arange(3 * 512, dtype=torch.int32).view(3, 512)
    out = torch.zeros_like(x)
    run(source, {"input": x, "out": out}, launch("k", 3, 96, "input", "out"))
    assert torch.equal(out, x * 3 + torch.arange(3, dtype=torch.int32)[:, None])


def test_a_pipeline_of_two_stages() -> None:
    source = """#include <cuda/pipeline>
      #include <cooperative_groups.h>
      extern "C" __global__ void k(const float* input, float* out) {
        auto block = cooperative_groups::this_thread_block();
        __shared__ float stage[2][128];
        __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
        auto pipe = cuda::make_pipeline(block, &state);
        const float* from = input + blockIdx.x * 5 * 128;
        float sum = 0;
        for (int done = 0, asked = 0; done < 5; ++done) {
          for (; asked < 5 && asked < done + 2; ++asked) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, stage[asked % 2], from + asked * 128, sizeof(stage[0]), pipe);
            pipe.producer_commit(); }
          pipe.consumer_wait();
          sum += stage[done % 2][127 - threadIdx.x] * (done + 1);
          pipe.consumer_release(); }
        out[blockIdx.x * 128 + threadIdx.x] = sum; }"""
    x = torch.randint(-9, 9, (3, 5, 128)).float()
    out = torch.zeros(3, 128)
    run(source, {"input": x, "out": out}, launch("k", 3, 128, "input", "out"))
    assert torch.equal(out, (x.flip(-1) * torch.arange(1, 6).float()[None, :, None]).sum(1))


def test_a_histogram_spread_over_the_blocks_of_a_cluster() -> None:
    source = """#include <cooperative_groups.h>
      namespace cg = cooperative_groups;
      constexpr int MINE = 64;                              // bins of a block
      extern "C" __global__ void k(const int* input, int* out, int n) {
        __shared__ int bins[MINE];
        auto cluster = cg::this_cluster();
        for (int i = threadIdx.x; i < MINE; i += blockDim.x) bins[i] = 0;
        cluster.sync();
        for (int i = cg::this_grid().thread_rank(); i < n; i += gridDim.x * blockDim.x)
          atomicAdd(cluster.map_shared_rank(bins, input[i] / MINE) + input[i] % MINE, 1);
        cluster.sync();
        for (int i = threadIdx.x; i < MINE; i += blockDim.x) atomicAdd(out + cluster.block_rank() * MINE + i, bins[i]); }"""
    x = torch.randint(0, 256, (5000,), dtype=torch.int32)
    out = torch.zeros(256, dtype=torch.int32)
    run(source, {"input": x, "out": out}, launch("k", 8, 128, "input", "out", 5000, cluster=4), aliases={"out": "out"})
    assert torch.equal(out.long(), torch.bincount(x.long(), minlength=256))
