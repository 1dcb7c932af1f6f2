"""mbarriers, bulk copies, clusters, `st.async`: real kernels with exact results, and planted faults beside correct twins."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hostkit import fault, launch, line_of, needs_nvrtc, run

from forge_tui.cuda.faults import FaultKind
from forge_tui.cuda.host.target import HostTarget

pytestmark = needs_nvrtc

HEAD = "#include <forge.cuh>\n"
KERNEL = HEAD + 'extern "C" __global__ void k(const float* __restrict__ input, float* __restrict__ out) {\n'
RAW = "  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;\n"


def check(source: str, expected: torch.Tensor, x: torch.Tensor, grid: int | tuple[int, ...], block: int,
          cluster: int | tuple[int, ...] | None = None, shared: int = 0, cooperative: bool = False) -> None:
    out = torch.full_like(expected, -7)
    run(source, {"input": x, "out": out}, launch("k", grid, block, "input", "out", cluster=cluster, shared=shared, cooperative=cooperative))
    assert torch.equal(out, expected)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


# Bulk copies and mbarriers ---------------------------------------------------------------------------------------


def test_bulk_copy_in_and_out() -> None:
    source = KERNEL + RAW + """
      __shared__ alignas(128) float s[256]; __shared__ forge::barrier b;
      if (t == 0) { forge::barrier_init(&b, 1); forge::barrier_init_fence(); forge::barrier_expect(&b, 1024);
                    forge::bulk_load(s, input + blockIdx.x * 256, 1024, &b); }
      __syncthreads();
      forge::barrier_wait(&b, 0);
      s[t] = s[t] * 2 + 1;
      forge::bulk_store_fence();
      __syncthreads();
      if (t == 0) { forge::bulk_store(out + blockIdx.x * 256, s, 1024); forge::bulk_store_commit(); forge::bulk_store_wait_read(); } }"""
    x = numbers(5, 256)
    check(source, x * 2 + 1, x, 5, 256)


def test_ring_of_buffers_filled_by_a_producer_warp() -> None:
    """Warp-specialized pipeline: full and empty barriers with alternating parity, three slots, ten tiles."""
    source = KERNEL + """
      constexpr int SLOTS = 3, TILES = 10;
      __shared__ alignas(128) float s[SLOTS][128]; __shared__ forge::barrier full[SLOTS], empty[SLOTS];
      const int t = threadIdx.x;
      if (t == 0) { for (int k = 0; k < SLOTS; ++k) { forge::barrier_init(full + k, 1); forge::barrier_init(empty + k, 128); }
                    forge::barrier_init_fence(); }
      __syncthreads();
      const float* from = input + blockIdx.x * TILES * 128;
      if (t >= 128) {
        if (t == 128) for (int j = 0; j < TILES; ++j) {
          const int slot = j % SLOTS;
          forge::barrier_wait(empty + slot, (j / SLOTS & 1) ^ 1);
          forge::barrier_expect(full + slot, 512);
          forge::bulk_load(s[slot], from + j * 128, 512, full + slot);
        }
        return;
      }
      float sum = 0;
      for (int j = 0; j < TILES; ++j) {
        const int slot = j % SLOTS;
        forge::barrier_wait(full + slot, j / SLOTS & 1);
        sum += s[slot][t] + s[slot][127 - t];
        forge::barrier_arrive(empty + slot);
      }
      out[blockIdx.x * 128 + t] = sum; }"""
    x = torch.randint(-50, 50, (4, 10, 128)).float()
    check(source, (x + x.flip(-1)).sum(1), x, 4, 160)


def test_states_counts_and_drops_of_an_mbarrier() -> None:
    source = """extern "C" __global__ void k(const float* input, int* out) {
      __shared__ alignas(8) unsigned long long b; __shared__ int s[64];
      const int t = threadIdx.x; const unsigned a = (unsigned)__cvta_generic_to_shared(&b);
      if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(a), "r"(64u) : "memory");
      __syncthreads();
      unsigned long long state; unsigned pending, done;
      s[t] = t * 3;
      asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(a) : "memory");
      asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(state));
      do asm volatile("{.reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                      : "=r"(done) : "r"(a), "l"(state) : "memory"); while (!done);
      int v = s[63 - t];
      if (t < 32) asm volatile("mbarrier.arrive_drop.shared.b64 _, [%0];" ::"r"(a) : "memory");     // 32 are left
      else { asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(a) : "memory");
             asm volatile("mbarrier.arrive.shared.b64 _, [%0], 1;" ::"r"(a) : "memory"); }
      out[t] = v * 100 + (pending == 64); }"""
    out = torch.zeros(64, dtype=torch.int32)
    run(source, {"input": torch.zeros(1), "out": out}, launch("k", 1, 64, "input", "out"))
    assert torch.equal(out, ((63 - torch.arange(64)) * 300 + 1).int())


def test_copies_of_a_thread_that_arrive_on_an_mbarrier() -> None:
    source = KERNEL + RAW + """
      __shared__ alignas(16) float s[128]; __shared__ forge::barrier b;
      if (t == 0) forge::barrier_init(&b, 128);
      __syncthreads();
      forge::copy_async<4>(s + t, input + i);
      asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(forge::shared_address(&b)) : "memory");
      forge::barrier_wait(&b, 0);
      out[i] = s[127 - t]; }"""
    x = numbers(3, 128)
    check(source, x.flip(-1), x, 3, 128)


def test_bulk_reduction_into_global_memory() -> None:
    source = HEAD + """extern "C" __global__ void k(const float* input, float* out) {
      __shared__ alignas(16) float s[64];
      s[threadIdx.x] = input[blockIdx.x * 64 + threadIdx.x];
      forge::bulk_store_fence(); __syncthreads();
      if (threadIdx.x == 0) {
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 256;"
                     ::"l"(out), "r"(forge::shared_address(s)) : "memory");
        forge::bulk_store_commit(); forge::bulk_store_wait(); } }"""
    x, out = torch.randint(-9, 9, (6, 64)).float(), torch.arange(64).float()
    run(source, {"input": x, "out": out}, launch("k", 6, 64, "input", "out"), aliases={"out": "out"})
    assert torch.equal(out, x.sum(0) + torch.arange(64))


# Clusters --------------------------------------------------------------------------------------------------------


def test_distributed_shared_memory_through_cooperative_groups() -> None:
    """Each block adds up what all blocks of its cluster hold, by generic addresses; and counts itself in at rank 0, atomically."""
    source = """#include <cooperative_groups.h>
      namespace cg = cooperative_groups;
      extern "C" __global__ void k(const float* input, float* out) {
      __shared__ float s[64]; __shared__ int n;
      auto cluster = cg::this_cluster();
      const int t = threadIdx.x;
      s[t] = input[blockIdx.x * 64 + t]; if (t == 0) n = 0;
      cluster.sync();
      float sum = 0;
      for (unsigned r = 0; r < cluster.num_blocks(); ++r) sum += cluster.map_shared_rank(s, r)[t];
      if (t == 0) atomicAdd(cluster.map_shared_rank(&n, 0), (int)cluster.block_rank() + 1);
      cluster.sync();
      out[blockIdx.x * 64 + t] = sum + *cluster.map_shared_rank(&n, 0) * 1000;
      cluster.sync(); }"""
    x = torch.randint(-9, 9, (8, 64)).float()
    check(source, x.view(2, 4, 64).sum(1, keepdim=True).expand(2, 4, 64).reshape(8, 64) + 10000, x, 8, 64, cluster=4)


def test_messages_between_blocks_complete_on_the_receivers_barrier() -> None:
    source = HEAD + """extern "C" __global__ void k(const float* input, float* out) {
      __shared__ unsigned long long box[4]; __shared__ forge::barrier mail;
      const int t = threadIdx.x, rank = forge::cluster_rank();
      if (t == 0) { forge::barrier_init(&mail, 1); forge::barrier_init_fence(); forge::barrier_expect(&mail, 32); }
      __syncthreads();
      forge::cluster_sync();
      if (t < 4) forge::cluster_send(&box[rank], &mail, t, forge::pack2(input[blockIdx.x], (float)rank));
      forge::barrier_wait(&mail, 0);
      float2 v = forge::unpack2(box[t % 4]);
      out[blockIdx.x * 32 + t] = v.x * 10 + v.y; }"""
    x = torch.randint(-9, 9, (8,)).float()
    got = (x.view(2, 1, 4) * 10 + torch.arange(4)).expand(2, 4, 4).reshape(8, 4)
    check(source, got.repeat(1, 8), x, 8, 32, cluster=4)


def test_one_copy_to_every_block_of_a_cluster() -> None:
    source = KERNEL + """
      __shared__ alignas(128) float s[64]; __shared__ forge::barrier b;
      const int t = threadIdx.x;
      if (t == 0) { forge::barrier_init(&b, 1); forge::barrier_init_fence(); forge::barrier_expect(&b, 256); }
      __syncthreads();
      forge::cluster_sync();
      if (t == 0 && forge::cluster_rank() == 1)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 256, [%2], %3;"
          ::"r"(forge::shared_address(s)), "l"(input + blockIdx.x * 64), "r"(forge::shared_address(&b)), "h"((unsigned short)3) : "memory");
      forge::barrier_wait(&b, 0);
      out[blockIdx.x * 64 + t] = s[t];
      forge::cluster_sync(); }"""
    x = numbers(4, 64)
    check(source, x[[1, 1, 3, 3]], x, 4, 64, cluster=2)


def test_shared_memory_to_that_of_the_next_block() -> None:
    source = KERNEL + """
      __shared__ alignas(16) float s[64], got[64]; __shared__ forge::barrier b;
      const int t = threadIdx.x; const unsigned next = (forge::cluster_rank() + 1) % forge::cluster_size();
      if (t == 0) { forge::barrier_init(&b, 1); forge::barrier_init_fence(); forge::barrier_expect(&b, 256); }
      s[t] = input[blockIdx.x * 64 + t];
      forge::bulk_store_fence();
      forge::cluster_sync();
      if (t == 0) asm volatile("{.reg .b32 d, m; mapa.shared::cluster.u32 d, %0, %3; mapa.shared::cluster.u32 m, %1, %3;"
          "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [d], [%2], 256, [m];}"
          ::"r"(forge::shared_address(got)), "r"(forge::shared_address(&b)), "r"(forge::shared_address(s)), "r"(next) : "memory");
      forge::barrier_wait(&b, 0);
      out[blockIdx.x * 64 + t] = got[t];
      forge::cluster_sync(); }"""
    x = numbers(6, 64)
    check(source, x.view(2, 3, 64).roll(1, 1).reshape(6, 64), x, 6, 64, cluster=3)


def test_remote_arrivals_hand_data_over() -> None:
    """Rank 1 fills rank 0's memory by plain remote stores and arrives there; rank 0 waits for its barrier alone."""
    source = KERNEL + """
      __shared__ float s[64]; __shared__ forge::barrier b;
      const int t = threadIdx.x, rank = forge::cluster_rank();
      if (t == 0) { forge::barrier_init(&b, 64); forge::barrier_init_fence(); }
      forge::cluster_sync();
      if (rank == 1) asm volatile("{.reg .b32 d, m; mapa.shared::cluster.u32 d, %0, 0; mapa.shared::cluster.u32 m, %1, 0;"
          "st.shared::cluster.f32 [d], %2; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [m];}"
          ::"r"(forge::shared_address(s + t)), "r"(forge::shared_address(&b)), "f"(input[blockIdx.x * 64 + t]) : "memory");
      else { forge::barrier_wait(&b, 0); out[blockIdx.x / 2 * 64 + t] = s[63 - t]; }
      forge::cluster_sync(); }"""
    x = numbers(4, 64)
    check(source, x[1::2].flip(-1), x, 4, 64, cluster=2)


