"""The CUDA driver by ctypes: images loaded, kernels launched on torch's current stream, as cheaply as Python can."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import torch

from .entry import Entry, Launcher, PackageError, Tensors
from .writer import Writer


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
        return _on_device(self, device, scratch, launches, len(slots))

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


def _on_device(backend: CudaBackend, device: torch.device, scratch: list[Any], launches: list[_Launch], slots: int) -> Launcher:
    """What runs an entry's launches on tensors. Its `write` gives the lines that do so from addresses, where the device is the current one,
    which its `current` tells."""
    index = device.index
    current: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)

    def write(writer: Writer, addresses: list[str]) -> list[str]:
        return _lines(writer, backend, device, scratch, launches, slots, addresses)

    names = [f"a{at}" for at in range(slots - len(scratch))]
    writer = Writer()
    at = writer.function("launch", ", ".join(names), write(writer, names))

    def run(tensors: Tensors) -> None:
        addresses = [tensor.data_ptr() for tensor in tensors]
        if current() == index:
            at(*addresses)
        else:
            with torch.cuda.device(index):
                at(*addresses)

    run.write, run.current = write, current  # type: ignore[attr-defined]
    return run


def _lines(writer: Writer, backend: CudaBackend, device: torch.device, scratch: list[Any], launches: list[_Launch], slots: int,
           addresses: list[str]) -> list[str]:
    """The launches from these addresses, written out: calls and tuples cost Python more than all else here."""
    free: list[tuple[Any, ...]] = []
    """Blocks no thread is launching with: taking and giving back are atomic, so threads need no lock."""
    submit = backend.driver().cuLaunchKernelEx

    def failed(*call: Any) -> None:
        backend.check("cuLaunchKernelEx", *call, None)  # once more: in the driver's own words

    def held() -> list[torch.Tensor]:
        return [_filled(torch.empty(shape, dtype=dtype, device=device), fill) for dtype, shape, fill in scratch]

    # private to torch, and several times as fast as the public one
    stream_of = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (lambda index: torch.cuda.current_stream(index).cuda_stream)
    buffers = [f"held[{at}].data_ptr()" for at in range(len(scratch))]
    lines = [f"held = {writer.named('held', held)}()"] if scratch else []
    calls = [f"config{number}, function{number}, parameters{number}" for number in range(len(launches))]
    lines += [f"stream = {writer.named('stream_of', stream_of)}({device.index})",
              "try:", f"    held_block = {writer.named('take', free.pop)}()",
              "except IndexError:", f"    held_block = {writer.named('make', lambda: _Block(launches, slots).parts())}()",
              f"{', '.join(['block', 'words', *calls])} = held_block",
              "if block.stream != stream: block.use(stream)",
              # `P`: an address as it is, which is what `pack_into` is fastest at
              f"{writer.named('pack', struct.Struct(f'{slots}P').pack_into)}(words, 0, {', '.join([*addresses, *buffers])})"]
    lines += [f"if {writer.named('submit', submit)}({call}, None): {writer.named('failed', failed)}({call})" for call in calls]
    return [*lines, f"{writer.named('give_back', free.append)}(held_block)"]  # the driver has copied the arguments


def _filled(buffer: torch.Tensor, fill: int | None) -> torch.Tensor:
    if fill is not None:
        buffer.view(torch.uint8).fill_(fill)
    return buffer


class _Block:
    """Memory of one call of an entry, laid out once: an address a slot, then what else kernels are given, eight bytes each."""

    def __init__(self, launches: list[_Launch], slots: int) -> None:
        constants = b"".join(launch.constants for launch in launches)
        self.words = (ctypes.c_uint64 * (slots + len(constants) // 8)).from_buffer_copy(bytes(8 * slots) + constants)
        self.stream: int | None = None
        self.calls: list[tuple[Any, Any, Any]] = []
        """By launch the driver's arguments, as ctypes passes them on without looking at them."""
        self._configs = []
        base, constant = ctypes.addressof(self.words), slots
        for launch in launches:
            places = []
            for slot in launch.places:
                places.append(base + 8 * (constant if slot is None else slot))
                constant += slot is None
            parameters = (ctypes.c_void_p * max(len(places), 1))(*places)
            config = launch.config()
            self._configs.append(config)
            self.calls.append((ctypes.byref(config), ctypes.c_void_p.from_param(launch.function.value), ctypes.byref(parameters)))

    def parts(self) -> tuple[Any, ...]:
        """Itself, its words, and each launch's arguments: opened at once, which is cheaper than to ask for one after the other."""
        return (self, self.words, *[item for call in self.calls for item in call])

    def use(self, stream: int) -> None:
        for config in self._configs:
            config.stream = stream
        self.stream = stream


class _Launch:
    """One kernel launch of an entry."""

    def __init__(self, backend: CudaBackend, module: ctypes.c_void_p, record: dict[str, Any], slots: dict[str, int]) -> None:
        self._backend = backend
        self.function = ctypes.c_void_p()
        backend.check("cuModuleGetFunction", ctypes.byref(self.function), module, record["kernel"].encode())
        if record["shared"] > 48 * 1024:
            backend.check("cuFuncSetAttribute", self.function, _MAX_DYNAMIC_SHARED, record["shared"])
        self._record = record
        self._attributes = self._attribute_array(record)
        self.places = [slots.get(argument["name"]) if argument["kind"] == "pointer" else None for argument in record["arguments"]]
        """By argument the slot whose address it is; None for what is the same in every call."""
        self.constants = b"".join(_word(argument) for argument, slot in zip(record["arguments"], self.places, strict=True) if slot is None)

    def config(self) -> _Config:
        record = self._record
        return _Config((ctypes.c_uint * 3)(*record["grid"]), (ctypes.c_uint * 3)(*record["block"]), record["shared"], None,
                       self._attributes, len(self._attributes))

    def _attribute_array(self, record: dict[str, Any]) -> Any:
        found = []
        if record.get("cooperative"):
            found.append(_Attribute(_COOPERATIVE, b"", _Value(integer=1)))
        if record.get("cluster"):
            dims = record["cluster"]
            if dims[0] * dims[1] * dims[2] > 8:
                self._backend.check("cuFuncSetAttribute", self.function, _NON_PORTABLE_CLUSTER, 1)
            found.append(_Attribute(_CLUSTER_DIMENSION, b"", _Value(dims=(ctypes.c_uint * 3)(*dims))))
        if record.get("pdl"):
            found.append(_Attribute(_STREAM_SERIALIZATION, b"", _Value(integer=1)))
        return (_Attribute * len(found))(*found)


def _word(argument: dict[str, Any]) -> bytes:
    """Eight bytes that begin with the argument's value; a pointer to nothing is null."""
    if argument["kind"] == "pointer":
        return bytes(8)
    return struct.pack(_PACKED[argument["kind"]], argument["value"]).ljust(8, b"\0")
