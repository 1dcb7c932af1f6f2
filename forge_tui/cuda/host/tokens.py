"""A tokenizer of PTX."""

from __future__ import annotations

import re

from forge_tui.cuda.host.ptx import PtxError

_TOKEN = re.compile(r"""
    (?P<skip>(?:\s+|//[^\n]*|/\*.*?\*/)+)
  | (?P<string>"[^"]*")
  | (?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|\d+\.\d+)
  | (?P<int>0[xX][0-9a-fA-F]+U?|\d+U?)
  | (?P<word>[.%$_A-Za-z](?:[\w$%.]|::)*)
  | (?P<mark>[-+,;:{}()\[\]<>=@!|])
""", re.X | re.S)


class Tokens:
    """The token stream: kind and text, with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self.items: list[tuple[str, str]] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise PtxError(f"unexpected character {text[position]!r}")
            position = match.end()
            if match.lastgroup == "skip":
                continue
            if match[0] == ".section":          # debug data: never needed, and most of the text
                position = _after_braces(text, position)
                continue
            self.items.append((match.lastgroup or "", match[0]))
        self.items.append(("end", ""))
        self.at = 0

    def peek(self) -> str:
        return self.items[self.at][1]

    def kind(self) -> str:
        return self.items[self.at][0]

    def next(self) -> str:
        text = self.items[self.at][1]
        self.at += 1
        return text

    def accept(self, text: str) -> bool:
        if self.items[self.at][1] == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise PtxError(f"expected {text!r}, found {self.peek()!r}")

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        return sign * int(self.next().rstrip("U"), 0)

    def skip_statement(self) -> None:
        while self.next() != ";":
            if self.kind() == "end":
                raise PtxError("the text ends inside a statement")


def _after_braces(text: str, position: int) -> int:
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, position):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    return len(text)
