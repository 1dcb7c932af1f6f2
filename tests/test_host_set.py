"""The kernels that the host target is measured on, against torch: those that take a moment, in every run of the tests."""

from __future__ import annotations

import pytest
from hostkit import needs_nvrtc

from benchmarks.hostset import dense, irregular, rows
from benchmarks.hostset.planted import FAULTS
from benchmarks.hostset.record import Kernel
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.host.target import HostTarget

pytestmark = needs_nvrtc

LONG = ("flash attention", "flash attention causal", "gemm register tiles")
"""Seconds each; `python -m benchmarks.host` runs them."""
KERNELS = [kernel for kernel in (*dense.KERNELS, *rows.KERNELS, *irregular.KERNELS) if kernel.name not in LONG]


@pytest.mark.parametrize("kernel", KERNELS, ids=[kernel.name for kernel in KERNELS])
def test_results_are_torchs(kernel: Kernel) -> None:
    try:
        assert kernel.difference(HostTarget()) <= kernel.tolerance
    except CandidateFault as fault:
        if fault.kind != "not_interpretable":
            raise
        pytest.xfail(str(fault))


def test_the_sets_are_as_large_as_their_figures_ask() -> None:
    assert len(KERNELS) + len(LONG) >= 40 and len({kernel.name for kernel in KERNELS}) == len(KERNELS)
    assert len(FAULTS) >= 40 and {fault.kind for fault in FAULTS} >= {
        "out_of_bounds", "misaligned", "uninitialized", "race", "divergent_barrier", "read_only", "endless", "illegal_instruction"}
