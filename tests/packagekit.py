"""A package without kernels: one entry for `relu`, whose backend doubles instead, so that a test sees which one ran."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import tomli_w
import torch
import torch.nn.functional as F

from forge_tui.engine.cards import CallForm, variant_key
from forge_tui.engine.package import runtime
from forge_tui.specs import Call, TensorSpec


class DoublingBackend:
    """Runs `out = 2 * input` for every entry: a result no original gives, so that a test sees which one ran."""

    device_type = "cpu"

    def prepare(self, entry: runtime.Entry, device: torch.device) -> Any:
        def run(tensors: Any) -> None:
            torch.mul(tensors[0], 2, out=tensors[-1])

        return run


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x) * self.scale


SPEC = TensorSpec("float32", (4, 8), (8, 1), align=16)


def write_package(folder: Path, forms: tuple[CallForm, ...] | None = None, aliases: dict[str, str] | None = None,
                  spec: TensorSpec = SPEC) -> Path:
    call = Call("torch.nn.functional.relu", {"input": spec}, (spec,), aliases or {})
    forms = forms or (CallForm("torch.nn.functional.relu", (spec,), {"inplace": False}, ("input",)),)
    entry = {
        "variant": variant_key(call), "kernel": "0" * 64, "call": call, "forms": forms,
        "program": {"outputs": ["out"], "launches": [], "workspaces": []}, "images": {}, "evidence": {},
    }
    name = f"entries/{entry['variant']}.json"
    data = msgspec.json.encode(entry)
    (folder / "entries").mkdir(parents=True)
    (folder / name).write_bytes(data)
    manifest = {"format": 1, "entries": [entry["variant"]], "files": {name: hashlib.sha256(data).hexdigest()}}
    (folder / "manifest.toml").write_text(tomli_w.dumps(manifest))
    return folder


def aligned(*shape: int, offset: int = 0) -> torch.Tensor:
    """Random values whose address is `offset` elements past a 64-byte boundary."""
    size = int(torch.Size(shape).numel())
    storage = torch.randn(size + 32)
    start = (-(storage.data_ptr() // 4) % 16) + offset
    return storage[start:start + size].view(shape)
