"""Why an address is out of bounds: the arithmetic that led to it, worked out again in whole numbers for the lane at fault.

Costs nothing until there is a fault. Registers still hold what the lane computed; those that lived inside the basic block are
computed again from their definitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.host.ptx import SIZES, Group, Immediate, Instruction, Memory, Operand, Register, Symbol

if TYPE_CHECKING:
    from forge_tui.cuda.host.run import Machine

ACCESSES = ("ld", "ldu", "st", "atom", "red", "cp")
MOST_STEPS = 400
"""Definitions looked at: addresses of real kernels take a few dozen."""
SIGNS = {"add": "+", "sub": "-", "mul": "*", "mad": "*", "shl": "<<"}


@dataclass(frozen=True)
class Overflow:
    """A 32-bit result that is not what its operands give."""

    text: str
    """`3000000 * 1001 = 3003000000`."""
    line: int | None
    signed: bool


def explained(machine: Machine, index: int, fault: CandidateFault) -> CandidateFault:
    """The fault, saying so where an index overflowed 32 bits before basic block `index` went out of bounds with it."""
    if fault.kind != "out_of_bounds" or fault.thread is None or fault.block is None:
        return fault
    walk = Walk(machine, fault.thread, machine.block_ids.tolist().index(fault.block))
    for position, instruction in enumerate(machine.kernel.blocks[index].instructions):
        if instruction.root in ACCESSES and instruction.line == fault.line:
            for operand in instruction.args:
                if isinstance(operand, Memory) and isinstance(operand.base, Register):
                    found = walk.search(operand.base, index, position, signed=True)
                    if found is not None:
                        kind = "int" if found.signed else "unsigned"
                        where = f" on line {found.line}" if found.line not in (None, fault.line) else ""
                        return CandidateFault(fault.kind, f"{fault.message}; its index overflowed 32 bits{where}: {found.text} is no "
                                              f"{kind} any more (compute it as long long or size_t)", kernel=fault.kernel,
                                              line=fault.line, block=fault.block, thread=fault.thread)
    return fault


class Walk:
    """Definitions behind a register, as one lane has them."""

    def __init__(self, machine: Machine, thread: int, column: int) -> None:
        self.machine = machine
        self.lane = (thread, column)
        self.seen: set[tuple[str, bool]] = set()
        self.definitions: dict[str, list[tuple[int, int, Instruction]]] = {}
        for block in machine.kernel.blocks:
            for position, instruction in enumerate(block.instructions):
                for name in instruction.writes():
                    self.definitions.setdefault(name, []).append((block.index, position, instruction))

    def search(self, operand: Operand, block: int, position: int, signed: bool) -> Overflow | None:
        """The first overflow found on the way from a register, read at a place, back to where it comes from."""
        if not isinstance(operand, Register) or (operand.name, signed) in self.seen or len(self.seen) > MOST_STEPS:
            return None
        self.seen.add((operand.name, signed))
        for at, where, instruction in self.reaching(operand.name, block, position):
            if isinstance(instruction.args[0], Group) or instruction.root in ACCESSES:
                continue
            if self.checked(instruction) and (found := self.overflow(instruction, at, where, signed)) is not None:
                return found
            if "wide" in instruction.parts or instruction.root == "cvt":
                signed = any(part in ("s32", "s16", "s8") for part in instruction.parts[1:])
            for source in instruction.args[1:]:
                if (found := self.search(source, at, where, signed)) is not None:
                    return found
        return None

    def reaching(self, name: str, block: int, position: int) -> list[tuple[int, int, Instruction]]:
        """Definitions of a register that may have given what is read: the last one before in the block, else all."""
        found = self.definitions.get(name, [])
        before = [item for item in found if item[0] == block and item[1] < position]
        return before[-1:] or found

    @staticmethod
    def checked(i: Instruction) -> bool:
        narrow = SIZES[i.type] == 4 and i.type not in ("f32", "f16x2", "bf16x2", "tf32", "s16x2", "u16x2")
        return narrow and (i.root in ("add", "sub", "shl") or i.root in ("mul", "mad") and "lo" in i.parts)

    def overflow(self, i: Instruction, block: int, position: int, signed: bool) -> Overflow | None:
        """Whether this definition's exact result differs from the 32 bits it left."""
        values = [self.number(x, block, position, signed) for x in i.args[1:]]
        if any(v is None for v in values):
            return None
        a, b, *rest = (v for v in values if v is not None)
        left = self.value(i.args[0], block, position + 1)
        if left is not None and i.root in ("add", "sub") and self.exact(i.root, a, b, rest) - left & 0xFFFFFFFF:
            # A loop went on: one operand has its next value already. The other one and the result give what it was.
            before = left - b if i.root == "add" else left + b
            a = _signed(before) if signed else before & 0xFFFFFFFF
        exact = self.exact(i.root, a, b, rest)
        if -(1 << 31) <= exact < 1 << 31 if signed else 0 <= exact < 1 << 32:
            return None
        tail = f" + {rest[0]}" if rest else ""
        return Overflow(f"{a} {SIGNS[i.root]} {b}{tail} = {exact}", i.line, signed)

    @staticmethod
    def exact(root: str, a: int, b: int, rest: list[int]) -> int:
        if root == "shl":
            return a << min(b, 64)
        return {"add": a + b, "sub": a - b, "mul": a * b, "mad": a * b + (rest[0] if rest else 0)}[root]

    def number(self, operand: Operand, block: int, position: int, signed: bool) -> int | None:
        """A 32-bit operand as a number; literals are signed in any case (`i - 1` adds -1)."""
        if isinstance(operand, Immediate):
            return _signed(operand.value)
        value = self.value(operand, block, position)
        return None if value is None else _signed(value) if signed else value & 0xFFFFFFFF

    def value(self, operand: Operand, block: int, position: int, depth: int = 0) -> int | None:
        """What the lane has in an operand, as a pattern; None where that is lost."""
        if isinstance(operand, Immediate):
            return operand.value & 0xFFFFFFFFFFFFFFFF
        if not isinstance(operand, Register) or depth > 24:
            return None
        machine, name = self.machine, operand.name
        if name in machine.variant.code.slot_of:
            array = machine.slots[machine.variant.code.slot_of[name]]
            return int(np.broadcast_to(array, (machine.threads, machine.blocks))[self.lane])
        if name.startswith("%") and "." in name or name in ("%laneid", "%warpid"):
            return int(np.broadcast_to(machine.values.special(name, 4), (machine.threads, machine.blocks))[self.lane])
        found = self.reaching(name, block, position)
        return self.computed(found[-1], depth) if len(found) == 1 else None

    def computed(self, definition: tuple[int, int, Instruction], depth: int) -> int | None:
        """The result of a definition, from its operands again."""
        block, position, i = definition
        if i.guard is not None:
            return None
        if i.root == "ld" and "param" in i.parts and isinstance(i.args[1], Memory) and isinstance(i.args[1].base, Symbol):
            return int(self.machine.values.parameter(i.args[1].base.name, i.args[1].offset, SIZES[i.type]).flat[0])
        values = [self.value(x, block, position, depth + 1) for x in i.args[1:]]
        if any(v is None for v in values) or not (i.root == "mov" or self.checked(i)):
            return None
        numbers = [v for v in values if v is not None]
        if i.root == "mov":
            return numbers[0]
        return self.exact(i.root, numbers[0], numbers[1], numbers[2:]) & 0xFFFFFFFF


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
