"""What the guards' cost is measured on: one small model a kind of region, and a driver that launches nothing."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import tomli_w
import torch
from torch import nn
from torch.nn import functional as F

from forge_tui.cuda.device import H200
from forge_tui.engine.capture import capture_model
from forge_tui.engine.inputs import ModelInput
from forge_tui.engine.package.runtime import Backend, Entry, Package
from forge_tui.engine.package.runtime.driver import CudaBackend
from forge_tui.engine.package.runtime.parts import helpers
from forge_tui.engine.sources import LoadedModel

DTYPE = torch.bfloat16


class RMSNorm(nn.Module):
    """Written out, as in Llama."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(dim) + 0.5)
        self.variance_epsilon = 1e-6

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon)).to(dtype)


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act_fn = nn.SiLU()

    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return self.act_fn(gate) * up


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def apply_rotary_pos_emb(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class Rotary(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return apply_rotary_pos_emb(q, k, cos, sin)


class Activated(nn.Module):
    """As residual blocks begin."""

    def __init__(self, norm: nn.Module, act: nn.Module) -> None:
        super().__init__()
        self.norm, self.act = norm, act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        x = self.act(x)
        return x


class Convolved(nn.Module):
    """As in ResNets."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.normalization, self.activation = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self.convolution(hidden)
        hidden = self.normalization(hidden)
        hidden = self.activation(hidden)
        return hidden


class Summed(nn.Module):
    """As residual blocks end."""

    def __init__(self) -> None:
        super().__init__()
        self.activation = nn.ReLU()

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        hidden += residual
        hidden = self.activation(hidden)
        return hidden


class Residual(nn.Module):
    """As decoder layers go on: the sum is kept, its norm goes further."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = RMSNorm(32)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = residual + x
        residual = x
        x = self.norm(x)
        return residual, x


class Softmax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(x, dim=-1)


class Relu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x)


class Nothing(nn.Module):
    """What a model's call costs without anything in it."""

    def forward(self, *args: torch.Tensor) -> Any:
        return args[0]


def empty_forward(self: nn.Module, hidden_states: torch.Tensor) -> None:
    """Stands for the original where its parameters matter."""


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(DTYPE)


@dataclass(frozen=True)
class Case:
    """One kind of call that a kernel replaces."""

    make: Callable[[], nn.Module]
    """A model of nothing else."""
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    stand_in: Callable[[Package, Callable[..., Any]], Callable[..., Any]]
    """What a package puts in the place of the call, for a given original."""
    arguments: Callable[[nn.Module, tuple[torch.Tensor, ...]], tuple[Any, ...]] = lambda model, tensors: tensors
    """What the model gives it."""
    inline: bool = False
    """Whether the original is no call of its own, but lines of a forward."""
    constant: tuple[str | int, Any] | None = None
    """What makes it another call: an attribute of the model by its path, or an argument by its number, and the value; None where it has none."""


def of_torch(function: Callable[..., Any]) -> Callable[[Package, Callable[..., Any]], Callable[..., Any]]:
    return lambda package, original: package.routers[function].standing_in(function, original)


def of_part(kind: str) -> Callable[[Package, Callable[..., Any]], Callable[..., Any]]:
    return lambda package, original: helpers([list(package.parts.values())], {kind: original})[kind]


def with_constant(case: Case, model: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with another constant; changes the model where it has it."""
    place, value = case.constant or ("", None)
    if isinstance(place, int):
        return (*given[:place], value, *given[place + 1:])
    owner, _, name = place.rpartition(".")
    setattr(model.get_submodule(owner), name, value)
    return given


def normed(norm: Callable[[], nn.Module], act: Callable[[], nn.Module]) -> Case:
    return Case(lambda: Activated(norm(), act()), lambda: (draw(2, 16, 4, 4),), of_part("norm_act"),
                lambda model, tensors: (model.act, model.norm, *tensors), inline=True, constant=("norm.eps", 1e-3))


CASES = {
    "relu": Case(Relu, lambda: (draw(4, 8),), of_torch(F.relu), constant=(1, True)),
    "softmax": Case(Softmax, lambda: (draw(4, 8),), of_torch(F.softmax), lambda model, tensors: (*tensors, -1), constant=(1, 0)),
    "group_norm": Case(lambda: nn.GroupNorm(4, 16), lambda: (draw(2, 16, 4, 4),), of_torch(F.group_norm),
                       lambda model, tensors: (*tensors, 4, model.weight, model.bias, 1e-5), constant=(4, 1e-3)),
    "RMSNorm written out": Case(lambda: RMSNorm(32), lambda: (draw(6, 32),),
                                lambda package, original: next(iter(package.regions.values())).around(empty_forward),
                                lambda model, tensors: (model, *tensors), constant=("variance_epsilon", 1e-3)),
    "silu * up": Case(Gate, lambda: (draw(6, 32), draw(6, 32)), of_part("act_mul"), lambda model, tensors: (model.act_fn, *tensors), inline=True,
                      constant=("act_fn.inplace", True)),
    "rotary": Case(Rotary, lambda: (draw(1, 4, 6, 16), draw(1, 2, 6, 16), draw(1, 6, 16), draw(1, 6, 16)),
                   lambda package, original: next(iter(package.functions.values())).standing_in(apply_rotary_pos_emb, original)),
    "group_norm + silu": normed(lambda: nn.GroupNorm(4, 16), nn.SiLU),
    "batch_norm + relu": normed(lambda: nn.BatchNorm2d(16), nn.ReLU),
    "conv2d + batch_norm + relu": Case(Convolved, lambda: (draw(1, 4, 4, 4),), of_part("conv_norm_act"),
                                       lambda model, tensors: (model.activation, model.normalization, model.convolution, *tensors), inline=True,
                                       constant=("normalization.eps", 1e-3)),
    "add + relu, the sum kept": Case(Summed, lambda: (draw(4, 8), draw(4, 8)), of_part("iadd_act"),
                                     lambda model, tensors: (model.activation, *tensors), inline=True, constant=("activation.inplace", True)),
    "add + RMSNorm, both kept": Case(Residual, lambda: (draw(6, 32), draw(6, 32)), of_part("add_norm_sum"),
                                     lambda model, tensors: (model.norm, tensors[1], tensors[0]), inline=True,
                                     constant=("norm.variance_epsilon", 1e-3)),
}
"""By what the kernel does."""


class SilentDriver:
    """Stands for libcuda: every function takes four words, does nothing and returns 0 (glibc's `pthread_equal` of unequal ones)."""

    def __getattr__(self, name: str) -> Any:
        return ctypes.CDLL(None).pthread_equal


class SilentBackend(CudaBackend):
    """The real backend on CPU tensors, up to and including the call of the driver, which does nothing."""

    device_type = "cpu"

    def prepare(self, entry: Entry, device: torch.device) -> Any:
        stand_in = SimpleNamespace(synchronize=lambda: None, cuda_stream=0)
        with (mock.patch.object(torch.cuda, "get_device_capability", lambda device: (9, 0)),
              mock.patch.object(torch.cuda, "device", lambda device: nullcontext()),
              mock.patch.object(torch.cuda, "current_stream", lambda index=None: stand_in)):
            return super().prepare(entry, device)

    def check(self, function: str, *arguments: Any) -> None:
        return None

    def driver(self) -> Any:
        return SilentDriver()


@contextmanager
def no_device() -> Iterator[None]:
    """What the launch asks torch for on a GPU, answered by functions in C that do nothing."""
    with (mock.patch.object(torch._C, "_cuda_getDevice", [].clear, create=True),
          mock.patch.object(torch._C, "_cuda_getCurrentRawStream", hash, create=True)):
        yield


def packed(folder: Path, model: nn.Module, args: tuple[torch.Tensor, ...], backend: Backend | None = None) -> Package:
    """A package for what capture offers of this model, each kernel one launch that gets every tensor."""
    cards = capture_model(LoadedModel(model, "benchmark"), [ModelInput(args, label="benchmark")], torch.device("cpu"), H200).cards()
    files: dict[str, bytes] = {"images/none.ptx": b"", f"kernels/{'0' * 64}.cu": b""}
    entries = []
    for variant in cards.variants:
        if not variant.offered:
            continue
        outputs = ["out"] if len(variant.call.outputs) == 1 else [f"out{at}" for at in range(len(variant.call.outputs))]
        names = [*Entry(folder, record(variant, outputs, []), lambda name: b"").input_names, *outputs]
        files[f"entries/{variant.key}.json"] = msgspec.json.encode(record(variant, outputs, names))
        entries.append(variant.key)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    (folder / "manifest.toml").write_text(tomli_w.dumps({"format": 1, "entries": entries, "files": hashes}))
    return Package(folder, backend or SilentBackend())


def record(variant: Any, outputs: list[str], names: list[str]) -> dict[str, Any]:
    launch = {"kernel": "k", "grid": [8, 1, 1], "block": [128, 1, 1], "shared": 0,
              "arguments": [{"kind": "pointer", "name": name} for name in names] + [{"kind": "int32", "value": 6}]}
    made = {"variant": variant.key, "kernel": "0" * 64, "call": variant.call, "forms": variant.forms, "evidence": {},
            "program": {"outputs": outputs, "launches": [launch], "workspaces": []}, "images": {"ptx_90": "none.ptx"}}
    return msgspec.json.decode(msgspec.json.encode(made))
