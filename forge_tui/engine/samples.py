"""Captured tensors: snapshots in memory under a byte cap, their files, and their way back with bits, strides and alignment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from forge_tui.engine.cards import Variant
from forge_tui.errors import ProjectError
from forge_tui.specs import MAX_ALIGN, TensorSpec
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.tensors import load_tensors, save_tensors

RECAPTURE = "capture again: forge-tui capture DIR"


def copy_layout(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same bits, strides and address modulo MAX_ALIGN, on the same device, in memory of its own."""
    tensor = tensor.detach()
    size = span(tensor)
    if not size:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return _place(tensor, tensor.data_ptr() % MAX_ALIGN)


def span(tensor: torch.Tensor) -> int:
    """Bytes from the first to past the last element that the strides reach."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _place(tensor: torch.Tensor, residue: int) -> torch.Tensor:
    """Copies the span of memory under a tensor to an address that is `residue` modulo MAX_ALIGN.

    An address that is no multiple of the element's size, which torch itself cannot make, is rounded down to one.
    """
    residue -= residue % tensor.element_size()
    elements = span(tensor) // tensor.element_size()
    flat = tensor.as_strided((elements,), (1,), tensor.storage_offset())
    room = torch.empty(elements * tensor.element_size() + 2 * MAX_ALIGN, dtype=torch.uint8, device=tensor.device)
    begin = (residue - room.data_ptr()) % MAX_ALIGN
    target = room[begin:begin + elements * tensor.element_size()]
    target.copy_(flat.view(torch.uint8))
    return target.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), begin // tensor.element_size())


@dataclass
class KeptSample:
    """Tensor inputs of one call, as they were before it."""

    tensors: dict[str, torch.Tensor]
    """Copies of activations by kernel-file name."""
    weights: dict[str, str]
    """Arguments that are parameters or buffers: by kernel-file name, their qualified name."""

    @property
    def bytes(self) -> int:
        return sum(span(tensor) for tensor in self.tensors.values())

    def same_as(self, tensors: Mapping[str, torch.Tensor], weights: Mapping[str, str]) -> bool:
        return self.weights == weights and all(_same_bits(self.tensors[name], tensor) for name, tensor in tensors.items())


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Bits, so that NaN equals NaN; of float8 and others without comparison as well."""
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(left.element_size())
    if integer is None:  # complex128
        return torch.equal(torch.view_as_real(left), torch.view_as_real(right))
    return torch.equal(left.view(integer), right.view(integer))


@dataclass
class SampleKeeper:
    """Decides which calls are kept: as many variants as possible.

    The first sample of every variant goes before any second one, and a smaller first sample before a larger one.
    """

    most: int
    """Samples of one variant."""
    byte_cap: int
    """Over all variants, weights aside."""
    kept: dict[str, list[KeptSample]] = field(default_factory=dict)
    used: int = 0

    def offer(self, key: str, tensors: Mapping[str, torch.Tensor], weights: Mapping[str, str]) -> bool:
        """Keeps a copy of these tensors if they are wanted, new and fit."""
        have = self.kept.setdefault(key, [])
        if len(have) >= self.most or any(sample.same_as(tensors, weights) for sample in have):
            return False
        size = sum(span(tensor) for tensor in tensors.values())
        if not have:
            self._make_room(size)
        if self.used + size > self.byte_cap:
            return False
        have.append(KeptSample({name: copy_layout(tensor) for name, tensor in tensors.items()}, dict(weights)))
        self.used += size
        return True

    def _make_room(self, size: int) -> None:
        """For the first sample of another variant: gives up second samples, then larger first ones, the largest first."""
        while self.used + size > self.byte_cap:
            spare = [samples for samples in self.kept.values() if len(samples) > 1]
            spare = spare or [samples for samples in self.kept.values() if samples and samples[0].bytes > size]
            if not spare:
                return
            self.used -= max(spare, key=lambda samples: samples[-1].bytes).pop().bytes


