"""One kernel bound to one variant: what its call looks like, on which devices it is ready, how it is run and counted."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from .private import DUAL_LEVELS, UNKNOWABLE, dispatch_modes, interpreters

Tensors = Sequence[torch.Tensor]
Launcher = Callable[[Tensors], None]
"""Runs an entry's launches on its inputs followed by its outputs, in the order of `input_names` and `output_names`,
asynchronously on the current stream."""

_DTYPE_SLACK = {torch.float64: 64.0, torch.float32: 64.0, torch.float16: 8.0, torch.bfloat16: 4.0}
"""Canaries: how many units of roundoff of the output's dtype two right results may be apart, in norm. Sums in float32 lose
more of their last digits than one rounding to a half type does."""
TF32_EPS = 2.0 ** -10
"""Of TF32's 10 bits of mantissa (NVIDIA A100 whitepaper)."""
CONVOLUTIONS = ("conv",)
PRODUCTS = ("linear", "matmul", "bmm", "mm", "einsum", "attention")
OVERLAPS = "memory that is written overlaps"
OUTSIDE_INFERENCE = "an inference tensor is written outside of inference mode"
DUAL = "inside forward-mode differentiation"


class PackageError(Exception):
    """The package cannot be used: damaged, of another format, or not a package."""


class Backend(Protocol):
    """What runs an entry's launches: the CUDA driver here; Forge's host target where there is no GPU."""

    device_type: str
    """Of the tensors it takes: `cuda` or `cpu`."""

    def prepare(self, entry: Entry, device: torch.device) -> Launcher:
        """Raises PackageError when this device cannot run the entry; the message is the reason for falling back."""
        ...


class TensorPattern:
    """What one tensor of the call must be."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.dtype: torch.dtype = getattr(torch, spec["dtype"])
        self.shape = tuple(spec["shape"])
        self.stride = tuple(spec["stride"])
        self.align: int = spec.get("align", 1)
        self.dense = self.stride == torch.empty(self.shape, device="meta").stride()
        """Whether it is contiguous."""

    @property
    def span(self) -> int:
        """Bytes from the first to past the last element."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize if all(self.shape) else 0

    def same_place(self, other: TensorPattern) -> bool:
        return (self.dtype, self.shape, self.stride) == (other.dtype, other.shape, other.stride)

    def early_mismatch(self, tensor: torch.Tensor) -> str:
        """The guards that are looked at before everything else: most of what has the captured shape and does not match ends here."""
        if tensor.dtype is not self.dtype:
            return "other dtype"
        if tensor.data_ptr() % self.align:
            return "other alignment"
        return "" if tensor.stride() == self.stride else "other stride"

    def mismatch(self, tensor: torch.Tensor) -> str:
        """The first guard that this tensor violates; empty when it may be given to the kernel, gradients aside."""
        if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
            return "a tensor subclass"
        if tensor.layout is not torch.strided:
            return "other layout"
        if tensor.shape != self.shape:
            return "other shape"
        if tensor.dtype is not self.dtype:
            return "other dtype"
        if tensor.stride() != self.stride:
            return "other stride"
        if tensor.is_conj() or tensor.is_neg():
            return "a lazily conjugated or negated tensor"
        return ""


