"""The runtime inside an exported package: routes a model's calls to its kernels, guarded. Needs torch and the CUDA driver.

This folder is copied into every package as `_runtime`, so it imports torch, the standard library and itself only. A call
reaches a kernel when it is exactly a captured variant and every guard holds; otherwise the original runs, untouched, and the
reason is counted.
"""

from .entry import Backend, Entry, PackageError
from .package import MANIFEST_FORMAT, Package

__all__ = ["MANIFEST_FORMAT", "Backend", "Entry", "Package", "PackageError"]
