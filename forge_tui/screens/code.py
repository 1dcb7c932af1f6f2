"""CUDA source and diffs as coloured lines."""

from __future__ import annotations

import difflib
from functools import lru_cache

from forge_tui.screens.widgets.paint import Line, Span

HIGHLIGHT_BYTES = 200_000
"""Longer files are shown plain: lexing takes about a second a megabyte."""
CONTEXT = 3

_TOKENS = (
    ("Comment.Preproc", "code-directive"),
    ("Comment", "code-comment"),
    ("Keyword.Type", "code-type"),
    ("Keyword", "code-keyword"),
    ("Literal.String", "code-string"),
    ("Literal.Number", "code-number"),
    ("Name.Builtin", "code-type"),
    ("Name.Function", "bold"),
)


@lru_cache(32)
def highlighted(text: str) -> tuple[Line, ...]:
    """Lines of a kernel file, lexed once; comments that span lines are known as such."""
    if len(text) > HIGHLIGHT_BYTES:
        return tuple(((line, ""),) for line in text.splitlines())
    from pygments.lexers import get_lexer_by_name  # loads in 40 ms: only who reads source waits for it

    lines: list[Line] = []
    spans: list[Span] = []
    for language, part in _parts(text):
        for kind, value in get_lexer_by_name(language, stripnl=False, ensurenl=False).get_tokens(part):
            token = _token(str(kind))
            for index, piece in enumerate(value.split("\n")):
                if index:
                    lines.append(tuple(spans))
                    spans = []
                if piece:
                    spans.append((piece, token))
    if spans:
        lines.append(tuple(spans))
    return tuple(lines)


def _parts(text: str) -> list[tuple[str, str]]:
    """The launch plan is TOML inside the first comment; the rest is CUDA C++."""
    head, begin, rest = text.partition("/*forge")
    plan, end, device = rest.partition("*/")
    if not begin or not end or head.strip():
        return [("cuda", text)]
    return [("text", head + begin), ("toml", plan), ("text", end), ("cuda", device)]


@lru_cache(512)
def _token(kind: str) -> str:
    name = kind.removeprefix("Token.")
    return next((token for prefix, token in _TOKENS if name.startswith(prefix)), "")


def numbered(lines: tuple[Line, ...], marked: int | None = None) -> list[Line]:
    """With line numbers; `marked` (from 1) points at the line that a verdict names."""
    width = len(str(len(lines)))
    return [
        (
            (
                f"{'▶' if number == marked else ' '}{number:>{width}}  ",
                "forge-failed bold" if number == marked else "forge-muted",
            ),
            *line,
        )
        for number, line in enumerate(lines, 1)
    ]


def unified(old: str, new: str, old_name: str, new_name: str) -> list[Line]:
    """A unified diff; empty where the texts are the same."""
    found: list[Line] = []
    for line in difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm="", n=CONTEXT):
        if line.startswith(("---", "+++")):
            token = "bold"
        elif line.startswith("@@"):
            token = "forge-muted"
        else:
            token = {"+": "add", "-": "remove"}.get(line[:1], "")
        found.append(((line, token),))
    return found


def side_by_side(old: str, new: str, old_name: str, new_name: str, width: int) -> list[Line]:
    """The whole of both texts beside each other, changed lines marked with -, + and coloured."""
    half = max(20, (width - 3) // 2)
    left, right = old.splitlines(), new.splitlines()
    found: list[Line] = [
        (_half(old_name, half, " ", "bold"), (" │ ", "forge-muted"), _half(new_name, half, " ", "bold"))
    ]
    for kind, a, b, c, d in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if kind == "equal":
            shown = range(b - a)
            skipped = b - a - 2 * CONTEXT - 1
            for offset in shown:
                if skipped > 0 and CONTEXT <= offset < b - a - CONTEXT:
                    if offset == CONTEXT:
                        found.append(((f"  … {b - a - 2 * CONTEXT} lines the same …", "forge-muted"),))
                    continue
                found.append(
                    (
                        _half(left[a + offset], half, " ", ""),
                        (" │ ", "forge-muted"),
                        _half(right[c + offset], half, " ", ""),
                    )
                )
            continue
        for offset in range(max(b - a, d - c)):
            old_line = left[a + offset] if a + offset < b else None
            new_line = right[c + offset] if c + offset < d else None
            skip = _skip(old_line or "", new_line or "", half)
            before = (" " * half, "") if old_line is None else _half(old_line, half, "-", "remove", skip)
            after = (" " * half, "") if new_line is None else _half(new_line, half, "+", "add", skip)
            found.append((before, (" │ ", "forge-muted"), after))
    return found


def _skip(old: str, new: str, width: int) -> int:
    """Characters to leave out on the left so that where two long lines differ can be seen."""
    first = next((index for index, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    return max(0, first - width // 2) if old and new and first > width - 8 else 0


def _half(text: str, width: int, sign: str, token: str, skip: int = 0) -> Span:
    text = text.expandtabs(4)
    text = f"{sign} …{text[skip + 1 :]}" if skip else f"{sign} {text}"
    return (text[: width - 1] + "…" if len(text) > width else text.ljust(width)), token
