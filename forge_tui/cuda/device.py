"""Facts and ceilings of a device: what launch plans may ask, and what times are compared with."""

from __future__ import annotations

from msgspec import Struct


class DeviceFacts(Struct, frozen=True):
    """One GPU. Names in kernel-file expressions: sm_count, cc, max_shared, l2_bytes, threads_per_sm, registers_per_sm, max_cluster."""

    name: str
    cc: int
    """Compute capability times ten: 90 for 9.0."""
    sm_count: int
    max_shared: int
    """Dynamic shared memory a block may ask for, bytes."""
    l2_bytes: int
    threads_per_sm: int
    registers_per_sm: int
    shared_per_sm: int
    max_cluster: int
    clock_mhz: int
    copy_bytes_per_s: float
    """Measured (or, for the built-in table, published measurement) copy bandwidth, bytes read plus written per second."""
    launch_us: float
    """Device time of an empty kernel."""


H200 = DeviceFacts(
    name="NVIDIA H200", cc=90, sm_count=132, max_shared=232448, l2_bytes=60 * 1024 * 1024, threads_per_sm=2048,
    registers_per_sm=65536, shared_per_sm=233472, max_cluster=8, clock_mhz=1980, copy_bytes_per_s=4.3e12, launch_us=4.0,
)
"""The device whose time is modelled on `host`. Copy bandwidth and launch time: measured on one H200, torch 2.11; see
docs/architecture.md. max_shared, registers and threads: CUDA C++ programming guide, compute capability 9.0."""


def find_gpu() -> bool:
    """Whether a CUDA device can be used by this process (driver and torch both agree). Never raises."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()
