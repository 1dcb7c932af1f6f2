"""A program made ready to launch on fixed tensors: everything packed once, so that one launch is one driver call."""

from __future__ import annotations

import ctypes
import math
import struct
import weakref
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from forge_tui.cuda.driver import DriverError, call, driver
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.image import BadImage, CubinFacts, read_cubin
from forge_tui.cuda.program import Argument, Image, Launch, Program, Workspace
from forge_tui.specs import ITEMSIZE

if TYPE_CHECKING:
    import torch                                            # seconds to import: a child that only launches does without

PORTABLE_CLUSTER = 8
"""Larger clusters need the kernel's consent (CUDA C++ programming guide, thread block clusters)."""
_FORMATS = {"pointer": "<Q", "int32": "<i", "int64": "<q", "float32": "<f", "float64": "<d"}
_SLOT = 8
"""Bytes set aside for each argument: the largest kind, and each one aligned."""


class PackedArguments:
    """The array of pointers to argument values that the driver reads at every launch."""

    def __init__(self, arguments: tuple[Argument, ...], addresses: Mapping[str, int]) -> None:
        count = max(1, len(arguments))
        self.values = (ctypes.c_char * (_SLOT * count))()
        self.pointers = (ctypes.c_void_p * count)()
        base = ctypes.addressof(self.values)
        for index, argument in enumerate(arguments):
            struct.pack_into(_FORMATS[argument.kind], self.values, _SLOT * index, _value(argument, addresses))
            self.pointers[index] = base + _SLOT * index
        self.address = ctypes.addressof(self.pointers)


def _value(argument: Argument, addresses: Mapping[str, int]) -> int | float:
    if argument.kind == "pointer":
        return 0 if argument.name is None else addresses[argument.name]
    return argument.value if argument.value is not None else 0


