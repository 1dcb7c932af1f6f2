"""What a cubin says of itself, read from its ELF sections without a device: kernels, their resources, global variables."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct

_EM_CUDA = 190
_SHT_SYMTAB = 2
_SHT_NOBITS = 8
_STT_OBJECT = 1
_STT_FUNC = 2
_EIATTR_FRAME_SIZE = 0x11
_EIATTR_MIN_STACK_SIZE = 0x12
_EIATTR_KPARAM_INFO = 0x17
_EIATTR_REGCOUNT = 0x2F
_FORMAT_SIZED = 4
"""An attribute of `.nv.info` whose value is preceded by its length; the others have two bytes of value.

`.nv.info` is undocumented: these numbers are what cuobjdump prints for the cubins of CUDA 12 and 13, and are checked against
ptxas -v by a test.
"""
RESERVED_SHARED = 1024
"""Bytes at the start of `.nv.shared.<kernel>` that the system keeps from compute capability 9.0 on."""


class BadImage(Exception):
    """Bytes that are no cubin."""


class KernelResources(Struct, frozen=True):
    """One kernel of a cubin."""

    name: str
    registers: int
    """Per thread."""
    static_shared: int
    """Bytes a block uses besides dynamic shared memory; the system's own not counted."""
    stack_bytes: int
    """Per thread: local arrays and spills."""
    parameter_bytes: tuple[int, ...]
    """Size of each parameter, in order."""


class GlobalVariable(Struct, frozen=True):
    """A variable in global memory that belongs to the image."""

    name: str
    size: int
    initialized: bool
    """Constants are, unless they are zero. Every variable of a header is here, used or not, so that this cannot tell what is
    written: `compile_program` does, by following addresses in the PTX."""


class CubinFacts(Struct, frozen=True):
    """Everything that is read."""

    arch: int
    """Compute capability times ten."""
    kernels: dict[str, KernelResources]
    variables: tuple[GlobalVariable, ...]


class _Section(Struct):
    name: str
    kind: int
    link: int
    info: int
    data: bytes
    size: int


def read_cubin(code: bytes) -> CubinFacts:
    """Raises BadImage."""
    try:
        return _read(code)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise BadImage(f"not a readable cubin: {error}") from error


def _read(code: bytes) -> CubinFacts:
    if code[:4] != b"\x7fELF" or struct.unpack_from("<H", code, 18)[0] != _EM_CUDA:
        raise BadImage("not a cubin: no CUDA ELF header")
    sections = _sections(code)
    names = {index: section.name for index, section in enumerate(sections)}
    symbols = list(_symbols(sections))
    functions = {index: name for index, name, kind, _, _ in symbols if kind == _STT_FUNC}
    variables = [GlobalVariable(name, size, names[at] == ".nv.global.init") for _, name, kind, at, size in symbols
                 if kind == _STT_OBJECT and names.get(at, "").startswith(".nv.global")]
    registers: dict[str, int] = {}
    stacks: dict[str, int] = {}
    parameters: dict[str, dict[int, int]] = {}
    for section in sections:
        if section.name == ".nv.info":
            for attribute, value in _attributes(section.data):
                if attribute in (_EIATTR_REGCOUNT, _EIATTR_MIN_STACK_SIZE, _EIATTR_FRAME_SIZE):
                    symbol, number = struct.unpack("<II", value)
                    table = registers if attribute == _EIATTR_REGCOUNT else stacks
                    name = functions.get(symbol, "")
                    table[name] = max(number, table.get(name, 0))
        elif section.name.startswith(".nv.info."):
            parameters[section.name.removeprefix(".nv.info.")] = dict(_parameters(section.data))
    arch = _arch(code)
    reserved = RESERVED_SHARED if arch >= 90 else 0
    shared = {section.name.removeprefix(".nv.shared."): max(0, section.size - reserved) for section in sections
              if section.name.startswith(".nv.shared.")}
    kernels = {name: KernelResources(name, registers.get(name, 0), shared.get(name, 0), stacks.get(name, 0),
                                     tuple(size for _, size in sorted(sizes.items())))
               for name, sizes in parameters.items()}
    return CubinFacts(arch, kernels, tuple(variables))


def _arch(code: bytes) -> int:
    """In the ELF flags: bits 8 to 15 in the cubins of CUDA 13 (ABI version 8), bits 0 to 7 before."""
    flags = struct.unpack_from("<I", code, 0x30)[0]
    return flags >> 8 & 0xFF if code[8] >= 8 else flags & 0xFF


def _sections(code: bytes) -> list[_Section]:
    offset, = struct.unpack_from("<Q", code, 0x28)
    entry, count, names_at = struct.unpack_from("<HHH", code, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", code, offset + index * entry) for index in range(count)]
    names = code[headers[names_at][4]:headers[names_at][4] + headers[names_at][5]]
    return [_Section(_text(names, name), kind, link, info, b"" if kind == _SHT_NOBITS else code[at:at + size], size)
            for name, kind, _, _, at, size, link, info, _, _ in headers]


def _symbols(sections: list[_Section]) -> Iterator[tuple[int, str, int, int, int]]:
    """(index, name, type, section, size)."""
    for section in sections:
        if section.kind == _SHT_SYMTAB:
            names = sections[section.link].data
            for index in range(len(section.data) // 24):
                name, info, _, at, _, size = struct.unpack_from("<IBBHQQ", section.data, 24 * index)
                yield index, _text(names, name), info & 15, at, size


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, value) of every record of an `.nv.info` section."""
    at = 0
    while at + 4 <= len(data):
        form, attribute, length = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _FORMAT_SIZED:
            yield attribute, data[at:at + length]
            at += length


def _parameters(data: bytes) -> Iterator[tuple[int, int]]:
    """(position, bytes) of every kernel parameter."""
    for attribute, value in _attributes(data):
        if attribute == _EIATTR_KPARAM_INFO:
            _, position, _, packed = struct.unpack("<IHHI", value)
            yield position, packed >> 18


def _text(table: bytes, at: int) -> str:
    return table[at:table.index(b"\0", at)].decode()
