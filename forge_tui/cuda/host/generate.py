"""From basic blocks to Python: every block becomes a function of NumPy calls over the lanes of a chunk.

A register is a slot: one array, shaped by its class, seen as unsigned (`u`), signed (`s`) or float (`f`). Each block is
written twice: `F` runs when all live lanes are here and writes registers whole; `M` runs for a part of them and writes
under its mask. Both get the mask `m` (None: all lanes), which memory accesses and collectives obey.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from forge_tui.cuda.host.analyse import BLOCK, BOTH, THREAD, UNIFORM, Analysis
from forge_tui.cuda.host.lower import Block, Kernel
from forge_tui.cuda.host.ptx import SIZES, Immediate, Instruction, Memory, Negated, Operand, Register, Symbol, is_special

Handler = Callable[["Emitter", Instruction], None]
HANDLERS: dict[str, Handler] = {}
"""What writes the code of an instruction, by its first word."""

SPACES = {"global": "gmem", "const": "gmem", "param": "gmem", "shared": "smem", "shared::cta": "smem", "shared::cluster": "cmem",
          "local": "lmem"}
"""The memory that an address space names."""
SPACE_WORDS = tuple(SPACES)
SIGNED = {"s8", "s16", "s32", "s64"}
FLOAT = {"f32", "f64"}


MACHINE_NAMES = ("unsupported", "both", "fold_threads", "fold_blocks", "gmem", "smem", "lmem", "warps", "generic",
                 "atomic", "copies", "trap", "bar_red", "cmem", "mbarriers", "bulk", "matrix")
"""What generated code uses of the machine it runs on."""


def library() -> dict[str, object]:
    """What generated code uses besides: NumPy, torch and the arithmetic."""
    import numpy as np
    import torch

    from forge_tui.cuda.host import arithmetic, fp8, halves, integers

    return {"np": np, "torch": torch, "A": arithmetic, "H": halves, "I": integers, "P": fp8, "copyto": np.copyto}


class Unsupported(Exception):
    """An instruction, or a form of it, that this target does not know."""


def handles(*roots: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for root in roots:
            HANDLERS[root] = handler
        return handler
    return register


@dataclass(slots=True)
class Code:
    """A generated kernel: `source` defines `build(E)`, which makes the functions over a machine's arrays."""

    source: str
    slots: list[tuple[int, int]]
    """Bytes (1: a predicate) and class of every slot."""
    slot_of: dict[str, int]
    """Slots of the registers that outlive a block."""
    build: Callable[..., tuple[list[Callable[..., object]], list[Callable[..., object]]]] = field(
        repr=False, default=lambda _: ([], []))


def view_kind(kind: str) -> str:
    """How a slot is seen for a PTX type."""
    return "s" if kind in SIGNED else "f" if kind in FLOAT else "u"


