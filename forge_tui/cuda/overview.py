"""A device as people want to know it: what it is, what it can do at the most, who else uses it. Makes no CUDA
context."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from forge_tui.cuda.ceilings import Ceilings, stored_ceilings
from forge_tui.cuda.device import DeviceFacts, read_facts
from forge_tui.cuda.driver import DriverError, bus_id, call
from forge_tui.cuda.nvml import DeviceState, Nvml
from forge_tui.errors import MissingEnvironment


class Overview(Struct, frozen=True):
    """One device that this process may use."""

    index: int
    facts: DeviceFacts
    memory_bytes: int
    ceilings: Ceilings | None
    """As stored; None until they are measured."""
    state: DeviceState | None
    """None where the management library does not answer."""
    mig: bool | None
    """Whether it is split into instances; None where nothing says."""

    def text(self) -> str:
        """`NVIDIA H200, sm_90, 132 SMs, 60 MiB L2, 139 GiB`, and what is out of the ordinary."""
        facts = self.facts
        parts = [
            facts.name,
            f"sm_{facts.cc}",
            f"{facts.sm_count} SMs",
            f"{facts.l2_bytes / 2**20:.0f} MiB L2",
            f"{self.memory_bytes / 2**30:.0f} GiB",
        ]
        if self.mig:
            parts.append("MIG is on: this is an instance, not a whole GPU")
        return ", ".join(parts)

    def ceilings_text(self) -> str:
        """What was measured; empty when nothing was."""
        found = self.ceilings
        if found is None:
            return ""
        rates = ", ".join(f"{name} {rate / 1e12:.0f} TFLOP/s" for name, rate in found.matrix_flops.items())
        return (
            f"copies {found.copy_bytes_per_s / 1e12:.2f} TB/s, an empty kernel takes {found.launch_us:.1f} us"
            f"{f', matrix products {rates}' if rates else ''}"
        )

    def others(self) -> int:
        """Processes on the device that are not this one. A container's process ids are not the host's: one may be this
        one."""
        if self.state is None:
            return 0
        return len(set(self.state.processes) - {os.getpid()})


def overview(index: int, folder: Path | None = None) -> Overview:
    """Of torch's device `index`. folder: of stored ceilings, by default this user's. Raises MissingEnvironment,
    DriverError."""
    facts = read_facts(index)
    ceilings = stored_ceilings(index, folder)
    device = call("cuDeviceGet", index)
    memory = int(call("cuDeviceTotalMem", device))
    library = Nvml(bus_id(index))
    return Overview(
        index, ceilings.apply(facts) if ceilings else facts, memory, ceilings, library.look(), library.mig()
    )


def overviews() -> list[Overview]:
    """Of all devices that torch sees; those that do not answer are left out. Never raises."""
    try:
        import torch
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        try:
            found.append(overview(index))
        except (
            DriverError,
            MissingEnvironment,
            RuntimeError,
        ):  # RuntimeError: torch's, of a device that is in a bad state
            continue
    return found
