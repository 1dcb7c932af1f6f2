"""The kernel file: launch plan and device code in one text, parsed, guarded and bound to calls."""

from __future__ import annotations

from forge_tui.engine.kernelfile.file import KernelFile, parse

__all__ = ["KernelFile", "parse"]