class Entry:
    """One kernel bound to one variant, as `entries/<variant>.json` has it."""

    def __init__(self, package: Path, record: dict[str, Any], verified_file: Callable[[str], bytes]) -> None:
        self.package = package
        self.variant: str = record["variant"]
        self.operator: str = record["call"]["operator"]
        self.arguments: dict[str, Any] = record["call"]["arguments"]
        """By the operator's parameter names, as stored."""
        specs = list(tensor_specs(self.arguments))
        self.input_names = [name for name, _ in specs]
        self.inputs = [TensorPattern(spec) for _, spec in specs]
        self.outputs = [TensorPattern(spec) for spec in record["call"]["outputs"]]
        self.output_names: list[str] = record["program"]["outputs"]
        aliases: dict[str, str] = record["call"].get("aliases", {})
        self.written = [self.input_names.index(aliases[name]) if name in aliases else -1 for name in self.output_names]
        """For every output the input whose memory it is, or -1."""
        self.crossing = [(one, other, -self.inputs[other].span, self.inputs[one].span, self.inputs[one].same_place(self.inputs[other]))
                         for one in self.written if one >= 0 for other in range(len(specs)) if other != one]
        """Inputs that are written, each with every other one, which may not lie across it: between which two distances in bytes it would,
        and whether none at all is well, both being the same elements then."""
        self.program: dict[str, Any] = record["program"]
        self.images: dict[str, str] = record["images"]
        """`sm_90` or `ptx_90` to a file name under `images/`."""
        self.kernel: str = record["kernel"]
        self.forms: list[dict[str, Any]] = record["forms"]
        self._file = verified_file
        self._lock = threading.Lock()
        self._ready: dict[torch.device, Ready | str] = {}
        self.disabled = ""
        """Why the kernel is not used any more; set by a canary."""
        self.canary_every = 0
        """0: none; N: every Nth call also runs the original and compares."""
        self.calls = 0
        self.canaries = 0
        self.canary_error = 0.0
        """Largest difference from the original that a canary found, in norm, relative."""
        self.fallbacks: Counter[str] = Counter()
        """By guard, where the kernel's operator or a canary ran the original; routers count their own."""

    def image(self, name: str) -> bytes:
        """The bytes of an image, checked against the manifest's hash."""
        return self._file(f"images/{self.images[name]}")

    def text(self) -> str:
        """The kernel file, checked against the manifest's hash."""
        return self._file(f"kernels/{self.kernel}.cu").decode()

    def ready(self, device: torch.device, backend: Backend) -> Ready | str:
        """The kernel on this device, loaded once; or why nothing runs it there, which is said once."""
        ready = self._ready.get(device)
        if ready is None:
            with self._lock:
                ready = self._ready.get(device)
                if ready is None:
                    if _capturing(device):
                        return "not loaded before a CUDA graph is captured"
                    ready = self._ready[device] = self._prepare(device, backend)
        return ready

    def settled(self, device: torch.device) -> bool:
        """Whether what `ready` says of this device is its last word."""
        return device in self._ready

    def _prepare(self, device: torch.device, backend: Backend) -> Ready | str:
        try:
            return Ready(self, device, backend.prepare(self, device))
        except PackageError as error:
            warnings.warn(f"{self.operator} keeps its original: {error}", stacklevel=2)
            return str(error)

    def guard(self, tensors: Tensors, backend: Backend) -> str:
        """Which guard this call violates, in words; empty when the kernel may run. Gradients and alignment are not looked at."""
        if UNKNOWABLE:
            return UNKNOWABLE
        if interpreters() is not None:
            return "inside a functorch transform"
        if DUAL_LEVELS["_current_level"] >= 0:
            return DUAL
        for pattern, tensor in zip(self.inputs, tensors, strict=True):
            reason = pattern.mismatch(tensor)
            if reason:
                return reason
        device = tensors[0].device
        if device.type != backend.device_type:
            return f"on {device.type}"
        if any(tensor.device != device for tensor in tensors):
            return "on several devices"
        if torch.is_autocast_enabled(device.type):
            return "under autocast"
        for one, other, low, high, same in self.crossing:
            apart = tensors[other].data_ptr() - tensors[one].data_ptr()
            if low < apart < high and (apart or not same):
                return OVERLAPS
        if any(at >= 0 and tensors[at].is_inference() for at in self.written) and not torch.is_inference_mode_enabled():
            return OUTSIDE_INFERENCE  # which the original refuses
        return "under a torch dispatch mode" if dispatch_modes() else ""

    def aligned(self, tensors: Tensors) -> bool:
        return not any(tensor.data_ptr() % pattern.align for tensor, pattern in zip(tensors, self.inputs, strict=True))

    def watched(self, ready: Ready, tensors: Tensors, original: Callable[[], Any]) -> Any:
        """The kernel's result, or in every `canary_every`-th call the original's. original: the call as it was."""
        if self.canary_every and (self.calls + 1) % self.canary_every == 0 and not _capturing(tensors[0].device):
            return self._canary(ready, tensors, original)
        self.calls += 1
        return ready.invoke(tensors)

    def _canary(self, ready: Ready, tensors: Tensors, original: Callable[[], Any]) -> Any:
        """Kernel and original on the same inputs. The original's result is returned; one that differs ends the kernel."""
        self.canaries += 1
        copies = [_same_layout(tensor) if at in self.written else tensor for at, tensor in enumerate(tensors)]
        got = ready.invoke(copies)
        expected = original()
        for mine, theirs in zip(_tuple(got), _tuple(expected), strict=True):
            apart = difference(mine, theirs)
            self.canary_error = max(self.canary_error, apart)
            slack = _slack(self.operator, theirs)
            if not apart <= slack:
                self.disabled = f"disabled: a canary differed from the original by {apart:.3g}, more than {slack:.3g}"
                warnings.warn(f"{self.operator} {self.variant} {self.disabled}; the original runs from now on", stacklevel=2)
                self.fallbacks[self.disabled] += 1
                return expected
        self.calls += 1
        return expected


