"""The CUDA driver through `cuda.bindings`: calls that raise, and which of its errors are a candidate's fault."""

from __future__ import annotations

from typing import Any

from forge_tui.cuda.faults import CandidateFault, FaultKind
from forge_tui.errors import MissingEnvironment

_KINDS: dict[str, tuple[FaultKind, str]] = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": ("out_of_bounds", "an access to an address that is not the kernel's"),
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": ("out_of_bounds", "an access to memory of another kind than the pointer's"),
    "CUDA_ERROR_MISALIGNED_ADDRESS": ("misaligned", "an access that is not aligned to its size"),
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": ("illegal_instruction", "an illegal instruction"),
    "CUDA_ERROR_INVALID_PC": ("illegal_instruction", "a jump to where no code is"),
    "CUDA_ERROR_HARDWARE_STACK_ERROR": ("crashed", "a broken call stack"),
    "CUDA_ERROR_ASSERT": ("crashed", "a failed assertion in the kernel"),
    "CUDA_ERROR_LAUNCH_FAILED": ("crashed", "an exception on the device"),
    "CUDA_ERROR_LAUNCH_TIMEOUT": ("endless", "a kernel that the driver stopped for taking too long"),
    "CUDA_ERROR_OUT_OF_MEMORY": ("out_of_memory", "out of device memory"),
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": ("launch", "more registers or shared memory than a block may have"),
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": ("launch", "a cooperative grid that is not resident at once"),
    "CUDA_ERROR_INVALID_CLUSTER_SIZE": ("launch", "a cluster size that the device cannot place"),
    "CUDA_ERROR_INVALID_VALUE": ("launch", "a launch configuration that the driver refuses"),
    "CUDA_ERROR_INVALID_IMAGE": ("launch", "an image that the driver cannot load"),
    "CUDA_ERROR_NO_BINARY_FOR_GPU": ("launch", "an image for another architecture"),
    "CUDA_ERROR_NOT_FOUND": ("launch", "a kernel that is not in the image"),
}
_STICKY = {"out_of_bounds", "misaligned", "illegal_instruction", "crashed", "endless"}
"""After these the context answers nothing any more: the process must end."""


class DriverError(Exception):
    """A driver call failed. `name` is the CUresult's, e.g. `CUDA_ERROR_ILLEGAL_ADDRESS`."""

    def __init__(self, name: str, call: str) -> None:
        super().__init__(f"{call} failed: {name}")
        self.name = name
        self.call = call

    def fault(self, kernel: str | None = None) -> CandidateFault:
        """What it says of the candidate that was running."""
        kind, words = _KINDS.get(self.name, ("crashed", f"the driver reports {self.name}"))
        return CandidateFault(kind, f"{words} ({self.name})", kernel=kernel)

    @property
    def ends_context(self) -> bool:
        return _KINDS.get(self.name, ("crashed", ""))[0] in _STICKY


def driver() -> Any:
    """The module `cuda.bindings.driver`. Raises MissingEnvironment."""
    try:
        from cuda.bindings import driver as module
    except ImportError as error:
        raise MissingEnvironment("the package cuda-bindings is not installed", cure="pip install 'cuda-bindings>=12.8'") from error
    return module


def call(function: str, *arguments: Any) -> Any:
    """`driver().function(*arguments)`: its one result, a tuple of several, or None. Raises DriverError."""
    status, *results = getattr(driver(), function)(*arguments)
    if int(status):
        raise DriverError(status.name, function)
    return results[0] if len(results) == 1 else tuple(results) or None


def attribute(device: Any, name: str) -> int:
    """`CU_DEVICE_ATTRIBUTE_<name>` of a device."""
    return int(call("cuDeviceGetAttribute", getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device))


def bus_id(index: int) -> str:
    """PCI bus id of torch's device `index`; empty where the driver does not say."""
    try:
        return call("cuDeviceGetPCIBusId", 32, call("cuDeviceGet", index)).split(b"\0")[0].decode()
    except DriverError:
        return ""