def addresses_of(program: Program, tensors: Mapping[str, torch.Tensor], workspaces: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Address of the first element of everything a launch may point to."""
    found = {name: tensor.data_ptr() for name, tensor in (*tensors.items(), *workspaces.items())}
    for output, source in program.aliases.items():
        found.setdefault(output, found.get(source, 0))
    return found


def workspace_bytes(workspace: Workspace) -> int:
    return math.prod(workspace.shape) * ITEMSIZE[workspace.dtype]


def allocate(workspace: Workspace, device: torch.device) -> torch.Tensor:
    """Garbage of the right size; torch's allocator aligns to 512 bytes."""
    import torch

    return torch.empty(workspace.shape, dtype=getattr(torch, workspace.dtype), device=device)


class LoadedImage:
    """A cubin in the driver. Unloaded when the last user lets go of it."""

    def __init__(self, image: Image) -> None:
        """Raises CandidateFault('compile', 'launch')."""
        try:
            self.facts: CubinFacts = read_cubin(image.code)
        except BadImage as error:
            raise CandidateFault("launch", str(error)) from error
        self.code = image.code                              # the driver reads it lazily
        try:
            self.library = call("cuLibraryLoadData", image.code, [], [], 0, [], [], 0)
        except DriverError as error:
            raise error.fault() from error
        weakref.finalize(self, _unload, self.library)
        self.functions: dict[str, Any] = {}
        self._shared: dict[str, int] = {}

    def function(self, name: str) -> Any:
        """The CUfunction in the current context. Raises CandidateFault('launch')."""
        if name not in self.functions:
            try:
                kernel = call("cuLibraryGetKernel", self.library, name.encode())
                self.functions[name] = call("cuKernelGetFunction", kernel)
            except DriverError as error:
                raise error.fault(name) from error
        return self.functions[name]


    def permit(self, launch: Launch) -> None:
        """What a kernel must allow before it may be launched so; never takes back what an earlier launch needs.

        Raises CandidateFault('launch').
        """
        kinds = driver().CUfunction_attribute
        function = self.function(launch.kernel)
        try:
            if launch.shared > self._shared.get(launch.kernel, 0):
                call("cuFuncSetAttribute", function, kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.shared)
                self._shared[launch.kernel] = launch.shared
            if launch.cluster is not None and math.prod(launch.cluster) > PORTABLE_CLUSTER:
                call("cuFuncSetAttribute", function, kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
        except DriverError as error:
            raise error.fault(launch.kernel) from error


def _unload(library: Any) -> None:
    try:
        call("cuLibraryUnload", library)
    except DriverError:
        pass                                                # the context died with its candidate; the process ends soon


class PreparedProgram:
    """A program's launches on fixed tensors. `enqueue` is asynchronous, on torch's current stream.

    Holds tensors and image: addresses stay valid as long as this object lives.
    """

    def __init__(self, program: Program, image: LoadedImage, tensors: Mapping[str, torch.Tensor],
                 workspaces: Mapping[str, torch.Tensor], device: int) -> None:
        """Raises CandidateFault('launch')."""
        import torch

        self.program = program
        self.image = image
        self.tensors = dict(tensors)
        self.workspaces = {item.name: workspaces[item.name] if item.name in workspaces else
                           allocate(item, torch.device("cuda", device)) for item in program.workspaces}
        self.device = device
        addresses = addresses_of(program, tensors, self.workspaces)
        self.fills = [(addresses[item.name], item.fill, workspace_bytes(item)) for item in program.workspaces
                      if item.fill is not None and workspace_bytes(item)]
        self.launches = [self._prepare(launch, addresses) for launch in program.launches if 0 not in launch.grid]
        self._launch, self._memset = _raw_launch(), driver().cuMemsetD8Async
        self._stream_of = torch._C._cuda_getCurrentRawStream  # ten times cheaper than torch.cuda.current_stream()
        self._stream = -1
        self._handle: Any = None

    def enqueue(self) -> None:
        """Fill workspaces and launch everything. Raises CandidateFault."""
        stream = self._stream_of(self.device)
        if stream != self._stream:
            self._retarget(stream)
        for address, value, size in self.fills:
            status, = self._memset(address, value, size, self._handle)
            if status:
                error = DriverError(status.name, "cuMemsetD8Async")
                raise error.fault() from error
        launch = self._launch
        for item in self.launches:
            status = launch(item.at, item.function, item.pointers, None)
            if status:
                error = DriverError(driver().CUresult(status).name, "cuLaunchKernelEx")
                raise error.fault(item.kernel) from error

    def _retarget(self, stream: int) -> None:
        self._handle = driver().CUstream(stream)
        for item in self.launches:
            item.config.hStream = self._handle
        self._stream = stream

    def _prepare(self, launch: Launch, addresses: Mapping[str, int]) -> _Ready:
        function = self.image.function(launch.kernel)
        check_parameters(launch, self.image.facts)
        self.image.permit(launch)
        return _Ready(launch, function, PackedArguments(launch.arguments, addresses))


class _Ready:
    """One launch as the driver takes it, and what its addresses point into."""

    def __init__(self, launch: Launch, function: Any, arguments: PackedArguments) -> None:
        self.kernel = launch.kernel
        self.config = launch_config(launch)
        self.arguments = arguments
        self.at = ctypes.c_void_p(self.config.getPtr())
        self.function = ctypes.c_void_p(int(function))
        self.pointers = ctypes.c_void_p(arguments.address)


@cache
def _raw_launch() -> Any:
    """cuLaunchKernelEx itself: on a launch, the bindings' conversion of their arguments costs more than the driver does."""
    return ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx


def check_parameters(launch: Launch, facts: CubinFacts) -> None:
    """The driver would read past the packed values, or values as something else. Raises CandidateFault('launch')."""
    kernel = facts.kernels.get(launch.kernel)
    if kernel is None:
        raise CandidateFault("launch", f"the image has no kernel `{launch.kernel}`", kernel=launch.kernel)
    if len(kernel.parameter_bytes) != len(launch.arguments):
        raise CandidateFault("launch", f"`{launch.kernel}` takes {len(kernel.parameter_bytes)} parameters and the plan passes "
                             f"{len(launch.arguments)}", kernel=launch.kernel)
    for index, (size, argument) in enumerate(zip(kernel.parameter_bytes, launch.arguments, strict=True)):
        given = struct.calcsize(_FORMATS[argument.kind])
        if size > given:
            raise CandidateFault("launch", f"parameter {index + 1} of `{launch.kernel}` has {size} bytes and the plan passes a "
                                 f"{argument.kind} of {given}", kernel=launch.kernel)


def launch_config(launch: Launch) -> Any:
    """The driver's record of one launch; only the stream is filled in later."""
    module = driver()
    config = module.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.shared
    attributes = _attributes(launch)
    config.numAttrs = len(attributes)
    config.attrs = attributes
    return config


def _attributes(launch: Launch) -> list[Any]:
    module = driver()
    kinds = module.CUlaunchAttributeID
    found = []
    if launch.cluster is not None:
        item = module.CUlaunchAttribute()
        item.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        item.value.clusterDim.x, item.value.clusterDim.y, item.value.clusterDim.z = launch.cluster
        found.append(item)
    if launch.cooperative:
        item = module.CUlaunchAttribute()
        item.id = kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        item.value.cooperative = 1
        found.append(item)
    if launch.pdl:
        item = module.CUlaunchAttribute()
        item.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        item.value.programmaticStreamSerializationAllowed = 1
        found.append(item)
    return found
