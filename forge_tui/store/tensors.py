"""Tensors on disk: a msgpack header and raw bytes, memory-mapped on load, with strides and address alignment kept.

File: 8 bytes of magic, format version (uint32), header length (uint32), header, padding, data. Little-endian. Each tensor's
bytes lie at a file offset that is congruent to its address modulo 256; a map begins at a page, so the tensor that comes
back has the alignment of the one that was saved. Never pickle.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct

from forge_tui import __version__
from forge_tui.errors import ProjectError
from forge_tui.store.atomic import atomic_file

FORMAT = 1
MAGIC = b"FORGETNS"
ALIGNMENT = 256
"""Bytes: what CUDA's allocators give at least, and more than any vector access asks."""
_PREFIX = struct.Struct("<8sII")
_CHUNK = 1 << 24


class _Entry(Struct, frozen=True):
    """One tensor of a file."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """In elements."""
    offset: int
    """Bytes from the start of the data section, which itself begins at a multiple of ALIGNMENT."""
    span: int
    """Bytes from the first to past the last element; an expanded tensor's repeats are not stored."""


class _Header(Struct, frozen=True):
    tensors: dict[str, _Entry]
    meta: dict[str, Any]


def save_tensors(path: Path, tensors: dict[str, torch.Tensor], meta: dict[str, Any] | None = None) -> None:
    """Writes strided tensors of any device, dtype and stride, and `meta` (plain msgpack values), as one file, atomically.

    A tensor is stored as the span of memory its strides reach. Raises ValueError for a tensor without strides in memory
    (sparse, quantized, meta, a wrapper), MissingEnvironment when it cannot be written.
    """
    entries, spans, offset = {}, [], 0
    for name, tensor in tensors.items():
        tensor = _plain(name, tensor)
        span = _span(tensor)
        residue = tensor.data_ptr() % ALIGNMENT if span else 0
        offset += (residue - offset) % ALIGNMENT
        entries[name] = _Entry(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride(), offset, span)
        spans.append((offset, tensor, span))
        offset += span
    header = msgspec.msgpack.encode(_Header(entries, meta or {}))
    start = _data_start(len(header))
    with atomic_file(path) as file:
        file.write(_PREFIX.pack(MAGIC, FORMAT, len(header)) + header)
        for place, tensor, span in spans:
            if span:
                file.write(bytes(start + place - file.tell()))
                _write_span(file, tensor, span)


def load_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """CPU tensors over a private map of the file, and `meta`. Pages are read when touched; writing to a tensor never reaches
    the file. Raises ProjectError for a missing or cut file, another kind of file, or a newer format."""
    try:
        with path.open("rb") as file:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ProjectError(f"captured tensors cannot be read: {getattr(error, 'strerror', None) or error}", where=str(path),
                           cure="capture again: forge-tui capture DIR") from error
    header, start = _read_header(view, path)
    tensors = {}
    for name, entry in header.tensors.items():
        if entry.span and start + entry.offset + entry.span > len(view):
            raise _damaged(path, "it is cut short")
        tensors[name] = _map(view, entry, start)
    return tensors, header.meta


def _plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The same memory without autograd; with lazy conjugation or negation carried out."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise ValueError(f"{name}: a {tensor.layout} tensor on {tensor.device.type} has no plain memory to store")
    if tensor.is_conj() or tensor.is_neg():
        done = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return done.copy_(tensor)
    return tensor


def _span(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _write_span(file: Any, tensor: torch.Tensor, span: int) -> None:
    """In pieces, so that a tensor on a GPU needs little host memory."""
    flat = tensor.as_strided((span // tensor.element_size(),), (1,)).view(torch.uint8)
    for begin in range(0, span, _CHUNK):
        file.write(memoryview(flat[begin:begin + _CHUNK].cpu().numpy()))


def _data_start(header_length: int) -> int:
    return -(-(_PREFIX.size + header_length) // ALIGNMENT) * ALIGNMENT


def _read_header(view: mmap.mmap, path: Path) -> tuple[_Header, int]:
    if len(view) < _PREFIX.size or view[:len(MAGIC)] != MAGIC:
        raise _damaged(path, "it is not a file of tensors")
    _, version, length = _PREFIX.unpack_from(view)
    if version > FORMAT:
        raise ProjectError(f"these tensors have format {version}; forge-tui {__version__} reads formats up to {FORMAT}",
                           where=str(path), cure="use a newer forge-tui: pip install --upgrade forge-tui")
    try:
        header = msgspec.msgpack.decode(view[_PREFIX.size:_PREFIX.size + length], type=_Header)
    except msgspec.DecodeError as error:
        raise _damaged(path, f"its header: {error}") from error
    return header, _data_start(length)


def _map(view: mmap.mmap, entry: _Entry, start: int) -> torch.Tensor:
    dtype = getattr(torch, entry.dtype)
    if entry.span == 0:
        return torch.empty_strided(entry.shape, entry.stride, dtype=dtype)
    flat = torch.frombuffer(view, dtype=dtype, count=entry.span // dtype.itemsize, offset=start + entry.offset)
    return flat.as_strided(entry.shape, entry.stride)


def _damaged(path: Path, how: str) -> ProjectError:
    return ProjectError(f"captured tensors are damaged: {how}", where=str(path),
                        cure="capture again: forge-tui capture DIR")
