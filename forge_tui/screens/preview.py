"""What the model will be given, as lines: from a file's own header at once, and as the model's processor makes it."""

from __future__ import annotations

import array
import ast
import json
import struct
import sys
import wave
import zipfile
from pathlib import Path
from typing import Any

import msgspec

from forge_tui.engine.given import Given
from forge_tui.screens.processes import Finished, module_command
from forge_tui.screens.widgets.lines import wrapped
from forge_tui.screens.widgets.paint import Line

SPARKS = " ▁▂▃▄▅▆▇█"
SHADES = " ░▒▓█"
"""Of pictures where there are no colours."""
PREVIEW_LINES, PREVIEW_BYTES = 3, 2000
PICTURE_COLUMNS, PICTURE_LINES = 48, 14
HEADER_BYTES = 1 << 20


def quick_lines(spec: str, width: int, colours: bool = True) -> list[Line]:
    """Of an inputs spec whose file is there: what can be seen without the model. Never raises."""
    kind, _, rest = spec.partition(":")
    try:
        if kind == "text":
            return _text(rest, width)
        if kind == "image":
            return _image(Path(rest).expanduser(), width, colours)
        if kind == "audio":
            return _audio(Path(rest).expanduser(), width)
        path = Path(spec.rpartition(":")[0] if ".py:" in spec else spec).expanduser()
        if path.suffix == ".safetensors":
            return _named(_safetensors(path), width)
        if path.suffix == ".npz":
            return _named(_npz(path), width)
        return wrapped(f"{path.name}, {path.stat().st_size:,} bytes", width, "forge-muted")
    except (OSError, ValueError, KeyError, SyntaxError, EOFError, struct.error, wave.Error, zipfile.BadZipFile) as error:
        return wrapped(f"cannot be read: {error}", width, "forge-failed")


def _text(rest: str, width: int) -> list[Line]:
    if rest.startswith("="):
        return wrapped(rest[1:], width, "forge-muted")
    path = Path(rest).expanduser()
    with path.open("rb") as file:
        lines = file.read(PREVIEW_BYTES).decode(errors="replace").splitlines()
    more = path.stat().st_size > PREVIEW_BYTES or len(lines) > PREVIEW_LINES
    shown = [line for line in lines if line.strip()][:PREVIEW_LINES]
    return [((line[:width], "forge-muted"),) for line in shown] + ([(("…", "forge-muted"),)] if more else [])


def _image(path: Path, width: int, colours: bool) -> list[Line]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        return wrapped("reading an image needs the package pillow: pip install pillow", width, "forge-failed")
    try:
        with Image.open(path) as image:
            said = f"{path.name}, {image.width} x {image.height} {image.mode}, {image.format}"
            small = image.convert("RGB")
            small.thumbnail((min(PICTURE_COLUMNS, width), 2 * PICTURE_LINES))
            size, data = small.size, small.tobytes()
    except UnidentifiedImageError:
        return wrapped("this is no image that can be read: give a PNG or JPEG", width, "forge-failed")
    rows = [data[at : at + 3 * size[0]].hex() for at in range(0, len(data), 3 * size[0])]
    return wrapped(said, width, "forge-muted") + picture_lines(rows, width, colours)


def picture_lines(rows: list[str] | tuple[str, ...], width: int, colours: bool = True) -> list[Line]:
    """Rows of `rrggbb` pixels, two to a line; where there are no colours as shades. Larger ones are thinned out."""
    if not rows:
        return []
    columns, lines = len(rows[0]) // 6, len(rows)
    step = max(1.0, columns / max(1, min(width, PICTURE_COLUMNS)), lines / (2 * PICTURE_LINES))
    pixels = [
        [rows[int(y * step)][6 * int(x * step) : 6 * int(x * step) + 6] for x in range(int(columns / step))]
        for y in range(int(lines / step))
    ]
    found: list[Line] = []
    for upper, lower in zip(pixels[::2], pixels[1::2] + [[]] * (len(pixels) % 2), strict=True):
        lower = lower or ["000000"] * len(upper)
        if colours:
            found.append(tuple(("▀", f"#{top} on#{bottom}") for top, bottom in zip(upper, lower, strict=True)))
        else:
            found.append((("".join(_shade(top, bottom) for top, bottom in zip(upper, lower, strict=True)), ""),))
    return found


def _shade(*pixels: str) -> str:
    light = sum(int(pixel[at : at + 2], 16) for pixel in pixels for at in (0, 2, 4)) / (255 * 3 * len(pixels))
    return SHADES[min(len(SHADES) - 1, int(light * len(SHADES)))]


