"""What the management library says of a device: clocks, why they are held back, temperature, who else uses it."""

from __future__ import annotations

import ctypes
from typing import Any

from msgspec import Struct

_CLOCK_SM = 1
_TEMPERATURE_GPU = 0
_MAX_PROCESSES = 64

SLOWDOWNS = {0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake"}
"""Bits of nvmlClocksEventReasons that mean the device runs below its usual speed for a reason outside the program."""
POWER_CAP = 0x4
"""Clocks follow the power limit: usual under full load, so it is told and not called throttling."""


class DeviceState(Struct, frozen=True):
    """One look at a device."""

    sm_mhz: int
    reasons: int
    """Bits, as in SLOWDOWNS and POWER_CAP."""
    celsius: int
    processes: tuple[int, ...]
    """Process ids with a compute context there."""


class _Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("instance", ctypes.c_uint), ("compute", ctypes.c_uint)]


class Nvml:
    """One device by its PCI bus id. `look` gives None wherever the library or the device does not answer."""

    def __init__(self, bus_id: str) -> None:
        self._library: Any = None
        self._device = ctypes.c_void_p()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetHandleByPciBusId_v2(
                    bus_id.encode(), ctypes.byref(self._device)) == 0:
                self._library = library
        except (OSError, AttributeError):
            return                                          # no driver, or one older than these calls

    def look(self) -> DeviceState | None:
        if self._library is None:
            return None
        clock = self._number("nvmlDeviceGetClockInfo", _CLOCK_SM)
        if clock is None:
            return None
        return DeviceState(clock, self._reasons(), self._number("nvmlDeviceGetTemperature", _TEMPERATURE_GPU) or 0,
                           self._processes())

    def mig(self) -> bool | None:
        """Whether the device is split into instances; None where it cannot be or the library does not say."""
        if self._library is None:
            return None
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        try:
            status = self._library.nvmlDeviceGetMigMode(self._device, ctypes.byref(current), ctypes.byref(pending))
        except AttributeError:
            return None
        return bool(current.value) if status == 0 else None

    def _number(self, function: str, kind: int) -> int | None:
        value = ctypes.c_uint()
        status = getattr(self._library, function)(self._device, kind, ctypes.byref(value))
        return value.value if status == 0 else None

    def _reasons(self) -> int:
        value = ctypes.c_ulonglong()
        status = self._library.nvmlDeviceGetCurrentClocksThrottleReasons(self._device, ctypes.byref(value))
        return value.value if status == 0 else 0

    def _processes(self) -> tuple[int, ...]:
        count = ctypes.c_uint(_MAX_PROCESSES)
        table = (_Process * _MAX_PROCESSES)()
        try:
            function = self._library.nvmlDeviceGetComputeRunningProcesses_v3
        except AttributeError:
            return ()
        if function(self._device, ctypes.byref(count), table) != 0:
            return ()
        return tuple(table[index].pid for index in range(min(count.value, _MAX_PROCESSES)))


def disturbances(before: DeviceState | None, after: DeviceState | None, own_pid: int) -> tuple[str, ...]:
    """What makes times taken between two looks less than usual; empty when nothing was seen.

    A container's process ids are not the host's, so one other process than `own_pid` may be this one: only two are foreign load.
    """
    if before is None or after is None:
        return ()
    found = [words for bit, words in SLOWDOWNS.items() if (before.reasons | after.reasons) & bit]
    if after.sm_mhz < 0.9 * before.sm_mhz and before.sm_mhz > 0:
        found.append(f"the clock fell from {before.sm_mhz} to {after.sm_mhz} MHz")
    others = set(before.processes) | set(after.processes)
    if len(others - {own_pid}) > (0 if own_pid in others else 1):
        found.append(f"{len(others)} processes use the device")
    return tuple(found)
