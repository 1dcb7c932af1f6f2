"""A tokenizer and parser of PTX, as NVRTC emits it: text in, a `Module` of functions, data tables and declarations out."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from functools import cached_property

SIZES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "u16x2": 4, "s16x2": 4, "tf32": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "f32x2": 8, "b128": 16,
}
"""Bytes of one value of each PTX type."""

_TOKEN = re.compile(r"""
    (?P<skip>(?:\s+|//[^\n]*|/\*.*?\*/)+)
  | (?P<string>"[^"]*")
  | (?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|\d+\.\d+)
  | (?P<int>0[xX][0-9a-fA-F]+U?|\d+U?)
  | (?P<word>[.%$_A-Za-z](?:[\w$%.]|::)*)
  | (?P<mark>[-+,;:{}()\[\]<>=@!|])
""", re.X | re.S)


class PtxError(Exception):
    """Text that is not PTX as this parser knows it."""


@dataclass(frozen=True, slots=True)
class Register:
    """A register by its unique name; special registers keep their dotted name (`%tid.x`)."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal. `kind` is `int` (value: the integer) or `f32`/`f64` (value: the bit pattern)."""

    value: int
    kind: str = "int"


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable, or a label or function name."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """`[base + offset]`."""

    base: Register | Symbol | Immediate
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """Several operands that belong together. `form`: `{` vector, `(` call arguments, `|` two results, `[` a tensor address."""

    items: tuple[Operand, ...]
    form: str = "{"


@dataclass(frozen=True, slots=True)
class Negated:
    """`!%p`."""

    register: Register


Operand = Register | Immediate | Symbol | Memory | Group | Negated

NO_RESULT = {
    "st", "red", "bra", "brx", "ret", "exit", "membar", "fence", "trap", "prefetch", "prefetchu", "cp", "nanosleep", "call",
    "discard", "applypriority", "wgmma", "griddepcontrol", "brkpt", "pmevent", "stmatrix", "setmaxnreg", "multimem",
}
"""Instructions whose first operand is not a result. `bar` and `barrier` are decided by their form."""


@dataclass(slots=True, eq=False)
class Instruction:
    """One instruction. `line` is in the kernel file (None before the first `.loc` that leads there)."""

    opcode: str
    args: tuple[Operand, ...]
    guard: Register | None = None
    negated: bool = False
    line: int | None = None
    parts: tuple[str, ...] = field(init=False)
    root: str = field(init=False)

    def __post_init__(self) -> None:
        self.parts = tuple(self.opcode.split("."))
        self.root = self.parts[0]

    @property
    def type(self) -> str:
        """The last type in the opcode: `ld.global.v4.f32` -> `f32`; `b32` when it names none."""
        return next((part for part in reversed(self.parts) if part in SIZES), "b32")

    @property
    def has_result(self) -> bool:
        if self.root in ("bar", "barrier"):
            return "red" in self.parts
        if self.root == "mbarrier":
            return self.parts[1] in ("arrive", "test_wait", "try_wait", "arrive_drop", "pending_count")
        return self.root not in NO_RESULT and bool(self.args)

    def writes(self) -> list[str]:
        """Names of the registers it defines."""
        return list(_registers(self.args[:1], addresses=False)) if self.has_result else []

    def reads(self) -> list[str]:
        """Names of the registers it uses, its guard included."""
        used = list(_registers(self.args[1:] if self.has_result else self.args, addresses=True))
        return used + [self.guard.name] if self.guard else used

    def __str__(self) -> str:
        return self.opcode


def _registers(operands: tuple[Operand, ...], addresses: bool):
    for operand in operands:
        if isinstance(operand, Register):
            if operand.name != "_":
                yield operand.name
        elif isinstance(operand, Negated):
            yield operand.register.name
        elif isinstance(operand, Group):
            yield from _registers(operand.items, addresses)
        elif addresses and isinstance(operand, Memory) and isinstance(operand.base, Register):
            yield operand.base.name


@dataclass(slots=True)
class Label:
    """A branch target in a function body."""

    name: str


@dataclass(slots=True)
class Variable:
    """A declared variable: module data (`data` holds its bytes), shared or local memory, or a parameter."""

    name: str
    space: str
    align: int
    size: int
    """Bytes; 0 for `extern .shared` arrays whose size the launch decides."""
    data: bytes | None = None


@dataclass(slots=True)
class Function:
    """A kernel (`.entry`) or device function."""

    name: str
    entry: bool
    params: list[Variable]
    returns: list[Variable]
    body: list[Instruction | Label] | None
    """None for a declaration."""
    registers: dict[str, str] = field(default_factory=dict)
    """Type of each register."""
    variables: dict[str, Variable] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """`.branchtargets` by their label."""


@dataclass(slots=True)
class Module:
    """One PTX file."""

    functions: dict[str, Function]
    variables: dict[str, Variable]

    @property
    def kernels(self) -> list[str]:
        return [name for name, function in self.functions.items() if function.entry and function.body is not None]


class _Tokens:
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


class _Parser:
    """One pass over the tokens. Registers and variables of inner `{}` scopes get unique names, so that bodies are flat."""

    def __init__(self, text: str, filename: str) -> None:
        self.filename = filename
        self.tokens = _Tokens(text)
        self.module = Module({}, {})
        self.files = {int(index): path for index, path in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.M)}
        self.inlined: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        self.line: int | None = None
        self.scopes: list[dict[str, str]] = []
        self.scope_count = 0

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
            elif word == "}":
                depth -= 1
                if depth:
                    self.scopes.pop()
            elif word == ".loc":
                self.location()
            elif word == ".reg":
                self.registers(function)
            elif word in (".local", ".shared", ".param", ".const", ".global"):
                for variable in self.declaration(word[1:]):
                    variable.name = self.declare(variable.name)
                    function.variables[variable.name] = variable
            elif word in (".pragma", ".callprototype"):
                tokens.skip_statement()
            elif word != ";":
                self.statement(function, word)

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

    def registers(self, function: Function) -> None:
        tokens = self.tokens
        kind = tokens.next()[1:]
        while True:
            name = tokens.next()
            if tokens.accept("<"):
                count = tokens.integer()
                tokens.expect(">")
                for index in range(count):
                    function.registers[self.declare(f"{name}{index}")] = kind
            else:
                function.registers[self.declare(name)] = kind
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
        first = self.name(tokens.next())
        if tokens.accept("|"):
            return Group((first, self.name(tokens.next())), "|")
        if isinstance(first, Symbol) and tokens.accept("+"):
            return Symbol(first.name, tokens.integer())
        return first

    def name(self, text: str) -> Register | Symbol:
        resolved = self.resolve(text)
        return Register(resolved) if text.startswith("%") or text == "_" else Symbol(resolved)

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
