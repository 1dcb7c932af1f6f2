"""Makes inputs and describes them as `engine/given.py` has it.

`python -m forge_tui.engine.giving` reads `ModelConfig` and `InputsConfig` as JSON from its argument and prints a `Given`. A
process of its own: it imports torch, and for a Python source it runs the user's code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct
from torch.nn import functional

from forge_tui.engine.given import Given, GivenTensor
from forge_tui.engine.inputs import ModelInput, make_inputs
from forge_tui.engine.sources import LoadedModel, load_model
from forge_tui.errors import ForgeError
from forge_tui.store.project import InputsConfig, ModelConfig

PICTURE = 64
"""Most pixels of a picture's longer side."""
PEAKS = 96
"""Columns of a waveform."""
SHOWN_VALUES = 16
LEAST_SAMPLES = 256
"""A row of so many numbers is a waveform; shorter ones are shown as numbers."""


def given(model: ModelConfig, inputs: InputsConfig, base: Path) -> Given:
    """Of the first input. Where transformers builds the model, without its weights. Raises as `make_inputs`."""
    made = make_inputs(inputs, _light(model, base), base)
    return Given(made[0].label, tuple(_described(made[0])), len(made) - 1)


def _light(model: ModelConfig, base: Path) -> LoadedModel:
    """The model as far as inputs need it: of a transformers folder its shape alone."""
    if not model.source.startswith("hf:") and not (Path(model.source).expanduser() / "config.json").is_file():
        return load_model(model, base)
    with torch.device("meta"):
        return load_model(msgspec.structs.replace(model, weights="random"), base)


def _described(item: ModelInput) -> Iterator[GivenTensor]:
    named = [*((f"argument {index}", value) for index, value in enumerate(item.args)), *item.kwargs.items()]
    for name, value in named:
        if isinstance(value, torch.Tensor):
            yield _tensor(name, value)
        else:
            yield GivenTensor(name, type(value).__name__, (), values=(repr(value)[:40],))


def _tensor(name: str, value: torch.Tensor) -> GivenTensor:
    dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
    numbers = value.detach().cpu()
    if value.is_floating_point() and value.ndim == 4 and shape[1] in (1, 3) and min(shape) > 0:
        return GivenTensor(name, dtype, shape, picture=_picture(numbers[0].float()))
    if value.is_floating_point() and value.ndim == 3 and min(shape[1:]) >= 16:
        return GivenTensor(name, dtype, shape, picture=_picture(numbers[0].float().flip(0)[None]))
    if value.is_floating_point() and 1 <= value.ndim <= 2 and shape[-1] >= LEAST_SAMPLES:
        return GivenTensor(name, dtype, shape, peaks=_peaks(numbers.reshape(-1, shape[-1])[0].float()))
    first = numbers.reshape(-1)[:SHOWN_VALUES].tolist()
    return GivenTensor(name, dtype, shape, values=tuple(f"{number:.4g}" if isinstance(number, float) else str(number)
                                                        for number in first))


def _picture(channels: torch.Tensor) -> tuple[str, ...]:
    """(1 or 3, height, width) of any range."""
    scale = PICTURE / max(channels.shape[1:])
    size = [max(1, round(side * min(1.0, scale))) for side in channels.shape[1:]]
    small = torch.nan_to_num(functional.interpolate(channels[None], size=size, mode="area")[0])
    low, high = small.amin(), small.amax()
    bytes_ = ((small - low) / (high - low).clamp_min(1e-12) * 255).round().to(torch.uint8).expand(3, -1, -1)
    return tuple(bytes(row).hex() for row in bytes_.permute(1, 2, 0).reshape(size[0], -1).tolist())


def _peaks(samples: torch.Tensor) -> tuple[float, ...]:
    parts = torch.stack([part.abs().amax() for part in samples.tensor_split(min(PEAKS, len(samples)))])
    return tuple((parts / parts.amax().clamp_min(1e-12)).tolist())


class _Asked(Struct, frozen=True):
    model: ModelConfig
    inputs: InputsConfig
    base: str


def main(argument: str) -> int:
    """Prints a `Given`; an error is one line on stderr, with its exit code."""
    asked: Any = msgspec.json.decode(argument, type=_Asked)
    try:
        print(msgspec.json.encode(given(asked.model, asked.inputs, Path(asked.base))).decode())
    except ForgeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
