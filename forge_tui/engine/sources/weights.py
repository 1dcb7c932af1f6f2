"""Weights from files, strictly: every name and shape must agree, and nothing is unpickled."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from forge_tui.engine.sources.failures import first_lines, missing_file
from forge_tui.errors import ProjectError
from forge_tui.specs import MAX_ALIGN

SHOWN_NAMES = 5
_WRAPPERS = ("state_dict", "model", "model_state_dict")
"""Keys under which training scripts usually store the state dict."""


def load_weights(model: nn.Module, path: Path) -> tuple[Path, ...]:
    """Loads a safetensors file, a folder of them, or a state dict into the model, in place; the safetensors files read.

    Raises ProjectError naming every kind of disagreement: missing, unexpected, of another shape.
    """
    files, state = read_state(path)
    _check(model, state, path)
    # A parameter on the meta device has no memory to copy into: it takes the file's tensor.
    model.load_state_dict(state, strict=False, assign=any(tensor.is_meta for tensor in model.state_dict().values()))
    return files


def read_state(path: Path) -> tuple[tuple[Path, ...], dict[str, torch.Tensor]]:
    """The tensors of a weights file by name, and the safetensors files among what was read."""
    if path.is_dir():
        files = tuple(sorted(path.glob("*.safetensors")))
        if not files:
            raise ProjectError("the folder holds no *.safetensors file", where=str(path),
                               cure="give a safetensors file, a state dict saved by torch.save, or a folder of safetensors")
        return files, {name: tensor for file in files for name, tensor in _safetensors(file).items()}
    if not path.is_file():
        raise missing_file(path, "weights file")
    if path.suffix == ".safetensors":
        return (path,), _safetensors(path)
    return (), _state_dict(path)


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ProjectError(f"not a readable safetensors file: {first_lines(error)}", where=str(path),
                           cure="download or export it again") from error


def _state_dict(path: Path) -> dict[str, torch.Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # bytes that are no pickle make the unpickler raise whatever it stumbles over
        raise ProjectError(f"not a state dict that can be loaded without running code: {first_lines(error, 1)}",
                           where=str(path), cure="save model.state_dict() with torch.save, or use safetensors") from error
    if isinstance(found, dict):
        for key in _WRAPPERS:
            if isinstance(found.get(key), dict):
                found = found[key]
                break
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ProjectError("the file holds no dict of tensors", where=str(path),
                           cure="save model.state_dict() with torch.save, or use safetensors")
    return found


def _check(model: nn.Module, state: dict[str, torch.Tensor], path: Path) -> None:
    own = model.state_dict()
    lazy = {name for name, tensor in own.items() if is_lazy(tensor)}  # takes any shape
    own = {name: tensor for name, tensor in own.items() if name not in lazy or name not in state}
    state = {name: tensor for name, tensor in state.items() if name not in lazy}
    present = {own[name].data_ptr() for name in state if name in own and not own[name].is_meta}
    missing = [name for name in own if name not in state and (name in lazy or own[name].data_ptr() not in present)]  # tied ones are there
    unexpected = [name for name in state if name not in own]
    shapes = [f"{name} is {tuple(state[name].shape)}, the model has {tuple(own[name].shape)}"
              for name in own if name in state and own[name].shape != state[name].shape]
    problems = [text for text in (_listed("missing", missing), _listed("unexpected", unexpected),
                                  _listed("of another shape", shapes)) if text]
    if problems:
        raise ProjectError(f"the weights do not fit {type(model).__name__}: {'; '.join(problems)}", where=str(path),
                           cure="use the weights of this very model and configuration, or `weights = \"random\"`")


def _listed(kind: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"{len(names)} {kind}: {', '.join(names[:SHOWN_NAMES])}{more}"


def align_weights(model: nn.Module) -> None:
    """Moves weights that lie at odd addresses (maps of safetensors files) to where torch's allocator would put them.

    A GPU allocates each at a multiple of 512 bytes; without this the same layer would be another variant for each place
    in a file. Values and strides stay.
    """
    seen: dict[int, torch.Tensor] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        if is_lazy(tensor) or tensor.device.type != "cpu" or tensor.layout != torch.strided or not tensor.numel():
            continue
        address = tensor.data_ptr()
        if address % MAX_ALIGN:
            if address not in seen:
                seen[address] = tensor.detach().clone()
            tensor.data = seen[address]
