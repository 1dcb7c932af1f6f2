"""Code for moves, loads, stores, atomics, collectives and control."""

from __future__ import annotations

from forge_tui.cuda.host.analyse import UNIFORM
from forge_tui.cuda.host.emit_async import asynchronous_store, wanted
from forge_tui.cuda.host.generate import SIGNED, SPACE_WORDS, Emitter, Unsupported, handles
from forge_tui.cuda.host.memory import LOCAL_WINDOW, SHARED_WINDOW
from forge_tui.cuda.host.ptx import SIZES, Group, Instruction, Memory, Operand, Register, Symbol
from forge_tui.cuda.host.sharing import is_fence

ATOMIC_OPERATIONS = ("add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec")


# Moves -----------------------------------------------------------------------------------------------------------


@handles("mov")
def _mov(e: Emitter, i: Instruction) -> None:
    target, source = i.args
    if isinstance(target, Group):
        return _unpack(e, i, target, source)
    if isinstance(source, Group):
        return _pack(e, i, target, source)
    kind = "pred" if i.type == "pred" else f"u{8 * SIZES[i.type]}"
    e.line(f"copyto({e.write(target, kind)}, {e.read(source, kind)})")


def _unpack(e: Emitter, i: Instruction, target: Group, source: Operand) -> None:
    bits = 8 * SIZES[i.type]
    part = bits // len(target.items)
    if bits > 64:
        raise Unsupported
    value = e.read(source, f"u{bits}")
    for k, item in enumerate(target.items):
        if isinstance(item, Register) and item.name != "_":
            shifted = f"{value} >> np.uint{bits}({part * k})" if k else value
            e.line(f"copyto({e.write(item, f'u{part}')}, {shifted}, casting='unsafe')")


def _pack(e: Emitter, i: Instruction, target: Operand, source: Group) -> None:
    bits = 8 * SIZES[i.type]
    part = bits // len(source.items)
    if bits > 64:
        raise Unsupported
    terms = []
    for k, item in enumerate(source.items):
        word = f"{e.read(item, f'u{part}')}.astype('u{bits // 8}')"
        terms.append(f"({word} << np.uint{bits}({part * k}))" if k else word)
    e.line(f"copyto({e.write(target, f'u{bits}')}, {' | '.join(terms)})")


@handles("cvta")
def _cvta(e: Emitter, i: Instruction) -> None:
    space = next((p for p in i.parts if p in SPACE_WORDS), None)
    window = {"local": LOCAL_WINDOW}.get(space or "", SHARED_WINDOW if (space or "").startswith("shared") else 0)
    if space is None or i.type != "u64":
        raise Unsupported
    value, d = e.read(i.args[1], "u64"), e.write(i.args[0], "u64")
    if not window:
        e.line(f"copyto({d}, {value})")
    else:
        e.line(f"np.{'subtract' if 'to' in i.parts else 'add'}({value}, np.uint64({window}), {d})")