def test_cluster_of_three_dimensions_knows_who_is_where() -> None:
    source = """#include <cooperative_groups.h>
      extern "C" __global__ void k(const float* input, int* out) {
      auto c = cooperative_groups::this_cluster();
      const dim3 b = c.block_index(), d = c.dim_blocks();
      const int linear = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      int* o = out + linear * 6;
      o[0] = blockIdx.x % 2 == b.x && blockIdx.y % 3 == b.y && blockIdx.z % 1 == b.z;
      o[1] = c.block_rank() == b.y * 2 + b.x;  o[2] = d.x * 100 + d.y * 10 + d.z;  o[3] = c.num_blocks();
      unsigned id; asm("mov.u32 %0, %%clusterid.x;" : "=r"(id)); o[4] = id == blockIdx.x / 2;
      asm("mov.u32 %0, %%nclusterid.y;" : "=r"(id)); o[5] = id; }"""
    out = torch.zeros(4 * 6 * 2, 6, dtype=torch.int32)
    run(source, {"input": torch.zeros(1), "out": out}, launch("k", (4, 6, 2), 1, "input", "out", cluster=(2, 3, 1)))
    assert torch.equal(out, torch.tensor([1, 1, 231, 6, 1, 2], dtype=torch.int32).expand(48, 6))


