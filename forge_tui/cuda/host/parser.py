"""A parser of PTX, as NVRTC emits it: text in, a `Module` of functions, data tables and declarations out."""

from __future__ import annotations

import re
import struct
from functools import cached_property

from forge_tui.cuda.host.ptx import (
    SIZES, Function, Group, Immediate, Instruction, Label, Memory, Module, Negated, Operand, PtxError, Register, Symbol, Variable,
)
from forge_tui.cuda.host.tokens import Tokens


class _Parser:
    """One pass over the tokens. Registers and variables of inner `{}` scopes get unique names, so that bodies are flat."""

    def __init__(self, text: str, filename: str) -> None:
        self.filename = filename
        self.tokens = Tokens(text)
        self.module = Module({}, {})
        self.files = {int(index): path for index, path in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.M)}
        self.inlined: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        self.line: int | None = None
        self.scopes: list[dict[str, str]] = []
        self.scope_count = 0
        self.named_registers: set[str] = set()
        """Registers of the current function whose names do not begin with %."""

    @cached_property
    def kernel_file(self) -> int:
        wanted = self.filename.replace("\\", "/").rsplit("/", 1)[-1]
        for index, path in self.files.items():
            if path == self.filename or path.replace("\\", "/").rsplit("/", 1)[-1] == wanted:
                return index
        return 1

    # Module level ------------------------------------------------------------------------------------------------

    def parse(self) -> Module:
        tokens = self.tokens
        while tokens.kind() != "end":
            word = tokens.next()
            if word in (".version", ".address_size"):
                tokens.next()
            elif word == ".target":
                tokens.next()
                while tokens.accept(","):
                    tokens.next()
            elif word == ".file":
                tokens.next(), tokens.next()
                while tokens.accept(","):
                    tokens.next()
            elif word == ".loc":
                self.location()
            elif word in (".visible", ".weak", ".extern", ".common", ";"):
                continue
            elif word in (".entry", ".func"):
                self.function(entry=word == ".entry")
            elif word in (".const", ".global", ".shared", ".local", ".tex"):
                for variable in self.declaration(word[1:]):
                    self.module.variables[variable.name] = variable
            elif word in (".pragma", ".alias"):
                tokens.skip_statement()
            else:
                raise PtxError(f"unexpected {word!r} at module level")
        return self.module

    def declaration(self, space: str) -> list[Variable]:
        """After `.space`: attributes, type, then `name[count] = {...}` separated by commas, to the semicolon."""
        tokens, align, kind, lanes = self.tokens, 0, "b8", 1
        while tokens.peek().startswith("."):
            word = tokens.next()
            if word == ".align":
                align = tokens.integer()
            elif word == ".attribute":
                while tokens.next() != ")":
                    pass
            elif word in (".v2", ".v4"):
                lanes = int(word[2])
            elif word[1:] in SIZES:
                kind = word[1:]
            elif word != ".ptr":
                raise PtxError(f"unknown attribute {word!r} of a variable")
        unit, found = SIZES[kind] * lanes, []
        while True:
            name, count = tokens.next(), 1
            while tokens.accept("["):
                if tokens.accept("]"):
                    count = 0
                else:
                    count *= tokens.integer()
                    tokens.expect("]")
            data = self.initializer(kind, unit * count) if tokens.accept("=") else None
            if space in ("const", "global") and data is None:
                data = bytes(unit * count)
            found.append(Variable(name, space, max(align, SIZES[kind]), unit * count, data))
            if not tokens.accept(","):
                break
        tokens.expect(";")
        return found

    def initializer(self, kind: str, size: int) -> bytes:
        tokens, values, depth = self.tokens, [], 0
        while True:
            text = tokens.next()
            if text == "{":
                depth += 1
            elif text == "}":
                depth -= 1
            elif text == "-":
                values.append(-_literal(tokens.next()).value)
            elif text != ",":
                if not text[0].isdigit():
                    raise PtxError(f"a data table that holds the address of {text!r}")
                values.append(_literal(text).value)
            if depth == 0 and tokens.peek() in (";", ","):
                break
        unit = SIZES[kind]
        raw = b"".join((value & ((1 << 8 * unit) - 1)).to_bytes(unit, "little") for value in values)
        return raw.ljust(size, b"\0")

    # Functions ---------------------------------------------------------------------------------------------------

    def function(self, entry: bool) -> None:
        tokens = self.tokens
        self.scopes, self.line = [{}], None
        self.named_registers.clear()
        returns = self.parameters() if tokens.peek() == "(" else []
        function = Function(tokens.next(), entry, [], returns, None)
        if tokens.peek() == "(":
            function.params = self.parameters()
        while tokens.peek() not in ("{", ";"):      # .maxntid 1, 2, 3 and its kind
            tokens.next()
        if tokens.next() == "{":
            function.body = []
            self.body(function)
        known = self.module.functions.get(function.name)
        if known is None or known.body is None:
            self.module.functions[function.name] = function

    def parameters(self) -> list[Variable]:
        tokens, found = self.tokens, []
        tokens.expect("(")
        while not tokens.accept(")"):
            tokens.accept(",")
            align, kind = 0, "b8"
            while tokens.peek().startswith("."):
                word = tokens.next()
                if word == ".align":
                    align = tokens.integer()
                elif word[1:] in SIZES:
                    kind = word[1:]
            name, size = tokens.next(), SIZES[kind]
            if tokens.accept("["):
                size *= 1 if tokens.peek() == "]" else tokens.integer()
                tokens.expect("]")
            found.append(Variable(name, "param", max(align, SIZES[kind]), size))
        return found

    def body(self, function: Function) -> None:
        tokens, depth = self.tokens, 1
        while depth:
            word = tokens.next()
            if word == "{":
                depth += 1
                self.scope_count += 1
                self.scopes.append({})
                self.labels()
            elif word == "}":
                depth -= 1
                if depth:
                    self.scopes.pop()
            elif word == ".loc":
                self.location()
            elif word == ".reg" or word.startswith(".reg."):  # inline assembly may write `.reg.b16` as one word
                self.registers(function, word[5:])
            elif word in (".local", ".shared", ".param", ".const", ".global"):
                for variable in self.declaration(word[1:]):
                    variable.name = self.declare(variable.name)
                    function.variables[variable.name] = variable
            elif word in (".pragma", ".callprototype"):
                tokens.skip_statement()
            elif word != ";":
                self.statement(function, word)

    def labels(self) -> None:
        """Declare the labels of the scope that begins here: branches may name them before they come."""
        items, at, depth = self.tokens.items, self.tokens.at, 1
        while depth and at + 1 < len(items):
            text = items[at][1]
            depth += (text == "{") - (text == "}")
            if depth == 1 and items[at][0] == "word" and items[at + 1][1] == ":":
                self.declare(text)
            at += 1

    def declare(self, name: str) -> str:
        """The unique name of something declared in the current scope."""
        unique = name if len(self.scopes) == 1 else f"{name}@{self.scope_count}"
        self.scopes[-1][name] = unique
        return unique

    def resolve(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return name

    def registers(self, function: Function, kind: str) -> None:
        """kind: where it was written together with `.reg`, else empty."""
        tokens = self.tokens
        kind = kind or tokens.next()[1:]
        while True:
            name = tokens.next()
            if tokens.accept("<"):
                count = tokens.integer()
                tokens.expect(">")
                for index in range(count):
                    function.registers[self.declare(f"{name}{index}")] = kind
            else:
                unique = self.declare(name)
                function.registers[unique] = kind
                if not name.startswith("%"):
                    self.named_registers.add(unique)
            if not tokens.accept(","):
                break
        tokens.expect(";")

    def location(self) -> None:
        """`.loc file line column [, function_name name[+n], inlined_at file line column]`."""
        tokens = self.tokens
        place = (tokens.integer(), tokens.integer(), tokens.integer())
        if tokens.accept(","):
            tokens.next()
            tokens.next()
            if tokens.accept("+"):
                tokens.next()
            tokens.expect(",")
            tokens.next()
            self.inlined[place] = (tokens.integer(), tokens.integer(), tokens.integer())
        seen = set()
        while place[0] != self.kernel_file and place in self.inlined and place not in seen:
            seen.add(place)
            place = self.inlined[place]
        if place[0] == self.kernel_file and place[1] > 0:
            self.line = place[1]

    def statement(self, function: Function, word: str) -> None:
        tokens, guard, negated = self.tokens, None, False
        assert function.body is not None
        if tokens.peek() == ":":
            tokens.next()
            if tokens.accept(".branchtargets"):
                names = [tokens.next()]
                while tokens.accept(","):
                    names.append(tokens.next())
                tokens.expect(";")
                function.tables[word] = tuple(names)
            elif tokens.peek() == ".callprototype":
                tokens.skip_statement()
            else:
                function.body.append(Label(self.resolve(word)))
            return
        if word == "@":
            negated = tokens.accept("!")
            guard = Register(self.resolve(tokens.next()))
            word = tokens.next()
        args = []
        while not tokens.accept(";"):
            args.append(self.operand())
            if not tokens.accept(","):
                tokens.expect(";")
                break
        function.body.append(Instruction(word, tuple(args), guard, negated, self.line))

    # Operands ----------------------------------------------------------------------------------------------------

    def operand(self) -> Operand:
        tokens = self.tokens
        if tokens.accept("["):
            return self.memory()
        for opening, closing in ("{", "}"), ("(", ")"):
            if tokens.accept(opening):
                items = []
                while not tokens.accept(closing):
                    items.append(self.operand())
                    tokens.accept(",")
                return Group(tuple(items), opening)
        if tokens.accept("!"):
            return Negated(Register(self.resolve(tokens.next())))
        if tokens.accept("-"):
            value = _literal(tokens.next())
            return Immediate(-value.value, value.kind)
        if tokens.kind() in ("int", "float"):
            return _literal(tokens.next())
        if tokens.accept("WARP_SZ"):
            return Immediate(32)
        first = self.name(tokens.next())
        if tokens.accept("|"):
            return Group((first, self.name(tokens.next())), "|")
        if isinstance(first, Symbol) and tokens.accept("+"):
            return Symbol(first.name, tokens.integer())
        return first

    def name(self, text: str) -> Register | Symbol:
        resolved = self.resolve(text)
        # Inline assembly names registers as it likes: `{.reg .b16 h; mov.b16 h, %rs1; ...}` (cuda_fp16.h).
        known = text.startswith("%") or text == "_" or resolved in self.named_registers
        return Register(resolved) if known else Symbol(resolved)

    def memory(self) -> Operand:
        tokens = self.tokens
        if tokens.kind() in ("int", "float"):
            base: Register | Symbol | Immediate = _literal(tokens.next())
        else:
            base = self.name(tokens.next())
        offset = tokens.integer() if tokens.accept("+") else -tokens.integer() if tokens.accept("-") else 0
        items: list[Operand] = [Memory(base, offset)]
        while tokens.accept(","):
            items.append(self.operand())
        tokens.expect("]")
        return items[0] if len(items) == 1 else Group(tuple(items), "[")


def _literal(text: str) -> Immediate:
    if text[:2] in ("0f", "0F"):
        return Immediate(int(text[2:], 16), "f32")
    if text[:2] in ("0d", "0D"):
        return Immediate(int(text[2:], 16), "f64")
    if "." in text:
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], "f64")
    return Immediate(int(text.rstrip("U"), 0))


def parse_ptx(text: str, filename: str) -> Module:
    """Parse one PTX file. Lines are reported of the source file called `filename` only. Raises PtxError."""
    return _Parser(text, filename).parse()
