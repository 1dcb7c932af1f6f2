"""Where things stand in a TOML text: the line of every table, key and array element (tomllib does not say)."""

from __future__ import annotations

import re

_HEADER = re.compile(r"(\[\[|\[)\s*([^\[\]\n]+?)\s*(\]\]|\])")
_KEY = re.compile(r"""((?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'))*)\s*=""")
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)+")
_STRING = re.compile(
    r'"""(?:\\[\s\S]|[^\\])*?"""|\'\'\'[\s\S]*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'')


def locate(toml: str) -> dict[str, int]:
    """Lines (from 1) of `let`, `let.cols`, `launch[0]`, `launch[0].args`, `launch[0].args[2]`.

    `toml` has been read by tomllib already, so it is well-formed; on anything unexpected the scan just stops early.
    """
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    prefix = ""
    at = 0
    while True:
        at = _skip(toml, at)
        if at >= len(toml):
            return lines
        if (header := _HEADER.match(toml, at)) is not None:
            prefix = _plain_key(header[2])
            if header[1] == "[[":
                index = counts.get(prefix, 0)
                counts[prefix] = index + 1
                lines.setdefault(prefix, _line(toml, at))
                prefix = f"{prefix}[{index}]"
            lines[prefix] = _line(toml, at)
            at = header.end()
        elif (key := _KEY.match(toml, at)) is not None:
            path = f"{prefix}.{_plain_key(key[1])}" if prefix else _plain_key(key[1])
            lines[path] = _line(toml, at)
            at = _value(toml, key.end(), path, lines)
        else:
            return lines


def nearest(lines: dict[str, int], path: str) -> int:
    """The line of `path`, or of the innermost thing around it that has one; 1 when there is none."""
    while path:
        if path in lines:
            return lines[path]
        cut = max(path.rfind("."), path.rfind("["))
        path = path[:cut] if cut > 0 else ""
    return 1


def _value(toml: str, at: int, path: str, lines: dict[str, int]) -> int:
    """Skip one value, noting where the elements of an array begin; the position after it."""
    depth = 0
    index = 0
    while at < len(toml):
        char = toml[at]
        if char in "\"'" and (text := _STRING.match(toml, at)) is not None:
            at = text.end()
        elif char == "#":
            at = _end_of_line(toml, at)
        elif char in "[{":
            depth += 1
            at += 1
            if depth == 1 and char == "[":
                at = _skip(toml, at)
                lines[f"{path}[{index}]"] = _line(toml, at)
        elif char in "]}":
            depth -= 1
            at += 1
        elif char == "," and depth == 1:
            index += 1
            at = _skip(toml, at + 1)
            lines[f"{path}[{index}]"] = _line(toml, at)
        elif char == "\n" and depth == 0:
            return at
        else:
            at += 1
    return at


def _skip(toml: str, at: int) -> int:
    space = _SPACE.match(toml, at)
    return space.end() if space else at


def _end_of_line(toml: str, at: int) -> int:
    end = toml.find("\n", at)
    return len(toml) if end < 0 else end


def _plain_key(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _line(toml: str, at: int) -> int:
    return toml.count("\n", 0, at) + 1