def test_a_block_without_a_cluster_is_one_of_its_own() -> None:
    source = """#include <cooperative_groups.h>
      extern "C" __global__ void k(const float* input, float* out) {
      __shared__ float s[64]; auto cluster = cooperative_groups::this_cluster(); const int t = threadIdx.x;
      s[t] = input[blockIdx.x * 64 + t];
      cluster.sync();
      float* p = cluster.map_shared_rank(s, 0);
      out[blockIdx.x * 64 + t] = p[63 - t] + 100 * cluster.num_blocks() + 1000 * __isShared(p); }"""
    x = torch.randint(-9, 9, (3, 64)).float()
    check(source, x.flip(-1) + 1100, x, 3, 64)


def test_grid_barrier_of_cooperative_groups() -> None:
    source = """#include <cooperative_groups.h>
      extern "C" __global__ void k(const float* input, float* out) {
      auto grid = cooperative_groups::this_grid();
      const int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
      out[i] = input[i];
      for (int step = 0; step < 3; ++step) {
        grid.sync();
        float v = out[(i + n / 2 + 1) % n];
        grid.sync();
        out[i] = v + 1; } }"""
    x = torch.arange(256).float().view(8, 32)
    check(source, (x.view(-1).roll(-3 * (128 + 1)) + 3).view(8, 32), x, 8, 32, cooperative=True)