def _audio(path: Path, width: int) -> list[Line]:
    with wave.open(str(path), "rb") as file:
        size, channels, rate, count = file.getsampwidth(), file.getnchannels(), file.getframerate(), file.getnframes()
        data = file.readframes(count)
    said = f"{path.name}, {count / rate:.2f} s at {rate} Hz, {channels} channel{'s' * (channels != 1)}, {8 * size} bits"
    return [*wrapped(said, width, "forge-muted"), *wave_lines(_peaks(data, size, channels, width), width)]


def _peaks(data: bytes, size: int, channels: int, width: int) -> list[float]:
    """Largest magnitude in each part of a PCM sound, 0 to 1."""
    if size == 3:
        values: Any = [int.from_bytes(data[at : at + 3], "little", signed=True) for at in range(0, len(data) - 2, 3)]
    else:
        values = array.array({1: "B", 2: "h", 4: "i"}[size], data)
        if sys.byteorder == "big":
            values.byteswap()
    middle, top = (128, 128) if size == 1 else (0, 1 << (8 * size - 1))
    parts = max(1, min(width, len(values) // channels))
    length = len(values) / parts
    return [
        max((abs(value - middle) for value in values[int(part * length) : int((part + 1) * length)]), default=0) / top
        for part in range(parts)
    ]


def wave_lines(peaks: list[float] | tuple[float, ...], width: int) -> list[Line]:
    """A waveform as two lines of bars, the lower one full before the upper begins."""
    step = max(1.0, len(peaks) / max(1, width))
    shown = [max(peaks[int(at * step) : max(int(at * step) + 1, int((at + 1) * step))]) for at in range(int(len(peaks) / step))]
    eighths = [round(peak * 16) for peak in shown]
    rows = ("".join(SPARKS[max(0, height - 8)] for height in eighths), "".join(SPARKS[min(8, height)] for height in eighths))
    return [((row, "forge-running"),) for row in rows]


def _safetensors(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Names, types and shapes from the header: its length in 8 bytes, then JSON (safetensors' format)."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > HEADER_BYTES:
            raise ValueError("its header is no safetensors header")
        header = json.loads(file.read(length))
    return {
        name: (str(item["dtype"]).lower(), tuple(item["shape"])) for name, item in header.items() if name != "__metadata__"
    }


def _npz(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Names, types and shapes from each array's header (numpy's .npy format)."""
    found = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                magic = file.read(8)
                if magic[:6] != b"\x93NUMPY":
                    raise ValueError(f"{name} is no array")
                size = struct.unpack("<H" if magic[6] == 1 else "<I", file.read(2 if magic[6] == 1 else 4))[0]
                header = ast.literal_eval(file.read(min(size, HEADER_BYTES)).decode("latin-1"))
            found[name.removesuffix(".npy")] = (str(header["descr"]), tuple(header["shape"]))
    return found


def _named(tensors: dict[str, tuple[str, tuple[int, ...]]], width: int) -> list[Line]:
    lines: list[Line] = []
    for name, (dtype, shape) in list(tensors.items())[:12]:
        lines += wrapped(f"{name}  {dtype} {list(shape)}", width, "forge-muted")
    return lines + ([((f"… {len(tensors) - 12} more", "forge-muted"),)] if len(tensors) > 12 else [])


async def ask_given(model: dict[str, Any], inputs: str) -> Given | str:
    """What the model is given, made in a process of its own; or the words of what went wrong."""
    asked = {"model": model, "inputs": {"spec": inputs}, "base": str(Path.cwd())}
    finished: Finished = await module_command("forge_tui.engine.giving", msgspec.json.encode(asked).decode())
    try:
        return msgspec.json.decode(finished.out, type=Given)
    except msgspec.DecodeError:
        return finished.words


def given_lines(given: Given, width: int, colours: bool = True) -> list[Line]:
    """A line and a picture for each tensor."""
    lines = wrapped(given.label, width, "forge-muted")
    for tensor in given.tensors:
        shape = f" {list(tensor.shape)}" if tensor.shape else ""
        lines += [((f"{tensor.name}  ", "bold"), (f"{tensor.dtype}{shape}", ""))]
        lines += picture_lines(tensor.picture, width, colours)
        lines += wave_lines(tensor.peaks, width) if tensor.peaks else []
        if tensor.values:
            lines += wrapped(" ".join(tensor.values) + (" …" if len(tensor.values) > 12 else ""), width, "forge-muted")[:1]
    if given.more:
        lines += wrapped(f"and {given.more} more inputs", width, "forge-muted")
    return lines
