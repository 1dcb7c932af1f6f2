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
    registers_per_sm=65536, shared_per_sm=233472, max_cluster=8, clock_mhz=1980, copy_bytes_per_s=4.04e12, launch_us=2.85,
)
"""The device whose time is modelled on `host`. Copy bandwidth and launch time: measured on one H200, as
benchmarks/results/operators-nvidia-h200.json has them. max_shared, registers and threads: CUDA C++ programming guide, compute
capability 9.0."""


def read_facts(index: int) -> DeviceFacts:
    """Facts of torch's device `index` from the driver (both count what CUDA_VISIBLE_DEVICES leaves). Copy bandwidth and launch time are what the data sheet gives until they are measured
    (`ceilings.apply`). Raises MissingEnvironment, DriverError.
    """
    from forge_tui.cuda.driver import attribute, call

    call("cuInit", 0)
    device = call("cuDeviceGet", index)
    cc = attribute(device, "COMPUTE_CAPABILITY_MAJOR") * 10 + attribute(device, "COMPUTE_CAPABILITY_MINOR")
    name = call("cuDeviceGetName", 128, device)
    memory_hz = attribute(device, "MEMORY_CLOCK_RATE") * 1000
    bus_bytes = attribute(device, "GLOBAL_MEMORY_BUS_WIDTH") // 8
    return DeviceFacts(
        name=name.split(b"\0")[0].decode(), cc=cc, sm_count=attribute(device, "MULTIPROCESSOR_COUNT"),
        max_shared=attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"), l2_bytes=attribute(device, "L2_CACHE_SIZE"),
        threads_per_sm=attribute(device, "MAX_THREADS_PER_MULTIPROCESSOR"),
        registers_per_sm=attribute(device, "MAX_REGISTERS_PER_MULTIPROCESSOR"),
        shared_per_sm=attribute(device, "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        max_cluster=largest_cluster(cc) if attribute(device, "CLUSTER_LAUNCH") else 1,
        clock_mhz=attribute(device, "CLOCK_RATE") // 1000, copy_bytes_per_s=2.0 * memory_hz * bus_bytes, launch_us=4.0)


def largest_cluster(cc: int) -> int:
    """Blocks of a cluster: 8 everywhere, 16 with the kernel's consent (which the launcher gives) on 9.0 and 10.x.

    CUDA C++ programming guide, thread block clusters; Hopper and Blackwell tuning guides.
    """
    return 16 if 90 <= cc < 120 else 8


def find_gpu() -> bool:
    """Whether a CUDA device can be used by this process (driver and torch both agree). Never raises."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()