# Faults ----------------------------------------------------------------------------------------------------------


@dataclass
class Planted:
    """A kernel with one mistake, said to be on the line marked `// here`, and the edit that makes it right."""

    name: str
    kind: FaultKind
    source: str
    wrong: str
    right: str
    says: str
    cluster: int | None = None
    block: int | None = None
    thread: int | None = None


SETUP = """  __shared__ alignas(128) float s[64]; __shared__ forge::barrier b; const int t = threadIdx.x;
  if (t == 0) { forge::barrier_init(&b, 1); forge::barrier_init_fence(); }
  __syncthreads();
"""
LOAD = SETUP + """  if (t == 0) { forge::barrier_expect(&b, 256); forge::bulk_load(s, input + blockIdx.x * 64, 256, &b); }
"""
CLUSTER = """  __shared__ float s[64]; const int t = threadIdx.x; const unsigned rank = forge::cluster_rank(), other = rank ^ 1;
  s[t] = input[blockIdx.x * 64 + t];
"""
REMOTE = """float v; asm volatile("{.reg .b32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.f32 %0, [a];}" : "=f"(v) : "r"(forge::shared_address(s + t)), "r"(other) : "memory");"""
STORE = "  out[blockIdx.x * 64 + t] = "

CASES = [
    Planted("no wait for the bulk copy", "race", KERNEL + LOAD + "  @\n" + STORE + "s[t];  // here\n  forge::barrier_wait(&b, 0); }",
            "", "forge::barrier_wait(&b, 0);", "bulk copy of line 6 is still filling", block=0, thread=0),
    Planted("only one warp waits", "race", KERNEL + LOAD + "  if (t < @) forge::barrier_wait(&b, 0);\n  __syncwarp();\n"
            "  for (int k = 0; k < 1000; ++k) if (input[k % 9] == 123456.f) out[0] = 0;\n" + STORE + "s[t];  // here\n }",
            "32", "64", "", thread=32),
    Planted("too many bytes expected", "endless", KERNEL + SETUP +
            "  if (t == 0) { forge::barrier_expect(&b, @); forge::bulk_load(s, input + blockIdx.x * 64, 256, &b); }\n"
            "  forge::barrier_wait(&b, 0);\n" + STORE + "s[t]; }", "272", "256", "expects 272 bytes and copies under way bring 256"),
    Planted("too few bytes expected", "endless", KERNEL + SETUP +
            "  if (t == 0) { forge::barrier_expect(&b, @); forge::bulk_load(s, input + blockIdx.x * 64, 256, &b); }\n"
            "  forge::barrier_wait(&b, 0);\n" + STORE + "s[t]; }", "128", "256", "expects 128 bytes and copies under way bring 256"),
    Planted("nobody arrives", "endless", KERNEL + SETUP + "  s[t] = 1;\n  if (t == @) forge::barrier_arrive(&b);\n"
            "  forge::barrier_wait(&b, 0);\n" + STORE + "s[t]; }", "64", "0", "1 of 1 arrivals are missing"),
    Planted("wrong parity", "endless", KERNEL + LOAD + "  forge::barrier_wait(&b, 0);\n" + STORE + "s[t];\n  forge::barrier_wait(&b, @); }",
            "1", "0", "deadlock"),
    Planted("misaligned source", "misaligned", KERNEL + SETUP + "  if (t == 0) { forge::barrier_expect(&b, 128);\n"
            "    forge::bulk_load(s, input + @, 128, &b);  // here\n }\n  forge::barrier_wait(&b, 0);\n" + STORE + "s[t % 32]; }",
            "2", "4", "multiple of 16", thread=0),
    Planted("misaligned destination", "misaligned", KERNEL + SETUP + "  if (t == 0) { forge::barrier_expect(&b, 128);\n"
            "    forge::bulk_load(s + @, input, 128, &b);  // here\n }\n  forge::barrier_wait(&b, 0);\n" + STORE + "s[t % 28 + 4]; }",
            "1", "4", "multiple of 16"),
    Planted("size no multiple of 16", "misaligned", KERNEL + SETUP + "  if (t == 0) { forge::barrier_expect(&b, @);\n"
            "    forge::bulk_load(s, input, @, &b);  // here\n }\n  forge::barrier_wait(&b, 0);\n" + STORE + "s[t % 8]; }",
            "40", "48", "40 bytes"),
    Planted("past the end of the input", "out_of_bounds", KERNEL + SETUP + "  if (t == 0) { forge::barrier_expect(&b, 256);\n"
            "    forge::bulk_load(s, input + blockIdx.x * 64 + @, 256, &b);  // here\n }\n  forge::barrier_wait(&b, 0);\n" + STORE + "s[t]; }",
            "4", "0", "outside input", block=3),
    Planted("past the end of shared memory", "out_of_bounds", KERNEL + SETUP + "  if (t == 0) { forge::barrier_expect(&b, 256);\n"
            "    forge::bulk_load(s + @, input, 256, &b);  // here\n }\n  forge::barrier_wait(&b, 0);\n" + STORE + "s[t]; }",
            "4", "0", "shared memory; there are"),
    Planted("refilled while still read", "race", KERNEL + LOAD + "  forge::barrier_wait(&b, 0);\n  float v = s[t];\n  @\n"
            "  if (t == 0) { forge::barrier_expect(&b, 256);\n    forge::bulk_load(s, input, 256, &b);  // here\n }\n"
            "  forge::barrier_wait(&b, 1);\n" + STORE + "v + s[t]; }", "", "__syncthreads();", "another thread touched"),
    Planted("mbarrier not initialized", "uninitialized", KERNEL + "  __shared__ forge::barrier b; const int t = threadIdx.x;\n"
            "  if (@) forge::barrier_init(&b, 64); __syncthreads();\n  forge::barrier_arrive(&b);  // here\n"
            "  forge::barrier_wait(&b, 0);\n" + STORE + "1; }", "t == 64", "t == 0", "no initialized mbarrier"),
    Planted("no barrier after the initialization", "race", KERNEL + "  __shared__ forge::barrier b; const int t = threadIdx.x;\n"
            "  if (t == 0) forge::barrier_init(&b, 64);\n  @\n  forge::barrier_arrive(&b);  // here\n  forge::barrier_wait(&b, 0);\n"
            + STORE + "1; }", "__syncwarp();", "__syncthreads();", "another warp initialized", thread=32),
    Planted("more arrivals than counted", "divergent_barrier", KERNEL + "  __shared__ forge::barrier b; const int t = threadIdx.x;\n"
            "  const unsigned a = forge::shared_address(&b);\n  if (t == 0) { forge::barrier_init(&b, @);\n"
            "    asm volatile(\"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 16;\" ::\"r\"(a) : \"memory\"); }\n  __syncthreads();\n"
            "  forge::barrier_arrive(&b);  // here\n  __syncthreads();\n"
            "  if (t == 0) asm volatile(\"mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 16;\" ::\"r\"(a) : \"memory\");\n"
            "  forge::barrier_wait(&b, 0);\n" + STORE + "1; }", "60", "64", "more arrivals"),
    Planted("store's source overwritten", "race", KERNEL + "  __shared__ alignas(16) float s[64]; const int t = threadIdx.x;\n"
            "  s[t] = input[t]; forge::bulk_store_fence(); __syncthreads();\n"
            "  if (t == 0) { forge::bulk_store(out + blockIdx.x * 64, s, 256); forge::bulk_store_commit(); @ }\n  __syncthreads();\n"
            "  s[t] = 0;  // here\n  if (t == 0) forge::bulk_store_wait(); }", "", "forge::bulk_store_wait_read();", "may still be reading"),
    Planted("exit before the store has read", "race", KERNEL + "  __shared__ alignas(16) float s[64]; const int t = threadIdx.x;\n"
            "  s[t] = input[t]; forge::bulk_store_fence(); __syncthreads();\n"
            "  if (t == 0) {\n    forge::bulk_store(out + blockIdx.x * 64, s, 256);  // here\n    forge::bulk_store_commit(); @ } }",
            "", "forge::bulk_store_wait_read();", "nobody waited"),
    Planted("no proxy fence before the store", "race", KERNEL + "  __shared__ alignas(16) float s[64]; const int t = threadIdx.x;\n"
            "  s[t] = input[t]; @ __syncthreads();\n  if (t == 0) {\n    forge::bulk_store(out + blockIdx.x * 64, s, 256);  // here\n"
            "    forge::bulk_store_commit(); forge::bulk_store_wait_read(); } }", "", "forge::bulk_store_fence();", "no fence.proxy.async"),
    Planted("proxy fence of one warp only", "race", KERNEL + "  __shared__ alignas(16) float s[64]; const int t = threadIdx.x;\n"
            "  s[t] = input[t]; if (t >= 32) forge::bulk_store_fence(); __syncthreads();\n  if (t == 0) { @\n"
            "    forge::bulk_store(out + blockIdx.x * 64, s, 256);  // here\n"
            "    forge::bulk_store_commit(); forge::bulk_store_wait_read(); } }", "", "forge::bulk_store_fence();", "no fence.proxy.async"),
    Planted("bulk store to an input", "read_only", KERNEL + "  __shared__ alignas(16) float s[64]; const int t = threadIdx.x;\n"
            "  s[t] = input[t]; forge::bulk_store_fence(); __syncthreads();\n" + STORE + "0; __syncthreads();\n"
            "  if (t == 0) {\n    forge::bulk_store((float*)@ + blockIdx.x * 64, s, 256);  // here\n    forge::bulk_store_commit(); forge::bulk_store_wait_read(); } }",
            "input", "out", "input"),
    Planted("lanes of one warp without __syncwarp", "race", KERNEL + LOAD + "  forge::barrier_wait(&b, 0);\n  float v = s[t];\n  __syncthreads();\n"
            "  s[t] = v + 1;\n  @\n" + STORE + "s[t ^ 1];  // here\n }", "", "__syncwarp();", "no __syncwarp()"),
    Planted("two blocks store to one place", "race", KERNEL + "  __shared__ alignas(16) float s[64]; const int t = threadIdx.x;\n"
            "  s[t] = input[t + blockIdx.x]; forge::bulk_store_fence(); __syncthreads();\n  if (t == 0) {\n"
            "    forge::bulk_store(out + blockIdx.x @ * 64, s, 256);  // here\n    forge::bulk_store_commit(); forge::bulk_store_wait_read(); } }",
            "/ 2", "", "another block"),
    Planted("no cluster barrier before the read", "race", KERNEL + CLUSTER + "  @\n  " + REMOTE + "  // here\n  forge::cluster_sync();\n"
            + STORE + "v; }", "__syncthreads();", "forge::cluster_sync();", "another warp wrote", cluster=2),
    Planted("no cluster barrier before the end", "race", KERNEL + CLUSTER + "  forge::cluster_sync();\n  " + REMOTE + "  // here\n"
            + STORE + "v;\n  @ }", "", "forge::cluster_sync();", "may have exited", cluster=2),
    Planted("reads a block that has exited", "race", KERNEL + CLUSTER + "  forge::cluster_sync();\n"
            "  if (rank == 1) {" + STORE + "0; @ return; }\n  for (int k = 0; k < 9; ++k) __syncthreads();\n"
            "  " + REMOTE + "  // here\n" + STORE + "v;\n  forge::cluster_sync(); }", "", "forge::cluster_sync();", "has exited", cluster=2),
    Planted("rank outside the cluster", "out_of_bounds", KERNEL + CLUSTER + "  forge::cluster_sync(); \n  const unsigned real = other;\n  {const unsigned other = real + @;\n  "
            + REMOTE + "  // here\n" + STORE + "v; }\n  forge::cluster_sync(); }", "2", "0", "of a cluster of 2", cluster=2),
    Planted("past the end of another block's memory", "out_of_bounds", KERNEL + CLUSTER + "  forge::cluster_sync();\n  const float* p = s;\n  { const float* s = p + @;\n  "
            + REMOTE + "  // here\n" + STORE + "v; }\n  forge::cluster_sync(); }", "1", "0", "shared memory; there are 256", cluster=2),
    Planted("not all threads reach the cluster barrier", "divergent_barrier", KERNEL + CLUSTER + STORE + "s[t];\n"
            "  if (t >= 32 || rank == @) forge::cluster_sync();\n  else\n    __syncthreads();  // here\n }",
            "0", "0 || rank == 1", "never come", cluster=2),
    Planted("arrives twice at the cluster barrier", "divergent_barrier", KERNEL + CLUSTER + STORE + "s[t];\n  forge::cluster_arrive();\n"
            "  @\n  forge::cluster_arrive();  // here\n  forge::cluster_wait(); }", "", "forge::cluster_wait();", "before it waited", cluster=2),
    Planted("message under way at the end", "race", KERNEL + "  __shared__ unsigned long long box; __shared__ forge::barrier mail; const int t = threadIdx.x;\n"
            "  if (t == 0) { forge::barrier_init(&mail, 1); forge::barrier_init_fence(); forge::barrier_expect(&mail, 8); }\n  forge::cluster_sync();\n"
            "  if (t == 0)\n    forge::cluster_send(&box, &mail, forge::cluster_rank() ^ 1, 5ull);  // here\n" + STORE + "0;\n  @ }",
            "", "forge::barrier_wait(&mail, 0);", "nobody waited", cluster=2),
    Planted("message read too early", "race", KERNEL + "  __shared__ unsigned long long box; __shared__ forge::barrier mail; const int t = threadIdx.x;\n"
            "  if (t == 0) { forge::barrier_init(&mail, 1); forge::barrier_init_fence(); forge::barrier_expect(&mail, 8); }\n  forge::cluster_sync();\n"
            "  if (t == 0) forge::cluster_send(&box, &mail, forge::cluster_rank() ^ 1, 5ull);\n  @\n" + STORE + "(float)box;  // here\n"
            "  forge::barrier_wait(&mail, 0); }", "forge::cluster_sync();", "forge::barrier_wait(&mail, 0);", "still filling", cluster=2),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_planted_fault_is_found_and_its_twin_runs(case: Planted) -> None:
    run_it = launch("k", 4, 64, "input", "out", cluster=case.cluster)
    wrong = case.source.replace("@", case.wrong)
    tensors = {"input": numbers(256), "out": torch.zeros(256)}
    found = fault(wrong, tensors, run_it)
    assert found.kind == case.kind, found
    assert case.says in found.message
    if "// here" in wrong:
        assert found.line == line_of(wrong, "// here"), found
    if case.kind == "endless":
        assert found.line is not None and "deadlock" in found.message
    for name, expected in ("block", case.block), ("thread", case.thread):
        assert expected is None or getattr(found, name) == expected, found
    run(case.source.replace("@", case.right), {"input": numbers(256), "out": torch.zeros(256)}, run_it)


def test_a_cluster_that_no_device_takes_is_refused() -> None:
    source = 'extern "C" __global__ void k(float* out) { out[blockIdx.x] = 1; }'
    assert fault(source, {"out": torch.zeros(6)}, launch("k", 6, 1, "out", cluster=4)).kind == "launch"
    assert "takes 16" in fault(source, {"out": torch.zeros(64)}, launch("k", 64, 1, "out", cluster=32)).message


ORDERS = ("first warp first", "last warp first", "random 3", "random 11")


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.replace(" ", "-"))
def test_results_do_not_depend_on_the_order_of_warps(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    init = HostTarget.__init__

    def ordered(target: HostTarget, *args: object, **options: object) -> None:
        init(target, *args, **options)      # type: ignore[arg-type]
        target.schedule = order

    monkeypatch.setattr(HostTarget, "__init__", ordered)
    for program in (test_ring_of_buffers_filled_by_a_producer_warp, test_distributed_shared_memory_through_cooperative_groups,
                    test_messages_between_blocks_complete_on_the_receivers_barrier, test_remote_arrivals_hand_data_over,
                    test_shared_memory_to_that_of_the_next_block, test_copies_of_a_thread_that_arrive_on_an_mbarrier):
        program()
