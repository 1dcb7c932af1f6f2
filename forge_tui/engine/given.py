"""What a model would be given, before a project is made: names, types, shapes, and a small picture of each tensor."""

from __future__ import annotations

from msgspec import Struct


class GivenTensor(Struct, frozen=True):
    """One argument of forward."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    picture: tuple[str, ...] = ()
    """Rows of `rrggbb` pixels, of an image or a spectrogram: the first of a batch, its values stretched over the range."""
    peaks: tuple[float, ...] = ()
    """Largest magnitude in each part of a waveform, 0 to 1."""
    values: tuple[str, ...] = ()
    """The first few numbers of anything else."""


class Given(Struct, frozen=True):
    """One forward's arguments."""

    label: str
    tensors: tuple[GivenTensor, ...]
    more: int = 0
    """Further inputs beside this one."""
