"""A C++ tokenizer that sees what the compiler sees: spliced lines, comments, all string forms, digraphs, directives."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["name", "number", "string", "char", "punct"]


class LexicalError(Exception):
    """Text that is no token, or that tools would read in two ways."""

    def __init__(self, line: int, message: str, cure: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message
        self.cure = cure


class Token(NamedTuple):
    """One token outside directives."""

    kind: Kind
    text: str
    """As written, lines spliced; digraphs in their usual spelling."""
    line: int


class Directive(NamedTuple):
    """One preprocessor line."""

    name: str
    """`include`, `define`, ...; empty for a lone `#`; a number for a line marker."""
    header: str | None
    """Of an include with a literal name: `<cuda_fp16.h>` or `"forge.cuh"`."""
    tokens: tuple[Token, ...]
    """After the name."""
    line: int


@dataclass
class Tokens:
    """A whole file."""

    items: list[Token | Directive] = field(default_factory=list)
    comment: tuple[int, int] | None = None
    """Where, in the text as given, a `/* */` comment that comes before every token begins and where its `*/` stands."""


_TRIGRAPH = re.compile(r"\?\?[=/'()!<>-]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff\u2028\u2029\x85]|\r(?!\n)")
_LOOSE_SPLICE = re.compile(r"\\[ \t]+\r?(?:\n|$)")
_SPLICE = re.compile(r"\\\r?\n")
_DIGRAPHS = {"<%": "{", "%>": "}", "<:": "[", ":>": "]", "%:": "#", "%:%:": "##"}
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|//[^\n]*)
    |(?P<newline>\n)
    |(?P<comment>/\*)
    |(?P<raw>(?:u8|u|U|L)?R")
    |(?P<string>(?:u8|u|U|L)?"(?:\\.|[^"\\\n])*")
    |(?P<char>(?:u8|u|U|L)?'(?:\\.|[^'\\\n])+')
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>\.?[0-9](?:'?[eEpP][+-]|'?[A-Za-z0-9_]|\.)*)
    |(?P<punct><<<|%:%:|<::(?![:>])|<:|<%|%>|:>|%:|\#\#|::|->\*?|\.\.\.|\+\+|--|<<=?|>=|<=|==|!=|&&|\|\||[-+*/%&|^]=
        |[-+*/%&|^~!=<>?:;,.(){}\[\]\#])""", re.X)


def tokenize(text: str) -> Tokens:
    """Tokens and directives of `text`, both branches of every conditional. Raises LexicalError."""
    return _Lexer(text).run()


