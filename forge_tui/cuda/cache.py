"""Compiled images on disk, by content: safe to delete, to share between processes, and to lose power in."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from forge_tui.cuda.program import Image, Program
from forge_tui.cuda.toolchain import Toolchain

FORMAT = 1
LOOK_EVERY = 64
"""Images kept between two looks at the whole folder, while it is thought to be under its cap."""


def user_folder() -> Path:
    """Where images are kept that belong to no project: `images` in `UserPaths.cache` of the store, which nothing here may import."""
    home = os.environ.get("FORGE_HOME")
    if home:
        return Path(home).expanduser().absolute() / "cache" / "images"
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "forge-tui" / "images"


class ImageCache:
    """A folder of images. The key is the program's build key, arch, kind, compiler, its headers and ours.

    Thread- and process-safe without locks: files are written aside and moved into place, a reader sees a whole image or none,
    a damaged file is a miss. A folder that cannot be written only costs the speed-up. Least recently used files go first
    when the folder outgrows `cap_bytes`.
    """

    def __init__(self, folder: Path | str, cap_bytes: int = 512 * 1024 * 1024) -> None:
        self.folder = Path(folder)
        self.cap_bytes = cap_bytes
        self.hits = 0
        self.misses = 0
        self._size: int | None = None
        """Bytes of the folder as far as this object knows; others write there too."""
        self._puts = 0

    def get(self, program: Program, kind: str, arch: str, tools: Toolchain) -> Image | None:
        """The image built earlier, or None."""
        path = self._path(program, kind, arch, tools)
        try:
            image = msgspec.msgpack.decode(path.read_bytes(), type=Image)
            os.utime(path)
        except (OSError, msgspec.DecodeError):
            self.misses += 1
            return None
        self.hits += 1
        return image

    def put(self, program: Program, image: Image, tools: Toolchain) -> None:
        """Keep `image`; does nothing where the folder cannot be written or is full."""
        path = self._path(program, image.kind, image.arch, tools)
        data = msgspec.msgpack.encode(image)
        temporary = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError:
            if temporary is not None and os.path.exists(temporary):
                os.unlink(temporary)
            return
        self._puts += 1
        if self._size is None or self._size + len(data) > self.cap_bytes or self._puts % LOOK_EVERY == 0:
            self._trim()
        else:
            self._size += len(data)

    def statistics(self) -> dict[str, int]:
        """`hits` and `misses` of this object; `files` and `bytes` of the folder."""
        files = self._files()
        return {"hits": self.hits, "misses": self.misses, "files": len(files), "bytes": sum(size for _, size, _ in files)}

    def _path(self, program: Program, kind: str, arch: str, tools: Toolchain) -> Path:
        kernels = ",".join(launch.kernel for launch in program.launches)
        # The file name is in the image's line table and the kernels are checked against it, so both belong to the key.
        text = "\0".join((str(FORMAT), program.build_key(), program.filename, kernels, kind, arch, tools.identity()))
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()}.image"

    def _files(self) -> list[tuple[float, int, Path]]:
        """(last use, bytes, path), oldest first."""
        found = []
        for path in self.folder.glob("*.image"):
            try:
                status = path.stat()
            except OSError:
                continue                                    # another process trimmed it
            found.append((status.st_mtime, status.st_size, path))
        return sorted(found)

    def _trim(self) -> None:
        files = self._files()
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= self.cap_bytes:
                break
            with suppress(OSError):                         # a folder that others own
                path.unlink(missing_ok=True)
            total -= size
        self._size = total
