"""A pure-Python wheel of one package folder, by the binary distribution format (PEP 427): reproducible, no build tool."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The same files give the same wheel, byte for byte."""


def write_wheel(package: Path, into: Path, *, version: str) -> Path:
    """Pack the importable folder `package` into `into`; returns the wheel's path. torch is its one dependency."""
    name = package.name
    info = f"{name}-{version}.dist-info"
    files = {f"{name}/{path.relative_to(package).as_posix()}": path.read_bytes()
             for path in sorted(package.rglob("*")) if path.is_file() and "__pycache__" not in path.parts}
    files[f"{info}/METADATA"] = (f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
                                 "Summary: CUDA kernels forged for one model\nRequires-Python: >=3.11\n"
                                 "Requires-Dist: torch>=2.6\n").encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: forge-tui\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    target = into / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return target


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
