"""From parsed functions to one flat kernel: device functions inlined, memory laid out, basic blocks linked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from forge_tui.cuda.host.ptx import (
    SIZES, Function, Group, Immediate, Instruction, Label, Memory, Module, Negated, Operand, PtxError, Register, Symbol, Variable,
)

EXIT = -1
"""The successor of a lane that is done."""

TERMINATORS = {"bra", "brx", "ret", "exit", "bar", "barrier", "trap"}
MAX_INLINE_DEPTH = 24
"""Calls deeper than this are taken for recursion."""
MAX_COPIES = 256
"""Function bodies in one flattened kernel: a function that calls itself twice would be copied 2**24 times."""


@dataclass(slots=True)
class Block:
    """A basic block. Its last instruction decides where lanes go; `successors` are block indices or EXIT.

    Of a conditional branch the taken side is first, of `brx` the targets are in table order.
    """

    index: int
    instructions: list[Instruction]
    successors: list[int] = field(default_factory=list)

    @property
    def last(self) -> Instruction:
        return self.instructions[-1]

    @property
    def branches(self) -> bool:
        """Whether lanes may part here."""
        return len(self.successors) > 1


@dataclass(slots=True)
class Parameter:
    """A kernel parameter and where it lies in the parameter block, in bytes."""

    name: str
    offset: int
    size: int


@dataclass(slots=True, eq=False)
class Kernel:
    """One kernel, ready to be analysed: flat, with addresses of everything it declares."""

    name: str
    parameters: list[Parameter]
    parameter_bytes: int
    registers: dict[str, str]
    blocks: list[Block]
    shared: dict[str, int]
    """Offset of each shared variable; dynamic ones lie at `static_shared`."""
    static_shared: int
    local: dict[str, int]
    local_bytes: int
    constants: dict[str, int]
    """Offset of each module data table in `constant_data`."""
    constant_data: bytes

    def knows(self, name: str) -> bool:
        """Whether a symbol is a variable with an address."""
        return name in self.shared or name in self.local or name in self.constants or any(p.name == name for p in self.parameters)


class _Flattener:
    """Collects the instructions of a kernel, with the functions it calls inlined."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.body: list[Instruction | Label] = []
        self.registers: dict[str, str] = {}
        self.variables: dict[str, Variable] = {}
        self.tables: dict[str, tuple[str, ...]] = {}
        self.slots: dict[str, set[tuple[int, int]]] = {}
        """Byte ranges seen of each call parameter: accesses must agree, for they are registers here."""
        self.copies = 0

    def add(self, function: Function, prefix: str, bound: dict[str, str], depth: int) -> None:
        """Append the body. `bound` maps its parameter names to the caller's call parameters; empty for the kernel itself."""
        assert function.body is not None
        names = dict(bound)
        for name, variable in function.variables.items():
            unique = name if variable.space == "shared" else prefix + name
            names[name] = unique
            self.variables[unique] = replace(variable, name=unique)
        for name, kind in function.registers.items():
            names[name] = prefix + name
            self.registers[prefix + name] = kind
        for item in function.body:
            if isinstance(item, Label):
                names[item.name] = prefix + item.name
        for label, targets in function.tables.items():
            names[label] = prefix + label
            self.tables[prefix + label] = tuple(prefix + target for target in targets)
        finish = f"{prefix}return"
        for item in function.body:
            if isinstance(item, Label):
                self.body.append(Label(names[item.name]))
            elif item.root == "call":
                self.call(item, names, depth)
            elif item.root in ("ld", "st") and "param" in item.parts and self.is_call_parameter(item, names):
                self.move(item, names)
            elif item.root == "ret" and depth:
                self.body.append(replace_args(item, "bra", (Symbol(finish),), names))
            else:
                self.body.append(replace_args(item, item.opcode, item.args, names))
        if depth:
            self.body.append(Label(finish))

    def is_call_parameter(self, item: Instruction, names: dict[str, str]) -> bool:
        address = item.args[0] if item.root == "st" else item.args[1]
        return isinstance(address, Memory) and isinstance(address.base, Symbol) and address.base.name in names

    def call(self, item: Instruction, names: dict[str, str], depth: int) -> None:
        groups = [tuple(_name(x) for x in arg.items) for arg in item.args if isinstance(arg, Group)]
        target = next((arg.name for arg in item.args if isinstance(arg, Symbol)), None)
        position = next((k for k, arg in enumerate(item.args) if isinstance(arg, (Symbol, Register))), 0)
        returns = groups[0] if position and groups else ()
        passed = groups[len(groups) > 1 or (position and bool(groups))] if len(groups) > bool(position) else ()
        if target == "vprintf":        # printed text is no result: the call returns 0 and prints nothing
            slot = self.slot(names[returns[0]], 0, 4)
            self.body.append(Instruction("mov.b32", (Register(slot), Immediate(0)), line=item.line))
            return
        if target == "__assertfail":
            self.body.append(Instruction("trap.assert", (), line=item.line))
            return
        function = self.module.functions.get(target or "")
        if function is None or function.body is None or depth >= MAX_INLINE_DEPTH or self.copies >= MAX_COPIES:
            self.body.append(Instruction(f"call.{target or 'indirect'}", (), line=item.line))
            return
        bound = {p.name: names[a] for p, a in zip(function.params, passed, strict=True)}
        bound |= {p.name: names[a] for p, a in zip(function.returns, returns, strict=True)}
        self.copies += 1
        self.add(function, f"f{self.copies}:", bound, depth + 1)

    def slot(self, variable: str, offset: int, size: int) -> str:
        """The register that stands for bytes of a call parameter."""
        ranges = self.slots.setdefault(variable, set())
        for start, length in ranges:
            if (start, length) != (offset, size) and start < offset + size and offset < start + length:
                raise PtxError(f"call parameter {variable} is accessed in overlapping pieces")
        ranges.add((offset, size))
        name = f"%{variable}+{offset}"
        self.registers[name] = f"b{8 * max(size, 2)}"
        return name

    def move(self, item: Instruction, names: dict[str, str]) -> None:
        """A `ld.param` or `st.param` of a call parameter, as moves between registers."""
        load = item.root == "ld"
        address, value = (item.args[1], item.args[0]) if load else item.args
        assert isinstance(address, Memory) and isinstance(address.base, Symbol)
        size, kind = SIZES[item.type], item.type
        for index, operand in enumerate(value.items if isinstance(value, Group) else (value,)):
            slot = Register(self.slot(names[address.base.name], address.offset + index * size, size))
            operand = _renamed(operand, names)
            bits = f"b{8 * max(size, 2)}"
            if size == 1 and not load:
                new = Instruction("and.b16", (slot, operand, Immediate(255)), line=item.line)
            elif load and isinstance(operand, Register) and SIZES[self.registers.get(operand.name, bits)] != max(size, 2):
                wide = f"{'s' if kind[0] == 's' else 'u'}{8 * SIZES[self.registers[operand.name]]}"
                narrow = f"{'s' if kind[0] == 's' else 'u'}{8 * size}"
                new = Instruction(f"cvt.{wide}.{narrow}", (operand, slot), line=item.line)
            elif load and kind == "s8":
                new = Instruction("cvt.s16.s8", (operand, slot), line=item.line)
            else:
                kind_of_move = kind if kind[0] == "f" and size >= 4 else bits
                new = Instruction(f"mov.{kind_of_move}", (operand, slot) if load else (slot, operand), line=item.line)
            self.body.append(new)