class Ready:
    """An entry on one device."""

    def __init__(self, entry: Entry, device: torch.device, launch: Launcher) -> None:
        self.device = device
        self.launch = launch
        self.write: Callable[[Any, list[str]], list[str]] | None = getattr(launch, "write", None)
        """The launch as lines for a `writer.Writer`, from the tensors' addresses, where `current` tells this device; None where the
        backend has no such."""
        self.current: Callable[[], int] | None = getattr(launch, "current", None)
        """The device that is the current one: to be asked before those lines and `empty`; None where there is but one."""
        guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
        self.empty: Callable[..., torch.Tensor] | None = getattr(guards, f"_empty_strided_{device.type}", None)
        """Allocates by shape, strides and dtype on the current device: torch's compiler's own, without the cost of a general
        call; private to torch."""
        if device.type == "cuda" and self.current is None:
            self.empty = self.write = None
        self._written = entry.written
        self._makers = [None if at >= 0 else self.maker(pattern) for pattern, at in zip(entry.outputs, entry.written, strict=True)]

    def maker(self, pattern: TensorPattern) -> Callable[[], torch.Tensor]:
        """Allocates one result."""
        return lambda: torch.empty_strided(pattern.shape, pattern.stride, dtype=pattern.dtype, device=self.device)

    def invoke(self, tensors: Tensors) -> Any:
        """Allocates the results and launches. The inputs in, the call's result out."""
        results = [make() if make else tensors[at] for make, at in zip(self._makers, self._written, strict=True)]
        self.launch((*tensors, *results))
        for at in self._written:
            if at >= 0 and not tensors[at].is_inference():
                torch.autograd.graph.increment_version(tensors[at])  # an in-place write, as autograd must see it
        if len(results) == 1:
            return results[0]
        fresh = [result for result, at in zip(results, self._written, strict=True) if at < 0]  # what was there before is not given again
        return fresh[0] if len(fresh) == 1 else tuple(fresh)


def tensor_specs(arguments: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Tensors of stored arguments by kernel-file name: `input`, `tensors[0]`."""
    for name, value in arguments.items():
        yield from _nested_specs(name, value)


def _nested_specs(name: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict) and value["type"] == "tensor":
        yield name, value
    elif isinstance(value, dict) and value["type"] == "items":
        for index, item in enumerate(value["items"]):
            yield from _nested_specs(f"{name}[{index}]", item)


def difference(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over norm of `expected`; inf where shape, dtype or the pattern of non-finite values differ."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    if not expected.is_floating_point():
        return 0.0 if torch.equal(got, expected) else float("inf")
    same = (got == expected) | (got.isnan() & expected.isnan())
    finite = got.isfinite() & expected.isfinite()
    if not bool((same | finite).all()):
        return float("inf")
    apart = float(torch.where(finite, got.double() - expected.double(), 0.0).norm())
    norm = float(torch.where(finite, expected.double(), 0.0).norm())
    return apart / norm if norm else (float("inf") if apart else 0.0)


def _slack(operator: str, result: torch.Tensor) -> float:
    """How far another right result may be from the original's, in norm, relative."""
    if result.dtype is torch.float32 and result.is_cuda and _may_round_to_tf32(operator):
        return _DTYPE_SLACK[torch.float32] / 8 * TF32_EPS
    return _DTYPE_SLACK.get(result.dtype, 0.0) * (torch.finfo(result.dtype).eps if result.is_floating_point() else 0.0)


def _may_round_to_tf32(operator: str) -> bool:
    """Whether torch may round the inputs of this operator's products to TF32, which no attribute of the result tells."""
    if any(word in operator for word in CONVOLUTIONS):
        return torch.backends.cudnn.allow_tf32
    return any(word in operator for word in PRODUCTS) and torch.backends.cuda.matmul.allow_tf32


def _same_layout(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
