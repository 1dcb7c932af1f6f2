"""Numbers and states as people read them in a narrow column."""

from __future__ import annotations

import time

GLYPHS = {
    "won": "✓",
    "verified": "✓",
    "no_gain": "=",
    "failed": "✗",
    "skipped": "–",
    "pending": "·",
    "running": "▶",
    "paused": "‖",
    "done": "✓",
    "limit": "▪",
    "waiting": "…",
    "interrupted": "▪",
    "killed": "✗",
    "new": "·",
    "wrong": "✗",
    "fault": "✗",
    "refused": "✗",
    "no_build": "✗",
    "no kernel": "✗",
    "duplicate": "=",
    "archived": "–",
}
TOKENS = {
    "won": "forge-verified",
    "verified": "forge-verified",
    "done": "forge-verified",
    "failed": "forge-failed",
    "killed": "forge-failed",
    "running": "forge-running",
    "paused": "warning",
    "waiting": "forge-running",
    "wrong": "forge-failed",
    "fault": "forge-failed",
    "refused": "forge-failed",
    "no_build": "forge-failed",
    "no kernel": "forge-failed",
    "duplicate": "forge-muted",
    "skipped": "forge-muted",
}


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
    return "–" if at is None else span((time.time() if now is None else now) - at)


def span(seconds: float) -> str:
    """A duration in its largest unit: `3 s`, `5 m`, `2 h`, `4 d`."""
    seconds = max(0.0, seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def clock(seconds: float) -> str:
    """`0:42`, `12:03`, `3:07:00`."""
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def money(usd: float | None, tokens: int = 0) -> str:
    """`$0.00`, `$1.27`; unknown is unknown."""
    return "cost unknown" if usd is None else f"${usd:.2f}" + (f", {tokens} tokens" if tokens else "")


def speedup(value: float | None, interval: tuple[float, float] | None = None) -> str:
    """`1.42x [1.40, 1.45]`; a dash for None."""
    if value is None:
        return "–"
    return f"{value:.2f}x" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")


def state(word: str) -> str:
    """A state with its glyph: never told by colour alone."""
    return f"{GLYPHS.get(word, ' ')} {word.replace('_', ' ')}"


def short(operator: str) -> str:
    """`torch.nn.functional.softmax` -> `softmax`; `torch.add+torch.nn.functional.layer_norm` -> `add+layer_norm`."""
    return "+".join(part.removeprefix("torch.nn.functional.").removeprefix("torch.") for part in operator.split("+"))
