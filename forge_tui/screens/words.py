"""Numbers and states as people read them in a narrow column."""

from __future__ import annotations

import time

GLYPHS = {"won": "✓", "verified": "✓", "no_gain": "=", "failed": "✗", "skipped": "–", "pending": "·", "running": "▶",
          "done": "✓", "limit": "▪", "waiting": "…", "interrupted": "▪", "killed": "✗", "new": "·"}
TOKENS = {"won": "forge-verified", "verified": "forge-verified", "done": "forge-verified", "failed": "forge-failed",
          "killed": "forge-failed", "running": "forge-running", "waiting": "forge-running"}


def microseconds(value: float | None) -> str:
    """`12.3 us`, `4.56 ms`; a dash for None."""
    if value is None:
        return "–"
    if value >= 1e6:
        return f"{value / 1e6:.2f} s"
    return f"{value / 1e3:.2f} ms" if value >= 1e3 else f"{value:.1f} us"


def bar(fraction: float, width: int) -> str:
    """A bar of eighth blocks, exactly `width` cells."""
    eighths = round(max(0.0, min(1.0, fraction)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)


def ago(at: float | None, now: float | None = None) -> str:
    """`3 s`, `5 m`, `2 h`, `4 d`; a dash for None."""
    if at is None:
        return "–"
    seconds = max(0.0, (time.time() if now is None else now) - at)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def state(word: str) -> str:
    """A state with its glyph: never told by colour alone."""
    return f"{GLYPHS.get(word, ' ')} {word.replace('_', ' ')}"


def short(operator: str) -> str:
    """`torch.nn.functional.softmax` -> `softmax`."""
    return operator.removeprefix("torch.nn.functional.").removeprefix("torch.")
