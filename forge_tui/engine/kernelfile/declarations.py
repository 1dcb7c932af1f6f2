"""What a C++ file declares, as far as refusals need it: kernels with their parameters, and variables that can be written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from forge_tui.engine.kernelfile.heads import bare, declared_name, group, is_constant, is_function, last_group, parameters_at
from forge_tui.engine.kernelfile.tokens import Directive, Token

MAX_CONDITIONALS = 2000
"""`#if`s of a file, and"""
MAX_NESTED = 64
"""how many may be open at once: the reader keeps its place at each."""
MAX_BRACES = 200
"""How deep braces may be nested."""

Scope = Literal["namespace", "class", "function", "braces"]

_NOT_VARIABLES = {"using", "typedef", "static_assert", "friend", "namespace", "concept", "public", "private", "protected"}
_SPECIFIERS = {"static", "thread_local", "__device__", "__constant__", "__managed__", "extern"}
"""What makes a variable inside a function outlive the call."""
_END = Token("punct", "{}", 0)
"""Stands for a braced group that was read and left behind."""


class Kernel(NamedTuple):
    """One `__global__` function."""

    name: str
    line: int
    extern_c: bool
    parameters: tuple[tuple[Token, ...], ...] | None
    """One token list each; None where macros or directives stand among them, so that their number is not known."""
    defined: bool


class Variable(NamedTuple):
    """A variable that lives longer than a launch and is not constant."""

    name: str
    line: int
    place: Literal["namespace", "class", "function"]


class Problem(NamedTuple):
    """Code that cannot be read."""

    line: int
    message: str
    cure: str


@dataclass
class Declarations:
    """What was found, in file order."""

    kernels: list[Kernel] = field(default_factory=list)
    writable: list[Variable] = field(default_factory=list)
    file_asm: list[int] = field(default_factory=list)
    """Lines of `asm` outside functions."""
    problem: Problem | None = None


@dataclass
class _Open:
    """An open brace, or the file itself: what kind of scope it is, and the statement being read in it."""

    kind: Scope
    extern_c: bool = False
    head: list[Token] = field(default_factory=list)
    depth: int = 0
    """Open parentheses and brackets of `head`."""
    grouped: bool = False
    """Whether `head` holds a braced group already."""

    def copy(self) -> _Open:
        return _Open(self.kind, self.extern_c, list(self.head), self.depth, self.grouped)

    def end(self) -> None:
        """The statement is over."""
        self.head, self.depth, self.grouped = [], 0, False


def read_declarations(items: list[Token | Directive]) -> Declarations:
    """Read the tokens of a file. Never raises: what cannot be read is the `problem`."""
    return _Reader(items).run()


class _Reader:
    """One pass over the tokens; both branches of every conditional are read, the first one's state goes on."""

    def __init__(self, items: list[Token | Directive]) -> None:
        self.items = items
        self.out = Declarations()
        self.scopes = [_Open("namespace")]
        self.seen = 0
        self.conditionals: list[tuple[list[_Open], list[_Open] | None]] = []
        """Per open `#if`: the scopes where it began, and where its first branch ended."""
        self.macros = {item.tokens[0].text for item in items
                       if isinstance(item, Directive) and item.name == "define" and item.tokens}

    def run(self) -> Declarations:
        last = 1
        for item in self.items:
            last = item.line
            if isinstance(item, Directive):
                self.conditional(item)
            else:
                self.token(item)
            if self.out.problem is not None:
                return self.out
        if len(self.scopes) > 1:
            self.fail(last, "a { is never closed", "close it")
        elif self.head:
            self.fail(self.head[0].line, "the file ends inside a statement", "end it with ;")
        return self.out

    @property
    def here(self) -> _Open:
        return self.scopes[-1]

    @property
    def head(self) -> list[Token]:
        return self.scopes[-1].head

    def fail(self, line: int, message: str, cure: str) -> None:
        self.out.problem = self.out.problem or Problem(line, message, cure)

    def conditional(self, directive: Directive) -> None:
        if directive.name in ("if", "ifdef", "ifndef"):
            self.seen += 1
            if self.seen > MAX_CONDITIONALS or len(self.conditionals) >= MAX_NESTED:
                return self.fail(directive.line, f"more than {MAX_CONDITIONALS} conditionals, or {MAX_NESTED} inside each other",
                                 "choose by templates or constexpr instead")
            self.conditionals.append((self.saved(), None))
        elif directive.name in ("else", "elif", "elifdef", "elifndef") and self.conditionals:
            start, first = self.conditionals[-1]
            self.conditionals[-1] = (start, first or self.saved())
            self.restore(start)
        elif directive.name == "endif" and self.conditionals:
            _, first = self.conditionals.pop()
            if first is not None:
                self.restore(first)
        elif directive.name in ("else", "elif", "endif"):
            self.fail(directive.line, f"#{directive.name} without #if", "add the #if or remove it")
        return None

    def saved(self) -> list[_Open]:
        return [scope.copy() for scope in self.scopes]

    def restore(self, scopes: list[_Open]) -> None:
        self.scopes = [scope.copy() for scope in scopes]

    def token(self, token: Token) -> None:
        text = token.text if token.kind == "punct" else ""
        here = self.here
        if text in ("(", "["):
            here.depth += 1
        elif text in (")", "]"):
            if here.depth == 0:
                return self.fail(token.line, f"a {text} closes nothing", "remove it or open it")
            here.depth -= 1
        elif text == "{":
            return self.open(token)
        elif text == "}":
            return self.close(token)
        elif text == ";" and here.depth == 0:
            self.statement()
            return here.end()
        elif text == ":" and here.kind == "class" and len(here.head) == 1:
            return here.end()                               # `public:`
        here.head.append(token)
        return None

    def open(self, token: Token) -> None:
        if len(self.scopes) > MAX_BRACES:
            return self.fail(token.line, f"braces are nested more than {MAX_BRACES} deep", "simplify the code")
        here = self.here
        kind, extern_c = self.kind_of_brace(here)
        if kind == "function" and here.kind in ("namespace", "class"):
            self.function(defined=True)
        elif kind == "function":
            self.statement()                                # `if (...) {`, `static int x {`
        if kind in ("namespace", "function"):
            here.end()                                      # nothing of the statement goes on after the brace closes
        self.scopes.append(_Open(kind, extern_c))
        return None

    def close(self, token: Token) -> None:
        if len(self.scopes) == 1 or self.here.depth:
            return self.fail(token.line, "a } closes nothing", "remove it or open it")
        if self.head and self.here.kind in ("namespace", "class"):
            return self.fail(self.head[0].line, "a statement is not ended before }", "end it with ;")
        if self.scopes.pop().kind in ("class", "braces"):
            self.head.append(_END._replace(line=token.line))
            self.here.grouped = True
        return None

    def kind_of_brace(self, here: _Open) -> tuple[Scope, bool]:
        """What a `{` opens, by the statement so far. Looks at the whole statement once only: at its first brace."""
        declares = here.kind in ("namespace", "class")
        if declares and (not here.head or here.head[-1].text == "{}"):
            return "function", False                        # the body after a constructor's `: member{value}`
        if here.depth or here.grouped or here.kind == "braces":
            # A lambda's body or a braced list: function-like inside, the statement goes on after it.
            return "braces", False
        head = bare(here.head)
        texts = [token.text for token in head]
        if not declares:
            if texts[:1] and texts[0] in ("struct", "class", "union"):
                return "class", False
            return ("braces", False) if "=" in texts or texts[:1] == ["return"] else ("function", False)
        if "namespace" in texts[:2]:
            return "namespace", here.extern_c
        if texts[:1] == ["extern"] and len(head) == 2 and head[1].kind == "string":
            return "namespace", head[1].text == '"C"'
        if "enum" in texts[:2]:
            return "braces", False
        if any(text in ("struct", "class", "union") for text in texts) and parameters_at(head) is None and "=" not in texts:
            return "class", False
        return ("function", False) if is_function(head) or "__global__" in texts else ("braces", False)

    def statement(self) -> None:
        """A statement ended (or a block of a function begins): is it a variable that stays?"""
        scope = self.here.kind
        if scope in ("function", "braces"):
            for index, token in enumerate(self.head):
                if token.text in _SPECIFIERS and token.kind == "name":
                    self.variable(self.head[index:], "function")
                    return
        elif scope == "class":
            texts = {token.text for token in self.head}
            if texts & {"static", "__device__"} and not is_function(bare(self.head)):
                self.variable(self.head, "class")
        elif scope == "namespace" and self.head:
            self.at_namespace_scope()

    def at_namespace_scope(self) -> None:
        core = bare(self.head)
        if not core or core[0].text in _NOT_VARIABLES:
            return
        if core[0].text in ("asm", "__asm__", "__asm"):
            self.out.file_asm.append(core[0].line)
            return
        if core[0].text == "template" or any(token.text == "__global__" for token in self.head):
            if any(token.text == "__global__" for token in self.head):
                self.function(defined=False)
            return                                          # an explicit instantiation
        if is_function(core):
            return
        if any(token.text in ("struct", "class", "union", "enum") for token in core):
            ends = [index for index, token in enumerate(core) if token.text == "{}"]
            declarators = core[ends[0] + 1:] if ends else core[2:]
            if declarators and ends:
                kept = [token for token in core[:ends[0]] if token.text in ("const", "constexpr", "static")]
                self.variable([*kept, core[0], *declarators], "namespace")
            if not declarators or ends:
                return                                      # a type, defined or announced
        self.variable(self.head, "namespace")

    def variable(self, head: list[Token], place: Literal["namespace", "class", "function"]) -> None:
        core = bare(head)
        if not core or is_constant(core) or (place == "function" and is_function(core)):
            return
        name = declared_name(core)
        self.out.writable.append(Variable(name.text, name.line, place))

    def function(self, defined: bool) -> None:
        if not any(token.text == "__global__" and token.kind == "name" for token in self.head):
            return
        core = bare(self.head)
        at = last_group(core)
        if at is None or at == 0 or core[at - 1].kind != "name":
            return
        texts = [token.text for token in core[:at]]
        linkage = self.here.extern_c or any(pair == ("extern", '"C"') for pair in zip(texts, texts[1:], strict=False))
        name = core[at - 1]
        self.out.kernels.append(Kernel(name.text, name.line, linkage, self.parameters(core, at), defined))

    def parameters(self, core: list[Token], at: int) -> tuple[tuple[Token, ...], ...] | None:
        inside = list(group(core, at))
        if any(token.text in self.macros or token.text == "{}" for token in inside):
            return None
        parts: list[list[Token]] = [[]]
        depth = 0
        for token in inside:
            depth += {"(": 1, "[": 1, "<": 1, ")": -1, "]": -1, ">": -1}.get(token.text, 0)
            if token.text == "," and depth == 0:
                parts.append([])
            else:
                parts[-1].append(token)
        if len(parts) == 1 and [token.text for token in parts[0]] in ([], ["void"]):
            return ()
        return tuple(tuple(part) for part in parts)
