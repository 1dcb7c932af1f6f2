"""The runtime inside an exported package: routes a model's calls to its kernels, guarded. Needs torch and the CUDA driver.

This file is copied into every package, so it imports torch and the standard library only. A call reaches a kernel when it
is exactly a captured variant and every guard holds; otherwise the original function runs, untouched, and the reason is counted.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

MANIFEST_FORMAT = 1


class PackageError(Exception):
    """The package cannot be used: damaged, of another format, or not a package."""


class Backend(Protocol):
    """What runs an entry's launches: the CUDA driver here; Forge's host target where there is no GPU."""

    device_type: str
    """Of the tensors it takes: `cuda` or `cpu`."""

    def prepare(self, entry: Entry, device: torch.device) -> Callable[[dict[str, torch.Tensor | None]], None]:
        """A function that runs the entry's launches on tensors by kernel-file name, asynchronously on the current stream.

        Raises PackageError when this device cannot run it; the message is the reason for falling back.
        """
        ...


class Entry:
    """One kernel bound to one variant, as `entries/<variant>.json` has it."""

    def __init__(self, package: Path, record: dict[str, Any], verified_file: Callable[[str], bytes]) -> None:
        self.package = package
        self.variant: str = record["variant"]
        self.operator: str = record["call"]["operator"]
        self.arguments: dict[str, Any] = record["call"]["arguments"]
        """By the operator's parameter names, as `specs.Call` stores them."""
        self.outputs = [_output(spec) for spec in record["call"]["outputs"]]
        self.output_names: list[str] = record["program"]["outputs"]
        self.aliases: dict[str, str] = record["call"].get("aliases", {})
        self.program: dict[str, Any] = record["program"]
        self.images: dict[str, str] = record["images"]
        """`sm_90` or `ptx_90` to a file name under `images/`."""
        self.kernel: str = record["kernel"]
        self.forms: list[dict[str, Any]] = record["forms"]
        self.aligned = [(name, spec["align"]) for name, spec in _tensor_specs(self.arguments) if spec["align"] > 1]
        self._file = verified_file
        self.ready: dict[torch.device, Callable[[dict[str, torch.Tensor | None]], None] | str] = {}
        """Per device the function that launches, or why there is none."""
        self.calls = 0

    def image(self, name: str) -> bytes:
        """The bytes of an image, checked against the manifest's hash."""
        return self._file(f"images/{self.images[name]}")


def _tensor_specs(arguments: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, value in arguments.items():
        yield from _nested_specs(name, value)


def _nested_specs(name: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict) and value["type"] == "tensor":
        yield name, value
    elif isinstance(value, dict) and value["type"] == "items":
        for index, item in enumerate(value["items"]):
            yield from _nested_specs(f"{name}[{index}]", item)


def _output(spec: dict[str, Any]) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]:
    return getattr(torch, spec["dtype"]), tuple(spec["shape"]), tuple(spec["stride"])


def _stored_key(value: Any) -> Any:
    """The stored form of an argument as `_call_key` sees the real one."""
    if not isinstance(value, dict):
        return type(value), value
    kind = value["type"]
    if kind == "tensor":
        return getattr(torch, value["dtype"]), tuple(value["shape"]), tuple(value["stride"])
    if kind == "dtype":
        return torch.dtype, getattr(torch, value["name"])
    if kind == "items":
        return tuple(_stored_key(item) for item in value["items"])
    return object, value["text"]  # opaque: no real argument has this key, so the form never matches


