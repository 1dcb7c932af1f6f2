"""Soundness of registers that are stored once for many lanes: the same results however lanes are scheduled or stored."""

from __future__ import annotations

import random

import pytest
import test_host_kernels as kernels
import torch
from hostkit import launch, needs_nvrtc, run

from forge_tui.cuda.host import launch as launching
from forge_tui.cuda.host.run import Machine
from forge_tui.cuda.host.target import HostTarget
from forge_tui.cuda.program import Workspace
from forge_tui.cuda.host.schedule import Scheduler

pytestmark = needs_nvrtc

PROGRAMS = [
    kernels.test_divergent_loops_with_break_continue_and_return, kernels.test_divergent_loop_around_a_warp_shuffle,
    kernels.test_switch_and_jump_table, kernels.test_matmul_with_shared_tiles_and_ragged_edges,
    kernels.test_histogram_with_shared_and_global_atomics, kernels.test_inclusive_scan_of_a_block,
    kernels.test_warp_scan_and_collectives, kernels.test_local_array_with_dynamic_index, kernels.test_syncthreads_count_and_friends,
    kernels.test_constant_table_device_function_and_by_value_loop, kernels.test_spin_lock_and_waiting_for_another_thread,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda test: test.__name__.removeprefix("test_"))
def test_results_do_not_depend_on_registers_being_narrow(program, monkeypatch: pytest.MonkeyPatch) -> None:
    analyse = launching.analyse
    monkeypatch.setattr(launching, "analyse", lambda kernel, block, grid, wide=False: analyse(kernel, block, grid, True))
    program()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda test: test.__name__.removeprefix("test_"))
def test_results_do_not_depend_on_whose_turn_it_is(program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes advance in random order, never mind where they should meet; only collectives wait for their warp."""
    dice = random.Random(5)

    def choose(scheduler: Scheduler) -> int:
        collective = scheduler.machine.translations.collective
        able = [i for i, mask in scheduler.pending.items() if mask is None or not collective[i] or scheduler.warps_whole(mask)]
        return dice.choice(able or list(scheduler.pending))

    monkeypatch.setattr(Scheduler, "choose", choose)
    program()


def test_waiting_lanes_make_the_chunk_wide_and_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits in a loop for a flag is overtaken by those that set it: the shared loop counter must not be torn."""
    source = """extern "C" __global__ void k(int* out, int n) {
      __shared__ volatile int turn; if (threadIdx.x == 0) turn = 0; __syncthreads();
      int total = 0;
      #pragma unroll 1
      for (int j = 0; j < n; j++) {
        if (threadIdx.x % 32 == 0) { while (turn != j * 4 + threadIdx.x / 32) { } turn = turn + 1; }
        total += j * 10 + threadIdx.x; }
      out[blockIdx.x * 128 + threadIdx.x] = total; }"""
    widen, widened = Machine.widen, []
    monkeypatch.setattr(Machine, "widen", lambda machine: (widened.append(machine), widen(machine)))
    out = torch.zeros(3, 128, dtype=torch.int32)
    run(source, {"out": out}, launch("k", 3, 128, "out", 5))
    assert torch.equal(out.long(), (100 + 5 * torch.arange(128)).expand(3, 128))
    assert widened, "lanes were torn apart that share a loop counter: the guard must have seen it"


@pytest.mark.parametrize("schedule", ["first warp first", "last warp first", "random 3"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda test: test.__name__.removeprefix("test_"))
def test_results_of_right_programs_do_not_depend_on_the_order_of_warps(program, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostTarget, "schedule", property(lambda self: schedule, lambda self, value: None), raising=False)
    program()


ORDER = """extern "C" __global__ void k(int* out, volatile int* last) {
  int w = threadIdx.x / 32;
  for (int j = 0; j < 4; j++) { if (threadIdx.x % 32 == 0 && j == w) last[blockIdx.x] = w; @ }
  __syncthreads(); out[blockIdx.x * 128 + threadIdx.x] = last[blockIdx.x]; }"""


def test_an_order_bug_shows_as_different_results() -> None:
    """Volatile stores are signals and no races: whose comes last is the order's."""
    def results(source: str, schedule: str) -> list[int]:
        target, out = HostTarget(), torch.zeros(4, 128, dtype=torch.int32)
        target.schedule = schedule
        run(source, {"out": out}, launch("k", 4, 128, "out", "last"), workspaces=(Workspace("last", "int32", (4,), 0),), target=target)
        return out.flatten().tolist()

    wrong, right = ORDER.replace("@", ""), ORDER.replace("@", "__syncthreads();")
    assert set(results(wrong, "first warp first")) == {3} and set(results(wrong, "last warp first")) == {0}
    for schedule in ("in step", "first warp first", "last warp first", "random 1", "random 2"):
        assert set(results(right, schedule)) == {3}, schedule


WATCHER = """extern "C" __global__ void k(int* out, volatile int* flags) {
  int t = threadIdx.x;
  if (t >= 64) { for (;;) { bool missing = flags[t % 2] == 0; if (!missing) break; __nanosleep(64); }
                 __syncwarp(); out[t - 64] = __shfl_sync(0xffffffffu, flags[t % 2], t % 32 ^ 1); return; }
  #pragma unroll 1
  for (int j = 0; j < (t < 32 ? 600 : 1); j++) __syncwarp();
  if (t % 32 == 0) flags[t / 32] = t / 32 + 1; }"""


@pytest.mark.parametrize("schedule", ["in step", "first warp first", "last warp first", "random 1"])
def test_a_warp_some_of_whose_lanes_wait_for_another_warp_gives_it_its_turn(schedule: str) -> None:
    target, out = HostTarget(budget=100_000), torch.zeros(32, dtype=torch.int32)
    target.schedule = schedule
    run(WATCHER, {"out": out}, launch("k", 1, 96, "out", "flags"), workspaces=(Workspace("flags", "int32", (2,), 0),), target=target)
    assert out.tolist() == [2, 1] * 16