class Emitter:
    """Writes the functions of one kernel for one analysis."""

    def __init__(self, kernel: Kernel, analysis: Analysis) -> None:
        self.kernel = kernel
        self.analysis = analysis
        self.constants: dict[str, str] = {}
        self.torch_views: dict[str, str] = {}
        self.slots: list[tuple[int, int]] = []
        self.slot_of: dict[str, int] = {}
        self.free: dict[tuple[int, int], list[int]] = {}
        self.aliases = self.launch_constants()
        self.body: list[str] = []

    # The whole kernel --------------------------------------------------------------------------------------------

    def generate(self) -> Code:
        out: list[str] = []
        for name in self.analysis.classes:
            if name not in self.analysis.private and name not in self.aliases:
                self.slot_of[name] = self.new_slot(name)
        kept = dict(self.slot_of)
        for block in self.kernel.blocks:
            for masked in (False, True):
                out += self.function(block, masked)
        head = ["def build(E):", "  V = E.values", *(f"  {name} = E.{name}" for name in MACHINE_NAMES)]
        for index, (size, _) in enumerate(self.slots):
            head.append(f"  r{index}u = E.slots[{index}]")
            if size > 1:
                head.append(f"  r{index}s = r{index}u.view('i{size}')")
            if size > 2:
                head.append(f"  r{index}f = r{index}u.view('f{size}')")
        head += [f"  {name} = {text}" for text, name in self.constants.items()]
        head += [f"  {name} = torch.from_numpy({array})" for array, name in self.torch_views.items()]
        head += ["  F = []; M = []"]
        source = "\n".join([*head, *out, "  return F, M"])
        code = Code(source, self.slots, kept)
        names = dict(library())
        exec(compile(source, f"<{self.kernel.name}>", "exec"), names)      # our own text; the kernel's appears only as numbers
        code.build = names["build"]      # type: ignore[assignment]
        return code

    def function(self, block: Block, masked: bool) -> list[str]:
        """The lines of one block's function."""
        self.block, self.masked = block, masked
        self.body, self.prepared, self.folds = [], {}, set()
        last = {name: k for k, i in enumerate(block.instructions) for name in (*i.reads(), *i.writes())}
        for k, instruction in enumerate(block.instructions):
            self.instruction(instruction)
            for name in {*instruction.reads(), *instruction.writes()}:
                if name in self.analysis.private and last[name] == k and name in self.slot_of:
                    self.release(self.slot_of.pop(name))
        letter = "M" if masked else "F"
        head = [f"  def {letter.lower()}{block.index}(m):"]
        head += [f"    {name} = {text}" for name, text in (("mT", "fold_threads(m)"), ("mB", "fold_blocks(m)")) if name in self.folds]
        return [*head, *(f"    {line}" for line in self.body or ["pass"]), f"  {letter}.append({letter.lower()}{block.index})"]

    def instruction(self, instruction: Instruction) -> None:
        self.current, self.after, self.scratch = instruction, [], []
        self.mask = "m"
        self.guard = ""
        mark = len(self.body)
        try:
            handler = HANDLERS.get(instruction.root)
            if handler is None:
                raise Unsupported
            if instruction.guard is not None:
                self.guard = self.predicate(instruction.guard, instruction.negated)
                self.mask = f"both(m, {self.guard})"
            if not self.is_alias(instruction):
                handler(self, instruction)
        except (Unsupported, KeyError, IndexError, AttributeError, AssertionError) as error:
            # A form a handler did not expect is one it cannot run: say so when a lane gets there, never guess.
            del self.body[mark:]
            self.after = []
            what = str(error) if isinstance(error, Unsupported) and error.args else instruction.opcode
            self.line(f"unsupported({what!r}, {self.mask}, {instruction.line})")
            for name in instruction.writes():
                self.slot(name)
        self.body += self.after
        for slot in self.scratch:
            self.release(slot)
        for name in instruction.writes():
            self.prepared = {key: value for key, value in self.prepared.items() if name not in key}

    def line(self, text: str) -> None:
        self.body.append(text)

    # Registers ---------------------------------------------------------------------------------------------------

    def new_slot(self, name: str) -> int:
        return self.take((SIZES[self.kernel.registers[name]], self.analysis.classes[name]))

    def take(self, shape: tuple[int, int]) -> int:
        pool = self.free.setdefault(shape, [])
        if pool:
            return pool.pop()
        self.slots.append(shape)
        return len(self.slots) - 1

    def release(self, slot: int) -> None:
        self.free.setdefault(self.slots[slot], []).append(slot)

    def slot(self, name: str) -> int:
        if name not in self.slot_of:
            self.slot_of[name] = self.new_slot(name)
        return self.slot_of[name]

    def size(self, operand: Operand) -> int:
        """Bytes of a register; 0 for anything else."""
        return SIZES.get(self.kernel.registers.get(operand.name, ""), 0) if isinstance(operand, Register) else 0

    def classify(self, operand: Operand) -> int:
        """Class of an operand as it is stored."""
        if isinstance(operand, Register) and operand.name not in self.aliases:
            return self.analysis.classes.get(operand.name, BOTH if operand.name.startswith("%") else UNIFORM)
        return UNIFORM

    def predicate(self, register: Register, negated: bool) -> str:
        return f"~r{self.slot(register.name)}u" if negated else f"r{self.slot(register.name)}u"

    def read(self, operand: Operand, kind: str) -> str:
        """A source operand as the name of an array of PTX type `kind`."""
        if isinstance(operand, Negated):
            return f"(~{self.read(operand.register, 'pred')})"
        if isinstance(operand, Register) and operand.name in self.aliases:
            return self.sized(self.constant(self.aliases[operand.name], view_kind(kind), self.size(operand)), operand, kind)
        if isinstance(operand, Register) and operand.name in self.kernel.registers:
            seen = "u" if kind == "pred" else view_kind(kind)
            return self.sized(f"r{self.slot(operand.name)}{seen}", operand, kind)
        return self.constant(self.constant_text(operand, kind), view_kind(kind), SIZES[kind])

    def sized(self, array: str, operand: Register, kind: str) -> str:
        """A register wider than the type it is read as: its low part."""
        have, want = self.size(operand), SIZES[kind]
        if have == want or want == 1 and kind == "pred":
            return array
        if have < want or kind in FLOAT:
            raise Unsupported
        return f"{array[:-1]}{'s' if view_kind(kind) == 's' else 'u'}.astype('{'i' if view_kind(kind) == 's' else 'u'}{want}')" \
            if array[0] == "r" else f"{array}.astype('{'i' if view_kind(kind) == 's' else 'u'}{want}')"

    def constant(self, text: str, seen: str, size: int) -> str:
        """The name of an array that lasts for the launch: `text` gives it as unsigned."""
        if size == 1 and text.startswith("V.flag("):
            return self.constants.setdefault(text, f"k{len(self.constants)}")
        full = text if seen == "u" else f"{text}.view('{'i' if seen == 's' else 'f'}{size}')"
        return self.constants.setdefault(full, f"k{len(self.constants)}")

    def constant_text(self, operand: Operand, kind: str) -> str:
        """How the machine makes a constant operand, as an unsigned (1, 1) array (special registers: as they are)."""
        size = SIZES[kind]
        if isinstance(operand, Immediate):
            if kind == "pred":
                return f"V.flag({operand.value != 0})"
            value = operand.value
            if operand.kind != "int" and SIZES[operand.kind] != size:
                raise Unsupported
            return f"V.scalar({value & (1 << 8 * size) - 1}, {size})"
        if isinstance(operand, Symbol):
            if not self.kernel.knows(operand.name):
                raise Unsupported
            return f"V.symbol({operand.name!r}, {operand.offset}, {size})"
        if isinstance(operand, Register):
            if not is_special(operand.name):
                raise Unsupported(f"special register {operand.name}")
            return f"V.special({operand.name!r}, {size})"
        raise Unsupported

    def address(self, i: Instruction, operand: Operand, memory: str | None = None) -> tuple[str, str, int]:
        """The memory (by the opcode, if not given), the prepared address and the constant offset.

        An address is prepared once for each register and guard in a block.
        """
        if not isinstance(operand, Memory):
            raise Unsupported
        space = next((p for p in i.parts if p in SPACES), None)
        memory = memory or (SPACES[space] if space else "generic")
        base, offset = operand.base, operand.offset
        if isinstance(base, Symbol):
            offset, base = offset + base.offset, Symbol(base.name)
        if isinstance(base, Immediate):
            offset, base = offset + base.value, Immediate(0)
        name = base.name if isinstance(base, (Register, Symbol)) else "0"
        guard = i.guard.name if i.guard else ""
        key = (name, guard, str(i.negated), memory)
        if key not in self.prepared:
            size = self.size(base) or (8 if memory in ("gmem", "generic") else 4)
            self.prepared[key] = f"p{len(self.prepared)}_{len(self.body)}"
            self.line(f"{self.prepared[key]} = {memory}.prepare({self.read(base, f'u{8 * size}')}, {self.mask})")
        return memory, self.prepared[key], offset

    def torch(self, operand: Operand | str, kind: str) -> str:
        """The torch view of a float operand (or array name)."""
        array = operand if isinstance(operand, str) else self.read(operand, kind)
        return self.torch_views.setdefault(array, f"t{len(self.torch_views)}")

    def write(self, operand: Operand, kind: str) -> str:
        """The array to write a result of type `kind` to; it is merged into the register under the mask afterwards."""
        assert isinstance(operand, Register)
        name = operand.name
        slot, have = self.slot(name), self.size(operand)
        seen = "u" if have == 1 else view_kind(kind)
        if have < SIZES[kind]:
            raise Unsupported
        guarded = bool(self.guard)
        cls = self.analysis.classes[name]
        whole = not self.masked or name in self.analysis.private or cls == UNIFORM
        if whole and not guarded:
            return f"r{slot}{seen}"
        spare = self.take((have, cls))
        self.scratch.append(spare)
        where = "" if whole else {THREAD: "mT", BLOCK: "mB", BOTH: "m"}[cls]
        if where in ("mT", "mB"):
            self.folds.add(where)
        condition = f"{where} & {self.guard}" if where and guarded else where or self.guard
        self.after.append(f"copyto(r{slot}u, r{spare}u, where={condition})")
        return f"r{spare}{seen}"

    def wide_result(self, result: Operand, *sources: Operand) -> bool:
        """Whether a result varies over more than its sources together."""
        together = UNIFORM
        for source in sources:
            together |= self.classify(source)
        return self.classify(result) & ~together != 0

    # Values that are the same for the whole launch ---------------------------------------------------------------

    def launch_constants(self) -> dict[str, str]:
        """Registers defined once, as a parameter, literal, symbol or special register: read where they come from."""
        count: dict[str, int] = {}
        for block in self.kernel.blocks:
            for instruction in block.instructions:
                for name in instruction.writes():
                    count[name] = count.get(name, 0) + 1
        found: dict[str, str] = {}
        changed = True
        while changed:
            changed = False
            for block in self.kernel.blocks:
                for i in block.instructions:
                    if i.guard is None and i.args and isinstance(i.args[0], Register) and count.get(i.args[0].name) == 1 \
                            and i.args[0].name not in found:
                        text = self.launch_constant(i, found)
                        if text:
                            found[i.args[0].name] = text
                            changed = True
        return found

    def launch_constant(self, i: Instruction, found: dict[str, str]) -> str | None:
        size = self.size(i.args[0])
        if size < 2 or SIZES[i.type] != size:
            return None
        if i.root == "ld" and "param" in i.parts and len(i.parts) == 3 and isinstance(i.args[1], Memory) \
                and isinstance(i.args[1].base, Symbol):
            return f"V.parameter({i.args[1].base.name!r}, {i.args[1].offset}, {size})"
        if i.root == "mov" or i.opcode == "cvta.to.global.u64" or i.opcode == "cvta.global.u64":
            source = i.args[1]
            if isinstance(source, Register):
                if source.name in found and self.size(source) == size:
                    return found[source.name]
                if source.name in self.kernel.registers:
                    return None
            if isinstance(source, Register) and not is_special(source.name):
                return None
            if isinstance(source, (Register, Immediate)) or isinstance(source, Symbol) and self.kernel.knows(source.name):
                return self.constant_text(source, i.type)
        return None

    def is_alias(self, instruction: Instruction) -> bool:
        first = instruction.args[0] if instruction.args else None
        return instruction.has_result and isinstance(first, Register) and first.name in self.aliases