def _name(operand: Operand) -> str:
    if isinstance(operand, (Symbol, Register)):
        return operand.name
    raise PtxError(f"a call argument of an unknown form: {operand}")


def _renamed(operand: Operand, names: dict[str, str]) -> Operand:
    if isinstance(operand, Register):
        return Register(names.get(operand.name, operand.name))
    if isinstance(operand, Symbol):
        return Symbol(names.get(operand.name, operand.name), operand.offset)
    if isinstance(operand, Negated):
        return Negated(Register(names.get(operand.register.name, operand.register.name)))
    if isinstance(operand, Memory):
        base = _renamed(operand.base, names)
        assert isinstance(base, (Register, Symbol, Immediate))
        return Memory(base, operand.offset)
    if isinstance(operand, Group):
        return Group(tuple(_renamed(item, names) for item in operand.items), operand.form)
    return operand


def replace_args(item: Instruction, opcode: str, args: tuple[Operand, ...], names: dict[str, str]) -> Instruction:
    guard = Register(names.get(item.guard.name, item.guard.name)) if item.guard else None
    return Instruction(opcode, tuple(_renamed(arg, names) for arg in args), guard, item.negated, item.line)


def lower(module: Module, name: str) -> Kernel:
    """Flatten kernel `name`. Raises PtxError when it has a form that cannot be flattened, KeyError when it is not there."""
    function = module.functions[name]
    flat = _Flattener(module)
    flat.registers[CARRY.name] = "pred"
    flat.add(function, "", {}, 0)
    flat.body = [with_carry(item) if isinstance(item, Instruction) else item for item in flat.body]
    parameters, end = [], 0
    for variable in function.params:
        end = -(-end // variable.align) * variable.align
        parameters.append(Parameter(variable.name, end, variable.size))
        end += variable.size
    used = {symbol for item in flat.body if isinstance(item, Instruction) for symbol in _symbols(item.args)}
    variables = [v for v in (*module.variables.values(), *flat.variables.values()) if v.name in used]
    shared, static_shared = _layout([v for v in variables if v.space == "shared" and v.size])
    dynamic = [v for v in variables if v.space == "shared" and not v.size]
    if dynamic:
        align = max(16, *(v.align for v in dynamic))
        static_shared = -(-static_shared // align) * align
        shared |= {v.name: static_shared for v in dynamic}
    local, local_bytes = _layout([v for v in variables if v.space == "local"])
    tables = [v for v in variables if v.data is not None]
    constants, size = _layout(tables)
    data = bytearray(size)
    for variable in tables:
        data[constants[variable.name]:constants[variable.name] + len(variable.data or b"")] = variable.data or b""
    return Kernel(name, parameters, end, flat.registers, _blocks(flat), shared, static_shared, local, local_bytes,
                  constants, bytes(data))


CARRY = Register("%carry flag")


def with_carry(item: Instruction) -> Instruction:
    """An instruction with the carry flag among its operands, if it sets or uses it."""
    uses, sets = item.root in ("addc", "subc", "madc"), "cc" in item.parts and item.root in ("add", "sub", "mad", "addc", "subc", "madc")
    if not uses and not sets:
        return item
    first = Group((item.args[0], CARRY), "|") if sets else item.args[0]
    return Instruction(item.opcode, (first, *item.args[1:], *((CARRY,) if uses else ())), item.guard, item.negated, item.line)


def waits(item: Instruction) -> bool:
    """Whether lanes stay at an instruction until others have done something."""
    return item.root == "mbarrier" and "try_wait" in item.parts


def _symbols(args: tuple[Operand, ...]):
    for arg in args:
        if isinstance(arg, Symbol):
            yield arg.name
        elif isinstance(arg, Memory) and isinstance(arg.base, Symbol):
            yield arg.base.name
        elif isinstance(arg, Group):
            yield from _symbols(arg.items)


def _layout(variables: list[Variable]) -> tuple[dict[str, int], int]:
    """Offsets in declaration order, each aligned; and the end."""
    offsets, end = {}, 0
    for variable in variables:
        end = -(-end // variable.align) * variable.align
        offsets[variable.name] = end
        end += variable.size
    return offsets, end


def _blocks(flat: _Flattener) -> list[Block]:
    blocks: list[Block] = []
    labels: dict[str, int] = {}
    current: list[Instruction] = []

    def cut() -> None:
        nonlocal current
        if current:
            blocks.append(Block(len(blocks), current))
            current = []

    for item in flat.body:
        if isinstance(item, Label):
            cut()
            labels[item.name] = len(blocks)
        elif waits(item):           # alone, for it is run again until it need not wait
            cut()
            current.append(item)
            cut()
        else:
            current.append(item)
            if item.root in TERMINATORS and "warp" not in item.parts:
                cut()
    cut()

    def resolve(index: int) -> int:
        """A block that only returns is the exit itself: lanes that go there are done at once."""
        if index >= len(blocks):
            return EXIT
        first = blocks[index].instructions[0]
        return EXIT if first.root in ("ret", "exit") and first.guard is None else index

    for block in blocks:
        last, fall = block.last, resolve(block.index + 1)
        if last.root in ("ret", "exit"):
            targets = [EXIT]
        elif last.root == "bra":
            target = last.args[0]
            assert isinstance(target, Symbol)
            targets = [resolve(labels[target.name])]
        elif last.root == "brx":
            table = last.args[1]
            names = flat.tables[table.name] if isinstance(table, Symbol) else ()
            block.successors = [resolve(labels[name]) for name in names]
            continue
        elif last.root == "trap":
            targets = [EXIT] if last.guard is None else []
        else:
            block.successors = [fall]
            continue
        if last.guard is not None:
            targets.append(fall)
        block.successors = targets or [fall]
    return blocks
