"""PTX as records: instructions, operands, variables, functions, modules."""

from __future__ import annotations

from dataclasses import dataclass, field

SIZES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "u16x2": 4, "s16x2": 4, "tf32": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "f32x2": 8, "b128": 16,
}
"""Bytes of one value of each PTX type."""

SPECIAL = {"%tid", "%ntid", "%ctaid", "%nctaid", "%laneid", "%warpid", "%nwarpid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le",
           "%lanemask_gt", "%lanemask_ge", "%smid", "%nsmid", "%gridid", "%dynamic_smem_size", "%total_smem_size", "%envreg1", "%envreg2",
           "%cluster_ctaid", "%cluster_nctaid", "%cluster_ctarank", "%cluster_nctarank", "%clusterid", "%nclusterid",
           "%is_explicit_cluster"}
"""Special registers that are known: those whose value does not change while a kernel runs."""


def is_special(name: str) -> bool:
    return name.partition(".")[0] in SPECIAL


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
        if self.root == "wmma":
            return self.parts[1] != "store"
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
