"""The CUDA driver by ctypes: images loaded, kernels launched on torch's current stream, as cheaply as Python can."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import torch

from .entry import Entry, Launcher, PackageError, Tensors


class _Value(ctypes.Union):
    _fields_ = [("pad", ctypes.c_char * 64), ("integer", ctypes.c_int), ("dims", ctypes.c_uint * 3)]


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", _Value)]


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint)]


# CUlaunchAttributeID and CUfunction_attribute, from the driver API's cuda.h.
_COOPERATIVE, _CLUSTER_DIMENSION, _STREAM_SERIALIZATION = 2, 4, 6
_MAX_DYNAMIC_SHARED, _NON_PORTABLE_CLUSTER = 8, 14
_PACKED = {"int32": "<i", "int64": "<q", "float32": "<f", "float64": "<d"}


class CudaBackend:
    """Runs entries through the CUDA driver on torch's current stream."""

    device_type = "cuda"

    def __init__(self) -> None:
        self._driver: ctypes.CDLL | None = None

    def prepare(self, entry: Entry, device: torch.device) -> Launcher:
        major, minor = torch.cuda.get_device_capability(device)
        name = _image_for(entry.images, major * 10 + minor)
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # makes torch's context current before the driver is asked
            module = ctypes.c_void_p()
            self.check("cuModuleLoadData", ctypes.byref(module), entry.image(name) + b"\0")
            slots = {slot: at for at, slot in enumerate([*entry.input_names, *entry.output_names])}
            scratch = []
            for at, item in enumerate(entry.program["workspaces"]):
                slots[item["name"]] = len(entry.input_names) + len(entry.output_names) + at
                scratch.append((getattr(torch, item["dtype"]), tuple(item["shape"]), item.get("fill")))
            launches = [_Launch(self, module, record, slots) for record in entry.program["launches"]
                        if 0 not in record["grid"]]
        return _on_device(device, scratch, launches)

    def check(self, function: str, *arguments: Any) -> None:
        """Call the driver. Raises PackageError with the driver's own words."""
        status = getattr(self.driver(), function)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.driver().cuGetErrorString(status, ctypes.byref(text))
            raise PackageError(f"{function} failed: {(text.value or b'unknown error').decode()} ({status})")

    def driver(self) -> ctypes.CDLL:
        if self._driver is None:
            try:
                self._driver = ctypes.CDLL("libcuda.so.1")
            except OSError as error:
                raise PackageError(f"the CUDA driver library cannot be loaded: {error}") from None
        return self._driver


def _image_for(images: dict[str, str], capability: int) -> str:
    """The image for a device: machine code of its own architecture, else the newest PTX it can take. Raises PackageError."""
    name = f"sm_{capability}"
    if name in images:
        return name
    ptx = [key for key in images if key.startswith("ptx_") and int(key[4:]) <= capability]
    if not ptx:
        built = ", ".join(sorted(images))
        raise PackageError(f"no image for {name} (the package has {built}): export again on this device")
    return max(ptx, key=lambda key: int(key[4:]))


def _on_device(device: torch.device, scratch: list[Any], launches: list[_Launch]) -> Launcher:
    """What runs an entry's launches. The current device is changed only where it is another one."""
    index = device.index
    stream_of = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (  # private to torch, and eight times as fast
        lambda index: torch.cuda.current_stream(index).cuda_stream)
    current: Callable[[], int] = torch.cuda.current_device

    def launch_all(tensors: Tensors) -> None:
        if scratch:
            tensors = (*tensors, *[_filled(torch.empty(shape, dtype=dtype, device=device), fill)
                                   for dtype, shape, fill in scratch])
        stream = stream_of(index)
        for launch in launches:
            launch(tensors, stream)

    def run(tensors: Tensors) -> None:
        if current() == index:
            launch_all(tensors)
        else:
            with torch.cuda.device(index):
                launch_all(tensors)

    return run


def _filled(buffer: torch.Tensor, fill: int | None) -> torch.Tensor:
    if fill is not None:
        buffer.view(torch.uint8).fill_(fill)
    return buffer


class _Block:
    """Argument memory of one launch, laid out once: eight bytes an argument, and what points there."""

    def __init__(self, words: bytes, record: dict[str, Any], attributes: Any) -> None:
        count = len(words) // 8
        self.words = (ctypes.c_uint64 * max(count, 1)).from_buffer_copy(words.ljust(8, b"\0"))
        base = ctypes.addressof(self.words)
        self.pointers = (ctypes.c_void_p * max(count, 1))(*(base + 8 * at for at in range(count)))
        self.config = _Config((ctypes.c_uint * 3)(*record["grid"]), (ctypes.c_uint * 3)(*record["block"]),
                              record["shared"], None, attributes, len(attributes))
        self.config_pointer = ctypes.c_void_p(ctypes.addressof(self.config))


class _Launch:
    """One kernel launch; a call only fills in the pointers and the stream."""

    def __init__(self, backend: CudaBackend, module: ctypes.c_void_p, record: dict[str, Any], slots: dict[str, int]) -> None:
        self._backend = backend
        self._function = ctypes.c_void_p()
        backend.check("cuModuleGetFunction", ctypes.byref(self._function), module, record["kernel"].encode())
        if record["shared"] > 48 * 1024:
            backend.check("cuFuncSetAttribute", self._function, _MAX_DYNAMIC_SHARED, record["shared"])
        self._attributes = self._attribute_array(record)
        self._record = record
        self._pointers = [(at, slots[argument["name"]]) for at, argument in enumerate(record["arguments"])
                          if argument["kind"] == "pointer" and argument["name"] in slots]
        self._words = b"".join(_word(argument) for argument in record["arguments"])
        self._launch = backend.driver().cuLaunchKernelEx
        self._free: list[_Block] = []
        """Blocks no thread is launching with: taking and giving back are atomic, so threads need no lock."""

    def _attribute_array(self, record: dict[str, Any]) -> Any:
        found = []
        if record.get("cooperative"):
            found.append(_Attribute(_COOPERATIVE, b"", _Value(integer=1)))
        if record.get("cluster"):
            dims = record["cluster"]
            if dims[0] * dims[1] * dims[2] > 8:
                self._backend.check("cuFuncSetAttribute", self._function, _NON_PORTABLE_CLUSTER, 1)
            found.append(_Attribute(_CLUSTER_DIMENSION, b"", _Value(dims=(ctypes.c_uint * 3)(*dims))))
        if record.get("pdl"):
            found.append(_Attribute(_STREAM_SERIALIZATION, b"", _Value(integer=1)))
        return (_Attribute * len(found))(*found)

    def __call__(self, tensors: Tensors, stream: int) -> None:
        try:
            block = self._free.pop()
        except IndexError:
            block = _Block(self._words, self._record, self._attributes)
        words = block.words
        for at, slot in self._pointers:
            words[at] = tensors[slot].data_ptr()
        block.config.stream = stream
        status = self._launch(block.config_pointer, self._function, block.pointers, None)
        self._free.append(block)  # the driver has copied the arguments
        if status:
            self._backend.check("cuLaunchKernelEx", block.config_pointer, self._function, block.pointers, None)


def _word(argument: dict[str, Any]) -> bytes:
    """Eight bytes that begin with the argument's value; pointers are filled in by each call, and null until then."""
    if argument["kind"] == "pointer":
        return bytes(8)
    return struct.pack(_PACKED[argument["kind"]], argument["value"]).ljust(8, b"\0")