def _call_key(value: Any, tensors: list[torch.Tensor]) -> Any:
    """What must be equal for a call to be this variant; the tensors met are appended to `tensors`, depth first."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return value.dtype, value.shape, value.stride()
    if isinstance(value, (list, tuple)):
        return tuple([_call_key(item, tensors) for item in value])
    return type(value), value


def resolve(path: str) -> Any:
    """The function at a dotted path (`torch.nn.functional.softmax`, `torch.Tensor.add_`); None where this torch has none."""
    found: Any = torch
    for part in path.split(".")[1:]:
        found = getattr(found, part, None)
    return found


class _Router:
    """All captured spellings of calls to one function."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.entries: dict[Any, tuple[Entry, list[str]]] = {}
        """Call key to the entry and the kernel-file name of each tensor argument in order."""
        self.fallbacks: Counter[str] = Counter()

    def add(self, entry: Entry, form: dict[str, Any]) -> None:
        key = (tuple(_stored_key(value) for value in form["positional"]),
               tuple((name, _stored_key(value)) for name, value in form["keywords"].items()))
        self.entries[key] = entry, form["names"]

    def run(self, package: Package, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """The kernel's result, or the reason (a str) why the original must run."""
        found: list[torch.Tensor] = []
        try:
            key = (tuple([_call_key(value, found) for value in arguments]),
                   tuple([(name, _call_key(value, found)) for name, value in keywords.items()]))
            match = self.entries.get(key)
        except (TypeError, RuntimeError):  # unhashable arguments; tensors without strides (sparse, nested)
            return "other arguments"
        if match is None:
            return "other shape, dtype, stride or argument"
        entry, names = match
        tensors: dict[str, torch.Tensor | None] = dict(zip(names, found, strict=True))
        reason = _guard(entry, found, tensors, package.backend)
        if reason:
            return reason
        device = found[0].device
        launch = entry.ready.get(device) or package.prepare(entry, device)
        if type(launch) is str:
            return launch
        results = _allocate(entry, tensors, device)
        launch(tensors)
        entry.calls += 1
        return results[0] if len(results) == 1 else tuple(results)


def _guard(entry: Entry, found: list[torch.Tensor], tensors: dict[str, torch.Tensor | None], backend: Backend) -> str:
    """Why this call must not use the kernel; empty when it may. Shape, dtype, stride and arguments are known to match."""
    if torch.compiler.is_compiling():
        return "inside torch.compile"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "inside a functorch transform"
    device = None
    wants_gradient = torch.is_grad_enabled()
    for tensor in found:
        if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
            return "a tensor subclass"
        if device is None:
            device = tensor.device
            if device.type != backend.device_type:
                return f"on {device.type}"
        elif tensor.device != device:
            return "on several devices"
        if wants_gradient and tensor.requires_grad:
            return "a gradient is wanted"
        if tensor.is_conj() or tensor.is_neg():
            return "a lazily conjugated or negated tensor"
    for name, align in entry.aligned:
        if tensors[name].data_ptr() % align:  # type: ignore[union-attr]
            return "other alignment"
    if device is None:
        return "no tensors"
    return "under autocast" if torch.is_autocast_enabled(device.type) else ""


def _allocate(entry: Entry, tensors: dict[str, torch.Tensor | None], device: torch.device) -> list[torch.Tensor]:
    results = []
    for name, (dtype, shape, stride) in zip(entry.output_names, entry.outputs, strict=True):
        if name in entry.aliases:
            result = tensors[entry.aliases[name]]
        else:
            result = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        tensors[name] = result
        results.append(result)
    return results  # type: ignore[return-value]


class _Mode(TorchFunctionMode):
    """Sees every torch call of the model while its forward runs."""

    def __init__(self, package: Package, routes: dict[Any, _Router]) -> None:
        super().__init__()
        self._package = package
        self._routes = routes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        router = self._routes.get(func)
        if router is None:
            return func(*args, **(kwargs or {}))
        result = router.run(self._package, args, kwargs or {})
        if type(result) is not str:
            return result
        router.fallbacks[result] += 1
        return func(*args, **(kwargs or {}))


class _Hook:
    """A forward hook that a deep copy or a saved model turns into a no-op: a copy is the original, unforged model."""

    def __init__(self, package: Package, action: Callable[[], None]) -> None:
        self.package = package
        self._action = action

    def __call__(self, *_: Any) -> None:
        self._action()

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")


class Package:
    """One exported package: `apply(model)`, `remove(model)`, `with optimized(model)`, `report()`."""

    def __init__(self, folder: str | Path, backend: Backend | None = None) -> None:
        """Read and check the manifest. Raises PackageError."""
        self.folder = Path(folder)
        self.manifest = self._manifest()
        self.backend: Backend = backend or CudaBackend()
        self.entries = [Entry(self.folder, json.loads(self._file(f"entries/{name}.json")), self._file)
                        for name in self.manifest["entries"]]
        self._routes: dict[Any, _Router] = {}
        for entry in self.entries:
            for form in entry.forms:
                function = resolve(form["function"])
                if function is not None:  # this torch has no such function, so nothing can call it
                    self._routes.setdefault(function, _Router(form["function"])).add(entry, form)
        self._mode = _Mode(self, self._routes)

    def _manifest(self) -> dict[str, Any]:
        path = self.folder / "manifest.toml"
        try:
            manifest = tomllib.loads(path.read_text())
        except FileNotFoundError:
            raise PackageError(f"{self.folder} is not a Forge package: it has no manifest.toml") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise PackageError(f"{path} is damaged: {error}") from None
        if manifest.get("format") != MANIFEST_FORMAT:
            raise PackageError(f"{path} has format {manifest.get('format')}; this runtime reads {MANIFEST_FORMAT}")
        return manifest

    def _file(self, name: str) -> bytes:
        """A file's bytes, checked against the manifest."""
        try:
            data = (self.folder / name).read_bytes()
        except OSError as error:
            raise PackageError(f"{name} cannot be read: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != self.manifest["files"].get(name):
            raise PackageError(f"{name} is not the file that was exported: its SHA-256 differs from the manifest's")
        return data

    def prepare(self, entry: Entry, device: torch.device) -> Callable[[dict[str, torch.Tensor | None]], None] | str:
        """Load an entry on a device, once; a device that cannot run it is said once and falls back from then on."""
        try:
            launch: Callable[[dict[str, torch.Tensor | None]], None] | str = self.backend.prepare(entry, device)
        except PackageError as error:
            launch = str(error)
            warnings.warn(f"{entry.operator} keeps its original: {error}", stacklevel=2)
        entry.ready[device] = launch
        return launch

    def apply(self, model: torch.nn.Module) -> torch.nn.Module:
        """Route the model's calls from now on; returns the model. Applying twice is applying once."""
        if not self._hooks(model):
            model.register_forward_pre_hook(_Hook(self, self._enter))
            model.register_forward_hook(_Hook(self, self._leave), always_call=True)
        return model

    def remove(self, model: torch.nn.Module) -> None:
        """Leave the model exactly as it was before `apply`."""
        for table, handle in self._hooks(model):
            del table[handle]
            for extra in ("_forward_hooks_always_called", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs"):
                getattr(model, extra, {}).pop(handle, None)

    @contextlib.contextmanager
    def optimized(self, model: torch.nn.Module) -> Iterator[torch.nn.Module]:
        """The model with its kernels inside the `with`, without them after it."""
        already = bool(self._hooks(model))
        self.apply(model)
        try:
            yield model
        finally:
            if not already:
                self.remove(model)

    def report(self) -> dict[str, Any]:
        """Per variant how often its kernel ran, and per function how often the original ran instead, by reason."""
        kernels = [{"operator": entry.operator, "variant": entry.variant, "kernel": entry.kernel, "calls": entry.calls}
                   for entry in self.entries]
        return {"kernels": kernels,
                "fallbacks": {router.path: dict(router.fallbacks) for router in self._routes.values() if router.fallbacks}}

    def _hooks(self, model: torch.nn.Module) -> list[tuple[Any, int]]:
        return [(table, handle) for table in (model._forward_pre_hooks, model._forward_hooks)
                for handle, hook in list(table.items()) if isinstance(hook, _Hook) and hook.package is self]

    def _enter(self) -> None:
        self._mode.__enter__()

    def _leave(self) -> None:
        self._mode.__exit__(None, None, None)


# ---- the CUDA driver ------------------------------------------------------------------------------------------------

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
_CTYPES = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "float32": ctypes.c_float, "float64": ctypes.c_double}


class CudaBackend:
    """Runs entries through the CUDA driver on torch's current stream."""

    device_type = "cuda"

    def __init__(self) -> None:
        self._driver: ctypes.CDLL | None = None

    def prepare(self, entry: Entry, device: torch.device) -> Callable[[dict[str, torch.Tensor | None]], None]:
        major, minor = torch.cuda.get_device_capability(device)
        name = f"sm_{major}{minor}"
        ptx = [key for key in entry.images if key.startswith("ptx_") and int(key[4:]) <= major * 10 + minor]
        if name not in entry.images:
            if not ptx:
                built = ", ".join(sorted(entry.images))
                raise PackageError(f"no image for {name} (the package has {built}): export again on this device")
            name = max(ptx, key=lambda key: int(key[4:]))
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # makes torch's context current before the driver is asked
            module = ctypes.c_void_p()
            self._check("cuModuleLoadData", ctypes.byref(module), entry.image(name) + b"\0")
            launches = [_Launch(self, module, record) for record in entry.program["launches"] if 0 not in record["grid"]]
        workspaces = [(item["name"], getattr(torch, item["dtype"]), tuple(item["shape"]), item.get("fill"))
                      for item in entry.program["workspaces"]]

        def run(tensors: dict[str, torch.Tensor | None]) -> None:
            for scratch, dtype, shape, fill in workspaces:
                buffer = torch.empty(shape, dtype=dtype, device=device)
                if fill is not None:
                    buffer.view(torch.uint8).fill_(fill)
                tensors[scratch] = buffer
            with torch.cuda.device(device):
                stream = torch.cuda.current_stream(device).cuda_stream
                for launch in launches:
                    launch(tensors, stream)

        return run

    def _check(self, function: str, *arguments: Any) -> None:
        if self._driver is None:
            try:
                self._driver = ctypes.CDLL("libcuda.so.1")
            except OSError as error:
                raise PackageError(f"the CUDA driver library cannot be loaded: {error}") from None
        status = getattr(self._driver, function)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            raise PackageError(f"{function} failed: {(text.value or b'unknown error').decode()} ({status})")


class _Launch:
    """One kernel launch with its argument block laid out once; a call only fills in the pointers."""

    def __init__(self, backend: CudaBackend, module: ctypes.c_void_p, record: dict[str, Any]) -> None:
        self._backend = backend
        self._function = ctypes.c_void_p()
        backend._check("cuModuleGetFunction", ctypes.byref(self._function), module, record["kernel"].encode())
        if record["shared"] > 48 * 1024:
            backend._check("cuFuncSetAttribute", self._function, _MAX_DYNAMIC_SHARED, record["shared"])
        self._attributes = self._attribute_array(record)
        self._record = record

    def _attribute_array(self, record: dict[str, Any]) -> Any:
        found = []
        if record.get("cooperative"):
            found.append(_Attribute(_COOPERATIVE, b"", _Value(integer=1)))
        if record.get("cluster"):
            dims = record["cluster"]
            if dims[0] * dims[1] * dims[2] > 8:
                self._backend._check("cuFuncSetAttribute", self._function, _NON_PORTABLE_CLUSTER, 1)
            found.append(_Attribute(_CLUSTER_DIMENSION, b"", _Value(dims=(ctypes.c_uint * 3)(*dims))))
        if record.get("pdl"):
            found.append(_Attribute(_STREAM_SERIALIZATION, b"", _Value(integer=1)))
        return (_Attribute * len(found))(*found)

    def __call__(self, tensors: dict[str, torch.Tensor | None], stream: int) -> None:
        record = self._record
        values: list[Any] = []
        for argument in record["arguments"]:
            if argument["kind"] == "pointer":
                tensor = tensors.get(argument["name"]) if argument["name"] else None
                values.append(ctypes.c_void_p(tensor.data_ptr() if tensor is not None else None))
            else:
                values.append(_CTYPES[argument["kind"]](argument["value"]))
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        config = _Config((ctypes.c_uint * 3)(*record["grid"]), (ctypes.c_uint * 3)(*record["block"]), record["shared"],
                         stream, self._attributes, len(self._attributes))
        self._backend._check("cuLaunchKernelEx", ctypes.byref(config), self._function, pointers, None)
