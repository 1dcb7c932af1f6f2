"""From a reply in words to one kernel file: forgives fences and prose, says exactly what it could not use."""

from __future__ import annotations

import re

from msgspec import Struct

OPENING = "/*forge"

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*$", re.MULTILINE)
_IDEA_CHARS = 200


class ParsedReply(Struct, frozen=True):
    """What could be read from a reply."""

    source: str | None
    idea: str
    """The first sentence or two of the prose, on one line."""
    problem: str = ""
    """Set exactly when there is no source."""


def parse_reply(text: str, whole: bool = True) -> ParsedReply:
    """The last complete kernel file in the text: writers that draft give the final one last.

    whole: whether the text is all that the writer had to say; in one that was cut, only closed blocks are complete.
    """
    text = text.replace("\r\n", "\n").lstrip("\ufeff")
    blocks, prose = _split(text)
    idea = _idea(prose)
    candidates = [block for block in blocks if OPENING in block.text]
    if not candidates and OPENING in text:
        candidates = [_Block(text[text.index(OPENING):], whole)]
    problem = _nothing_usable(text, blocks)
    for block in reversed(candidates):
        source = block.text[block.text.index(OPENING):].strip() + "\n"
        problem = _incomplete(source, block.closed, whole)
        if not problem:
            return ParsedReply(source, idea)
    return ParsedReply(None, idea, problem)


class _Block(Struct, frozen=True):
    text: str
    closed: bool


def _split(text: str) -> tuple[list[_Block], str]:
    """Fenced blocks (the last may be open), and everything outside them."""
    blocks, prose, position = [], [], 0
    while (opening := _FENCE.search(text, position)) is not None:
        prose.append(text[position:opening.start()])
        mark = opening[1]
        closing = next((fence for fence in _FENCE.finditer(text, opening.end())
                        if fence[1][0] == mark[0] and len(fence[1]) >= len(mark)), None)
        end = closing.start() if closing else len(text)
        blocks.append(_Block(text[opening.end():end], closing is not None))
        position = closing.end() if closing else len(text)
    prose.append(text[position:])
    return blocks, "\n".join(prose)


def _nothing_usable(text: str, blocks: list[_Block]) -> str:
    if not text.strip():
        return "the reply is empty"
    if "__global__" in text:
        return f"the reply has CUDA code but no launch plan: a kernel file begins with `{OPENING}`"
    if blocks:
        return f"none of the reply's {len(blocks)} code blocks is a kernel file: it begins with `{OPENING}`"
    return f"the reply has no kernel file (nothing in it begins with `{OPENING}`)"


def _incomplete(source: str, closed: bool, whole: bool) -> str:
    """Why the text is no whole kernel file; empty when it looks whole. What is in it is the kernel file parser's matter."""
    end = source.find("*/")
    if end < 0:
        return "the reply ends inside the launch plan: its comment is never closed"
    code = source[end + 2:]
    bare = _without_comments(code)
    if not bare.strip():
        return "the reply has a launch plan but no device code behind it"
    if not closed and not whole:
        return "the reply ends inside the device code: its code block is never closed"
    if not closed and bare.count("{") > bare.count("}"):
        return (f"the reply ends inside the device code: {bare.count('{')} opening braces, {bare.count('}')} closing; it "
                "was probably cut at the token limit")
    return ""


def _without_comments(code: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?(\*/|\Z)|\"(\\.|[^\"\\\n])*\"|'(\\.|[^'\\\n])'", "", code, flags=re.DOTALL)


def _idea(prose: str) -> str:
    prose = prose.partition(OPENING)[0]
    lines = [line.strip().lstrip("#>*- ").strip() for line in prose.splitlines()]
    line = re.sub(r"[`*_]{1,3}", "", " ".join(line for line in lines if line))
    if len(line) <= _IDEA_CHARS:
        return line
    cut = line[:_IDEA_CHARS]
    stop = max(cut.rfind(". "), cut.rfind("; "))
    return cut[:stop + 1] if stop > 40 else cut.rsplit(" ", 1)[0] + " ..."