def save_sample(paths: ProjectPaths, name: str, sample: KeptSample,
                weight: Callable[[str], dict[str, Any]]) -> None:
    """Writes `captures/NAME`. weight: where a parameter's bytes lie, as `store_weight` or `find_in_files` say it."""
    save_tensors(paths.captures / name, sample.tensors,
                 {"weights": {argument: weight(qualified) for argument, qualified in sample.weights.items()}})


def store_weight(paths: ProjectPaths, qualified: str, tensor: torch.Tensor, stamp: str) -> dict[str, Any]:
    """Writes a parameter under `captures/weights/`; what a sample's header says of it."""
    name = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', qualified)}-{stamp}.msgpack"
    save_tensors(paths.weights / name, {"weight": tensor})
    return {"file": name, "name": qualified}


def find_in_files(files: tuple[Path, ...], qualified: str, tensor: torch.Tensor) -> dict[str, Any] | None:
    """Where a safetensors file holds exactly this parameter, so that it need not be copied; None if nowhere.

    The names may differ by a prefix (`bert.encoder...` and `encoder...`); the bytes decide.
    """
    from safetensors import safe_open

    for path in files:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - safe_open is no mapping
                if name == qualified or name.endswith("." + qualified) or qualified.endswith("." + name):
                    found = file.get_tensor(name)
                    own = tensor.detach().cpu()
                    if found.dtype == own.dtype and found.shape == own.shape and _same_bits(found, own):
                        state = path.stat()
                        return {"safetensors": str(path.resolve()), "tensor": name, "size": state.st_size,
                                "mtime_ns": state.st_mtime_ns, "name": qualified}
    return None


def load_sample(paths: ProjectPaths, variant: Variant, index: int) -> dict[str, torch.Tensor]:
    """The tensor inputs of a captured call by kernel-file name: CPU tensors with exact bits, strides and alignment.

    Raises ProjectError where a file is gone, damaged, or the model's own weights changed since.
    """
    if not 0 <= index < len(variant.samples):
        raise ProjectError(f"{variant.operator} {variant.key} has {len(variant.samples)} samples, not number {index}",
                           where=str(paths.captures), cure=RECAPTURE)
    path = paths.captures / variant.samples[index]
    tensors, meta = load_tensors(path)
    specs = dict(variant.call.tensors())
    weights = meta.get("weights", {})
    found = {}
    for name, spec in specs.items():
        if name in tensors:
            found[name] = _laid_out(tensors[name], spec)
        elif name in weights:
            found[name] = _laid_out(_load_weight(paths, weights[name]), spec)
        else:
            raise ProjectError(f"the sample lacks {name!r} of {variant.operator}", where=str(path), cure=RECAPTURE)
    return found


def _load_weight(paths: ProjectPaths, place: Mapping[str, Any]) -> torch.Tensor:
    if "file" in place:
        return load_tensors(paths.weights / place["file"])[0]["weight"]
    from safetensors import SafetensorError, safe_open

    path = Path(place["safetensors"])
    try:
        state = path.stat()
        if (state.st_size, state.st_mtime_ns) != (place["size"], place["mtime_ns"]):
            raise ProjectError(f"the model's weights changed since the capture ({place['name']})", where=str(path),
                               cure=RECAPTURE)
        with safe_open(path, "pt") as file:
            return file.get_tensor(place["tensor"])
    except (OSError, SafetensorError) as error:
        raise ProjectError(f"the model's weights, which the capture refers to, cannot be read: {error}", where=str(path),
                           cure=f"put the file back, or {RECAPTURE}") from error


def _laid_out(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The tensor with the strides and exactly the alignment of its description."""
    if tuple(tensor.stride()) != spec.stride and tensor.numel():
        arranged = torch.empty_strided(spec.shape, spec.stride, dtype=tensor.dtype)
        tensor = arranged.copy_(tensor)
    address = tensor.data_ptr()
    if not tensor.numel() or min(MAX_ALIGN, address & -address) == spec.align:
        return tensor
    return _place(tensor, spec.align % MAX_ALIGN)