class _Lexer:
    """State of one pass over the spliced text."""

    def __init__(self, text: str) -> None:
        self.original = text
        self.newlines = [match.start() for match in re.finditer("\n", text)]
        self.refuse_ambiguous()
        self.text, self.spliced_at, self.removed = _splice(text)
        self.out = Tokens()
        self.at = 0
        self.fresh_line = True

    def run(self) -> Tokens:
        while self.at < len(self.text):
            token = self.next()
            if token is None:
                continue
            if token.text == "#" and token.kind == "punct" and self.fresh_line:
                self.out.items.append(self.directive(token.line))
                self.fresh_line = True
            else:
                self.out.items.append(token)
                self.fresh_line = False
        return self.out

    def next(self) -> Token | None:
        """One token, or None after space, a comment or (outside directives) a newline."""
        match = _TOKEN.match(self.text, self.at)
        line = self.line()
        if match is None:
            raise self.stray(line)
        kind = match.lastgroup
        start, self.at = self.at, match.end()
        match kind:
            case "newline":
                self.fresh_line = True
                return None
            case "space":
                return None
            case "comment":
                self.comment(start, line)
                return None
            case "raw":
                return Token("string", self.raw_string(match.end() - 1, line), line)
            case "punct":
                text = match[0]
                if text == "<::":
                    self.at, text = start + 1, "<"
                return Token("punct", _DIGRAPHS.get(text, text), line)
        return Token(kind, match[0], line)  # type: ignore[arg-type]

    def directive(self, line: int) -> Directive:
        """The rest of a `#` line; comments inside it are space, and one may span lines."""
        name, header = "", None
        tokens: list[Token] = []
        while self.at < len(self.text) and self.text[self.at] != "\n":
            if name in ("include", "include_next", "import", "embed") and not tokens and header is None:
                found = re.compile(r"[ \t]*(<[^>\n]*>|\"[^\"\n]*\")").match(self.text, self.at)
                if found is not None:
                    header, self.at = found[1], found.end()
                    continue
            if name in ("error", "warning"):                # prose: quotes in it open nothing
                end = _line_end(self.text, self.at)
                if "/*" in self.text[self.at:end]:
                    raise LexicalError(line, f"#{name} has a comment in its text", "remove the comment")
                self.at = end
                break
            token = self.next()
            if token is None:
                continue
            if not name and not tokens and token.kind in ("name", "number"):
                name = token.text
            else:
                tokens.append(token)
        return Directive(name, header, tuple(tokens), line)

    def comment(self, start: int, line: int) -> None:
        end = self.text.find("*/", self.at)
        if end < 0:
            raise LexicalError(line, "this comment never ends", "close it with */")
        self.at = end + 2
        if not self.out.items and self.out.comment is None:
            self.out.comment = (self.origin(start), self.origin(end))

    def raw_string(self, quote: int, line: int) -> str:
        """From the original text: inside raw strings the compiler takes line splices back."""
        begin = self.origin(quote)
        delimiter = re.compile(r'"([^ ()\\\t\n\r"]{0,16})\(').match(self.original, begin)
        end = self.original.find(f"){delimiter[1]}\"", delimiter.end()) if delimiter else -1
        if delimiter is None or end < 0:
            raise LexicalError(line, "this raw string never ends", "close it with )\" or write an ordinary string")
        body = self.original[delimiter.end():end]
        if _SPLICE.search(self.original[begin:end]):
            raise LexicalError(line, "a backslash ends a line inside a raw string", "write an ordinary string")
        stop = end + len(delimiter[1]) + 2
        self.at = self.spliced(stop)
        return 'R"' + body + '"'

    def refuse_ambiguous(self) -> None:
        """What some compilers read differently from others has no place in a file that is checked and then compiled."""
        for pattern, what, cure in (
            (_CONTROL, "a control character, byte-order mark or lone carriage return", "save as plain UTF-8 text"),
            (_TRIGRAPH, "a trigraph", "write the character itself, or put a space between the question marks"),
            (_LOOSE_SPLICE, "a backslash with only blanks behind it", "remove the blanks or the backslash"),
        ):
            if (match := pattern.search(self.original)) is not None:
                line = bisect.bisect_left(self.newlines, match.start()) + 1
                raise LexicalError(line, f"the text has {what}", cure)

    def stray(self, line: int) -> LexicalError:
        char = self.text[self.at]
        if char in "\"'":
            return LexicalError(line, f"this {char} has no closing {char} on its line", "close it")
        if not char.isascii():
            return LexicalError(line, f"`{char}` (U+{ord(char):04X}) stands outside comments and strings", "use ASCII in code")
        return LexicalError(line, f"`{char}` is no C++ token", "remove it")

    def line(self) -> int:
        return bisect.bisect_left(self.newlines, self.origin(self.at)) + 1

    def origin(self, at: int) -> int:
        """Offset in the text as given of an offset in the spliced text."""
        index = bisect.bisect_right(self.spliced_at, at)
        return at + (self.removed[index - 1] if index else 0)

    def spliced(self, origin: int) -> int:
        """The reverse of `origin`."""
        low, high = 0, len(self.text)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.origin(middle) < origin else (low, middle)
        return low


def _splice(text: str) -> tuple[str, list[int], list[int]]:
    """Remove every backslash-newline: the text, where in it a splice was, and how much was removed up to there."""
    parts, at_list, removed = [], [], []
    last = length = gone = 0
    for match in _SPLICE.finditer(text):
        parts.append(text[last:match.start()])
        length += match.start() - last
        gone += match.end() - match.start()
        last = match.end()
        if at_list and at_list[-1] == length:
            removed[-1] = gone
        else:
            at_list.append(length)
            removed.append(gone)
    parts.append(text[last:])
    return "".join(parts), at_list, removed


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end
