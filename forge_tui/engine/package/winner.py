"""What a package is made of: kernels that earned their place."""

from __future__ import annotations

import msgspec

from forge_tui.engine.cards import Variant
from forge_tui.engine.judge.verdict import Verdict


class Winner(msgspec.Struct, frozen=True):
    """One kernel to export: the variant it is for, the kernel file, and the verdict it earned."""

    variant: Variant
    kernel: str
    """SHA-256 (hex) of the kernel file."""
    verdict: Verdict