@handles("isspacep")
def _isspacep(e: Emitter, i: Instruction) -> None:
    value, d = e.read(i.args[1], "u64"), e.write(i.args[0], "pred")
    windows = {"shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "shared::cluster": SHARED_WINDOW, "local": LOCAL_WINDOW}
    if i.parts[1] in ("shared", "shared::cta"):
        e.line(f"copyto({d}, (({value} >> np.uint64(40)) == {SHARED_WINDOW >> 40}) & cmem.is_near({value}))")
    elif i.parts[1] in windows:
        e.line(f"copyto({d}, ({value} >> np.uint64(40)) == {windows[i.parts[1]] >> 40})")
    elif i.parts[1] == "global":
        e.line(f"copyto({d}, ({value} >> np.uint64(40)) < {SHARED_WINDOW >> 40})")
    else:
        raise Unsupported


# Loads and stores ------------------------------------------------------------------------------------------------


@handles("ld", "ldu")
def _ld(e: Emitter, i: Instruction) -> None:
    if "param" in i.parts and isinstance(i.args[1], Memory) and isinstance(i.args[1].base, Symbol):
        return _ld_param(e, i)
    memory, address, offset = e.address(i, i.args[1])
    kind, items = i.type, i.args[0].items if isinstance(i.args[0], Group) else (i.args[0],)
    if kind == "b128":
        raise Unsupported
    size, results = SIZES[kind], []
    for item in items:
        dropped = not isinstance(item, Register) or item.name == "_"
        narrow = not dropped and e.size(item) > size
        results.append("None" if dropped else e.write(item, kind if narrow and kind in SIGNED else f"u{8 * size}"))
    sign = "i" if kind in SIGNED and any(isinstance(x, Register) and e.size(x) > size for x in items) else "u"
    e.line(f"{memory}.load({address}, {offset}, {size}, ({', '.join(results)},), {sign!r}, {i.line}{_ordered(i)})")
    if _ordered(i):
        e.line(f"gmem.signal({e.mask}, True, False)")


def _ld_param(e: Emitter, i: Instruction) -> None:
    assert isinstance(i.args[1], Memory) and isinstance(i.args[1].base, Symbol)
    kind, size = i.type, SIZES[i.type]
    for k, item in enumerate(i.args[0].items if isinstance(i.args[0], Group) else (i.args[0],)):
        value = f"V.parameter({i.args[1].base.name!r}, {i.args[1].offset + k * size}, {size})"
        if kind in SIGNED:
            value += f".view('i{size}')"
        name = e.constants.setdefault(value, f"k{len(e.constants)}")
        e.line(f"copyto({e.write(item, kind if kind in SIGNED else f'u{8 * size}')}, {name})")


@handles("st")
def _st(e: Emitter, i: Instruction) -> None:
    kind, size = i.type, SIZES[i.type]
    if "async" in i.parts:
        return asynchronous_store(e, i)
    if kind == "b128":
        raise Unsupported
    memory, address, offset = e.address(i, i.args[0])
    items = i.args[1].items if isinstance(i.args[1], Group) else (i.args[1],)
    values = ", ".join(e.read(item, f"u{8 * size}") for item in items)
    if is_fence(i.root, i.parts):
        e.line(f"gmem.fence({e.mask})")
    if _ordered(i):
        e.line(f"gmem.signal({e.mask}, False, True)")
    e.line(f"{memory}.store({address}, {offset}, {size}, ({values},), {e.mask}, {i.line}{_ordered(i)})")


@handles("createpolicy")
def _createpolicy(e: Emitter, i: Instruction) -> None:
    """A cache policy: loads and stores that take one are counted like any other."""
    e.line(f"copyto({e.write(i.args[0], 'u64')}, np.uint64(0))")


def _ordered(i: Instruction) -> str:
    """Whether an access is meant to be seen by other lanes at once: a signal, not a race."""
    return ", True" if {"volatile", "relaxed", "acquire", "release", "mmio"} & set(i.parts) else ""


@handles("atom", "red")
def _atom(e: Emitter, i: Instruction) -> None:
    operation = next((p for p in i.parts if p in ATOMIC_OPERATIONS), None)
    has_result = i.root == "atom"
    operands = i.args[1:] if has_result else i.args
    if "async" in i.parts:
        return asynchronous_store(e, i)
    if operation is None or operation == "cas" and isinstance(operands[1], Group):
        raise Unsupported
    kind = i.type
    seen = kind if kind in SIGNED or kind in ("f32", "f64") else f"u{8 * SIZES[kind]}"
    memory, address, offset = e.address(i, operands[0])
    if isinstance(operands[1], Group):
        values = ", ".join(e.read(x, seen) for x in operands[1].items)
        results = ", ".join(wanted(e, x, seen) for x in i.args[0].items) if isinstance(i.args[0], Group) else ""
        return e.line(f"atomic.vector({memory}, {address}, {offset}, {operation!r}, {kind!r}, ({values},), ({results}), {e.mask}, {i.line})")
    values = ", ".join(e.read(x, seen) for x in operands[1:])
    result = "None"
    if has_result and isinstance(i.args[0], Register) and i.args[0].name != "_" and _is_read(e, i.args[0].name):
        result = e.write(i.args[0], seen)
    if is_fence(i.root, i.parts):
        e.line(f"gmem.fence({e.mask})")
    if memory != "smem":
        e.line(f"gmem.signal({e.mask}, True, True)")
    e.line(f"atomic({memory}, {address}, {offset}, {operation!r}, {kind!r}, ({values},), {result}, {e.mask}, {i.line})")


def _is_read(e: Emitter, name: str) -> bool:
    return any(name in x.reads() for block in e.kernel.blocks for x in block.instructions)


@handles("prefetch", "prefetchu", "membar", "fence", "nanosleep", "discard", "applypriority", "griddepcontrol", "pmevent")
def _nothing(e: Emitter, i: Instruction) -> None:
    """Hints, and orders that lanes in lock step have anyway; blocks have them by fences only."""
    if "tensormap" in i.opcode:
        raise Unsupported
    if "proxy" in i.parts and "async" in i.opcode:
        e.line(f"bulk.fence({e.mask})")
    elif is_fence(i.root, i.parts):
        e.line(f"gmem.fence({e.mask})")


# Warp collectives ------------------------------------------------------------------------------------------------


@handles("shfl")
def _shfl(e: Emitter, i: Instruction) -> None:
    if "sync" not in i.parts:
        raise Unsupported
    targets = i.args[0].items if isinstance(i.args[0], Group) else (i.args[0],)
    value, offset, clamp, members = (e.read(a, "u32") for a in i.args[1:])
    d = e.write(targets[0], "u32") if isinstance(targets[0], Register) and targets[0].name != "_" else "None"
    inside = e.write(targets[1], "pred") if len(targets) > 1 and _is_read(e, targets[1].name) else "None"
    mode = next(p for p in i.parts if p in ("up", "down", "bfly", "idx"))
    e.line(f"warps.shuffle({mode!r}, {d}, {inside}, {value}, {offset}, {clamp}, {members}, {e.mask}, {i.line})")


@handles("vote")
def _vote(e: Emitter, i: Instruction) -> None:
    mode = next(p for p in i.parts if p in ("all", "any", "uni", "ballot"))
    flags, members = e.read(i.args[1], "pred"), e.read(i.args[2], "u32")
    d = e.write(i.args[0], "u32" if mode == "ballot" else "pred")
    e.line(f"warps.vote({mode!r}, {d}, {flags}, {members}, {e.mask}, {i.line})")


@handles("activemask")
def _activemask(e: Emitter, i: Instruction) -> None:
    e.line(f"warps.active_mask({e.write(i.args[0], 'u32')}, {e.mask})")


@handles("match")
def _match(e: Emitter, i: Instruction) -> None:
    targets = i.args[0].items if isinstance(i.args[0], Group) else (i.args[0],)
    value, members = e.read(i.args[1], f"u{8 * SIZES[i.type]}"), e.read(i.args[2], "u32")
    d = e.write(targets[0], "u32")
    same = e.write(targets[1], "pred") if len(targets) > 1 else "None"
    e.line(f"warps.match({i.parts[1]!r}, {d}, {same}, {value}, {members}, {e.mask}, {i.line})")


@handles("redux")
def _redux(e: Emitter, i: Instruction) -> None:
    mode = next(p for p in i.parts if p in ("add", "min", "max", "and", "or", "xor"))
    kind = i.type if i.type in SIGNED else "u32"
    if i.type == "f32":
        raise Unsupported
    value, members = e.read(i.args[1], kind), e.read(i.args[2], "u32")
    e.line(f"warps.reduce({mode!r}, {e.write(i.args[0], kind)}, {value}, {members}, {e.mask}, {i.line})")


@handles("elect")
def _elect(e: Emitter, i: Instruction) -> None:
    targets = i.args[0].items if isinstance(i.args[0], Group) else (i.args[0],)
    d = e.write(targets[0], "u32") if isinstance(targets[0], Register) and targets[0].name != "_" else "None"
    e.line(f"warps.elect({d}, {e.write(targets[1], 'pred')}, {e.read(i.args[1], 'u32')}, {e.mask}, {i.line})")


# Control: what the scheduler needs to know -----------------------------------------------------------------------


@handles("bra", "ret", "exit")
def _branch(e: Emitter, i: Instruction) -> None:
    """The lanes that take a conditional branch; where to is the scheduler's knowledge."""
    if i.guard is None:
        return
    if e.classify(i.guard) == UNIFORM:
        e.line(f"return {'not ' if i.negated else ''}r{e.slot(i.guard.name)}u.item()")
    else:
        e.line(f"return {e.guard}")


@handles("brx")
def _brx(e: Emitter, i: Instruction) -> None:
    if i.guard is not None:
        raise Unsupported
    e.line(f"return {e.read(i.args[0], 'u32')}")


@handles("trap")
def _trap(e: Emitter, i: Instruction) -> None:
    e.line(f"trap({'assert' in i.parts}, {e.mask}, {i.line})")


@handles("bar", "barrier")
def _bar(e: Emitter, i: Instruction) -> None:
    if i.guard is not None:
        raise Unsupported
    if "warp" in i.parts:
        return e.line(f"warps.sync({e.read(i.args[0], 'u32')}, {e.mask}, {i.line})")
    if "cluster" in i.parts:
        return
    operands = i.args
    if "red" in i.parts:
        operands = i.args[1:-1]
        flags = e.read(i.args[-1], "pred")
        mode = next(p for p in i.parts if p in ("popc", "and", "or"))
        kind = "u32" if mode == "popc" else "pred"
        e.mask = "w"
        masked, e.masked = e.masked, True        # the result comes when all have arrived, for the lanes that then go on
        e.folds = set(e.folds)
        d = e.write(i.args[0], kind)
        e.masked = masked
        tail = "; ".join(text.replace("where=mT", "where=fold_threads(w)").replace("where=mB", "where=fold_blocks(w)")
                         .replace("where=m)", "where=w)") for text in e.after)
        e.folds -= {"mT", "mB"} if not masked else set()
        e.after = []
        e.line(f"def give(v, w): copyto({d}, v)" + (f"; {tail}" if tail else ""))
        number = ", ".join(e.read(x, "u32") for x in operands)
        return e.line(f"return bar_red({mode!r}, {flags}, give, ({number},))")
    e.line(f"return ({', '.join(e.read(x, 'u32') for x in operands)}{',' if operands else ''})")
