"""Prompts, replies and reasoning as coloured lines: headings, lists, emphasis, and code as in the source tab."""

from __future__ import annotations

import re
from collections.abc import Iterator

from forge_tui.screens.code import highlighted
from forge_tui.screens.widgets.lines import wrapped
from forge_tui.screens.widgets.paint import Line

_FENCE = re.compile(r"\s{0,3}(`{3,}|~{3,})\s*(\S*)")
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,3}[.)])\s+")
_INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*")
CODE = ("cuda", "cu", "c++", "cpp", "c", "toml")
"""Languages of fences that are coloured as kernel files are."""


def rendered(text: str, width: int) -> list[Line]:
    """A text in Markdown. What is none of it stays as it is."""
    return list(_lines(text.splitlines(), width))


def _lines(lines: list[str], width: int) -> Iterator[Line]:
    position = 0
    while position < len(lines):
        line = lines[position]
        fence = _FENCE.match(line)
        if fence:
            end = next((at for at in range(position + 1, len(lines)) if _closes(lines[at], fence[1])), len(lines))
            yield from _code(lines[position + 1 : end], fence[2])
            position = end + 1
            continue
        yield from _prose(line, width)
        position += 1


def _closes(line: str, fence: str) -> bool:
    line = line.strip()
    return len(line) >= len(fence) and set(line) == {fence[0]}


def _code(lines: list[str], language: str) -> Iterator[Line]:
    coloured = highlighted("\n".join(lines)) if language.lower() in CODE else tuple(((line, ""),) for line in lines)
    for line in coloured:
        yield (("  ", ""), *line)


def _prose(line: str, width: int) -> Iterator[Line]:
    if line.startswith("#"):
        yield from wrapped(line.lstrip("# "), width, "title bold")
        return
    item = _ITEM.match(line)
    if item is None:
        for piece in wrapped(line, width):
            yield _emphasized(piece)
        return
    hang = len(item[0])
    for number, piece in enumerate(wrapped(line[hang:], width - hang)):
        yield ((item[0] if not number else " " * hang, "forge-muted"), *_emphasized(piece))


def _emphasized(line: Line) -> Line:
    found: list[tuple[str, str]] = []
    for text, token in line:
        at = 0
        for match in _INLINE.finditer(text):
            found += [(text[at : match.start()], token), (match[1] or match[2], "accent" if match[1] else "bold")]
            at = match.end()
        found.append((text[at:], token))
    return tuple(span for span in found if span[0])
